"""What an agent passes on to others of its shard.   Mirror ──► FeedLog ──► changes_after

There are two ways to say from where on. A revision is the store's own, and works for a reader that
comes from another source; but a part of the newest commit may come late. A mark counts what was
added here, in the order of arrival: a reader with a mark has missed nothing, and gets nothing
twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headgate.core.keyvalue import Event
from headgate.errors import Compacted


class _Record(NamedTuple):
    mark: int
    events: tuple[Event, ...]

    @property
    def newest(self) -> int:
        return max(event.revision for event in self.events)

    @property
    def bytes(self) -> int:
        return sum(len(event.key) + len(event.value or b"") for event in self.events)


class FeedLog:
    __slots__ = (
        "_bytes",
        "_floor",
        "_lowest_mark",
        "_max_bytes",
        "_max_records",
        "_records",
        "mark",
    )

    def __init__(self, first_mark: int, *, max_records: int, max_bytes: int) -> None:
        """`first_mark`: higher than any that was given out before a restart."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: deque[_Record] = deque()
        self._bytes = 0
        self._floor = 0
        """Changes beyond this revision are all here."""
        self.mark = self._lowest_mark = first_mark
        """The last mark."""

    def append(self, events: tuple[Event, ...]) -> None:
        self.mark += 1
        record = _Record(self.mark, events)
        if self._records and _same_single_key(self._records[-1], record):
            # Beats: who has missed some needs the last one only, and nothing else lay between.
            self._bytes -= self._records.pop().bytes
        self._records.append(record)
        self._bytes += record.bytes
        while len(self._records) > self._max_records or (
            self._bytes > self._max_bytes and len(self._records) > 1
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._records.popleft()
        self._bytes -= oldest.bytes
        self._floor = max(self._floor, oldest.newest)
        self._lowest_mark = oldest.mark

    def forget(self, floor: int) -> None:
        """A reader with a mark, or one that is not yet at `floor`, lists again."""
        self._records.clear()
        self.mark += 1
        self._bytes, self._floor, self._lowest_mark = 0, floor, self.mark

    def after_mark(self, mark: int) -> list[Event]:
        if not self._lowest_mark <= mark <= self.mark:
            raise Compacted("the changes since that mark are not available any more: list again")
        return _in_order(record for record in self._records if record.mark > mark)

    def after_revision(self, revision: int) -> list[Event]:
        if revision < self._floor:
            raise Compacted(
                f"changes after revision {revision} are known from {self._floor} on: list again"
            )
        return [event for event in _in_order(self._records) if event.revision > revision]


def _in_order(records: Iterable[_Record]) -> list[Event]:
    """By commit: pieces of one may have come apart."""
    events = [event for record in records for event in record.events]
    return sorted(events, key=lambda event: event.revision)


def _same_single_key(one: _Record, other: _Record) -> bool:
    alone = len(one.events) == len(other.events) == 1
    return alone and one.events[0].key == other.events[0].key
