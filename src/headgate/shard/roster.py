"""Who belongs to a shard, as one agent knows: its own databases, others' agents, and skips."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from headgate.check.board import Board
from headgate.metrics.samples import Instant
from headgate.shard.members import HEARSAY, UNASKED, LocalMember, RemoteMember
from headgate.shard.model import Skip
from headgate.shard.topology import Downstream, Member, Role, RoleSeen


class Roster:
    def __init__(self) -> None:
        self.locals: dict[str, LocalMember] = {}
        """By database."""
        self.remotes: dict[str, RemoteMember] = {}
        """By member name."""
        self.skips: Mapping[str, Skip] = MappingProxyType({})

    def local_primary(self, now: float) -> LocalMember | None:
        return next((m for m in self.locals.values() if m.is_primary(now)), None)

    def members(self, board: Board, now: float, url: str) -> list[Member]:
        ours = [
            Member(local.name, "", True, local.report(board, now, url))
            for local in self.locals.values()
        ]
        return [*ours, *(remote.member() for remote in self.distinct())]

    def distinct(self) -> Iterator[RemoteMember]:
        """Without those that nobody named and that turn out to be known by another name, or to
        be no members."""
        for remote in self.remotes.values():
            if remote.source in UNASKED and (self.is_taken(remote) or self.doubt(remote)):
                continue
            yield remote

    def doubt(self, remote: RemoteMember) -> str:
        """Why a member that no operator named does not count; empty: it does. A mere report must
        not stop a shard, nor must a shard of the same name elsewhere."""
        if remote.source not in UNASKED:
            return ""
        told, role = remote.source in HEARSAY, remote.role()
        if role is not None and self.is_foreign(role) and (told or not self.is_fed(remote)):
            return f"its server belongs to another cluster ({role.cluster}), not to this shard"
        if not told or remote.has_answered or self.is_fed(remote):
            return ""
        return remote.lost.detail if remote.lost else "it has not answered yet"

    def doubted(self) -> dict[str, str]:
        """Those that do not count, by name, and why."""
        doubts = ((remote, self.doubt(remote)) for remote in self.remotes.values())
        return {
            remote.name: f"does not count: {why}"
            for remote, why in doubts
            if why and not self.is_taken(remote)
        }

    def is_fed(self, remote: RemoteMember) -> bool:
        """By one of our own servers, as that lists its replicas: by its id, its name, or its host
        where no other member has the name."""
        host = urlsplit(remote.url).hostname
        return any(
            _has_its_id(remote, found)
            or found.name == remote.name
            or (found.host == host and not self._has(found.name))
            for found in self.downstream()
        )

    def _has(self, name: str) -> bool:
        return name in self.remotes or any(local.name == name for local in self.locals.values())

    def is_foreign(self, role: RoleSeen) -> bool:
        """Of a server of another cluster than all of ours: of other data, whatever its shard is
        called."""
        own = {local.role.cluster for local in self.locals.values() if local.role} - {""}
        return bool(own) and role.cluster not in {"", *own}

    def is_taken(self, remote: RemoteMember) -> bool:
        """Whether its agent calls itself by the name of another member."""
        called = remote.report.name if remote.report else remote.name
        own = {local.name for local in self.locals.values()}
        return called != remote.name and (called in own or called in self.remotes)

    def double_of(self, name: str) -> str | None:
        """Why this member looks the same as another one, if so: a name or address was copied, and
        it may hide a member that is not read."""
        remote = self.remotes.get(name)
        if remote is None or remote.source in UNASKED:
            return None
        if self.is_taken(remote) and remote.report is not None:
            called = remote.report.name
            return f"its agent calls itself {called}, the name of another member: check its url"
        doubles = [o.name for o in self.remotes.values() if o.url == remote.url and o is not remote]
        return f"it has the same url as {doubles[0]}" if doubles else None

    @property
    def role_max_age_s(self) -> float:
        return max(local.watcher.max_age_s for local in self.locals.values())

    def had_primary(self) -> bool:
        """However old our role is by now: it is not read again while we rest."""
        roles = (local.role for local in self.locals.values())
        return any(role is not None and role.role is Role.PRIMARY for role in roles)

    def downstream(self) -> Iterator[Downstream]:
        """Replicas that our own servers list."""
        for local in self.locals.values():
            if local.role is not None:
                yield from local.role.downstream

    def unwatched(self) -> list[Downstream]:
        """Each member answers for one replica: that of its server's id, else that of its name,
        else one of its host. Those that are left and say that they follow our server answer for
        what is left of its list, if they are as many: one server may have several names and
        addresses, `localhost` for one."""
        if len(self.locals) > 1:
            return []  # This agent probes the shard directly; its settings say what to watch.
        own = {local.name for local in self.locals.values()}
        keys = ((found.name, found.host, found.server_id) for found in self.downstream())
        listed = list(dict(zip(keys, self.downstream(), strict=True)).values())
        left = list(self.remotes.values())
        for is_its in (_has_its_id, _has_its_name, _has_its_host):
            listed = _without_answered(listed, left, is_its)
        unknown = [found for found in listed if found.name not in own]
        followers = sum(self._follows_us(remote) for remote in left)
        return unknown if len(unknown) > followers else []

    def _follows_us(self, remote: RemoteMember) -> bool:
        """Directly, by the ids of the servers; where they have none, by their cluster and the
        port that it replicates from, if no replica has replicas of its own."""
        [ours], its = [local.role for local in self.locals.values()], _last_role(remote)
        if ours is None or its is None or its.role is not Role.REPLICA:
            return False
        if ours.server_id:
            return its.upstream_id == ours.server_id
        others = (_last_role(other) for other in self.remotes.values())
        cascades = any(role is not None and role.downstream for role in others)
        port = its.upstream.rpartition(":")[2]
        same = its.cluster == ours.cluster != "" and port == str(ours.port)
        return same and not cascades

    def is_skipped(self, name: str, now: Instant) -> bool:
        skip = self.skips.get(name)
        return skip is not None and skip.holds(now)


def _without_answered(
    listed: list[Downstream],
    left: list[RemoteMember],
    is_its: Callable[[RemoteMember, Downstream], bool],
) -> list[Downstream]:
    """Those that no member of `left` answers for; who answers is taken out of it."""
    unanswered = []
    for found in listed:
        remote = next((remote for remote in left if is_its(remote, found)), None)
        if remote is None:
            unanswered.append(found)
        else:
            left.remove(remote)
    return unanswered


def _last_role(remote: RemoteMember) -> RoleSeen | None:
    """Also of one that does not answer now: its server is the same."""
    return remote.role() or (remote.report.role if remote.report else None)


def _server_id(remote: RemoteMember) -> str:
    role = _last_role(remote)
    return role.server_id if role else ""


def _has_its_id(remote: RemoteMember, found: Downstream) -> bool:
    return bool(found.server_id) and _server_id(remote) == found.server_id


def _has_its_name(remote: RemoteMember, found: Downstream) -> bool:
    return remote.name == found.name and _may_be(remote, found)


def _has_its_host(remote: RemoteMember, found: Downstream) -> bool:
    return urlsplit(remote.url).hostname == found.host and _may_be(remote, found)


def _may_be(remote: RemoteMember, found: Downstream) -> bool:
    """Ids that differ say that the agent is beside another server, whatever it is called."""
    return not found.server_id or _server_id(remote) in ("", found.server_id)
