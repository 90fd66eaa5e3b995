"""Apply what is set.   OwnBook ──► OwnInForce ──┐
                             LogFollower ──► SharedInForce ──┴──► rules, budgets, metrics, members

Many revisions are applied a few at a time, and large ones are read in a thread: checks come first.
If one part fails, the others still get what is set; the fault is reported, and the part gets the
same again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import structlog

from headgate.base.keyvalue import Entry
from headgate.base.ports import Clock
from headgate.base.supervise import beside
from headgate.changes.exchanged import counts_over
from headgate.changes.follower import FollowState, LogFollower
from headgate.changes.model import BEAT, ITEMS, Change, ChangeKind
from headgate.changes.reach import Place
from headgate.changes.state import is_taken_out, read_item_at, starts_at, waits
from headgate.fleet.members import FleetMember, read_members

log = structlog.get_logger()

LOOK_S = 1.0
"""Pause between two looks whether some have started."""
PAUSE_TIMES, LONGEST_PAUSE_S = 2.0, 0.5
"""Pause between two runs: as long as the last one took."""


class Follows(Protocol):
    """As RuleKeeper and Budgets do."""

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = ...,
        own: bool = ...,
    ) -> None:
        """`whole`: all that the log has. `own`: of the agent's own log."""
        ...


class Rooms:
    """All that changes are put in force in."""

    def __init__(self, parts: Sequence[Follows], *, own: bool) -> None:
        self._parts = parts
        self._own = own
        self.failed: dict[Follows, Exception] = {}
        """Faults of the last run that are bugs of ours, and not of what is set."""

    async def follow(
        self,
        items: Callable[[Follows], Sequence[Change]],
        places: Sequence[Place],
        *,
        whole: bool,
    ) -> None:
        for part in self._parts:
            try:
                await part.follow(items(part), places, whole=whole, own=self._own)
            except Exception as error:
                log.exception("changes.not_in_force", room=type(part).__name__)
                self.failed[part] = error
            else:
                self.failed.pop(part, None)

    @property
    def faults(self) -> list[str]:
        """For people."""
        return [
            f"{type(part).__name__} failed to apply changes, which is a bug in Headgate: "
            f"{error!r}; the agent tries again with the next change and after a restart"
            for part, error in self.failed.items()
        ]


class Starts:
    """What starts later is as if taken out until then, by the agent's own clock. A rule has that
    in its windows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}
        """By key: when one that waits starts, in wall-clock seconds."""

    def begun(self, items: Sequence[Change], *, whole: bool) -> Sequence[Change]:
        """As they count now."""
        wall_s = self._clock.now().wall_s
        waiting = {
            item.key: starts_at(item) or 0.0
            for item in items
            if item.kind is not ChangeKind.RULE and waits(item, wall_s)
        }
        known = {} if whole or not self._at else {item.key: None for item in items}
        left = {} if whole else {key: at for key, at in self._at.items() if key not in known}
        self._at = left | waiting
        if not waiting:
            return items
        return [replace(item, value=None) if item.key in waiting else item for item in items]

    async def run(self, renew: Callable[[], Awaitable[None]]) -> None:
        """`renew` is called once some have started, to hand on all there is."""
        while True:
            await self._clock.sleep(LOOK_S)
            if self._at and min(self._at.values()) <= self._clock.now().wall_s:
                await renew()


class OwnInForce:
    """What the agent's own log says. A change of it is acknowledged when it is in force."""

    def __init__(
        self, parts: Sequence[Follows], places: Callable[[], Sequence[Place]], clock: Clock
    ) -> None:
        self._rooms = Rooms(parts, own=True)
        self._places = places
        self.starts = Starts(clock)
        self._due: dict[Follows, list[Change]] = {}
        """What the failed parts have not applied yet."""

    @property
    def faults(self) -> list[str]:
        return self._rooms.faults

    async def load(self, items: Sequence[Change]) -> None:
        """All there is."""
        await self._follow(items, whole=True)

    async def changed(self, items: Sequence[Change]) -> Sequence[str]:
        """Why it is not in force everywhere; nothing: it is."""
        await self._follow(items, whole=False)
        return self._rooms.faults

    async def _follow(self, items: Sequence[Change], *, whole: bool) -> None:
        due, self._due = self._due if not whole else {}, {}
        items = self.starts.begun(items, whole=whole)
        await self._rooms.follow(
            lambda part: [*due.get(part, ()), *items], self._places(), whole=whole
        )
        self._due = {part: [*due.get(part, ()), *items] for part in self._rooms.failed}


class SharedInForce:
    def __init__(
        self,
        follower: LogFollower,
        clock: Clock,
        parts: Sequence[Follows],
        *,
        places: Callable[[], Sequence[Place]],
        found: Callable[[Sequence[FleetMember]], None],
    ) -> None:
        """`found` is called with the registered members of our shards."""
        self._follower = follower
        self._clock = clock
        self._rooms = Rooms(parts, own=False)
        self._places = places
        self._found = found
        self._shelf = ChangeShelf()
        self.starts = Starts(clock)
        self._news = asyncio.Event()
        self._is_at_it = False
        self._settled_n = 0
        self.n = 0
        """The last fleet revision that changed something here, and is in force."""
        follower.watch(self._note)

    @property
    def faults(self) -> Mapping[str, str]:
        """By key: what cannot be read here, and why."""
        return self._shelf.faults

    @property
    def failures(self) -> Sequence[str]:
        """Rooms that did not put it in force."""
        return self._rooms.faults

    def state(self) -> FollowState:
        """State of following; with the n that is in force, which comes a moment after the n that
        was read."""
        state = self._follower.state()
        return replace(state, n=min(state.n, self._settled_n)) if self._is_behind else state

    @property
    def _is_behind(self) -> bool:
        return self._news.is_set() or self._is_at_it

    def _note(self, keys: frozenset[str]) -> None:
        if keys != {BEAT}:
            self._news.set()
        elif not self._is_behind:
            # It tells of revisions that are none of our business, too: there is nothing to do.
            self._settled_n = self._follower.mirror.n

    def look_again(self) -> None:
        """Other databases, or other places of theirs."""
        self._news.set()

    async def renew(self) -> None:
        """Some have started."""
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            began_s = self._clock.now().mono_s
            await self.apply()
            took_s = self._clock.now().mono_s - began_s
            await self._clock.sleep(min(LONGEST_PAUSE_S, PAUSE_TIMES * took_s))

    async def apply(self) -> None:
        """All that is known; what is as it was costs a comparison."""
        self._news.clear()
        self._is_at_it, is_done = True, False
        try:
            await self._apply()
            is_done = True
        finally:
            self._is_at_it = False
            if not is_done:
                self._news.set()

    async def _apply(self) -> None:
        mirror = self._follower.mirror
        # All that applies to us, in a known order; before that, nothing is applied.
        n, whole, entries = mirror.n, mirror.known, list(mirror.entries())
        items = await beside(
            len(entries), lambda: self.starts.begun(self._shelf.read(entries), whole=True)
        )
        await self._rooms.follow(lambda part: items, self._places(), whole=whole)
        self._found(await beside(len(entries), lambda: read_members(entries)))
        for error in self._rooms.failed.values():
            raise error  # The next try is for the same.
        self.n = self._settled_n = n


MAX_OVER = 10_000
"""Items that have ended and are still remembered, so that no late list brings them back."""


# --- what is remembered, so that a change costs what it changes ------------------------------


class _ReadEntry(NamedTuple):
    entry: Entry
    item: Change | None
    """None: it never could be read."""
    fault: str = ""


class ChangeShelf:
    """Entries of the store as items, each read once."""

    def __init__(self) -> None:
        self._read: dict[str, _ReadEntry] = {}

    @property
    def faults(self) -> dict[str, str]:
        """By key: why it cannot be read. It may be of a newer version; the others stand."""
        return {key: read.fault for key, read in self._read.items() if read.fault}

    def read(self, entries: Iterable[Entry]) -> list[Change]:
        """Those under items/ that can be read; of one that no longer can, the last good one."""
        known, read = self._read, dict[str, _ReadEntry]()
        for entry in entries:
            if entry.key.startswith(ITEMS):
                found = known.get(entry.key)
                if found is None or (found.entry is not entry and found.entry != entry):
                    found = _read(entry, found.item if found else None)
                read[entry.key] = found
        self._read = read
        return [found.item for found in read.values() if found.item is not None]


def _read(entry: Entry, last_good: Change | None) -> _ReadEntry:
    try:
        return _ReadEntry(entry, read_item_at(entry.key, entry.value))
    except ValueError as error:
        log.error("fleet.item_unreadable", key=entry.key, fault=str(error))
        return _ReadEntry(entry, last_good, str(error))


class ChangeMemory:
    """The newest known version of each item of one kind."""

    def __init__(self, kind: ChangeKind) -> None:
        self._kind = kind
        self.known: dict[str, Change] = {}
        self._over: dict[str, None] = {}

    def news(self, items: Sequence[Change], *, whole: bool = False) -> dict[str, Change | None]:
        """What these say that is not known yet, by id; nothing is remembered before `remember`.

        Of some, in whatever order they come, the higher n counts, and that one is missing says
        nothing. `whole`: it is all there is, of one who knows what came after what (Mirror); then
        it counts as it is, and what is missing is gone (None).
        """
        kind, known, found = self._kind, self.known, dict[str, Change | None]()
        for item in items:
            if item.kind is not kind or (not whole and known.get(item.id) is item):
                continue
            better = found.get(item.id) or (None if whole else known.get(item.id))
            if better is None or _counts(item, better):
                found[item.id] = item
        if not whole:
            return found
        gone = dict.fromkeys(known.keys() - found.keys())
        return {name: item for name, item in found.items() if not _same(item, known)} | gone

    def remember(self, news: Mapping[str, Change | None]) -> None:
        for name, item in news.items():
            self._over.pop(name, None)
            if item is None:
                self.known.pop(name, None)
                continue
            self.known[name] = item
            if item.value is None:
                self.is_over(name)

    def is_over(self, name: str) -> None:
        """It does not count any more, and need not be remembered."""
        self._over[name] = None
        while len(self._over) > MAX_OVER:
            oldest = next(iter(self._over))
            del self._over[oldest]
            self.known.pop(oldest, None)


def _counts(item: Change, other: Change) -> bool:
    """An item that moved to another reach leaves one behind that is removed: of the same n the one
    that is not removed counts. Agents of a shard without a shared log have their own order."""
    if item.key == other.key and item.again is not None and other.again is not None:
        return counts_over(item, other)
    return (item.n, not is_taken_out(item)) > (other.n, not is_taken_out(other))


def _same(item: Change | None, known: Mapping[str, Change]) -> bool:
    if item is None:
        return False
    before = known.get(item.id)
    return before is item or before == item
