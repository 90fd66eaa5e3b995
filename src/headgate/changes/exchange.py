"""The agents of a shard send each other its changes, so that a promotion loses none.

OwnBook ──changed──► Exchange ──► Partner, one for each other agent ──► their Exchange.answer
operators ──is_ready──► │ └──copied──► who has it, for the acknowledgment

The agent that leads a shard sends changes to the others at once, and compares every few seconds. A
standby fetches from the active agent. No check waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from headgate.base.ports import Clock, PeerLink
from headgate.base.supervise import supervised
from headgate.changes.exchanged import (
    ANSWER_BYTES,
    OFFER_BYTES,
    Entry,
    ExchangeAnswer,
    Inventory,
    Offer,
    VersionPage,
    compared,
    fitting,
    shard_of,
    version_of,
)
from headgate.changes.own import Merged, OwnBook
from headgate.changes.reach import HERE, Level, Place, Reach, of_shard
from headgate.changes.state import Copies, CopyState, both
from headgate.check.demand import Demands, first_of, sleep_unless
from headgate.check.model import Activity
from headgate.errors import (
    Conflict,
    InvalidRequest,
    InvalidSettings,
    PeerFailed,
    StoreUnavailable,
    WrongShard,
)
from headgate.metrics.samples import Cause
from headgate.shard.service import Shards
from headgate.shard.shard import Shard
from headgate.shard.topology import Following, Leading, Unled

log = structlog.get_logger()

EVERY_S, RESTING_S = 5.0, 60.0
"""Pause between two comparisons with others; a change is sent at once."""
LOOK_S = 0.5
"""Pause between two looks at who leads, and which agents there are."""
COLLECT_EVERY_S = 60.0
ACK_S = 1.0
"""How long a change waits for the copies of agents that answer."""
MEET_S = 1.0
"""How long the first change of a new leader waits to learn what others have."""
AWAKE_S, AWAKE_LOOK_S = 2.0, 0.02
"""How long it may take to find the leader of an idle shard."""
HOLD_S, MAX_HOLD_S = 25.0, 30.0
MAX_WAITERS = 4
"""Delayed answers per shard; further requests are answered at once."""
STANDBY_SEEN_S = 60.0
MAX_STANDBYS = 4
MAX_LOOKED_UP = 1000
UNHEARD = "has not answered yet"
UNSETTLED = frozenset({Cause.HIBERNATING, Cause.WARMING_UP})


@dataclass(frozen=True, slots=True)
class Pair:
    """How this agent shares its host with another."""

    active: Callable[[], str] = lambda: ""
    """Address of the active agent, if this one is a standby; empty: it is not."""
    is_passive: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """What the settings say of this agent."""

    host: str
    has_fleet: bool
    places: Callable[[], Sequence[Place]]
    left_out: Callable[[], Mapping[str, str]] = dict
    """Changes that have no effect here, by id: why."""


@dataclass(eq=False, slots=True)
class _Waiter:
    done: asyncio.Future[None]
    keys: dict[str, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Track:
    """One shard."""

    seq: int = 0
    """How many changes of it were made or merged here."""
    led: bool = False
    partners: dict[tuple[str, str], Partner] = field(default_factory=dict)
    """By member and address."""
    tasks: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)
    waiters: set[_Waiter] = field(default_factory=set)
    standbys: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By name: how many of our changes it has, and when it last reported."""


STANDBY = ""
"""Not the name of a member: the active agent, if this one is a standby."""


class Exchange:
    def __init__(
        self,
        shards: Shards,
        book: OwnBook,
        demands: Demands,
        clock: Clock,
        open_link: Callable[[str], PeerLink],
        own: OwnFacts,
        pair: Pair | None = None,
    ) -> None:
        self._shards = shards
        self._book = book
        self._clock = clock
        self._open_link = open_link
        self.lead = ShardLead(shards, demands, clock, own, pair)
        self._tracks: dict[str, _Track] = {}
        self._bell = Bell()
        self._ending: set[asyncio.Task[None]] = set()
        self._collected_at = float("-inf")
        self._is_closed = False
        book.exchange_by(self, self._changed)

    # --- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self.look()
            now_s = self._clock.now().mono_s
            if now_s - self._collected_at >= COLLECT_EVERY_S:
                self._collected_at = now_s
                try:
                    await self._book.collect()
                except (StoreUnavailable, Conflict) as error:
                    log.warning("changes.not_collected", detail=str(error))
            await self._clock.sleep(LOOK_S)

    def look(self) -> None:
        """Who leads now, and which agents to exchange with."""
        if self._is_closed:
            return
        for name in {*self._tracks} - {*self._shards.each}:
            self._keep(self._tracks[name], {})
        for name, shard in self._shards.each.items():
            track, was_led = self._track(name), self._track(name).led
            track.led = leads(shard)
            self._keep(track, self._ways(shard))
            for partner in track.partners.values() if track.led and not was_led else ():
                partner.meet()

    def _ways(self, shard: Shard) -> dict[tuple[str, str], PeerRoute]:
        local = next(iter(shard.locals.values()))

        def way(name: str, database: str, hold_s: float = 0.0) -> PeerRoute:
            def every_s() -> float:
                return self.lead.every_s(shard.name)

            to = (shard.name, name, database, local.name)
            return PeerRoute(*to, lambda: _cluster(shard), every_s, hold_s)

        ways = {}
        if self.lead.pushes(shard):
            for remote in shard.roster.distinct():
                ways[remote.name, remote.url] = way(remote.name, remote.database)
        if url := self.lead.pair.active():
            ways[STANDBY, url] = way(local.name, local.database, HOLD_S)
        return ways

    def _keep(self, track: _Track, ways: Mapping[tuple[str, str], PeerRoute]) -> None:
        for key in track.partners.keys() - ways.keys():
            self._end(track.partners.pop(key), track.tasks.pop(key))
        for key in ways.keys() - track.partners.keys():
            partner = track.partners[key] = Partner(
                ways[key],
                self._open_link(key[1]),
                self._book,
                self._clock,
                seq=lambda: track.seq,
                bell=self._bell,
            )
            task = asyncio.create_task(supervised(f"exchange {key[0] or key[1]}", partner.run))
            track.tasks[key] = task

    def _end(self, partner: Partner, task: asyncio.Task[None]) -> None:
        async def ended() -> None:
            await asyncio.gather(task, return_exceptions=True)
            await partner.link.close()

        task.cancel()
        ending = asyncio.create_task(ended())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def let_go(self) -> None:
        """Answer what is held: the agent is about to stop."""
        for track in self._tracks.values():
            for waiter in track.waiters:
                _release(waiter)

    async def close(self) -> None:
        self._is_closed = True
        self.let_go()
        for track in self._tracks.values():
            self._keep(track, {})
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _changed(self, keys: Sequence[str]) -> None:
        """A callback of the log: all of one commit."""
        for name in {shard_of(key) for key in keys}:
            track = self._track(name)
            track.seq += 1
            mine = [key for key in keys if shard_of(key) == name]
            for partner in track.partners.values():
                partner.changed(mine)
            for waiter in track.waiters:
                waiter.keys.update(dict.fromkeys(mine))
                _release(waiter)

    def _track(self, shard: str) -> _Track:
        return self._tracks.setdefault(shard, _Track())

    # --- for the book ------------------------------------------------------------------------

    def is_ready(self, shards: Collection[str] = ()) -> bool:
        """Before a change: whether this agent leads and knows what the others have. Otherwise its
        change might count less than one that it does not know yet."""
        each = self._shards.each
        for name in shards:
            if name not in each:
                message = f"no database of this agent belongs to shard {name!r}"
                raise InvalidRequest(message, status=409)
        if any(is_unsettled(each[name]) for name in shards):
            return False
        self.lead.expect(shards)
        self.look()
        return self._has_met()

    async def get_ready(self, shards: Collection[str] = ()) -> None:
        await self.lead.settle(self._shards.each[name] for name in shards)
        self.lead.expect(shards)
        self.look()
        await self._bell.until(self._has_met, self._clock, MEET_S)

    def _has_met(self) -> bool:
        led = (name for name, track in self._tracks.items() if track.led)
        return all(other.met or other.fault for name in led for other in self._others(name))

    async def copied(self, shards: Collection[str]) -> Copies | None:
        """After it: who has it, of those who answer within a moment."""
        self.look()
        numbers = {name: self._track(name).seq for name in shards}

        def is_told() -> bool:
            return all(
                partner.has(seq) or partner.fault
                for name, seq in numbers.items()
                for partner in self._others(name)
            ) and all(self._standby_has(name, seq) is not False for name, seq in numbers.items())

        await self._bell.until(is_told, self._clock, ACK_S)
        copies: Copies | None = None
        for name, seq in numbers.items():
            others = self._others(name)
            missing = tuple(
                f"{one.way.name} {'does not answer' if one.is_away else one.fault or UNHEARD}"
                for one in others
                if not one.has(seq)
            )
            have = len(others) - len(missing)
            idle = {
                (item_id, other.way.name): why
                for other in others
                for item_id, why in other.left_out.items()
            }
            here = Copies(have, len(others), missing, self._standby_has(name, seq), idle)
            copies = both(copies, here)
        return copies

    def _others(self, name: str) -> list[Partner]:
        """Of other members."""
        partners = self._track(name).partners
        return [partner for (member, _), partner in partners.items() if member != STANDBY]

    def _standby_has(self, name: str, seq: int) -> bool | None:
        now_s = self._clock.now().mono_s
        known = self._track(name).standbys.values()
        seen = [has for has, at in known if now_s - at < STANDBY_SEEN_S]
        return all(has >= seq for has in seen) if seen else None

    def copies(self, shard: str) -> Mapping[str, CopyState]:
        """What each other member has, for people; nothing where this agent tells them nothing."""
        return {
            partner.way.name: CopyState(partner.has_all, partner.exchanged_at, partner.fault)
            for partner in self._others(shard)
        }

    # --- for other agents ----------------------------------------------------------------------

    async def answer(self, offer: Offer) -> ExchangeAnswer:
        """Held for as long as the offer allows, while both have the same."""
        answer = await self._answered(offer)
        return replace(answer, left_out=self.lead.left_out(offer.shard))

    async def _answered(self, offer: Offer) -> ExchangeAnswer:
        shard = self._shards.asked(offer.shard, offer.database)
        own = _cluster(shard)
        if own and offer.cluster not in ("", own):
            message = f"{offer.sender} is in cluster {offer.cluster}, {offer.database} in {own}"
            raise WrongShard(f"{message}: another shard of the same name")
        if offer.entries:
            merged = await self._book.merge(offer.shard, offer.entries, by=offer.sender)
            if merged.rejected:
                log.warning("change.rejected", member=offer.sender, detail=merged.rejected[0])
        track, inventory = self._track(offer.shard), self._book.inventory(offer.shard)
        if offer.is_standby:
            has, _ = track.standbys.get(offer.sender, (-1, 0.0))
            has = track.seq if offer.digest == inventory.digest else has
            if offer.sender in track.standbys or len(track.standbys) < MAX_STANDBYS:
                track.standbys[offer.sender] = (has, self._clock.now().mono_s)
                self._bell.ring()
        if offer.page is not None:
            return await self._compared(offer)
        if offer.wait_s > 0 and offer.digest == inventory.digest:
            keys = await self._hold(track, min(offer.wait_s, MAX_HOLD_S))
            entries = await self._book.entries(keys)
            fit = fitting(entries, ANSWER_BYTES)
            return ExchangeAnswer(self._book.inventory(offer.shard).digest, tuple(entries[:fit]))
        return ExchangeAnswer(inventory.digest)

    async def _compared(self, offer: Offer) -> ExchangeAnswer:
        inventory = self._book.inventory(offer.shard)
        assert offer.page is not None
        newer, want = compared(inventory, offer.page, offer.after)
        entries = await self._book.entries(newer[:MAX_LOOKED_UP])
        sent = entries[: fitting(entries, ANSWER_BYTES)]
        is_cut = len(sent) < len(newer)
        upto = sent[-1][0] if is_cut and sent else ""
        return ExchangeAnswer(inventory.digest, tuple(sent), tuple(want), upto)

    async def _hold(self, track: _Track, seconds: float) -> list[str]:
        """The keys of what has changed meanwhile."""
        if len(track.waiters) >= MAX_WAITERS:
            return []
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        track.waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.done
        except TimeoutError:
            pass
        finally:
            track.waiters.discard(waiter)
        return list(waiter.keys)


def _cluster(shard: Shard) -> str:
    roles = (local.role for local in shard.locals.values())
    return next((role.cluster for role in roles if role is not None and role.cluster), "")


def _release(waiter: _Waiter) -> None:
    if not waiter.done.done():
        waiter.done.set_result(None)


# --- who leads -------------------------------------------------------------------------------


class ShardLead:
    """Which shards this agent leads, and where the changes of the others are made."""

    def __init__(
        self, shards: Shards, demands: Demands, clock: Clock, own: OwnFacts, pair: Pair | None
    ) -> None:
        self._shards = shards
        self._demands = demands
        self._clock = clock
        self._own = own
        self.pair = pair or Pair()

    def left_out(self, shard: str) -> Mapping[str, str]:
        """Changes of the shard that this agent cannot use, and why."""
        ours = f"@{Level.SHARD.value}:{shard}"
        return {one: why for one, why in self._own.left_out().items() if one.endswith(ours)}

    def pushes(self, shard: Shard) -> bool:
        """Also while idle: its server was the primary at the last check."""
        if self.pair.is_passive():
            return False
        at_rest = isinstance(shard.point, Unled) and shard.point.absent.cause is Cause.HIBERNATING
        return leads(shard) or (at_rest and shard.roster.had_primary())

    def every_s(self, name: str) -> float:
        shard, now_s = self._shards.each.get(name), self._clock.now().mono_s
        if shard is None:
            return RESTING_S
        states = (local.demand.shard_state(now_s) for local in shard.locals.values())
        return RESTING_S if all(s is Activity.HIBERNATING for s in states) else EVERY_S

    def _elsewhere(self, shard: Shard) -> str:
        """Where changes of a shard have to be made; empty: here."""
        name = shard.name
        if self.pair.is_passive():
            return f"this agent is the standby of {self.pair.active()}: change {name} there"
        if leads(shard):
            return ""
        match shard.point:
            case Following(primary=primary, url=url):
                told = f"changes for shard {name} are made at the agent of its primary"
                return f"{told}, {primary}: {url}"
            case Unled(absent=absent):
                return f"no agent leads shard {name}, so it cannot be changed: {absent.detail}"
        return ""

    async def settle(self, shards: Iterable[Shard]) -> None:
        """Have idle shards looked at: an old role says nothing."""
        unsettled = [shard for shard in shards if is_unsettled(shard)]
        if not unsettled:
            return
        now_s = self._clock.now().mono_s
        for shard in unsettled:
            for database in shard.locals:
                self._demands.wake(database, now_s)
        while any(map(is_unsettled, unsettled)) and self._clock.now().mono_s < now_s + AWAKE_S:
            await self._clock.sleep(AWAKE_LOOK_S)

    async def reach(self, given: Reach | None, databases: Collection[str] = ()) -> Reach:
        """The reach of a change for these databases, or for all of this agent's. InvalidRequest if
        another agent has to make it."""
        places = self._own.places()
        met = [place for place in places if not databases or place.database in databases]
        concerned = {place.shard for place in met}
        asked = concerned if given is None else {given.pattern}
        each, is_local = self._shards.each, not self._own.has_fleet and len(asked) == 1
        if is_local and (given is None or given.level is Level.SHARD):
            await self.settle(each[name] for name in asked & each.keys())
        leads = {name: self._elsewhere(shard) for name, shard in each.items()}
        own = self._own
        return own_reach(given, concerned, leads, host=own.host, has_fleet=own.has_fleet)

    def has_shard(self, name: str) -> bool:
        return name in self._shards.each

    def shares(self, reach: Reach) -> bool:
        """Whether changes with that reach are in the own logs of a shard's agents."""
        is_shard = reach.level is Level.SHARD and self.has_shard(reach.pattern)
        return is_shard and not self._own.has_fleet

    def expect(self, shards: Collection[str]) -> None:
        for name in shards:
            if elsewhere := self._elsewhere(self._shards.each[name]):
                raise InvalidRequest(elsewhere, status=409)


def leads(shard: Shard) -> bool:
    """Also one that has announced to hand over: its server is the primary for now."""
    point = shard.point
    is_handing_over = isinstance(point, Unled) and point.absent.cause is Cause.HANDING_OVER
    return isinstance(point, Leading) or is_handing_over


def is_unsettled(shard: Shard) -> bool:
    return isinstance(shard.point, Unled) and shard.point.absent.cause in UNSETTLED


TIMEOUT_S = 2.0
"""What an answer may take beyond the requested delay."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0
"""Before the next try, where one failed."""
LEAST_ROUND_S = 1.0
"""After an answer that should have been delayed: so that requests do not follow without a pause."""
MAX_COMPARED = 3
"""Comparisons in a row; if both still differ then, they pause for a while."""
DIFFERS = "has other changes than this agent, although both were compared"
MAX_PAGES = 2000
MAX_READ = 500
"""Changes that are looked up at once."""
UNANSWERED = frozenset({Cause.UNREACHABLE, Cause.TIMED_OUT})


# --- one other agent -------------------------------------------------------------------------


class Bell:
    """Wakes all that wait for something to become true."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def until(self, is_so: Callable[[], bool], clock: Clock, within_s: float) -> bool:
        """Or until the time is up."""
        deadline_s = clock.now().mono_s + within_s
        while not is_so():
            left_s = deadline_s - clock.now().mono_s
            if left_s <= 0:
                return False
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                await first_of(clock, left_s, waiting)
            finally:
                self._waiting.discard(waiting)
        return True


class Book(Protocol):
    """As much of OwnBook as is needed."""

    def inventory(self, shard: str) -> Inventory: ...

    async def entries(self, keys: Iterable[str]) -> list[Entry]: ...

    async def merge(self, shard: str, entries: Sequence[Entry], *, by: str) -> Merged: ...

    async def collect(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PeerRoute:
    """The receiver and the sender."""

    shard: str
    name: str
    """The other member."""
    database: str
    """As the other agent calls it."""
    sender: str
    cluster: Callable[[], str] = lambda: ""
    every_s: Callable[[], float] = lambda: EVERY_S
    """Pause between two comparisons."""
    hold_s: float = 0.0
    """Above 0: this agent is the standby of the other, which delays its answers this long."""


class Partner:
    """One other agent of a shard, and how far it has what this one has.

    A round sends what has changed since the last one. Where the digests differ all the same, both
    compare versions page by page, send each other what the other lacks, and compare again.
    """

    def __init__(
        self,
        way: PeerRoute,
        link: PeerLink,
        book: Book,
        clock: Clock,
        *,
        seq: Callable[[], int],
        bell: Bell,
    ) -> None:
        """`seq`: how many changes of the shard were made or merged here. `bell` is rung when the
        state of the other is another one."""
        self.way = way
        self.link = link
        self._book = book
        self._clock = clock
        self._seq = seq
        self._bell = bell
        self._pending: dict[str, None] = {}
        """Keys of what the other may lack."""
        self._kicked = asyncio.Event()
        self._synced = -1
        """How many of our changes it has."""
        self._there = ""
        """Its digest, as last reported."""
        self._was_held = False
        """The last answer was to be delayed."""
        self.exchanged_at: float | None = None
        """Monotonic: when it last answered."""
        self.met = False
        """It has answered since this agent leads."""
        self.fault = ""
        """Why the last try failed; empty: it did not."""
        self.is_away = False
        """With a fault: it gave no answer at all."""
        self.left_out: Mapping[str, str] = {}
        """What has no effect there, by the id of the change: why."""

    @property
    def has_all(self) -> bool:
        return self.has(self._seq())

    def has(self, seq: int) -> bool:
        return self._synced >= seq

    def changed(self, keys: Iterable[str]) -> None:
        self._pending.update(dict.fromkeys(keys))
        self._kicked.set()

    def meet(self) -> None:
        """This agent leads from now on: fetch what the other has before anything is changed."""
        self.met = False
        self._kicked.set()

    # --- rounds ----------------------------------------------------------------------------

    async def run(self) -> None:
        pause_s = 0.0
        while True:
            self._kicked.clear()
            began_s = self._clock.now().mono_s
            try:
                is_same = await self._round()
            except (PeerFailed, StoreUnavailable, Conflict, InvalidSettings) as error:
                self.is_away = isinstance(error, PeerFailed) and error.cause in UNANSWERED
                self._say(error.detail if isinstance(error, PeerFailed) else str(error))
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s or FIRST_PAUSE_S)
                await self._clock.sleep(pause_s)
                continue
            pause_s = 0.0
            self._say("" if is_same else DIFFERS)
            took_s = self._clock.now().mono_s - began_s
            if not self.way.hold_s or not is_same:
                await sleep_unless(self._kicked, self._clock, self.way.every_s())
            elif self._was_held and took_s < LEAST_ROUND_S:
                await sleep_unless(self._kicked, self._clock, LEAST_ROUND_S - took_s)

    async def _round(self) -> bool:
        """Whether both have the same after it."""
        compared = 0
        while True:
            is_same = await self._tell()
            if self._pending:
                continue  # More has changed meanwhile, or did not fit.
            if is_same or self._there == self._inventory.digest:
                return True
            if compared == MAX_COMPARED:
                return False
            compared += 1
            await self._compare()

    async def _tell(self) -> bool:
        """What has changed, as much as goes into one message. Whether it has the same after it."""
        sending = await self._to_send()
        seq, digest = self._seq(), self._inventory.digest
        is_quiet = not sending and not self._pending and self._there == digest
        wait_s = self.way.hold_s if is_quiet else 0.0
        self._was_held = wait_s > 0
        offer = self._offer(digest, entries=tuple(sending), wait_s=wait_s)
        try:
            answer = await self._ask(offer)
        except BaseException:
            self._pending = dict.fromkeys([*(key for key, _ in sending), *self._pending])
            raise
        await self._merge(answer.entries)
        self._there = answer.digest
        if answer.digest == digest:
            self._synced = max(self._synced, seq)
            self._say("")
        return answer.digest == digest

    async def _to_send(self) -> list[Entry]:
        keys = list(self._pending)[:MAX_READ]
        if not keys:
            return []
        entries = await self._book.entries(keys)
        sending = entries[: fitting(entries, OFFER_BYTES)]
        left_out = {key for key, _ in entries[len(sending) :]}
        for key in keys:
            if key not in left_out:
                self._pending.pop(key, None)
        return sending

    async def _compare(self) -> None:
        """Page by page: take what it has and we lack; what it lacks is sent with the next round."""
        await self._book.collect()
        after = ""
        for _ in range(MAX_PAGES):
            page = self._inventory.page(after)
            answer = await self._ask(self._offer(self._inventory.digest, page=page, after=after))
            await self._merge(answer.entries)
            self._pending.update(dict.fromkeys(answer.want))
            reached = answer.upto or page.upto
            if not reached:
                return
            if reached <= after:
                break
            after = reached
        raise PeerFailed(Cause.INVALID, f"{self.link.url}: its pages do not end")

    def _offer(
        self,
        digest: str,
        *,
        entries: tuple[Entry, ...] = (),
        page: VersionPage | None = None,
        after: str = "",
        wait_s: float = 0.0,
    ) -> Offer:
        way = self.way
        return Offer(
            way.shard, way.database, way.sender, digest, entries, page, after, wait_s,
            bool(way.hold_s), way.cluster(),
        )  # fmt: skip

    async def _ask(self, offer: Offer) -> ExchangeAnswer:
        answer = await self._asked(offer)
        self.exchanged_at, self.is_away = self._clock.now().mono_s, False
        self.left_out = answer.left_out
        return answer

    async def _asked(self, offer: Offer) -> ExchangeAnswer:
        asking = self.link.exchange(offer, timeout_s=offer.wait_s + TIMEOUT_S)
        if not offer.wait_s:
            return await asking
        # What changes here meanwhile is not held up by an answer that is.
        task, kicked = asyncio.ensure_future(asking), asyncio.ensure_future(self._kicked.wait())
        try:
            await asyncio.wait({task, kicked}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                return ExchangeAnswer(self._there, left_out=self.left_out)
            return await task
        finally:
            kicked.cancel()
            task.cancel()

    async def _merge(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        merged = await self._book.merge(self.way.shard, entries, by=self.way.name)
        if merged.rejected:
            log.warning("change.rejected", member=self.way.name, detail=merged.rejected[0])
        for key, raw in entries:  # No need to send it what it sent us.
            with suppress(ValueError):
                if self._inventory.version(key) == version_of(raw):
                    self._pending.pop(key, None)

    @property
    def _inventory(self) -> Inventory:
        return self._book.inventory(self.way.shard)

    # --- how it is ---------------------------------------------------------------------------

    def _say(self, fault: str) -> None:
        """One line for each change of state."""
        said = {"shard": self.way.shard, "member": self.way.name, "url": self.link.url}
        if fault and not self.fault:
            log.warning("changes.not_exchanged", **said, detail=fault)
        elif self.fault and not fault:
            log.info("changes.exchanged", **said)
        self.fault, self.met = fault, self.met or not self.is_away
        self._bell.ring()


# --- how far a change reaches ----------------------------------------------------------------


def own_reach(
    given: Reach | None,
    concerned: Collection[str],
    leads: Mapping[str, str],
    *,
    host: str,
    has_fleet: bool,
) -> Reach:
    """`concerned`: the shards of the databases that it is for, "" for one without. `leads`: for
    each shard of this agent, where else its changes must be made; empty: here, because it leads.

    The primary's agent answers for its shard: a change there without a reach is for the shard, so
    that a promotion keeps it. InvalidRequest if another agent has to make the change.
    """
    if given is None:
        [shard, *others] = sorted(set(concerned)) or [""]
        is_led = bool(shard) and not others and leads.get(shard) == ""
        return (of_shard(shard) or HERE) if is_led and not has_fleet else HERE
    if given == HERE or given == Reach(Level.HOST, host):
        return HERE
    if has_fleet or given.level is not Level.SHARD or given.pattern not in leads:
        return given
    if elsewhere := leads[given.pattern]:
        raise InvalidRequest(elsewhere, status=409, field="reach")
    return given
