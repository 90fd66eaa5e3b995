"""What operators set for the members of shards: skips, peers and handovers.

operators ──skip, add_peer, hand_over──► log ──follow──► MemberKeeper ──► Shard
a file of changes + LogState ──MemberRoom──► Change
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Unpack

import structlog

from headgate.base.advice import Advice
from headgate.base.declared import iso, parse_date_time, parse_for, unknown
from headgate.base.names import parse_database
from headgate.base.ports import Clock
from headgate.base.units import duration_text
from headgate.changes.file_format import FileEntry
from headgate.changes.items import By, Make, ReachOf, SetItems, always_here, put, standing
from headgate.changes.model import OURSELVES, Change, ChangeKind, Edit
from headgate.changes.reach import HERE, Level, Place, Reach, of_shard
from headgate.changes.state import ChangeMade, Draft, LogState, stands
from headgate.changes.time import ChangeTime
from headgate.errors import (
    Conflict,
    Fault,
    HeadgateError,
    InvalidName,
    InvalidRequest,
    InvalidSettings,
    StoreUnavailable,
)
from headgate.metrics.samples import Instant
from headgate.rules.drafts import ChangeAuthor
from headgate.shard.members import PATRONI, LocalMember, PeerPlan
from headgate.shard.membership import Membership
from headgate.shard.model import MAX_HANDOVER_S, MAX_MEMBERS, MAX_SKIP_S, Handover, Skip
from headgate.shard.shard import Shard
from headgate.shard.topology import Following, Role

log = structlog.get_logger()

SKIP, PEER = ChangeKind.SKIP, ChangeKind.PEER
"""Of a member, by its shard and its name."""
HANDOVER = ChangeKind.HANDOVER
"""One for each shard, by its name."""
MEMBERS = (PEER, SKIP, HANDOVER)
RUNTIME = "runtime"
"""The source of a member that an operator added."""
MAX_REASON_CHARS = 500

DraftOf = Callable[[LogState, ChangeAuthor], Draft]


class NoSuchShard(HeadgateError, LookupError):
    pass


class NoSuchMember(HeadgateError, LookupError):
    pass


@dataclass(frozen=True, slots=True)
class MemberLog:
    """The agent's own log, which has what operators set for members."""

    make: Make
    time: ChangeTime
    reach_of: ReachOf = always_here


class MemberKeeper:
    def __init__(
        self,
        membership: Membership,
        clock: Clock,
        kept_in: MemberLog,
        shard_of: Callable[[str], Shard],
    ) -> None:
        """`shard_of`: that of a database, or NoSuchShard."""
        self._membership = membership
        self._clock = clock
        self._own = kept_in
        self._shard_of = shard_of
        self._skips = SetItems(SKIP, _skip_of, kept_in.time, concerns=_is_of_its_shard)
        self._peers = SetItems(PEER, _peer_of, kept_in.time, concerns=_is_of_its_shard)
        self.handovers = Handovers(clock, kept_in)
        self.make_shared: Make | None = None
        """To the log that a fleet shares; None: there is none."""
        self.lock = asyncio.Lock()
        """While shards or their members are exchanged for others."""

    @property
    def kept(self) -> tuple[SetItems[Any], ...]:
        """What operators set, of each kind."""
        return self._skips, self._peers, self.handovers.kept

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        """What operators set, at this agent or for its shards. A handover is announced at the
        primary's agent alone."""
        async with self.lock:
            skips = self._skips.follow(items, whole=whole, own=own)
            skipped = {_split(name)[0] for name in skips}
            handed_over = self.handovers.kept.follow(items, whole=whole) if own else []
            peers = [_split(name) for name in self._peers.follow(items, whole=whole, own=own)]
            each = self._membership.each
            for shard in [one for name, one in each.items() if name in skipped]:
                self._set_skips(shard)
            for shard in [one for name, one in each.items() if name in handed_over]:
                self.handovers.set_in(shard)
            for name, member in peers:
                if name in each:
                    await self._set_peer(each[name], member)

    def set_in(self, shard: Shard) -> None:
        """In a new shard."""
        for name, member in map(_split, self._peers.values):
            if name == shard.name:
                self._add_peer(shard, member)
        self._set_skips(shard)
        self.handovers.set_in(shard)

    def _set_skips(self, shard: Shard) -> None:
        shard.roster.skips = MappingProxyType(
            {s.member: s for s in self._skips.values.values() if s.shard == shard.name}
        )
        shard.roll()

    async def _set_peer(self, shard: Shard, member: str) -> None:
        """As the log has it now."""
        remote = shard.remotes.get(member)
        if remote is not None and remote.source == RUNTIME:
            await shard.remove_remote(member)
        self._add_peer(shard, member)

    def _add_peer(self, shard: Shard, member: str) -> None:
        peer, roster = self._peers.values.get(_id(shard, member)), shard.roster
        if peer is None or member in shard.remotes:
            return
        # One added at another agent of the shard also reaches the agent that it names.
        if not roster.has(peer.name) and peer.url not in {roster.url, *roster.aliases}:
            self._membership.try_to_add(shard, peer, RUNTIME)

    # --- for operators ---------------------------------------------------------------------

    def skips(self, database: str) -> list[Skip]:
        name, now = self._shard_of(database).name, self._clock.now()
        return [s for s in self._skips.values.values() if s.shard == name and s.holds(now)]

    async def skip(
        self,
        database: str,
        member: str,
        *,
        for_s: float,
        reason: str,
        reach: Reach | None = None,
        **by: Unpack[By],
    ) -> ChangeMade:
        """Leave a member out of the rollup, for a while. It is kept before it takes effect.
        `reach`: its shard, so that a promotion keeps it, or this agent alone."""
        shard = self._with_member(database, member)
        if not 0 < for_s <= MAX_SKIP_S:
            most_days = MAX_SKIP_S / 86400
            raise InvalidRequest(f"a skip lasts at most {most_days:g} days", field="for")

        if reach is None and self.make_shared is not None:
            reach = of_shard(shard.name)
        reach = await self._own.reach_of(reach, [database])
        item_id = _id(shard, member)
        if reach not in _reaches(item_id):
            message = f"a skip is for its shard, {shard.name}, or for this agent alone"
            raise InvalidRequest(f"{message}, not for {reach}", status=422, field="reach")

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            value = {
                "until_wall_s": asked.wall_s + for_s,
                "who": asked.who,
                "reason": reason,
                "set_wall_s": asked.wall_s,
            }
            return Draft("skip.set", _set(held, SKIP, item_id, value, asked, reach))

        if reach == HERE or self.make_shared is None:
            return await self._make(self._own.make, draft, **by)
        made = await self._make(self.make_shared, draft, **by)
        if self._skips.is_in(item_id, own=True) and not made.dry_run:
            # It would hide the shard's.
            await self._make(self._own.make, _unskipping(shard, member), **by)
        return made

    async def unskip(self, database: str, member: str, **by: Unpack[By]) -> ChangeMade:
        """In whichever log has it."""
        shard = self._shard_of(database)
        draft, item_id = _unskipping(shard, member), _id(shard, member)
        is_own = self._skips.is_in(item_id, own=True)
        made: ChangeMade | None = None
        if self.make_shared and (not is_own or self._skips.is_in(item_id, own=False)):
            made = await self._make(self.make_shared, draft, **by)
        if is_own or made is None:
            made = await self._make(self._own.make, draft, **by)
        return made

    async def _make(
        self, make: Make, draft: DraftOf, who: str, dry_run: bool = False
    ) -> ChangeMade:
        made = await make(draft, who, dry_run=dry_run)
        if make is self.make_shared and not dry_run:
            # In force here at once: the caller need not wait until it is followed.
            await self.follow(made.items, ())
        return made

    async def hand_over(self, database: str, *, for_s: float, reason: str, who: str) -> Handover:
        """Our server is about to stop being the primary: see Handovers.announce."""
        shard = self._shard_of(database)
        return await self.handovers.announce(shard, database, for_s=for_s, reason=reason, who=who)

    async def take_back(self, database: str, *, who: str) -> None:
        """End an announced handover: our server stays the primary."""
        await self.handovers.take_back(self._shard_of(database), who=who)

    async def add_peer(
        self, database: str, member: str, *, url: str, peer_database: str, who: str
    ) -> ChangeMade:
        shard = self._shard_of(database)
        is_there = f"{shard.name} already has a member {member!r}"
        if shard.roster.has(member):
            raise InvalidRequest(is_there, status=409)
        if len(shard.remotes) >= MAX_MEMBERS:
            raise InvalidRequest(f"{shard.name} has {MAX_MEMBERS} members, the maximum")
        reach, item_id = await self._own.reach_of(None, [database]), _id(shard, member)

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            if standing(held, PEER, item_id, _reaches(item_id)):
                raise InvalidRequest(is_there, status=409)
            value = {"url": url, "database": peer_database}
            return Draft("peer.set", _set(held, PEER, item_id, value, asked, reach))

        return await self._own.make(draft, who, dry_run=False)

    async def remove_peer(self, database: str, member: str, *, who: str) -> ChangeMade:
        shard = self._with_member(database, member)

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            changes = _taken_out(held, PEER, _id(shard, member), asked)
            if not changes and (why := self._why_it_stays(shard, member)):
                raise InvalidRequest(f"{member} {why}", status=409)
            return Draft("peer.removed", changes)

        made = await self._own.make(draft, who, dry_run=False)
        if not made.changes:
            await shard.remove_remote(member)  # Found once, and nobody lists it any more.
        return made

    def _why_it_stays(self, shard: Shard, member: str) -> str | None:
        remote = shard.remotes.get(member)
        if remote is None:
            return "is this agent's own: remove the database from the settings, and reload"
        if remote.source == "file":
            return "is in the settings file: remove it there, and reload"
        if any(member in (found.name, found.host) for found in shard.roster.downstream()):
            return "is a replica that the database lists: skip it instead"
        if any(member == known.member for known in self._membership.registered(shard.name)):
            return "registers itself in the fleet's store: stop its agent, or skip it"
        if remote.source == PATRONI:
            return "is listed by Patroni: skip it instead"
        return None

    def _with_member(self, database: str, member: str) -> Shard:
        shard = self._shard_of(database)
        if member not in (names := shard.roster.names()):
            known = ", ".join(sorted(names))
            raise NoSuchMember(f"{shard.name} has no member {member!r}; it has {known}")
        return shard


def _id(shard: Shard, member: str) -> str:
    """Of a skip or a peer; no member's name has a space."""
    return f"{shard.name} {member}"


def _split(item_id: str) -> tuple[str, str]:
    shard, _, member = item_id.rpartition(" ")
    return shard, member


def _reaches(item_id: str) -> tuple[Reach, Reach]:
    """At one agent, and at all of the shard."""
    return HERE, Reach(Level.SHARD, _split(item_id)[0])


def _is_of_its_shard(item: Change) -> bool:
    return item.reach in _reaches(item.id)


def _set(
    held: LogState,
    kind: ChangeKind,
    item_id: str,
    value: Mapping[str, Any],
    asked: ChangeAuthor,
    reach: Reach,
) -> list[Edit]:
    """For the shard it replaces what was set for this agent alone, which would hide it here."""
    narrower = [] if reach == HERE else standing(held, kind, item_id)
    return [
        put(held, kind, item_id, value, asked, reach),
        *(put(held, kind, item_id, None, asked, item.reach) for item in narrower),
    ]


def _taken_out(held: LogState, kind: ChangeKind, item_id: str, asked: ChangeAuthor) -> list[Edit]:
    found = standing(held, kind, item_id, _reaches(item_id))
    return [put(held, kind, item_id, None, asked, item.reach) for item in found]


def _unskipping(shard: Shard, member: str) -> DraftOf:
    def draft(held: LogState, asked: ChangeAuthor) -> Draft:
        changes = _taken_out(held, SKIP, _id(shard, member), asked)
        if not changes:
            raise NoSuchMember(f"{member} is not skipped in {shard.name}")
        return Draft("skip.removed", changes)

    return draft


def _skip_of(item: Change, ends_mono_s: float) -> Skip:
    kept, (shard, member) = item.value or {}, _split(item.id)
    return Skip(
        shard,
        member,
        float(kept["until_wall_s"]),
        str(kept["who"]),
        str(kept["reason"]),
        float(kept["set_wall_s"]),
        revision=item.n,
        ends_mono_s=ends_mono_s,
    )


def _peer_of(item: Change, ends_mono_s: float) -> PeerPlan:
    kept = item.value or {}
    return PeerPlan(_split(item.id)[1], str(kept["url"]), str(kept["database"]))


# --- handovers -----------------------------------------------------------------------------------

# Planned switchovers that operators announce, so that no answer relies on the old primary's view.
#
#     pre-hook ──announce──► log ──follow──► Shard.handover ──► shard scope is rejected
#     role read: the server stepped down, or the time is over ──look──► removed from the log
#
# An orchestrator calls it before it makes the primary read only. It ends when the role changes,
# when it is taken back, or when its time is over: a forgotten one stops the shard for at most an
# hour.


class Handovers:
    def __init__(self, clock: Clock, kept_in: MemberLog) -> None:
        self._clock = clock
        self._make = kept_in.make
        self.kept = SetItems(
            HANDOVER,
            lambda item, ends_mono_s: _handover_of(item, clock.now(), ends_mono_s),
            kept_in.time,
        )
        self._errands: set[asyncio.Task[None]] = set()

    def set_in(self, shard: Shard) -> None:
        shard.handover = self.kept.values.get(shard.name)
        shard.roll()

    async def announce(
        self, shard: Shard, database: str, *, for_s: float, reason: str, who: str
    ) -> Handover:
        """It is kept before it takes effect; once this returns, no check at shard scope is admitted
        by the view of that server. Announced again, it gets another end."""
        if not 0 < for_s <= MAX_HANDOVER_S:
            message = f"a handover lasts at most {MAX_HANDOVER_S / 60:g} minutes"
            raise InvalidRequest(message, field="for")
        local = _stepping_down(shard, database, self._clock.now().mono_s)

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            value = {
                "member": local.name,
                "term": local.role.term if local.role else None,
                "until_wall_s": asked.wall_s + for_s,
                "who": asked.who,
                "reason": reason,
            }
            return Draft("handover.set", [put(held, HANDOVER, shard.name, value, asked)])

        made = await self._make(draft, who, dry_run=False)
        now = self._clock.now()
        return _handover_of(made.items[0], now, now.mono_s + for_s)

    async def take_back(self, shard: Shard, *, who: str) -> None:
        if shard.handover is None or not await self._take_out(shard.name, who):
            raise NoSuchMember(f"no handover of {shard.name} is announced here")

    async def _take_out(self, name: str, who: str, n: int | None = None) -> bool:
        """`n`: only the one of that revision. False: it is gone, or another one."""

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            found = standing(held, HANDOVER, name)
            changes = [
                put(held, HANDOVER, name, None, asked) for one in found if n in (None, one.n)
            ]
            return Draft("handover.removed", changes)

        return bool((await self._make(draft, who, dry_run=False)).changes)

    def look(self, shard: Shard) -> None:
        """A role was read: by it the switchover may be done, and by now its time may be over."""
        handover = shard.handover
        if handover is None:
            return
        local = next((m for m in shard.locals.values() if m.name == handover.member), None)
        done = local is None or handover.is_done(local.role)
        if not done and handover.holds(self._clock.now().mono_s):
            return
        shard.handover = None
        if not done:
            log.warning("handover.expired", shard=shard.name, member=handover.member)
        task = asyncio.create_task(self._drop(shard.name, self.kept.n_of(shard.name)))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _drop(self, name: str, n: int) -> None:
        """One that cannot be taken out now is taken out after the agent's next start, or is over.
        Announced again meanwhile, it is another one."""
        try:
            await self._take_out(name, OURSELVES, n)
        except (Conflict, StoreUnavailable) as error:
            log.warning("handover.kept", shard=name, detail=str(error))

    async def close(self) -> None:
        await asyncio.gather(*self._errands)


def _stepping_down(shard: Shard, database: str, now: float) -> LocalMember:
    local = shard.roster.local_primary(now) or shard.locals[database]
    if isinstance(shard.point, Following):
        where = f", {shard.point.url}" if shard.point.url else ""
        message = f"{local.name} is not the primary of {shard.name}: announce it at the agent of "
        raise InvalidRequest(f"{message}{shard.point.primary}{where}", status=409)
    if local.role is not None and local.role.role is Role.REPLICA:
        message = f"{local.name} is a replica in {shard.name}: only a primary can hand over"
        raise InvalidRequest(message, status=409)
    return local


def _handover_of(item: Change, now: Instant, ends_mono_s: float) -> Handover:
    kept = item.value or {}
    return Handover(
        shard=item.id,
        member=kept["member"],
        term=kept["term"],
        until_mono_s=ends_mono_s,
        until_wall_s=kept["until_wall_s"],
        set_mono_s=now.mono_s,
        who=kept["who"],
        reason=kept["reason"],
    )


# --- files of changes ----------------------------------------------------------------------------

# [[peers]]                             [[skips]]
# shard = "commerce/-80"                shard = "commerce/-80"
# member = "db-b"                       member = "db-b"
# url = "https://db-b:8087"             reason = "rebuilt"
# database = "main"                     expires_at = "2026-11-16T18:00:00Z"   or for = "2h"
#
# [[handovers]]                         announced where the server is the primary
# shard = "commerce/-80"
# reason = "upgrade"
# for = "10m"

_KEYS = {
    SKIP: ("shard", "member", "expires_at", "for", "reason"),
    PEER: ("shard", "member", "url", "database"),
    HANDOVER: ("shard", "member", "expires_at", "for", "reason"),
}


class MemberRoom:
    """Implements changes/files.Room, for skips, peers and handovers."""

    def __init__(self, shards: Mapping[str, Shard], parse_url: Callable[[str], str]) -> None:
        """`shards`: of this agent, by name. `parse_url`: InvalidName for what is no agent's."""
        self._shards = shards
        self._parse_url = parse_url

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        reading = _EntryReading(entry)
        if entry.kind == HANDOVER and entry.reach != HERE:
            reading.fault("reach", f"is {entry.reach}, must be {HERE}: its own agent announces it")
        elif entry.reach not in (reaches := _reaches(entry.id)):
            reading.fault("reach", f"is {entry.reach}, must be {reaches[1]}: a shard has members")
        shard = self._shards.get(entry.raw["shard"])
        if shard is None:
            known = ", ".join(sorted(self._shards)) or "none"
            reading.fault("shard", f"is not a shard of this agent; it has: {known}")
            raise InvalidSettings(reading.faults)
        if entry.kind == SKIP:
            _check_skipped(held, shard, reading)
            value = reading.skip(asked)
        elif entry.kind == HANDOVER:
            value = reading.handover(shard, asked)
        else:
            _check_new(shard, reading)
            value = reading.peer(self._parse_url)
        if reading.faults:
            raise InvalidSettings(reading.faults)
        change = put(held, entry.kind, entry.id, value, asked, entry.reach)
        assert change.after is not None
        return change.after, ()

    def check(self, held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> Sequence[Edit]:
        """No shard has too many members by it."""
        after = [one.after for one in changes if one.after is not None and one.after.kind == PEER]
        members = {name: set(shard.remotes) for name, shard in self._shards.items()}
        for item in after:
            shard, _, member = item.id.rpartition(" ")
            of = members.get(shard, set())
            (of.add if stands(item, asked.wall_s) else of.discard)(member)
        for shard, names in members.items():
            if after and len(names) > MAX_MEMBERS:
                message = f"{shard} would have {len(names)} members, at most {MAX_MEMBERS}"
                raise InvalidSettings([Fault("peers", message)])
        return ()


def _check_skipped(held: LogState, shard: Shard, reading: _EntryReading) -> None:
    """`held` has peers that the file adds, too."""
    entry, names = reading.entry, shard.roster.names()
    added = standing(held, PEER, entry.id, _reaches(entry.id))
    if entry.raw["member"] not in names and not added:
        known = ", ".join(sorted(names))
        reading.fault("member", f"is not a member of {shard.name}; it has {known}")


def _check_new(shard: Shard, reading: _EntryReading) -> None:
    """One that an operator added may be changed; those of the settings, and found ones, stay."""
    member = reading.entry.raw["member"]
    remote = shard.remotes.get(member)
    if shard.roster.has(member) and (remote is None or remote.source != RUNTIME):
        reading.fault("member", f"is already a member of {shard.name}, from another source")


@dataclass(slots=True)
class _EntryReading:
    """An entry, and what is wrong with it."""

    entry: FileEntry
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = _KEYS[self.entry.kind]
        for key in self.entry.raw:
            if key not in known:
                self.fault(key, unknown(key, known))

    def fault(self, key: str, message: str) -> None:
        self.faults.append(Fault(f"{self.entry.place}.{key}", message))

    def skip(self, asked: ChangeAuthor) -> dict[str, Any]:
        reason = self.entry.raw.get("reason")
        if not isinstance(reason, str) or not 1 <= len(reason) <= MAX_REASON_CHARS:
            self.fault("reason", f"must be a text of 1–{MAX_REASON_CHARS} characters")
        end_s = self._end_s(asked.wall_s)
        return {
            "until_wall_s": end_s,
            "expires_at": iso(math.ceil(end_s)),
            "who": asked.who,
            "reason": reason,
            "set_wall_s": asked.wall_s,
        }

    def handover(self, shard: Shard, asked: ChangeAuthor) -> dict[str, Any]:
        """As Handovers.announce."""
        raw, role = self.entry.raw, None
        reason = raw.get("reason", "")
        if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS:
            self.fault("reason", f"must be a text of at most {MAX_REASON_CHARS} characters")
        locals_ = [one for one in shard.locals.values() if raw.get("member", one.name) == one.name]
        for one in locals_:
            role = one.role if one.role is not None and one.role.role is Role.PRIMARY else role
        if role is None:
            message = "no server of this agent is its primary: apply this at the primary's agent"
            self.fault("member" if "member" in raw else "shard", message)
        return {
            "member": locals_[0].name if locals_ else "",
            "term": None if role is None else role.term,
            "until_wall_s": self._end_s(asked.wall_s, MAX_HANDOVER_S),
            "who": asked.who,
            "reason": reason,
        }

    def peer(self, parse_url: Callable[[str], str]) -> dict[str, Any]:
        self._parsed("member", parse_database)
        url, database = self._parsed("url", parse_url), self._parsed("database", parse_database)
        return {"url": url, "database": database}

    def _parsed(self, key: str, parse: Callable[[str], str]) -> str:
        given = self.entry.raw.get(key)
        if not isinstance(given, str):
            self.fault(key, "is missing" if given is None else "must be a text")
            return ""
        try:
            return parse(given)
        except InvalidName as error:
            self.fault(key, str(error).replace("database name", f"{key} name"))
            return ""

    def _end_s(self, wall_s: float, most_s: float = MAX_SKIP_S) -> float:
        given = [key for key in ("expires_at", "for") if self.entry.raw.get(key) is not None]
        if len(given) != 1:
            self.fault(given[-1] if given else "expires_at", "give either expires_at or for")
            return wall_s
        (key,) = given
        said = self.entry.raw[key]
        try:
            end_s = parse_date_time(said) if key == "expires_at" else wall_s + parse_for(said)
        except ValueError as error:
            self.fault(key, str(error))
            return wall_s
        if not wall_s < end_s <= wall_s + most_s:
            self.fault(key, f"is {said!r}, must be within the next {duration_text(most_s)}")
        return end_s
