"""Who belongs to a shard, as one agent knows: its own databases, others' agents, and skips.

Succession says who led it, one after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from headgate.check.board import Board
from headgate.metrics.samples import Absent, Cause, Instant
from headgate.shard.members import HEARSAY, UNASKED, LocalMember, RemoteMember, ShardPlan
from headgate.shard.model import Skip
from headgate.shard.topology import (
    Downstream,
    Following,
    Leading,
    Member,
    Role,
    RoleSeen,
    Standpoint,
    Unled,
    standpoint,
)


class Roster:
    def __init__(self, shard: str, url: str) -> None:
        self.shard = shard
        self.url = url
        """Of this agent, as other agents get it."""
        self.locals: dict[str, LocalMember] = {}
        """By database."""
        self.remotes: dict[str, RemoteMember] = {}
        """By member name."""
        self.aliases: set[str] = set()
        """Further addresses of members that are known by another address."""
        self.skips: Mapping[str, Skip] = MappingProxyType({})

    @property
    def plans(self) -> list[ShardPlan]:
        return [local.plan for local in self.locals.values()]

    def names(self) -> set[str]:
        """Of all members, ours and others'."""
        return {*self.remotes, *(local.name for local in self.locals.values())}

    def has(self, name: str) -> bool:
        return name in self.remotes or any(local.name == name for local in self.locals.values())

    def local_primary(self, now: float) -> LocalMember | None:
        return next((m for m in self.locals.values() if m.is_primary(now)), None)

    def members(self, board: Board, now: float) -> list[Member]:
        ours = [
            Member(local.name, "", True, local.report(board, now, self.url))
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
        return any(
            _has_its_id(remote, found)
            or found.name == remote.name
            or (found.host == _host(remote) and not self.has(found.name))
            for found in self.downstream()
        )

    def is_foreign(self, role: RoleSeen) -> bool:
        """Of a server of another cluster than all of ours: of other data, whatever its shard is
        called."""
        own = self.clusters()
        return bool(own) and role.cluster not in {"", *own}

    def clusters(self) -> set[str]:
        """Of our own servers, as far as they report one."""
        return {local.role.cluster for local in self.locals.values() if local.role} - {""}

    def is_taken(self, remote: RemoteMember) -> bool:
        """Whether its agent calls itself by the name of another member."""
        called = remote.report.name if remote.report else remote.name
        return called != remote.name and self.has(called)

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
        for is_its in (
            _has_its_id,
            lambda remote, found: remote.name == found.name and _may_be(remote, found),
            lambda remote, found: _host(remote) == found.host and _may_be(remote, found),
        ):
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

    def renew_beats(self, asked_at: float) -> None:
        """A client checked a member at that time, here or elsewhere."""
        for local in self.locals.values():
            if local.heartbeat is not None:
                local.heartbeat.renew(asked_at)


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


def _host(remote: RemoteMember) -> str | None:
    return urlsplit(remote.url).hostname


def _may_be(remote: RemoteMember, found: Downstream) -> bool:
    """Ids that differ say that the agent is beside another server, whatever it is called."""
    return not found.server_id or _server_id(remote) in ("", found.server_id)


# --- succession ----------------------------------------------------------------------------------

# Which members led a shard one after another, and what this agent may answer because of it.
#
#     members ──Succession.stand──► Leading, Following or Unled (shard/topology)
#
# shard/topology looks at one moment. What needs a memory is here: another primary that was never
# seen to step down blocks us (a split brain does not end when one side goes out of sight). A
# primary before ours does not.

HINT_MAX_AGE_S = 300.0
"""How old a memory of the primary may be and still be worth a request."""
MAX_RIVALS = 16
RIVAL_MEMORY_S = 600.0
"""How long another primary that has vanished blocks us, if no term shows which one won."""


class Succession:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._rivals: dict[str, RoleSeen] = {}
        self._reigns: dict[str, tuple[int | None, float]] = {}
        """For each member that says it is the primary: its term, and since when it says so."""
        self.told: Callable[[], str] = lambda: ""
        """The leader as Patroni or the fleet's store reports it; empty: none is reported."""
        self.told_words: Callable[[], tuple[str, ...]] = tuple
        """What they report about the shard, for display."""

    def forget(self, name: str) -> None:
        self._rivals.pop(name, None)

    def hear(self, stranger: str, role: RoleSeen | None, now: float) -> None:
        """One that is no member here pulled from us: if it is a primary, too, we are two."""
        if role is None or role.role is Role.REPLICA:
            self._rivals.pop(stranger, None)
        elif self._roster.local_primary(now) is not None and len(self._rivals) < MAX_RIVALS:
            self._rivals[stranger] = role

    def is_unknown(self, members: list[Member], now: float) -> bool:
        """Whether nobody is known to be the primary, not even from memory."""
        point = standpoint(members, now=now, max_age_s=self._roster.role_max_age_s)
        return isinstance(point, Unled) and point.absent.cause is Cause.NO_PRIMARY

    def stand(self, members: list[Member], now: Instant) -> Standpoint:
        self._note_rivals(now.mono_s)
        self._note_reigns(members, now.mono_s)
        point = standpoint(members, now=now.mono_s, max_age_s=self._roster.role_max_age_s)
        if isinstance(point, Leading):
            rival = self._rival(point, now)
            return point if rival is None else Unled(rival)
        if isinstance(point, Unled) and point.absent.cause is Cause.NO_PRIMARY:
            return self._hint(point, now.mono_s)
        if isinstance(point, Unled) and point.absent.cause is Cause.SPLIT_BRAIN:
            return self._succession(point, members, now.mono_s)
        return point

    def _succession(self, point: Unled, members: list[Member], now: float) -> Standpoint:
        """One primary after another is no split brain, unless the first says it again."""
        primaries = self._note_reigns(members, now)
        newest = max(primaries, key=lambda name: self._reigns[name][1])
        began_at = self._reigns[newest][1]
        before = {name: role for name, (_, role) in primaries.items() if name != newest}
        if any(role.taken_at >= began_at for role in before.values()):
            # Which of the two is the right one a trusted source may report: contact its agent.
            # That agent decides whether it may answer: our own never leads by this.
            told = primaries[self.told()][0] if self.told() in primaries else None
            return point if told is None or told.local else _following(told)
        member = primaries[newest][0]
        if not member.local:
            return _following(member)
        detail = f"{newest} follows {', '.join(before)} as the primary, and waits for its report"
        return Unled(Absent(Cause.WARMING_UP, detail, now))

    def _note_reigns(self, members: list[Member], now: float) -> dict[str, tuple[Member, RoleSeen]]:
        """Who says now that it is the primary, by name."""
        found = {
            member.name: (member, member.report.role)
            for member in members
            if member.report is not None
            and member.report.role is not None
            and member.role_of(now=now, max_age_s=self._roster.role_max_age_s) is Role.PRIMARY
        }
        for name in self._reigns.keys() - found.keys():
            del self._reigns[name]
        for name, (_, role) in found.items():
            if name not in self._reigns or self._reigns[name][0] != role.term:
                self._reigns[name] = (role.term, role.taken_at)
        return found

    def _rival(self, point: Leading, now: Instant) -> Absent | None:
        """Another primary that we have seen beside our own, and that nobody saw step down."""
        for name, role in self._rivals.items():
            older = role.term is not None and point.term is not None and role.term < point.term
            forgotten = now.mono_s - role.taken_at > RIVAL_MEMORY_S
            skip = self._roster.skips.get(name)
            if older or forgotten or (skip is not None and skip.holds(now)):
                continue
            detail = f"{name} also said that it is the primary, and was not seen to step down"
            return Absent(Cause.SPLIT_BRAIN, detail, now.mono_s)
        return None

    def _note_rivals(self, now: float) -> None:
        local, began_at = self._roster.local_primary(now), math.inf
        if local is not None and local.role is not None:
            # What others said of themselves before, they may have ceased to be since.
            began_at = self._reigns.get(local.name, (None, local.role.taken_at))[1]
        for name, remote in self._roster.remotes.items():
            role = remote.role()
            if role is None or self._roster.doubt(remote):
                continue
            if role.role is Role.REPLICA:
                self._rivals.pop(name, None)
            elif began_at <= role.taken_at and now - role.taken_at <= self._roster.role_max_age_s:
                self._rivals[name] = role
        own = [local.role for local in self._roster.locals.values()]
        if all(role is not None and role.role is Role.REPLICA for role in own):
            self._rivals.clear()

    def _hint(self, point: Unled, now: float) -> Standpoint:
        """The primary is unknown; the agent of the last one knows better."""
        known = [
            (role.taken_at, remote)
            for remote in self._roster.distinct()
            if (role := remote.role()) is not None and role.role is Role.PRIMARY
        ]
        if any(local.role is None for local in self._roster.locals.values()):
            return point
        if not known:
            # No member here knows a primary; contact the reported one, if it can be reached.
            told = self._roster.remotes.get(self.told())
            return point if told is None or told.lost is not None else _following(told)
        taken_at, remote = max(known, key=lambda item: item[0])
        return point if now - taken_at > HINT_MAX_AGE_S else _following(remote)


def _following(member: Member | RemoteMember) -> Following:
    return Following(member.name, (member.report.url if member.report else "") or member.url)
