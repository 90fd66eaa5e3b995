"""What an agent knows of the fleet, complete and in memory.

LogReader ──LogFollower──► Mirror ──listing──► rules, budgets, peers, the copy on disk
                                      ──changes_after──► fleet/routes ──► the shard's other agents

Revisions are the store's own, also those from another agent, and only ever rise within one store. A
store that went back (created again, or restored from a backup) removes nothing here, nor does
deleting an item by hand: what the store no longer has is kept here as an entry of revision 0, until
the store has something for that key again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import structlog

from headgate.base.keyvalue import Changes, Entry, KeyEvent, Listing
from headgate.base.ports import Clock
from headgate.changes.log_copy import LogCopy
from headgate.changes.model import BEAT, HEAD, ITEMS, Change
from headgate.changes.state import ends_at, head_bytes, is_taken_out, read_head, read_item_at
from headgate.errors import Compacted, StoreUnavailable
from headgate.fleet.beat import Beat, read_beat

log = structlog.get_logger()

MAX_LOG_RECORDS = 512
MAX_LOG_BYTES = 1024 * 1024
MAX_WAITERS = 64
KEPT = 0
"""The revision of an entry that the store no longer has, and that stays in force."""
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WentBack:
    """The store is behind what is known here."""

    wall_s: float
    """When it was noticed."""
    from_n: int
    to_n: int
    """The fleet's revision that was known, and that the store had then. If equal: items were
    deleted by hand."""
    kept: int
    """How many items stay in force although the store no longer has them."""


class Mirror:
    __slots__ = (
        "_clock",
        "_entries",
        "_lost",
        "_whole_at",
        "beat",
        "feed",
        "n",
        "newest",
        "prefixes",
        "revision",
        "store_id",
    )

    def __init__(
        self,
        clock: Clock,
        *,
        max_log_records: int = MAX_LOG_RECORDS,
        max_log_bytes: int = MAX_LOG_BYTES,
        max_waiters: int = MAX_WAITERS,
    ) -> None:
        self._clock = clock
        self.revision = 0
        """Of the store: nothing up to it is missing here. 0: nothing is known."""
        self.newest = 0
        """The last revision of which something arrived: more of that commit may come."""
        self.store_id = ""
        self.prefixes: tuple[str, ...] = ()
        """Prefixes that are mirrored; of other keys nothing is known."""
        self.n = 0
        """The fleet's revision that has been reached, at least."""
        self.beat: Beat | None = None
        self._entries: dict[str, Entry] = {}
        self._lost = LostItems(clock)
        self._whole_at = 0
        """The revision of the last listing: nothing of before can be news."""
        first_mark = int(clock.now().wall_s * 1000)
        self.feed = FeedLog(first_mark, max_log_records, max_log_bytes, max_waiters)

    # --- reading ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def known(self) -> bool:
        """There is something, be it from the disk."""
        return bool(self.store_id)

    @property
    def went_back(self) -> WentBack | None:
        """As long as something is in force that the store has not got."""
        kept, found = len(self._lost.still_kept()), self._lost.went_back
        return replace(found, kept=kept) if found and kept else None

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Those under a prefix, in no order; kept ones too."""
        return (entry for key, entry in self._entries.items() if key.startswith(prefix))

    def kept(self) -> list[Entry]:
        """What is in force although the store has it no longer: for `headgate changes restore`."""
        return [self._entries[key] for key in sorted(self._lost.still_kept())]

    def covers(self, prefixes: Iterable[str]) -> bool:
        """All that lies under these is mirrored. The head always may be asked for."""
        return all(one == HEAD or one.startswith(self.prefixes) for one in prefixes)

    def listing(self, prefixes: Sequence[str]) -> Listing:
        """By key, as of now; StoreUnavailable where nothing, or not that, is mirrored."""
        self._expect(prefixes)
        under = tuple(prefix for prefix in prefixes if prefix != HEAD)
        found = [e for key, e in self._entries.items() if key.startswith(under)] if under else []
        if self.n and HEAD in prefixes:
            found.append(Entry(HEAD, head_bytes(self.n), self.newest))
        found.sort(key=lambda entry: entry.key)
        return Listing(tuple(found), self.revision, self.store_id)

    def copy(self, wall_s: float) -> LogCopy:
        """For the disk; `wall_s`: when the store was last seen."""
        listing = Listing(tuple(self._entries.values()), self.revision, self.store_id)
        return LogCopy(listing, self.prefixes, self.n, wall_s)

    def _expect(self, prefixes: Iterable[str]) -> None:
        if not self.known:
            raise StoreUnavailable("this agent has no data of the fleet yet: use the fleet's store")
        if not self.covers(prefixes):
            message = "this agent does not follow all of these prefixes: use the fleet's store"
            raise StoreUnavailable(message)

    # --- taking in -------------------------------------------------------------------------

    def recall(self, copy: LogCopy) -> frozenset[str]:
        """What was on disk; only ever into an empty one. The keys that are there now."""
        if self.known:
            return NOTHING
        listing = copy.listing
        self._entries = {entry.key: entry for entry in listing.entries}
        self.store_id, self.prefixes, self.n = listing.store_id, copy.prefixes, copy.n
        self.revision = self._whole_at = listing.revision
        self.newest = listing.newest
        self._lost.find(self._entries)
        self._lost.went_back = WentBack(copy.wall_s, copy.n, copy.n, 0)
        self._hear_beat()
        self.feed.forget(self.revision)
        return frozenset(self._entries)

    def is_late(self, listing: Listing) -> bool:
        """It is of the same store, and knows less than we do."""
        behind = listing.revision < self.revision or listing.newest < self.newest
        return behind and listing.store_id == self.store_id

    def adopt(
        self, listing: Listing, prefixes: Sequence[str], *, authoritative: bool = True
    ) -> frozenset[str]:
        """All of these prefixes, instead of what there was; the keys that differ now.

        It has the head, too, if there is one. `authoritative`: the store itself says so, and now;
        then a lower revision means that it went back. Of anybody else it is merely late, and
        changes nothing.
        """
        same, late = listing.store_id == self.store_id, self.is_late(listing)
        if late and not authoritative:
            return NOTHING
        under, n = tuple(prefixes), head_n(listing)
        back = self.known and (late or n < self.n)
        told = {one.key: one for one in listing.entries if one.key.startswith(under)}
        entries = told | self._survivors(told, under, n, back=back)
        before, self._entries = self._entries, entries
        differing = {key for key, entry in entries.items() if before.get(key) != entry}
        changed = frozenset(differing | (before.keys() - entries.keys()))
        if self._lost.find(entries):
            self._lost.behind(WentBack(self._clock.now().wall_s, self.n, n, 0))
        self.n = max(n, self.n) if same and not back else n
        anew = back or not same or under != self.prefixes
        known_to, self.revision = self.revision, listing.revision
        self.store_id, self.prefixes = listing.store_id, under
        self._whole_at, self.newest = listing.revision, listing.newest
        self._hear_beat()
        self.feed.forget(self.revision) if anew else self._log_listing(changed, known_to)
        self.feed.wake()
        return changed

    def apply(self, changes: Changes) -> frozenset[str]:
        """What a watch tells, however late, and however often; the keys that differ now."""
        lost: dict[str, float] = {}
        events = tuple(event for event in changes.events if self._take(event, lost))
        rises = changes.revision > self.revision
        self.revision = max(self.revision, changes.revision)
        self.newest = max(self.newest, changes.newest)
        if lost:
            self._lost.kept |= lost
            self._lost.behind(WentBack(self._clock.now().wall_s, self.n, self.n, 0))
        if events:
            self.feed.append(events)
        if events or rises:
            self.feed.wake()
        return frozenset(event.key for event in events) if events else NOTHING

    def _take(self, event: KeyEvent, lost: dict[str, float]) -> bool:
        """Whether it changes anything. To `lost` goes an item that vanished, with its end."""
        key, known = event.key, self._entries.get(event.key)
        if event.revision <= self._whole_at or not key.startswith(self.prefixes):
            return False
        if known is not None and known.revision >= event.revision:
            return False
        if event.value is None:
            if known is None:
                return False
            end = _end_of(known) if key.startswith(ITEMS) else -inf
            if end > self._clock.now().wall_s:
                # It means nothing: an item in force was deleted by hand, without an entry in the
                # log. It stays in force until an operator changes it through the log.
                self._entries[key] = Entry(key, known.value, KEPT)
                lost[key] = end
                return False
            del self._entries[key]
            self._lost.kept.pop(key, None)
            self.beat = None if key == BEAT else self.beat
            return True
        self._entries[key] = entry = Entry(key, event.value, event.revision)
        self._lost.kept.pop(key, None)
        if key == BEAT:
            self._hear_beat()
        elif key.startswith(ITEMS) and (item := _item(entry)) is not None:
            self.n = max(self.n, item.n)
        return True

    # --- what the store has lost -------------------------------------------------------------

    def _survivors(
        self, told: dict[str, Entry], under: tuple[str, ...], n: int, *, back: bool
    ) -> dict[str, Entry]:
        """Ours that stay, although the store says otherwise or nothing. With the n that is known
        here nobody can have taken anything out; with a higher one its end may be collected by
        now."""
        missed, wall_s = n <= self.n, self._clock.now().wall_s
        return {
            key: Entry(key, ours.value, KEPT)
            for key, ours in self._entries.items()
            if key.startswith(ITEMS) and key.startswith(under)
            if back or ours.revision == KEPT or (missed and key not in told)
            if _outlives(ours, told.get(key), wall_s, back=back)
        }

    def _hear_beat(self) -> None:
        self.beat, entry = None, self._entries.get(BEAT)
        if entry is None:
            return
        try:
            self.beat = read_beat(entry.value)
            self.n = max(self.n, self.beat.n)
        except ValueError as error:
            log.warning("fleet.beat_unreadable", detail=str(error))

    # --- handing down ------------------------------------------------------------------------

    async def changes_after(
        self,
        revision: int,
        prefixes: Sequence[str],
        wait_s: float,
        *,
        store_id: str = "",
        mark: int = 0,
    ) -> Changes:
        """What came after that revision, after waiting up to `wait_s`; without events if nothing
        did. `mark`: that of the last answer; then what arrived since, and nothing twice.
        Compacted: list again; also if `store_id`, if given, is of another store."""
        under, is_told = tuple(prefixes), wait_s <= 0
        while True:
            self._expect(prefixes)
            if store_id and store_id != self.store_id:
                raise Compacted("this agent follows another store now: list again")
            found = self.feed.after_mark(mark) if mark else self.feed.after_revision(revision)
            events = tuple(event for event in found if event.key.startswith(under))
            if is_told or events or self.revision > revision:
                return Changes(events, max(self.revision, revision))
            store_id, is_told = store_id or self.store_id, True
            await self.feed.wait(wait_s)

    def _log_listing(self, changed: frozenset[str], known_to: int) -> None:
        """A listing of the same store is as good as the changes that led to it; unless it has
        something from before `known_to`, which others believe to have completely."""
        found = ((key, self._entries.get(key)) for key in changed)
        events = [
            KeyEvent(key, *((one.value, one.revision) if one else (None, self.revision)))
            for key, one in found
            if one is None or one.revision != KEPT
        ]
        if any(event.revision <= known_to for event in events):
            self.feed.forget(known_to + 1)
        elif events:
            self.feed.append(tuple(events))


class LostItems:
    """What the store no longer has, and what stays in force here all the same."""

    __slots__ = ("_clock", "kept", "went_back")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.kept: dict[str, float] = {}
        """Until when (wall clock) that matters."""
        self.went_back: WentBack | None = None

    def still_kept(self) -> list[str]:
        wall_s = self._clock.now().wall_s
        return [key for key, until in self.kept.items() if until > wall_s]

    def find(self, entries: Mapping[str, Entry]) -> bool:
        """Whether there are more than before."""
        known = self.kept
        self.kept = {
            key: known[key] if key in known else _matters_until(entry)
            for key, entry in entries.items()
            if entry.revision == KEPT
        }
        return not self.kept.keys() <= known.keys()

    def behind(self, found: WentBack) -> None:
        self.went_back = found
        log.error(
            "fleet.store_behind",
            from_n=found.from_n,
            to_n=found.to_n,
            kept=len(self.still_kept()),
            remedy="headgate changes restore --fleet",
        )


def _outlives(ours: Entry, told: Entry | None, wall_s: float, *, back: bool) -> bool:
    """Between two stores only the time of setting orders them. What cannot be read may be of a
    newer version: it is left as it is."""
    if told is None:
        unread = _item(ours) is None and (back or ours.revision == KEPT)
        return unread or _end_of(ours) > wall_s
    if ours.value == told.value:
        return False
    mine, other = _item(ours), _item(told)
    return mine is not None and other is not None and mine.set_at > other.set_at


def head_n(listing: Listing) -> int:
    """The fleet's revision by a listing that has the head; 0: none, or none that can be read."""
    for entry in listing.entries:
        if entry.key == HEAD:
            try:
                return read_head(entry.value)
            except ValueError as error:
                log.error("fleet.head_unreadable", detail=str(error))
    return 0


def _item(entry: Entry) -> Change | None:
    """None: it cannot be read. The part that applies it reports that."""
    try:
        return read_item_at(entry.key, entry.value)
    except ValueError:
        return None


def _matters_until(kept: Entry) -> float:
    """Wall-clock seconds until which the store's lack of it is worth a word: what cannot be read
    is not in force here, and a rule that has come to its own end is not missed. One that is taken
    out stays so, whatever an older copy says."""
    end = _end_of(kept)
    return inf if end == -inf and _item(kept) is not None else end


def _end_of(entry: Entry) -> float:
    """Wall-clock seconds until which an item is in force; minus infinity: it is not, or cannot be
    read."""
    item = _item(entry)
    if item is None or is_taken_out(item):
        return -inf
    try:
        end = ends_at(item)
    except ValueError:
        return -inf
    return inf if end is None else end


class _Record(NamedTuple):
    mark: int
    events: tuple[KeyEvent, ...]

    @property
    def keys(self) -> list[str]:
        return [event.key for event in self.events]

    @property
    def newest(self) -> int:
        return max(event.revision for event in self.events)

    @property
    def bytes(self) -> int:
        return sum(len(event.key) + len(event.value or b"") for event in self.events)


class FeedLog:
    """What an agent has to tell others of its shard.

    There are two ways to say from where on. A revision is the store's own, and works for a
    reader that comes from elsewhere; but a part of the newest commit may come late. A mark counts
    what was added here, in the order of arrival: a reader that is up to a mark has missed nothing
    and gets nothing twice.
    """

    __slots__ = (
        "_bytes",
        "_floor",
        "_lowest_mark",
        "_max_bytes",
        "_max_records",
        "_max_waiters",
        "_news",
        "_records",
        "mark",
        "waiters",
    )

    def __init__(self, first_mark: int, max_records: int, max_bytes: int, max_waiters: int) -> None:
        """`first_mark`: higher than any that was given out before a restart."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_waiters = max_waiters
        self._news: asyncio.Future[None] | None = None
        self.waiters = 0
        self._records: deque[_Record] = deque()
        self._bytes = 0
        self._floor = 0
        """Changes beyond this revision are all here."""
        self.mark = self._lowest_mark = first_mark
        """The last mark: covers what was passed on just now, and all before."""

    def append(self, events: tuple[KeyEvent, ...]) -> None:
        self.mark += 1
        record = _Record(self.mark, events)
        keys = [event.key for event in events]
        if self._records and len(keys) == 1 and self._records[-1].keys == keys:
            # Beats: who has missed some needs the last one only, and nothing else lay between.
            self._bytes -= self._records.pop().bytes
        self._records.append(record)
        self._bytes += record.bytes
        while len(self._records) > self._max_records or (
            self._bytes > self._max_bytes and len(self._records) > 1
        ):
            oldest = self._records.popleft()
            self._bytes -= oldest.bytes
            self._floor = max(self._floor, oldest.newest)
            self._lowest_mark = oldest.mark

    async def wait(self, wait_s: float) -> None:
        """For news."""
        if self.waiters >= self._max_waiters:
            raise StoreUnavailable(
                f"{self.waiters} clients already wait for changes here: use the fleet's store"
            )
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        self.waiters += 1
        try:
            await asyncio.wait({self._news}, timeout=wait_s)
        finally:
            self.waiters -= 1

    def wake(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    def forget(self, floor: int) -> None:
        """A reader with a mark, or one that is not yet at `floor`, lists again."""
        self._records.clear()
        self.mark += 1
        self._bytes, self._floor, self._lowest_mark = 0, floor, self.mark

    def after_mark(self, mark: int) -> list[KeyEvent]:
        if not self._lowest_mark <= mark <= self.mark:
            raise Compacted("the changes since that mark are not available any more: list again")
        return _in_order(record for record in self._records if record.mark > mark)

    def after_revision(self, revision: int) -> list[KeyEvent]:
        if revision < self._floor:
            raise Compacted(
                f"changes after revision {revision} are known from {self._floor} on: list again"
            )
        return [event for event in _in_order(self._records) if event.revision > revision]


def _in_order(records: Iterable[_Record]) -> list[KeyEvent]:
    """By commit: pieces of one may have come apart."""
    events = [event for record in records for event in record.events]
    return sorted(events, key=lambda event: event.revision)
