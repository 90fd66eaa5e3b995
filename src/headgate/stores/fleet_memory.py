"""A fleet's store in memory: for tests, the simulation, and as what the others are held to.

commit ──► KeptInMemory (entries, bounded log, leases) ──► pending of each watch that it concerns

Every MemoryFleetStore is one client's way to what is kept; several share a KeptInMemory, as
several agents share an etcd.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from uuid import uuid4

from headgate.core.keyvalue import Changes, Compare, Entry, Event, Lease, Listing, Put
from headgate.errors import Compacted, Conflict, LeaseLost, StoreUnavailable
from headgate.stores.fleet_limits import check_commit

LAST_CHARACTER = "\U0010ffff"
MAX_LOG_COMMITS = 10_000
MAX_PENDING_EVENTS = 10_000
"""Of a watch that nobody reads; beyond it the watch ends, and the reader lists anew."""


@dataclass(slots=True)
class _Kept:
    entry: Entry
    lease: int


@dataclass(slots=True)
class _Granted:
    ttl_s: float
    until_mono_s: float
    keys: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Watch:
    """One reader of changes; what concerns it is laid here by the commit itself."""

    prefixes: tuple[str, ...]
    pending: list[Event] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    ended: StoreUnavailable | None = None

    def lay(self, events: Sequence[Event]) -> None:
        if len(self.pending) + len(events) > MAX_PENDING_EVENTS:
            self.end(Compacted(f"memory: {MAX_PENDING_EVENTS} changes were not read: list anew"))
            return
        self.pending.extend(events)
        self.woken.set()

    def end(self, error: StoreUnavailable) -> None:
        self.ended, self.pending = error, []
        self.woken.set()


class KeptInMemory:
    """The data itself. Not for several threads: everything happens on one event loop."""

    def __init__(
        self,
        *,
        mono_s: Callable[[], float] = time.monotonic,
        max_log_commits: int = MAX_LOG_COMMITS,
    ) -> None:
        self.store_id = uuid4().hex
        self.revision = 0
        self._mono_s = mono_s
        self._entries: dict[str, _Kept] = {}
        self._keys: list[str] = []
        """The same, in order."""
        self._leases: dict[int, _Granted] = {}
        self._last_lease = 0
        self._first_end_mono_s = inf
        """No lease ends before."""
        self._log: deque[tuple[int, tuple[Event, ...]]] = deque(maxlen=max_log_commits)
        self._known_after = 0
        """Changes beyond this revision are still in the log."""
        # Dicts as ordered sets: who is told first is the same in every run.
        self._watches: dict[str, dict[_Watch, None]] = {}

    # --- reading ---------------------------------------------------------------------------

    def listing(self, prefixes: Sequence[str]) -> Listing:
        self._collect()
        found = {key for prefix in prefixes for key in self._under(prefix)}
        entries = tuple(self._entries[key].entry for key in sorted(found))
        return Listing(entries, self.revision, self.store_id)

    def count(self, prefix: str) -> int:
        self._collect()
        return len(self._under(prefix))

    def entry(self, key: str) -> Entry | None:
        kept = self._entries.get(key)
        return kept.entry if kept else None

    def _under(self, prefix: str) -> list[str]:
        first = bisect_left(self._keys, prefix)
        return self._keys[first : bisect_left(self._keys, prefix + LAST_CHARACTER, first)]

    def open_watch(self, prefixes: Sequence[str], after_revision: int) -> _Watch:
        if after_revision < self._known_after:
            raise Compacted(
                f"memory: changes after revision {after_revision} are known from "
                f"{self._known_after} on: list anew"
            )
        watch = _Watch(tuple(prefixes))
        for events in self._logged_after(after_revision):
            watch.lay([event for event in events if event.key.startswith(watch.prefixes)])
        for prefix in watch.prefixes:
            self._watches.setdefault(prefix, {})[watch] = None
        return watch

    def drop_watch(self, watch: _Watch) -> None:
        for prefix in watch.prefixes:
            readers = self._watches.get(prefix, {})
            readers.pop(watch, None)
            if not readers:
                self._watches.pop(prefix, None)

    def compact(self, revision: int) -> None:
        """Changes up to `revision` are no longer known."""
        while self._log and self._log[0][0] <= revision:
            self._log.popleft()
        self._known_after = max(self._known_after, min(revision, self.revision))

    def _logged_after(self, revision: int) -> Iterator[tuple[Event, ...]]:
        first = bisect_right(self._log, revision, key=lambda commit: commit[0])
        return (self._log[at][1] for at in range(first, len(self._log)))

    # --- writing ---------------------------------------------------------------------------

    def commit(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int:
        check_commit(compares, puts)
        self._collect()
        self.hold(compares)
        for put in puts:
            if put.lease and put.value is not None:
                self._granted(put.lease)
        return self.put_all(puts)

    def hold(self, compares: Iterable[Compare]) -> None:
        for compare in compares:
            self._hold(compare)

    def put_all(self, puts: Iterable[Put]) -> int:
        return self._record(self._put(put) for put in puts)

    def _hold(self, compare: Compare) -> None:
        kept = self._entries.get(compare.key)
        found = kept.entry.revision if kept else 0
        if found != compare.revision:
            raise Conflict(
                f"{compare.key} is of revision {found}, not {compare.revision}: "
                "somebody else was first; nothing was done"
            )

    def _put(self, put: Put) -> Event | None:
        """None: it was not there to be taken out."""
        before = self._entries.get(put.key)
        if before and before.lease in self._leases:
            self._leases[before.lease].keys.discard(put.key)
        if put.value is None:
            return self._take_out(put.key) if before else None
        if before is None:
            insort(self._keys, put.key)
        self._entries[put.key] = _Kept(Entry(put.key, put.value, self.revision + 1), put.lease)
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        return Event(put.key, put.value, self.revision + 1)

    def _take_out(self, key: str) -> Event:
        del self._entries[key]
        del self._keys[bisect_left(self._keys, key)]
        return Event(key, None, self.revision + 1)

    def _record(self, done: Iterable[Event | None]) -> int:
        events = tuple(event for event in done if event is not None)
        if events:
            self.revision += 1
            if len(self._log) == self._log.maxlen:
                self._known_after = self._log[0][0]
            self._log.append((self.revision, events))
            self._tell(events)
        return self.revision

    def _tell(self, events: Sequence[Event]) -> None:
        """By the prefixes of each key: a commit costs nothing for whom it does not concern."""
        concerned: dict[_Watch, list[Event]] = {}
        for event in events:
            readers: dict[_Watch, None] = {}
            for length in range(len(event.key) + 1):
                readers |= self._watches.get(event.key[:length], {})
            for watch in readers:
                concerned.setdefault(watch, []).append(event)
        for watch, told in concerned.items():
            watch.lay(told)

    # --- leases ----------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> Lease:
        self._collect()
        self._last_lease += 1
        until_mono_s = self._mono_s() + ttl_s
        self._leases[self._last_lease] = _Granted(ttl_s, until_mono_s)
        self._first_end_mono_s = min(self._first_end_mono_s, until_mono_s)
        return Lease(self._last_lease, ttl_s)

    def renew(self, lease_id: int) -> Lease:
        self._collect()
        granted = self._granted(lease_id)
        granted.until_mono_s = self._mono_s() + granted.ttl_s
        return Lease(lease_id, granted.ttl_s)

    def revoke(self, lease_id: int) -> None:
        granted = self._leases.pop(lease_id, None)
        if granted is not None:
            self._record(self._put(Put(key, None)) for key in sorted(granted.keys))

    def _granted(self, lease_id: int) -> _Granted:
        try:
            return self._leases[lease_id]
        except KeyError:
            raise LeaseLost(f"memory: lease {lease_id} has run out or was never granted") from None

    def _collect(self) -> None:
        now = self._mono_s()
        if now < self._first_end_mono_s:
            return
        for lease_id in [id_ for id_, held in self._leases.items() if held.until_mono_s <= now]:
            self.revoke(lease_id)
        ends = (held.until_mono_s for held in self._leases.values())
        self._first_end_mono_s = min(ends, default=inf)


class MemoryFleetStore:
    def __init__(self, kept: KeptInMemory | None = None, *, name: str = "memory") -> None:
        self.kept = kept if kept is not None else KeptInMemory()
        self._name = name
        self._closed = False
        self._open: set[_Watch] = set()

    @property
    def name(self) -> str:
        return self._name

    async def list(self, prefixes: Sequence[str], *, at_any_member: bool = False) -> Listing:
        return self._reached().listing(prefixes)

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        kept = self._reached()
        watch = kept.open_watch(prefixes, after_revision)
        self._open.add(watch)
        told = after_revision
        try:
            while True:
                await watch.woken.wait()
                watch.woken.clear()
                if watch.ended is not None:
                    raise watch.ended
                events, watch.pending = tuple(watch.pending), []
                told = max(told, kept.revision)
                if events := tuple(event for event in events if event.revision > after_revision):
                    yield Changes(events, told)
        finally:
            self._open.discard(watch)
            kept.drop_watch(watch)

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int:
        return self._reached().commit(compares, puts)

    async def count(self, prefix: str) -> int:
        return self._reached().count(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        return self._reached().grant(ttl_s)

    async def renew(self, lease_id: int) -> Lease:
        return self._reached().renew(lease_id)

    async def revoke(self, lease_id: int) -> None:
        self._reached().revoke(lease_id)

    async def close(self) -> None:
        self._closed = True
        for watch in self._open:
            watch.end(self._not_open())

    def _reached(self) -> KeptInMemory:
        if self._closed:
            raise self._not_open()
        return self.kept

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._name}: the store is not open")
