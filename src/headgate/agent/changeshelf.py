"""The fleet's items as they reach an agent.   Mirror ──entries──► ChangeShelf ──items──► follow

Both remember, so that a change costs what it changes: an entry that is as it was is not read
again, and an item that is known is passed by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from headgate.core.change import ITEMS, ChangeKind, Item
from headgate.core.change_codec import read_item_at
from headgate.core.change_log import is_taken_out
from headgate.core.exchange import counts_over
from headgate.core.keyvalue import Entry

log = structlog.get_logger()

MAX_OVER = 10_000
"""Items that have ended and are still remembered, so that no late list brings them back."""


class _Read(NamedTuple):
    entry: Entry
    item: Item | None
    """None: it never could be read."""
    fault: str = ""


class ChangeShelf:
    """Entries of the store as items, each read once."""

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}

    @property
    def faults(self) -> dict[str, str]:
        """By key: why it cannot be read. It may be of a newer version; the others stand."""
        return {key: read.fault for key, read in self._read.items() if read.fault}

    def read(self, entries: Iterable[Entry]) -> list[Item]:
        """Those under items/ that can be read; of one that no longer can, the last good one."""
        known, read = self._read, dict[str, _Read]()
        for entry in entries:
            if entry.key.startswith(ITEMS):
                found = known.get(entry.key)
                if found is None or (found.entry is not entry and found.entry != entry):
                    found = _read(entry, found.item if found else None)
                read[entry.key] = found
        self._read = read
        return [found.item for found in read.values() if found.item is not None]


def _read(entry: Entry, last_good: Item | None) -> _Read:
    try:
        return _Read(entry, read_item_at(entry.key, entry.value))
    except ValueError as error:
        log.error("fleet.item_unreadable", key=entry.key, fault=str(error))
        return _Read(entry, last_good, str(error))


class ChangeMemory:
    """The newest known version of each item of one kind."""

    def __init__(self, kind: ChangeKind) -> None:
        self._kind = kind
        self.known: dict[str, Item] = {}
        self._over: dict[str, None] = {}

    def news(self, items: Sequence[Item], *, whole: bool = False) -> dict[str, Item | None]:
        """What these say that is not known yet, by id; nothing is remembered before `remember`.

        Of some, in whatever order they come, the higher n counts, and that one is missing says
        nothing. `whole`: it is all there is, of one who knows what came after what (Mirror); then
        it counts as it is, and what is missing is gone (None).
        """
        kind, known, found = self._kind, self.known, dict[str, Item | None]()
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

    def remember(self, news: Mapping[str, Item | None]) -> None:
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


def _counts(item: Item, other: Item) -> bool:
    """An item that moved to another reach leaves one behind that is removed: of the same n the one
    that is not removed counts. Agents of a shard without a shared log have their own order."""
    if item.key == other.key and item.again is not None and other.again is not None:
        return counts_over(item, other)
    return (item.n, not is_taken_out(item)) > (other.n, not is_taken_out(other))


def _same(item: Item | None, known: Mapping[str, Item]) -> bool:
    if item is None:
        return False
    before = known.get(item.id)
    return before is item or before == item
