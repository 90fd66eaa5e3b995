"""Who belongs to a shard, as one agent knows: its own databases, others' agents, and skips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from headgate.agent.board import Board
from headgate.agent.members import HEARSAY, UNASKED, LocalMember, RemoteMember
from headgate.core.shard import Skip
from headgate.core.topology import Downstream, Member, Role, RoleSeen


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
        """Why one that nobody named does not count; empty: it does. A word that nobody stands for
        may not stop a shard, nor may a shard of the same name elsewhere."""
        if remote.source not in UNASKED:
            return ""
        told, role = remote.source in HEARSAY, remote.role()
        if role is not None and self.is_foreign(role) and (told or not self.is_fed(remote)):
            return f"its server belongs to another cluster ({role.cluster}): no member of ours"
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
        """By one of our own servers, as that lists its replicas: by its name, or by its host where
        no other member has the name."""
        host = urlsplit(remote.url).hostname
        return any(
            found.name == remote.name or (found.host == host and not self._has(found.name))
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
        """Why this member cannot be told from another one, if that is so: somebody's name or
        address was copied, and it may hide a member that nobody reads."""
        remote = self.remotes.get(name)
        if remote is None or remote.source in UNASKED:
            return None
        if self.is_taken(remote) and remote.report is not None:
            called = remote.report.name
            return f"its agent calls itself {called}, as another member is called: look at its url"
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

    def unwatched(self) -> Iterator[Downstream]:
        """Each member answers for one replica: that of its name, or else one of its host."""
        if len(self.locals) > 1:
            return  # This agent probes the shard directly; what it is to watch, it was told.
        own = {local.name for local in self.locals.values()}
        hosts = {remote.name: urlsplit(remote.url).hostname for remote in self.remotes.values()}
        listed = {(found.name, found.host): found for found in self.downstream()}.values()
        for found in [found for found in listed if not hosts.pop(found.name, None)]:
            beside = next((name for name, host in hosts.items() if host == found.host), None)
            if beside is not None:
                del hosts[beside]
            elif found.name not in own:
                yield found

    def is_skipped(self, name: str, wall_s: float) -> bool:
        skip = self.skips.get(name)
        return skip is not None and skip.holds(wall_s)
