"""One run over many items, chunk by chunk: how large, how far, where to resume.

Client.chunks and AsyncClient.chunks take the items, check and wait; all that they have in
common is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Generic, TypeVar

from headgate.client.answers import Answer
from headgate.client.chunking import Sizes, smoothed
from headgate.client.cursors import Cursor, Position
from headgate.client.logs import warn
from headgate.client.progress import Display, Progress, ProgressLike, display_of
from headgate.errors import Fault, InvalidSettings

Item = TypeVar("Item")


class Plan(Generic[Item]):
    """As the caller wants it."""

    def __init__(
        self,
        sizes: Sizes,
        progress: ProgressLike = False,
        cursor: Cursor | None = None,
        key: Callable[[Item], Position] | None = None,
        items_cost: bool = False,
    ) -> None:
        if key is not None and cursor is None:
            raise InvalidSettings([Fault("key", "says where a cursor is: give a cursor, too")])
        self.sizes = sizes
        self.progress = progress
        self.cursor = cursor
        self.key = key
        self.items_cost = items_cost
        """Whether a chunk costs as much as it has items."""

    def run(self, name: str, items: object, position: Position, now_s: float) -> Run[Item]:
        return Run(self, name, items, position, now_s)


def range_plan(
    sizes: Sizes, progress: ProgressLike, cursor: Cursor | None, items_cost: bool = False
) -> Plan[int]:
    """Of ids, which are their own keys."""
    key = _own_key if cursor is not None else None
    return Plan(sizes, progress, cursor, key, items_cost)


def _own_key(id_: int) -> int:
    return id_


class Run(Generic[Item]):
    def __init__(
        self, plan: Plan[Item], name: str, source: object, position: Position, now_s: float
    ) -> None:
        self.size = plan.sizes.size
        self.pause_s = 0.0
        position = _comparable(position)
        self._resumed_at = position
        self.position = position
        """Of the last chunk that was done: how many items were, or the last key all of whose
        items were."""
        self._last_key = position
        self._held: list[Item] = []
        """Read already, of the next chunk."""
        self._sizes = plan.sizes
        self._key = plan.key
        self._name = name
        self._utilization: float | None = None
        self._pressure: float | None = None
        self._began_s = self._chunk_began_s = now_s
        self._to_skip = 0 if plan.key is not None or position is None else _count(position)
        self._done = self._to_skip
        self._total = len(source) if isinstance(source, Sized) else None
        self._display: Display | None = display_of(plan.progress, name, self._total)

    @property
    def skips_any(self) -> bool:
        return self._resumed_at is not None

    def left_of(self, ids: range) -> Ids:
        left = Ids(ids, self._resumed_at)
        self._done = left.done
        return left

    def skips(self, item: Item) -> bool:
        """Whether an earlier run has done it."""
        if self._key is None:
            self._to_skip -= 1
            return self._to_skip >= 0
        skipped = bool(_comparable(self._key(item)) <= self._resumed_at)
        self._done += skipped
        return skipped

    def to_read(self, size: int) -> int:
        """How many items it takes for a chunk of `size`: with a key, one that comes after it is
        looked at, since a position within items of one key would pass over the rest of them."""
        return size - len(self._held) + (self._key is not None)

    def cut(self, size: int, read: list[Item]) -> list[Item]:
        """The next chunk, of what was read."""
        found = [*self._held, *read]
        self._held = found[size:]
        return found[:size]

    def begins(self, answer: Answer, now_s: float) -> None:
        self._utilization, self._chunk_began_s = answer.utilization, now_s

    def ends(self, chunk: Sequence[Item], now_s: float) -> None:
        """The body of the chunk is through, without an exception."""
        took_s = now_s - self._chunk_began_s
        self._pressure = smoothed(self._pressure, self._utilization)
        self.size = self._sizes.next(self.size, took_s, self._pressure)
        self.pause_s = self._sizes.pause_s(took_s, self._pressure)
        self._done += len(chunk)
        self.position = self._done if self._key is None else self._whole_key(self._key, chunk)

    def shows(self, items: int, now_s: float) -> None:
        """Once its position is saved. Who watches must not end what is watched."""
        if self._display is None:
            return
        elapsed_s = now_s - self._began_s
        told = Progress(self._done, self._total, items, elapsed_s, self._utilization)
        try:
            self._display.show(told)
        except Exception as fault:  # the caller's function: logged once, and not called again
            warn("progress of %s failed (%s: %s); nothing more is shown of it, and the job goes on",
                 self._name, type(fault).__name__, fault)  # fmt: skip
            self._display = None

    @property
    def final_position(self) -> Position:
        """A count is good for the list that it counted, and that is done. A key stays."""
        return None if self._key is None else self.position

    def close(self) -> None:
        if self._display is not None:
            self._display.close()

    def _whole_key(self, key_of: Callable[[Item], Position], chunk: Sequence[Item]) -> Position:
        """The last key of which no item is left; where that is none, the one before."""
        last = _comparable(key_of(chunk[-1]))
        if self._last_key is not None and last < self._last_key:
            message = f"{last!r} comes after {self._last_key!r}: with a cursor, items must be in"
            raise InvalidSettings([Fault("key", f"{message} order")])
        self._last_key = last
        if not self._held or _comparable(key_of(self._held[0])) != last:
            return last
        keys = (_comparable(key_of(item)) for item in reversed(chunk))
        earlier = (key for key in keys if key != last)
        return next(earlier, self.position)


def _comparable(position: Position) -> Position:
    """JSON has no tuples: a key of several columns comes back as a list, at every level."""
    if isinstance(position, list | tuple):
        return tuple(_comparable(part) for part in position)
    return position


class Ids:
    """Of a range, those that are left."""

    def __init__(self, ids: range, position: Position) -> None:
        self._stop = ids.stop
        self._next = ids.start if position is None else max(ids.start, _whole(position) + 1)
        self.done = min(len(ids), self._next - ids.start)
        """As many as earlier runs have done."""

    def take(self, size: int) -> range:
        taken = range(self._next, max(self._next, min(self._next + size, self._stop)))
        self._next = taken.stop
        return taken


def _whole(position: Any) -> int:
    if isinstance(position, bool) or not isinstance(position, int):
        message = f"{position!r} is no number: give the key= that it was saved with"
        raise InvalidSettings([Fault("cursor", message)])
    return position


def _count(position: Any) -> int:
    if _whole(position) < 0:
        message = f"{position!r} is no count: give the key= that it was saved with"
        raise InvalidSettings([Fault("cursor", message)])
    return _whole(position)
