"""Register this agent's databases in the fleet's store, for as long as the agent runs.

own databases, roles, n ──look_again──► Registrar ──one lease──► members/<shard>/<member>

A promotion, a demotion and a new address are written at once, though never twice in a row. All else
is spread over time: 30,000 agents may get a rule, or lose contact with their servers, within one
second, and must not all write within the same second. A role that is lost for a moment is not
written.
A store that is away is no problem here: entries stay until their lease ends, and are written again
afterwards.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from headgate.base.keyvalue import Compare, Lease, Put
from headgate.base.ports import Clock, SharedLog
from headgate.check.demand import sleep_unless
from headgate.errors import Conflict, LeaseLost, StoreUnavailable
from headgate.fleet.members import MAX_REJECTED, FleetMember, member_bytes
from headgate.metrics.samples import Instant
from headgate.shard.service import Shards

log = structlog.get_logger()

TTL_S = 60.0
SPREADS_PER_TTL = 12.0
"""10,000 shards of three agents, spread over 50 s: renewed every 200 s, 150 times a second."""
AGENTS_PER_SHARD = 3
"""Spreads are counted in shards; this factor is for what every agent does, not every shard."""
OUTGROWN = 1.5
"""A lease is replaced if it is shorter, by this factor, than one granted now would be: it still has
the TTL of a time when the fleet was small, or its size unknown."""
LOOK_S = 0.5
RETRY_S = 5.0
SHORTEST_S = 5.0
"""Pause between two urgent writes."""
LOST_AFTER_S = 10.0
"""How long the last reported role is kept while the server does not report one."""
UNKNOWN = "unknown"
PUTS_PER_COMMIT = 100
LEAVE_WITHIN_S = 2.0
SETTLED_AFTER_S = 10.0
"""After this time we must see our own entry, if it is in the store."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What all databases of an agent have in common."""

    url: str
    host: str
    region: str
    cluster: str
    version: str


@dataclass(frozen=True, slots=True)
class Registered:
    """State of the registration, for display."""

    registered: int
    """Databases of this agent that are in the store."""
    since: Instant
    """When registration last changed between working and failing."""
    fault: str
    """Why writing fails now; empty: it does not."""
    ttl_s: float
    """How long the entries stay without this agent; 0: there is no lease yet."""
    doubles: Mapping[str, str]
    """Member → the address of another agent that registers under the same name: on the same host,
    then it overwrites this agent's entry, or on another."""


def own_members(
    databases: Iterable[str],
    shards: Shards,
    where: Whereabouts,
    *,
    n: int,
    wall_s: float,
    rejected: Callable[[str], Sequence[str]] = lambda database: (),
) -> list[FleetMember]:
    """Each database of this agent, in a shard or not, with its current state. None while it is
    passive: the active agent has the same members, and registers them. `rejected`: items of the
    fleet that should apply to a database here but do not."""
    if shards.url != where.url:
        return []
    stands = {stand.database: stand for stand in shards.stands()}
    found = []
    for database in databases:
        stand, left_out = stands.get(database), rejected(database)
        found.append(
            FleetMember(
                shard=stand.shard if stand else "",
                member=stand.member if stand else f"{where.host}.{database}",
                url=where.url,
                database=database,
                role=stand.role.value if stand and stand.role else "unknown",
                host=where.host,
                region=where.region,
                cluster=where.cluster,
                at=wall_s,
                n=n,
                version=where.version,
                system=stand.system if stand else "",
                rejected=tuple(sorted(left_out)[:MAX_REJECTED]),
                rejected_total=len(left_out),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _MemberWritten:
    member: FleetMember
    revision: int
    at: float
    """Monotonic."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A lease, and when it is renewed next. Never later than a third of it: two tries may fail."""

    lease: Lease
    renew_at: float

    @classmethod
    def since(cls, now: float, lease: Lease, roll: float) -> _Held:
        return cls(lease, now + lease.ttl_s / 3 * (0.8 + 0.2 * roll))


class FleetLease:
    """The lease of one agent's entries: renewed, and replaced where the fleet has outgrown it."""

    def __init__(
        self,
        store: SharedLog,
        clock: Clock,
        roll: Callable[[], float],
        spread_s: Callable[[], float],
        ttl_s: float,
        on_grant: Callable[[], None],
    ) -> None:
        """`on_grant`: there is a new one, and everything is to be written again under it."""
        self._store = store
        self._clock = clock
        self._roll = roll
        self._spread_s = spread_s
        self._ttl_s = ttl_s
        self._on_grant = on_grant
        self._held: _Held | None = None
        self._former: tuple[_Held, float] | None = None
        """A lease that became too short, and until when to renew it: others wrote under it, too."""
        self._regrant_at: float | None = None

    @property
    def now(self) -> Lease | None:
        return self._held.lease if self._held else None

    @property
    def due_at(self) -> float:
        """When `keep` has something to do."""
        return min([*(held.renew_at for held in self._all), self._regrant_at or math.inf])

    @property
    def _all(self) -> list[_Held]:
        return [one for one in (self._held, self._former and self._former[0]) if one]

    def spread(self) -> float:
        """How long to wait, so that not all agents write within the same second."""
        return self._roll() * AGENTS_PER_SHARD * self._spread_s()

    async def keep(self) -> None:
        now, regrant_at = self._clock.now().mono_s, self._regrant_at or math.inf
        wanted_ttl_s = max(self._ttl_s, SPREADS_PER_TTL * self._spread_s())
        if self._held is None or now >= regrant_at:
            await self._grant(wanted_ttl_s)
        elif now >= self._held.renew_at:
            self._held = await self._renewed(self._held)
            if wanted_ttl_s > OUTGROWN * self._held.lease.ttl_s:
                self._regrant_at = self._regrant_at or now + self.spread()
        await self._keep_former(now)

    async def _grant(self, ttl_s: float) -> None:
        """Entries under the old lease stay until all is written again."""
        lease, now = await self._store.grant(ttl_s), self._clock.now().mono_s
        if self._held is not None:
            self._former = (self._held, now + RETRY_S + 2 * AGENTS_PER_SHARD * self._spread_s())
        self._held = _Held.since(now, lease, self._roll())
        self._regrant_at = None
        self._on_grant()

    async def _keep_former(self, now: float) -> None:
        if self._former is None:
            return
        held, until = self._former
        if now >= until:
            self._former = None
        elif now >= held.renew_at:
            try:
                self._former = (await self._renewed(held), until)
            except LeaseLost:
                self._former = None

    async def _renewed(self, held: _Held) -> _Held:
        lease = await self._store.renew(held.lease.id)
        return _Held.since(self._clock.now().mono_s, lease, self._roll())

    def forget(self) -> None:
        self._held = self._former = self._regrant_at = None

    async def leave(self) -> None:
        """What was written under it goes now, and not when it has run out."""
        held = self._all
        self.forget()
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(LEAVE_WITHIN_S):
                for one in held:
                    await self._store.revoke(one.lease.id)


class Registrar:
    def __init__(
        self,
        store: SharedLog,
        clock: Clock,
        roll: Callable[[], float],
        *,
        members: Callable[[], Sequence[FleetMember]],
        spread_s: Callable[[], float],
        ttl_s: float = TTL_S,
        is_size_known: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_size_known`: whether spread_s is that of this fleet yet."""
        self._store = store
        self._clock = clock
        self._members = members
        """What to write now."""
        self._spread_s = spread_s
        self._is_size_known = is_size_known
        self._written: dict[str, _MemberWritten] = {}
        self._lease = FleetLease(store, clock, roll, spread_s, ttl_s, self._written.clear)
        self._lost: set[str] = set()
        """Keys that someone deleted from the store by hand."""
        self._unsaid_since: dict[str, float] = {}
        """Keys of members whose server reports no role. Monotonic, as all times here."""
        self._due_at: float | None = None
        """When changes that can wait are written; None: there are none."""
        self._said_at = -math.inf
        """When an urgent change was last written."""
        self._fault = ""
        self._since = clock.now()
        self._doubles: Mapping[str, str] = MappingProxyType({})
        self._stirred = asyncio.Event()

    @property
    def lease_id(self) -> int:
        """Under which others of this agent may write, too; 0: there is none now."""
        return lease.id if (lease := self._lease.now) else 0

    def look_again(self) -> None:
        """A role, an address or n may be another. Cheap, and from anywhere on the loop."""
        self._stirred.set()

    def seen(self, members: Iterable[FleetMember]) -> None:
        """All members that the store has of our shards, as we follow it: is ours among them?"""
        theirs = {member.key: member for member in members}
        now = self._clock.now().mono_s
        settled = {k: w for k, w in self._written.items() if now - w.at >= SETTLED_AFTER_S}
        own = {(w.member.shard, w.member.member): w.member for w in settled.values()}
        others = {
            other.member: other.url
            for other in theirs.values()
            if (ours := own.get((other.shard, other.member))) is not None
            and (other.host, other.url) != (ours.host, ours.url)
        }
        if others and others != self._doubles:
            url = next((written.member.url for written in self._written.values()), "")
            log.error("fleet.member_double", members=others, ours=url)
        self._doubles = MappingProxyType(others)
        for key, written in settled.items():
            # Deleted by hand. A member of no shard is not followed, so its loss is not seen here.
            if written.member.shard and key not in theirs:
                self._lost.add(key)
                self.look_again()

    def state(self) -> Registered:
        lease = self._lease.now
        return Registered(
            registered=len(self._written) if lease else 0,
            since=self._since,
            fault=self._fault,
            ttl_s=lease.ttl_s if lease else 0.0,
            doubles=self._doubles,
        )

    async def run(self) -> None:
        """The first write is spread like all others: a whole fleet may start at once, and without
        copies on disk its size is unknown before the store answers."""
        while not self._is_size_known():
            await self._clock.sleep(LOOK_S)
        await self._clock.sleep(self._lease.spread())
        while True:
            self._stirred.clear()
            await self._try_once()

    async def leave(self) -> None:
        """At the end of the agent."""
        self._forget_written()
        await self._lease.leave()

    # --- one round -------------------------------------------------------------------------

    async def _try_once(self) -> None:
        """And wait until the next look; after trouble nobody's call shortens that."""
        try:
            await self._lease.keep()
            next_at = await self._write()
        except LeaseLost as error:
            # A store that was created again loses all entries at once: no need to hurry.
            log.warning("fleet.lease_lost", store=self._store.name, detail=str(error))
            self._lease.forget()
            self._forget_written()
            await self._clock.sleep(self._lease.spread())
        except StoreUnavailable as error:
            self._note_fault(str(error))
            await self._clock.sleep(RETRY_S + self._lease.spread())
        else:
            self._note_fault("")
            pause_s = min(next_at, self._lease.due_at) - self._clock.now().mono_s
            await sleep_unless(self._stirred, self._clock, max(0.0, pause_s))

    def _forget_written(self) -> None:
        self._written.clear()
        self._lost.clear()

    def _note_fault(self, fault: str) -> None:
        if bool(fault) != bool(self._fault):
            self._since = self._clock.now()
            log.warning("fleet.registering", store=self._store.name, detail=fault or "well again")
        self._fault = fault

    # --- the entries -----------------------------------------------------------------------

    async def _write(self) -> float:
        """When to look again, unless called earlier."""
        now = self._clock.now()
        wanted = {m.key: self._as_told(m, now.mono_s) for m in self._members()}
        changed = [key for key in wanted if self._differs(wanted[key])]
        due_at = self._plan([wanted[key] for key in changed], now.mono_s)
        if changed and now.mono_s >= due_at:
            await self._put_all([replace(wanted[key], at=now.wall_s) for key in sorted(changed)])
            due_at = math.inf
        for key in sorted(self._written.keys() - wanted.keys()):
            await self._take_out(key)
        settles_at = (since + LOST_AFTER_S for since in self._unsaid_since.values())
        return min([due_at, *(at for at in settles_at if at > now.mono_s)])

    def _plan(self, changed: Sequence[FleetMember], now: float) -> float:
        """When all of it will be written."""
        if not changed:
            self._due_at = None
            return math.inf
        if any(member.key not in self._written for member in changed):
            return now
        if any(self._has_moved(member) for member in changed):
            return self._said_at + max(SHORTEST_S, self._spread_s())
        if self._due_at is None:
            self._due_at = now + self._lease.spread()
        return self._due_at

    def _as_told(self, member: FleetMember, now: float) -> FleetMember:
        """With the role that it had, where its server has only just ceased to say it."""
        if member.role != UNKNOWN:
            self._unsaid_since.pop(member.key, None)
            return member
        since = self._unsaid_since.setdefault(member.key, now)
        written = self._written.get(member.key)
        if written is None:
            return member
        role = written.member.role if now - since < LOST_AFTER_S else UNKNOWN
        return replace(member, role=role, system=written.member.system)

    def _has_moved(self, member: FleetMember) -> bool:
        """Promoted, demoted, or at another address: others would contact the wrong one."""
        written = self._written.get(member.key)
        if written is None:
            return False
        roles = {written.member.role, member.role}
        return written.member.url != member.url or (len(roles) == 2 and UNKNOWN not in roles)

    def _differs(self, member: FleetMember) -> bool:
        written = self._written.get(member.key)
        if written is None or member.key in self._lost:
            return True
        return replace(written.member, at=member.at) != member

    async def _put_all(self, members: Sequence[FleetMember]) -> None:
        lease = self._lease.now
        assert lease is not None, "written without a lease"
        moved = any(self._has_moved(member) for member in members)
        for first in range(0, len(members), PUTS_PER_COMMIT):
            some = members[first : first + PUTS_PER_COMMIT]
            puts = [Put(member.key, member_bytes(member), lease.id) for member in some]
            revision, now = await self._store.commit((), puts), self._clock.now().mono_s
            self._written |= {member.key: _MemberWritten(member, revision, now) for member in some}
            self._lost.difference_update(member.key for member in some)
        self._due_at = None
        if moved:
            self._said_at = self._clock.now().mono_s

    async def _take_out(self, key: str) -> None:
        """Not from another agent that has taken the database over meanwhile."""
        written = self._written[key]
        with suppress(Conflict):
            await self._store.commit([Compare(key, written.revision)], [Put(key, None)])
        del self._written[key]
        self._lost.discard(key)
        self._unsaid_since.pop(key, None)
