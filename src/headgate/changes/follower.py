"""Follow what the fleet shares.   sources (best first) ──► LogFollower ──► Mirror, watchers

List, then watch after that revision. Whatever ends a watch (an error, a compaction, a silence
that the beat finds) leads to the next source, with jitter; the last of them is the store itself,
which the whole fleet shares, and is turned to in a time spread over the fleet's size. A better
source is gone back to when it has answered for a while. No check waits for any of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import inf

import structlog

from headgate.base.keyvalue import Changes, Listing
from headgate.base.ports import Clock, LogReader
from headgate.changes.log_copy import LogCopy
from headgate.changes.mirror import Mirror, WentBack, head_n
from headgate.changes.model import BEAT, HEAD
from headgate.errors import Compacted, StoreUnavailable
from headgate.fleet.beat import (
    AGENTS_PER_SHARD,
    LEAST_SPREAD_S,
    FleetTiming,
    fallback_in_s,
    first_contact_in_s,
    retry_in_s,
    spread_s,
)
from headgate.metrics.samples import Instant

log = structlog.get_logger()

NEVER = -inf
QUIET = "the store can be read, but no agent has written its beat recently: can it be written?"
NOBODY = "waiting for the roles of our servers: they decide which source to follow"
LISTING_TRIES = 3
"""A request may try several members of the store, each with its own timeout."""
Told = Callable[[frozenset[str]], None]
"""Called with the keys that differ, after the mirror has them."""
MAX_PENDING = 10_000
"""Keys that a failing watcher still has to get; beyond this, it gets all there are."""


@dataclass(frozen=True, slots=True)
class FollowState:
    """State of following, for people and for metrics."""

    source: str
    """The source that is followed; empty: none now."""
    direct: bool
    """The source is the store itself, not another agent."""
    store_id: str
    revision: int
    """Revision of the store: nothing up to it is missing here. 0: nothing is known."""
    n: int
    """The fleet's revision that this agent has reached, at least."""
    heard_at: Instant | None
    """When the store was last seen, through any source; None: never since the start."""
    stale_since: float | None
    """Wall-clock seconds since when the data may be stale; None: it is fresh."""
    stale_for_s: float
    """The same as an age; 0 while it is fresh. By the monotonic clock, except for a copy's."""
    from_cache_of: float | None
    """Time (wall clock) of the copy on disk that is in force; None: it is not from disk."""
    fault: str
    """Why there is no source, or not the best one; empty: there is."""
    went_back: WentBack | None
    """The store lost changes in force here: `headgate changes restore --fleet` restores them."""
    shards: int
    """Size of the fleet, from its beat; 0: not known."""
    entries: int
    connects_total: int
    losses_total: int
    """Watches and tries that failed."""
    listings_total: int
    """Times that everything was read again."""


@dataclass(eq=False, slots=True)
class _Watcher:
    tell: Told
    pending: set[str] = field(default_factory=set)


class Watchers:
    """A watcher that raises is logged, and gets the same keys again with the next ones; the others
    do not wait for it."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._watchers: list[_Watcher] = []

    def add(self, tell: Told) -> None:
        self._watchers.append(_Watcher(tell))

    def tell(self, changed: frozenset[str]) -> None:
        for watcher in self._watchers:
            if changed or watcher.pending:
                self._tell_one(watcher, changed)

    def _tell_one(self, watcher: _Watcher, changed: frozenset[str]) -> None:
        due = changed.union(watcher.pending) if watcher.pending else changed
        try:
            watcher.tell(due)
        except Exception:  # The supervisor of watchers: a fault of one does not affect the others.
            log.exception("fleet.watcher_failed", keys=len(due), again="with the next beat")
            too_many = len(due) > MAX_PENDING
            watcher.pending = {e.key for e in self._mirror.entries()} if too_many else set(due)
        else:
            watcher.pending.clear()


@dataclass(frozen=True, slots=True)
class BeatHeard:
    by: str
    revision: int
    """What the next beat compares with; 0: there is none."""
    at: float
    """Monotonic: when it was seen, or the watch began, whichever came later."""


class LogFollower:
    __slots__ = (
        "_beat_at",
        "_clock",
        "_compacted",
        "_connected_at",
        "_connects_total",
        "_fault",
        "_from_cache_of",
        "_glimpsed",
        "_head_revision",
        "_heard_at",
        "_heard_revision",
        "_listings_total",
        "_losses_total",
        "_mirror",
        "_nap",
        "_prefixes",
        "_quiet_until",
        "_roll",
        "_sources",
        "_started",
        "_timing",
        "_watchers",
        "reader",
    )

    def __init__(
        self,
        mirror: Mirror,
        clock: Clock,
        roll: Callable[[], float],
        *,
        sources: Callable[[], Sequence[LogReader]],
        prefixes: Callable[[], Sequence[str]],
        timing: FleetTiming | None = None,
    ) -> None:
        """`sources`: best first, each with its own name; the last one is the store itself. The
        caller owns and closes them. Both are evaluated again at every beat."""
        self._mirror = mirror
        self._clock = clock
        self._roll = roll
        self._prefixes = prefixes
        self._timing = timing or FleetTiming()
        self._sources = LogSources(sources, clock, roll, self._timing)
        self._watchers = Watchers(mirror)
        self.reader: LogReader | None = None
        """The source that is followed; None: none now."""
        self._started = clock.now()
        self._heard_at: Instant | None = None
        self._heard_revision = 0
        self._connected_at = self._beat_at = NEVER
        self._head_revision = 0
        """Of the store's head, when it was last looked at."""
        self._quiet_until: float | None = None
        """The store answers, but nobody writes to it: when to look again."""
        self._glimpsed = False
        self._from_cache_of: float | None = None
        self._compacted = False
        self._fault = ""
        self._nap: asyncio.Task[None] | None = None
        self._connects_total = self._losses_total = self._listings_total = 0

    # --- what others see ---------------------------------------------------------------------

    @property
    def mirror(self) -> Mirror:
        return self._mirror

    @property
    def timing(self) -> FleetTiming:
        return self._timing

    @property
    def shards(self) -> int:
        """How large the fleet is, by its beat; 0: not known."""
        return self._mirror.beat.shards if self._mirror.beat is not None else 0

    @property
    def spread_s(self) -> float:
        """Over how long the fleet spreads what each shard does once."""
        return spread_s(self.shards)

    @property
    def is_stale(self) -> bool:
        heard = self._heard_at
        silent_s = self._timing.silent_after_s
        return heard is None or self._clock.now().mono_s - heard.mono_s > silent_s

    @property
    def beat_heard(self) -> BeatHeard:
        """For the agent that writes the next one."""
        beat, entry = self._mirror.beat, self._mirror.get(BEAT)
        return BeatHeard(
            beat.by if beat is not None else "",
            entry.revision if entry is not None else 0,
            max(self._beat_at, self._connected_at),
        )

    def state(self) -> FollowState:
        mirror, heard, reader, now = self._mirror, self._heard_at, self.reader, self._clock.now()
        since, for_s = self._staleness(now)
        return FollowState(
            source=reader.name if reader is not None else "",
            direct=reader is not None and self._sources.is_store(reader),
            store_id=mirror.store_id,
            revision=mirror.revision,
            n=mirror.n,
            heard_at=heard,
            stale_since=since,
            stale_for_s=for_s,
            from_cache_of=self._from_cache_of,
            fault=self._fault or (QUIET if self._quiet_until is not None else ""),
            went_back=mirror.went_back,
            shards=self.shards,
            entries=len(mirror),
            connects_total=self._connects_total,
            losses_total=self._losses_total,
            listings_total=self._listings_total,
        )

    def _staleness(self, now: Instant) -> tuple[float | None, float]:
        if not self.is_stale:
            return None, 0.0
        if self._heard_at is not None:
            return self._heard_at.wall_s, now.mono_s - self._heard_at.mono_s
        if self._from_cache_of is not None:
            return self._from_cache_of, max(0.0, now.wall_s - self._from_cache_of)
        return self._started.wall_s, now.mono_s - self._started.mono_s

    def copy(self) -> LogCopy | None:
        """For the disk; None: there is nothing to keep."""
        if not self._mirror.known:
            return None
        heard = self._heard_at.wall_s if self._heard_at is not None else None
        return self._mirror.copy(heard or self._from_cache_of or self._started.wall_s)

    # --- telling -----------------------------------------------------------------------------

    def watch(self, tell: Told) -> None:
        """Call `tell` with the keys that differ, whenever some do. A watcher that raises is logged,
        and gets the same keys again with the next ones; the others do not wait for it."""
        self._watchers.add(tell)

    def recall(self, copy: LogCopy) -> None:
        """Apply the copy from disk, before any request to a source."""
        changed = self._mirror.recall(copy)
        if changed:
            self._from_cache_of = copy.wall_s
            self._heard_revision = self._mirror.newest
            log.info("fleet.recalled", n=copy.n, entries=len(changed), heard_at=copy.wall_s)
        self._watchers.tell(changed)

    def look_again(self) -> None:
        """Something that sources or prefixes depend on has changed: see now, not at the next
        beat."""
        if self._nap is not None:
            self._nap.cancel()

    # --- following ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs forever. Supervised by the caller, it continues with what the mirror has."""
        recalled = self._mirror.known
        await self._pause(first_contact_in_s(self.shards if recalled else None, self._roll()))
        while True:
            reader, wait_s = self._sources.next()
            if reader is None:
                self._fault = self._fault or NOBODY
                await self._pause(wait_s)
                continue
            if self._fault == NOBODY:
                self._fault = ""
            if wait_s > 0:
                await self._pause(wait_s)
                continue
            await self._attend(reader)

    async def _attend(self, reader: LogReader) -> None:
        try:
            while await self._connect(reader):
                pass
        except StoreUnavailable as error:
            await self._lost(reader, error)
        finally:
            self.reader = None

    async def _connect(self, reader: LogReader) -> bool:
        """List if needed, and watch. True: start again, because prefixes have changed."""
        prefixes = tuple(self._prefixes())
        if not await self._resumes(reader, prefixes):
            await self._list_anew(reader, prefixes)
        self._joined(reader)
        return await self._hold(reader, prefixes)

    async def _resumes(self, reader: LogReader, prefixes: tuple[str, ...]) -> bool:
        """May be watched from where we are: it is the same store, and has not gone back."""
        mirror = self._mirror
        if self._compacted or not mirror.known or prefixes != mirror.prefixes:
            return False
        head = await self._listed(reader, (HEAD,))
        if head.store_id != mirror.store_id:
            return False
        # Another agent may be a little behind us, and catches up; the store itself may not.
        went_back = mirror.is_late(head) or head_n(head) < mirror.n
        if went_back and self._sources.is_store(reader):
            return False
        self._answered(reader, head)
        return True

    async def _list_anew(self, reader: LogReader, prefixes: tuple[str, ...]) -> None:
        listing = await self._listed(reader, (HEAD, *prefixes))
        is_store, mirror = self._sources.is_store(reader), self._mirror
        other = mirror.known and listing.store_id != mirror.store_id
        if other and not is_store and head_n(listing) < mirror.n:
            # Whether the store went back is for the store to say.
            raise StoreUnavailable(
                f"{reader.name} has another store, at n {head_n(listing)} where this agent knows "
                f"{mirror.n}: reading from the store itself"
            )
        behind = not is_store and mirror.is_late(listing)
        if behind and prefixes != mirror.prefixes:
            raise StoreUnavailable(
                f"{reader.name} is at revision {listing.revision}, this agent at {mirror.revision}"
            )
        self._listings_total += 1
        changed = mirror.adopt(listing, prefixes, authoritative=is_store)
        self._compacted = False
        self._answered(reader, listing)
        self._watchers.tell(changed)

    async def _listed(
        self, reader: LogReader, prefixes: Sequence[str], *, allow_stale: bool = False
    ) -> Listing:
        limit_s = LISTING_TRIES * self._timing.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await reader.list(prefixes, allow_stale=allow_stale)
        except TimeoutError:
            raise StoreUnavailable(f"{reader.name}: no answer in {limit_s:g} s") from None

    def _answered(self, reader: LogReader, listing: Listing) -> None:
        """The store itself lives, then. Another agent may know that much from long ago."""
        if self._sources.is_store(reader):
            self._hear(reader, listing.newest)
        self._heard_revision = listing.newest
        self._head_revision = _revision_of(HEAD, listing)

    def _hear(self, reader: LogReader, revision: int) -> None:
        """The store lives, as of now."""
        if self.is_stale:
            log.info("fleet.heard", source=reader.name, n=self._mirror.n, revision=revision)
        self._heard_at, self._from_cache_of = self._clock.now(), None
        self._heard_revision = revision

    def _joined(self, reader: LogReader) -> None:
        self._sources.joined(reader)
        self._connects_total += 1
        self._connected_at, self._quiet_until = self._clock.now().mono_s, None
        self.reader, self._fault = reader, ""
        log.info("fleet.followed", source=reader.name, revision=self._mirror.revision)

    async def _lost(self, reader: LogReader, error: StoreUnavailable) -> None:
        told = str(error)
        if self.reader is not None or not self._fault:
            log.warning("fleet.source_lost", source=reader.name, detail=told)
        self.reader, self._fault = None, told
        self._losses_total += 1
        compacted, cold = isinstance(error, Compacted), self._heard_at is None
        self._compacted = self._compacted or compacted
        self._sources.lost(reader, spread=self.spread_s, cold=cold, compacted=compacted)
        if cold and not self._glimpsed:
            await self._glimpse(reader)

    async def _glimpse(self, reader: LogReader) -> None:
        """No contact since the start: data from one member that may be behind is better than
        nothing, or than the copy on disk. It stays marked as stale."""
        prefixes, mirror = tuple(self._prefixes()), self._mirror
        try:
            listing = await self._listed(reader, (HEAD, *prefixes), allow_stale=True)
        except StoreUnavailable:
            return
        if (mirror.known and listing.store_id != mirror.store_id) or head_n(listing) < mirror.n:
            return
        self._glimpsed = True
        self._watchers.tell(mirror.adopt(listing, prefixes, authoritative=False))
        self._heard_revision = max(self._heard_revision, mirror.newest)

    # --- watching ----------------------------------------------------------------------------

    async def _hold(self, reader: LogReader, prefixes: tuple[str, ...]) -> bool:
        """Until there is a reason to leave; True: the same source, listed again."""
        pump = asyncio.ensure_future(self._pump(reader, prefixes))
        try:
            while True:
                await self._pause(self._looks_at(reader) - self._clock.now().mono_s, pump)
                if not self._sources.has(reader):
                    return False  # However it ended: it is no longer ours to follow.
                if pump.done():
                    _raise_from(pump, reader)
                    return True
                await self._expect_sound(reader)
                if await self._returns_to_better(reader):
                    return False
                if tuple(self._prefixes()) != prefixes:
                    return True
        finally:
            await self._end(pump)

    def _looks_at(self, reader: LogReader) -> float:
        sources = self._sources
        return min(self._silent_at(), sources.probes_at(reader), sources.gives_up_at(reader))

    def _silent_at(self) -> float:
        if self._quiet_until is not None:
            return self._quiet_until
        heard_s = self._heard_at.mono_s if self._heard_at is not None else NEVER
        return max(heard_s, self._connected_at) + self._timing.silent_after_s

    async def _expect_sound(self, reader: LogReader) -> None:
        now_s = self._clock.now().mono_s
        if now_s >= self._sources.gives_up_at(reader):
            raise StoreUnavailable(f"{reader.name} answers, but has no contact to the store")
        if now_s >= self._silent_at() and not await self._is_quiet(reader):
            silent_s = self._timing.silent_after_s
            raise StoreUnavailable(
                f"{reader.name}: no beat for {silent_s:g} s: its watch has stalled"
            )

    async def _is_quiet(self, reader: LogReader) -> bool:
        """Nobody has written since, perhaps because nobody can: a watch that has nothing to tell
        is as good as any other, and a store that is unwell is not asked for more."""
        mirror, known = self._mirror, self._mirror.get(BEAT)
        if not self._sources.is_store(reader):
            return False
        try:
            told = await self._listed(reader, (HEAD, BEAT))
        except StoreUnavailable:
            return False
        beat_revision = known.revision if known is not None else 0
        quiet = (
            told.store_id == mirror.store_id
            and _revision_of(BEAT, told) == beat_revision
            and _revision_of(HEAD, told) <= max(self._head_revision, mirror.revision)
        )
        if quiet:
            self._hear(reader, self._heard_revision)
            wait_s = self._timing.beat_interval_s + self._roll() * self.spread_s
            self._quiet_until = self._clock.now().mono_s + wait_s
        return quiet

    async def _pump(self, reader: LogReader, prefixes: tuple[str, ...]) -> None:
        """Take in changes, until it is time to look why none come, or at something else."""
        watch = reader.watch(prefixes, after_revision=self._mirror.revision)
        async with aclosing(watch):
            async for changes in watch:
                self._take(reader, changes)
                if not self._sources.has(reader) or tuple(self._prefixes()) != prefixes:
                    return
        raise StoreUnavailable(f"{reader.name}: the watch has ended")

    def _take(self, reader: LogReader, changes: Changes) -> None:
        changed = self._mirror.apply(changes)
        if BEAT in changed:
            self._beat_at, self._quiet_until = self._clock.now().mono_s, None
        if changes.newest > self._heard_revision:
            self._hear(reader, changes.newest)
            self._sources.heard(reader)
        self._watchers.tell(changed)

    async def _returns_to_better(self, reader: LogReader) -> bool:
        better = self._sources.to_probe(reader)
        if better is None:
            return False
        try:
            head = await self._listed(better, (HEAD,))
        except StoreUnavailable:
            self._sources.failed_probe(better)
            return False
        if head.store_id != self._mirror.store_id:
            self._sources.failed_probe(better)
            return False
        known = self._mirror.revision
        return self._sources.answered_probe(better, head.revision, known)

    # --- waiting -----------------------------------------------------------------------------

    async def _pause(self, seconds: float, *beside: asyncio.Future[None]) -> None:
        """Until then, or until look_again is called, or one of `beside` ends."""
        self._nap = asyncio.ensure_future(self._clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait({self._nap, *beside}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._nap.cancel()
            self._nap = None

    async def _end(self, pump: asyncio.Future[None]) -> None:
        """A watch that does not let go is left to itself: nothing here waits for a network."""
        pump.cancel()
        await asyncio.wait({pump}, timeout=self._timing.timeout_s)
        if pump.done() and not pump.cancelled():
            pump.exception()  # Seen: it has been raised already, or is no longer of interest.


def _revision_of(key: str, listing: Listing) -> int:
    return next((entry.revision for entry in listing.entries if entry.key == key), 0)


def _raise_from(pump: asyncio.Future[None], reader: LogReader) -> None:
    """A pump that other code cancelled must not be taken for our own end."""
    if pump.cancelled():
        raise StoreUnavailable(f"{reader.name}: the watch was cancelled")
    pump.result()


LOOK_AGAIN_S = 0.25
"""While there is no source: agents get known within seconds of a start."""
SOON = 6
"""If a source is lost within this many times `return_after_s`, the return was useless."""


@dataclass(slots=True)
class _Turn:
    """Of one source. Times are monotonic."""

    rests_until: float = NEVER
    failures: int = 0
    """Seconds since it last had news."""
    joined_at: float = NEVER
    good_since: float | None = None
    """It answers again since then, although another one is followed."""
    mark: int | None = None
    """Our revision at the last request to it: by now it must have that, too."""
    returned: bool = False
    """The agent returned to it from a worse one."""
    flaps: int = 0
    """Useless returns in a row."""

    def left(self, now_s: float, *, soon_s: float) -> None:
        if now_s - self.joined_at >= soon_s:
            self.flaps = 0
        elif self.returned:
            self.flaps += 1
        self.returned, self.joined_at = False, inf


class LogSources:
    """Which source to follow next, and when: the best first, the store last.

    Each source is left alone after a failure, for longer the more often it failed. The store, which
    everybody shares, is turned to in a time spread over the fleet; others, which serve one shard,
    soon. A better source than the one that is followed is gone back to once it has answered for a
    while, and the times, the longer that takes.
    """

    __slots__ = ("_clock", "_falls_back_at", "_roll", "_sources", "_timing", "_turns")

    def __init__(
        self,
        sources: Callable[[], Sequence[LogReader]],
        clock: Clock,
        roll: Callable[[], float],
        timing: FleetTiming,
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._roll = roll
        self._timing = timing
        self._turns: dict[str, _Turn] = {}
        self._falls_back_at: float | None = None
        """When to contact the store, because no nearer source has news; None: one has."""

    def is_store(self, reader: LogReader) -> bool:
        sources = self._sources()
        return bool(sources) and sources[-1] is reader

    def has(self, reader: LogReader) -> bool:
        return any(one is reader for one in self._sources())

    def next(self) -> tuple[LogReader | None, float]:
        """The best that may be turned to, and in how many seconds; None: there is none at all."""
        sources, now_s = self._sources(), self._clock.now().mono_s
        if not sources:
            return None, LOOK_AGAIN_S
        self._forget_others(sources)
        store_at = self._due_at(sources[-1])
        if self._falls_back_at is not None and store_at <= now_s:
            return sources[-1], 0.0
        # The better one of two that are both due: min() keeps the first.
        reader = min(sources, key=lambda one: max(now_s, self._due_at(one)))
        return reader, max(0.0, self._due_at(reader) - now_s)

    def _due_at(self, reader: LogReader) -> float:
        due_at = self._turn(reader).rests_until
        if self._falls_back_at is not None and self.is_store(reader):
            return max(due_at, self._falls_back_at)
        return due_at

    def gives_up_at(self, reader: LogReader) -> float:
        """When one that answers but has no news is left for the store; infinity: not at all."""
        sources = self._sources()
        if self._falls_back_at is None or not sources or sources[-1] is reader:
            return inf
        return self._due_at(sources[-1])

    def joined(self, reader: LogReader) -> None:
        turn = self._turn(reader)
        turn.good_since = turn.mark = None
        turn.rests_until, turn.joined_at = NEVER, self._clock.now().mono_s
        if self.is_store(reader):
            self._falls_back_at = None
        for better in self._better(reader):
            # It was just found to be away, or to be worse; it is looked at later.
            other = self._turn(better)
            other.good_since = other.mark = None
            other.rests_until = max(other.rests_until, self._probe_at())

    def heard(self, reader: LogReader) -> None:
        """Its watch has news. That it answers is not enough: it may know nothing new, or end every
        watch at once."""
        self._turn(reader).failures = 0
        self._falls_back_at = None

    def lost(
        self, reader: LogReader, *, spread: float, cold: bool, compacted: bool = False
    ) -> None:
        """`spread`: of the fleet; `cold`: no contact since the start; `compacted`: it answers, and
        only has to be listed again."""
        turn, now_s = self._turn(reader), self._clock.now().mono_s
        turn.left(now_s, soon_s=SOON * self._timing.return_after_s)
        wide = self._spread_of(reader, spread, turn.failures)
        turn.rests_until = now_s + retry_in_s(turn.failures, self._roll(), wide)
        turn.failures += 1
        if self._falls_back_at is None and not self.is_store(reader):
            # One that is back at once has the time of a beat to show that it has news; one that
            # answers, and only made us list again, has all the time that a silence may take.
            timing = self._timing
            grace_s = timing.silent_after_s if compacted else timing.beat_interval_s
            wait_s = grace_s + fallback_in_s(self._roll(), spread, cold=cold)
            self._falls_back_at = now_s + wait_s

    def _spread_of(self, reader: LogReader, spread: float, failures: int) -> float:
        if not self.is_store(reader):
            return LEAST_SPREAD_S
        # Agents with a nearer source are three in a shard, and can wait longer.
        return spread * AGENTS_PER_SHARD if failures and len(self._sources()) > 1 else spread

    # --- back to a better one ----------------------------------------------------------------

    def to_probe(self, reader: LogReader) -> LogReader | None:
        """A better one than this that is due for a test whether it answers again."""
        now_s = self._clock.now().mono_s
        due = (one for one in self._better(reader) if self._turn(one).rests_until <= now_s)
        return next(due, None)

    def probes_at(self, reader: LogReader) -> float:
        """When the next of them is; infinity where there is none."""
        return min((self._turn(one).rests_until for one in self._better(reader)), default=inf)

    def failed_probe(self, reader: LogReader) -> None:
        turn = self._turn(reader)
        turn.good_since = turn.mark = None
        turn.rests_until = self._probe_at()

    def answered_probe(self, reader: LogReader, revision: int, known_revision: int) -> bool:
        """It is at that revision, we at ours. True: go back to it."""
        turn, now_s = self._turn(reader), self._clock.now().mono_s
        keeps_up = turn.mark is None or revision >= turn.mark
        turn.mark, turn.rests_until = known_revision, self._probe_at()
        if not keeps_up:
            turn.good_since = None
            return False
        if turn.good_since is None:
            turn.good_since = now_s
        ready = now_s - turn.good_since >= self._timing.returns_after_s(turn.flaps)
        if ready:
            turn.rests_until, turn.returned = NEVER, True
        return ready

    def _probe_at(self) -> float:
        return self._clock.now().mono_s + self._timing.probe_every_s * (0.75 + 0.5 * self._roll())

    def _better(self, reader: LogReader) -> Iterator[LogReader]:
        for one in self._sources():
            if one is reader:
                return
            yield one

    # --- bookkeeping -------------------------------------------------------------------------

    def _turn(self, reader: LogReader) -> _Turn:
        return self._turns.setdefault(reader.name, _Turn())

    def _forget_others(self, sources: Sequence[LogReader]) -> None:
        names = {one.name for one in sources}
        for gone in self._turns.keys() - names:
            del self._turns[gone]
        if len(sources) == 1:
            self._falls_back_at = None
