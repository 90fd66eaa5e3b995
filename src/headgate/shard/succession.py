"""Which members led a shard one after another, and what this agent may answer because of it.

    members ──Succession.stand──► Leading, Following or Unled (shard/topology)

shard/topology looks at one moment. What needs a memory is here: another primary that was never seen
to step down blocks us (a split brain does not end when one side goes out of sight). A primary
before ours does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headgate.metrics.samples import Absent, Cause, Instant
from headgate.shard.members import LocalMember
from headgate.shard.roster import Roster
from headgate.shard.topology import (
    Following,
    Leading,
    Member,
    Role,
    RoleSeen,
    Standpoint,
    Unled,
    standpoint,
)

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
            return self._told_way(primaries) or point
        member = primaries[newest][0]
        if not member.local:
            return Following(newest, (member.report.url if member.report else "") or member.url)
        detail = f"{newest} follows {', '.join(before)} as the primary, and waits for its report"
        return Unled(Absent(Cause.WARMING_UP, detail, now))

    def _told_way(self, primaries: dict[str, tuple[Member, RoleSeen]]) -> Following | None:
        """Which of two primaries is the right one, if a trusted source reports it: contact its
        agent. That agent decides whether it may answer: our own never leads by this."""
        member = primaries[self.told()][0] if self.told() in primaries else None
        if member is None or member.local:
            return None
        return Following(member.name, (member.report.url if member.report else "") or member.url)

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
            if older or forgotten or self._roster.is_skipped(name, now):
                continue
            detail = f"{name} also said that it is the primary, and was not seen to step down"
            return Absent(Cause.SPLIT_BRAIN, detail, now.mono_s)
        return None

    def _note_rivals(self, now: float) -> None:
        began_at = self._began_at(self._roster.local_primary(now))
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

    def _began_at(self, local: LocalMember | None) -> float:
        """What others said of themselves before, they may have ceased to be since."""
        if local is None or local.role is None:
            return math.inf
        return self._reigns.get(local.name, (None, local.role.taken_at))[1]

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
            return self._told_hint() or point
        taken_at, remote = max(known, key=lambda item: item[0])
        if now - taken_at > HINT_MAX_AGE_S:
            return point
        told = remote.report.url if remote.report else ""
        return Following(remote.name, told or remote.url)

    def _told_hint(self) -> Following | None:
        """No member here knows a primary; contact the reported one, if it can be reached."""
        remote = self._roster.remotes.get(self.told())
        if remote is None or remote.lost is not None:
            return None
        return Following(remote.name, (remote.report.url if remote.report else "") or remote.url)
