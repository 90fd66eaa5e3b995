"""Follow what the fleet shares.   sources (best first) ──► LogFollower ──► Mirror, watchers

List, then watch after that revision. Whatever ends a watch (an error, a compaction, a silence
that the beat finds) leads to the next source, with jitter; the last of them is the store itself,
which the whole fleet shares, and is turned to in a time spread over the fleet's size. A better
source is gone back to when it has answered for a while. No check waits for any of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import inf

import structlog

from headgate.agent.logmirror import Mirror, WentBack, head_n
from headgate.agent.logsources import Sources
from headgate.agent.ports import Clock, LogReader
from headgate.core.change import BEAT, HEAD
from headgate.core.fleet_timing import FleetTiming, first_contact_in_s, spread_s
from headgate.core.keyvalue import Changes, Listing
from headgate.core.log_copy import LogCopy
from headgate.core.samples import Instant
from headgate.errors import Compacted, StoreUnavailable

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
        self._sources = Sources(sources, clock, roll, self._timing)
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
        self, reader: LogReader, prefixes: Sequence[str], *, at_any_member: bool = False
    ) -> Listing:
        limit_s = LISTING_TRIES * self._timing.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await reader.list(prefixes, at_any_member=at_any_member)
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
            listing = await self._listed(reader, (HEAD, *prefixes), at_any_member=True)
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
