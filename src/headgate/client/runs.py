"""One run over many items, chunk by chunk: how large, how far, where to resume.

Client.chunks and AsyncClient.chunks take the items, check and wait; all that they have in
common is here.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Awaitable, Callable, Sequence, Sized
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Protocol, TextIO, TypeAlias, TypeVar

from headgate.client.answers import Answer
from headgate.client.events import warn
from headgate.errors import Fault, InvalidSettings

# --- how large the next chunk is, and how long to pause before it. Pure arithmetic ---------
# A job that takes all it can until it is rejected, and then stops, makes the database's load swing.
# Chunks avoid that: from half of the threshold on, they shrink from `max_size` towards `min_size`
# and are spaced out towards one per `target_s`. Near the threshold the job does little work, and
# far from it the job loses no time.

DEFAULT_SIZE = 100
DEFAULT_TARGET_S = 0.5
SPREAD = 10
"""Without bounds of its own a chunk may become so many times smaller and larger."""
GROWTH = 1.5
SHRINKAGE = 0.5
EASE_FROM = 0.5
"""Utilization (value over threshold, of the worst metric) from which on a job gives way."""
SMOOTHING = 0.5
"""How much the newest utilization counts. All of it would make a job whose own work is the load
swing between everything and nothing: see tests/client/test_runs.py."""


class Sizes(NamedTuple):
    size: int
    """The first chunk's."""
    min_size: int
    max_size: int
    target_s: float
    """How long a chunk may take; it is not shrunk below `min_size` for that."""
    adapts: bool

    def next(self, size: int, took_s: float, utilization: float | None) -> int:
        """After a chunk of `size` took so long. The more utilization, the smaller or equal."""
        if not self.adapts:
            return self.size
        # Unknown is not low: no smaller, and no larger either.
        spread = self.max_size - self.min_size
        by_pressure = size if utilization is None else self.min_size + spread * room(utilization)
        by_time = math.inf if took_s <= 0 else size * self.target_s / took_s
        wanted = min(by_pressure, by_time)
        step = min(max(wanted, size * SHRINKAGE), max(size * GROWTH, size + 1))
        return int(min(max(step, self.min_size), self.max_size))

    def pause_s(self, took_s: float, utilization: float | None) -> float:
        """None of it while the database is at ease; the rest of `target_s` at its threshold."""
        if not self.adapts or utilization is None:
            return 0.0
        return max(0.0, self.target_s - took_s) * (1.0 - room(utilization))


def room(utilization: float) -> float:
    """1: all of it, 0: none."""
    return min(1.0, max(0.0, (1.0 - utilization) / (1.0 - EASE_FROM)))


def smoothed(before: float | None, now: float | None) -> float | None:
    """Utilization, with a memory of one chunk; what is not known now is not known."""
    if now is None or before is None:
        return now
    return before + SMOOTHING * (now - before)


def sizes_of(
    size: int | None, min_size: int | None, max_size: int | None, target_s: float | None
) -> Sizes:
    """A size alone is kept to; anything else, and nothing at all, adapts."""
    adapts = size is None or not (min_size is None and max_size is None and target_s is None)
    usual = max(min_size or 1, min(DEFAULT_SIZE, max_size or DEFAULT_SIZE))
    begins = usual if size is None else size
    low = max(1, begins // SPREAD) if min_size is None else min_size
    high = begins * SPREAD if max_size is None else max_size
    goal_s = DEFAULT_TARGET_S if target_s is None else target_s
    faults = [*_faults(begins, low, high, goal_s)]
    if faults:
        raise InvalidSettings(faults)
    return Sizes(begins, low, high, goal_s, adapts)


def _faults(size: int, low: int, high: int, target_s: float) -> list[Fault]:
    faults = []
    if size < 1:
        faults.append(Fault("size", f"a chunk holds at least 1 item, not {size!r}"))
    elif not 1 <= low <= size <= high:
        message = f"must be 1 ≤ min_size ≤ size ≤ max_size, not {low}, {size}, {high}"
        faults.append(Fault("size", message))
    if not (math.isfinite(target_s) and target_s > 0):
        faults.append(Fault("target_s", f"must be seconds above 0, not {target_s!r}"))
    return faults


# --- how far a job is: by rich or tqdm where installed, else in a plain line ---------------


PLAIN_EVERY_S = 0.5


class Progress(NamedTuple):
    """After each chunk."""

    done: int
    """Items, those of earlier runs included."""
    total: int | None
    """None: nobody knows."""
    chunk: int
    """Items in the chunk that was just done."""
    elapsed_s: float
    utilization: float | None
    """Of the database, as the last answer gave it; 1.0 is its threshold."""


ProgressLike: TypeAlias = bool | Callable[[Progress], object]


class Display(Protocol):
    def show(self, progress: Progress) -> object: ...

    def close(self) -> None: ...


class _Called:
    def __init__(self, told: Callable[[Progress], object]) -> None:
        self.show = told

    def close(self) -> None:
        pass


class _Rich:
    def __init__(self, module: Any, name: str, total: int | None) -> None:
        self._bar = module.Progress(
            module.TextColumn("{task.description}"),
            module.BarColumn(),
            module.MofNCompleteColumn(),
            module.TextColumn("{task.fields[state]}"),
            module.TimeRemainingColumn(),
            console=module.Console(stderr=True),
        )
        self._task = self._bar.add_task(name, total=total, state="")
        self._bar.start()

    def show(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.done, state=_state(progress))

    def close(self) -> None:
        self._bar.stop()


class _Tqdm:
    def __init__(self, module: Any, name: str, total: int | None) -> None:
        self._bar = module.tqdm(total=total, desc=name)

    def show(self, progress: Progress) -> None:
        self._bar.set_postfix_str(_state(progress), refresh=False)
        self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Plain:
    """One line, written over itself."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._next_s = 0.0
        self._line = ""

    def show(self, progress: Progress) -> None:
        self._line = f"\r{self._name}: {line_of(progress)}\x1b[K"
        if progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + PLAIN_EVERY_S
            self._write(self._line)

    def close(self) -> None:
        if self._line:
            self._write(f"{self._line}\n")

    def _write(self, text: str) -> None:
        # A terminal that is gone, or lacks a letter of the name, does not end the work.
        with suppress(OSError, UnicodeError):
            self._stream.write(text)
            self._stream.flush()


def line_of(progress: Progress) -> str:
    share = f" ({progress.done / progress.total:.0%})" if progress.total else ""
    of = f" of {progress.total:,}" if progress.total is not None else ""
    rate = progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    return f"{progress.done:,}{of}{share}, {rate:,.0f}/s, {_state(progress)}"


def _state(progress: Progress) -> str:
    used = progress.utilization
    load = "" if used is None else f", database at {used:.0%} of its threshold"
    return f"chunks of {progress.chunk:,}{load}"


def display_of(given: ProgressLike, name: str, total: int | None) -> Display | None:
    """None: progress was not requested, or there is no terminal to write to."""
    if given is False:
        return None
    if given is not True:
        return _Called(given)
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    for module, made in (("rich.progress", _Rich), ("tqdm", _Tqdm)):
        try:
            return made(importlib.import_module(module), name, total)
        except ImportError:
            continue
    return _Plain(name, sys.stderr)


class ShownProgress:
    """Of one run. What watches must not end what is watched."""

    def __init__(self, given: ProgressLike, name: str, source: object, now_s: float) -> None:
        self._name = name
        self._began_s = now_s
        self._total = len(source) if isinstance(source, Sized) else None
        self._display = display_of(given, name, self._total)

    def show(self, done: int, chunk: int, utilization: float | None, now_s: float) -> None:
        if self._display is None:
            return
        elapsed_s = now_s - self._began_s
        try:
            self._display.show(Progress(done, self._total, chunk, elapsed_s, utilization))
        except Exception as fault:  # the caller's function: logged once, and not called again
            warn("progress of %s failed (%s: %s); nothing more is shown of it, and the job goes on",
                 self._name, type(fault).__name__, fault)  # fmt: skip
            self._display = None

    def close(self) -> None:
        if self._display is not None:
            self._display.close()


# --- where a job has got to, kept over its end, so that the next run takes up there --------
# A position is saved once the body of its chunk has ended without an exception: what was cut
# short is done again, so the body of a chunk should bear being repeated.


Position: TypeAlias = Any
"""What JSON can hold and `<=` can compare: a number, a text, a list of them."""


class Cursor(Protocol):
    """Yours may be a row in a table. An AsyncClient awaits what its methods return, if need be."""

    def load(self) -> Position | Awaitable[Position]:
        """The position of the last chunk that was done; None: begin."""
        ...

    def save(self, position: Position) -> object:
        """None: all items are done; the next run starts from the beginning."""
        ...


CursorLike: TypeAlias = (
    Cursor | str | os.PathLike[str] | tuple[Callable[[], Any], Callable[[Any], object]]
)


class FileCursor:
    """In a small JSON file, which is replaced whole: a crash leaves the old one or the new one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from pathlib import Path  # here, as json below: see client/__init__.py

        self.path = Path(path)

    def load(self) -> Position:
        import json

        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            # Found out now, rather than when the first chunk has been done.
            if not os.access(self.path.parent, os.W_OK | os.X_OK):
                message = f"nothing can be written to {self.path.parent}: make that folder, or"
                raise InvalidSettings([Fault("cursor", f"{message} name another")]) from None
            return None
        except (OSError, ValueError) as fault:
            raise self._unreadable(str(fault)) from None
        if not isinstance(document, dict) or "position" not in document:
            raise self._unreadable("it holds no position")
        return document["position"]

    def save(self, position: Position) -> None:
        if position is None:
            self.clear()
            return
        text = self._encoded(position)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def clear(self) -> None:
        """Forget the position: the next run starts from the beginning."""
        self.path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"FileCursor({str(self.path)!r})"

    def _encoded(self, position: Position) -> str:
        import json

        try:
            return json.dumps({"position": position})
        except (TypeError, ValueError):
            kind = type(position).__name__
            message = f"{kind} is not JSON: let key= return a number or a text, such as isoformat()"
            raise InvalidSettings([Fault("cursor", message)]) from None

    def _unreadable(self, told: str) -> InvalidSettings:
        advice = "fix the file, or delete it to start from the beginning"
        return InvalidSettings([Fault("cursor", f"{self.path} cannot be read: {told}; {advice}")])


class _Callables:
    def __init__(self, load: Callable[[], Any], save: Callable[[Any], object]) -> None:
        self.load = load
        self.save = save


def cursor_of(given: CursorLike | None) -> Cursor | None:
    """A path, a pair of functions (load, save), or anything with these two methods."""
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        return FileCursor(given)
    if isinstance(given, tuple) and len(given) == 2 and all(callable(part) for part in given):
        return _Callables(*given)
    if callable(getattr(given, "load", None)) and callable(getattr(given, "save", None)):
        return given  # type: ignore[return-value]  # recognized by its methods, as in the Protocol
    message = f"must be a path, (load, save), or have these two methods, not {given!r}"
    raise InvalidSettings([Fault("cursor", message)])


# --- the run -------------------------------------------------------------------------------


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


def range_plan(
    sizes: Sizes, progress: ProgressLike, cursor: Cursor | None, items_cost: bool = False
) -> Plan[int]:
    """Of ids, which are their own keys."""
    key: Callable[[int], Position] | None = None if cursor is None else lambda id_: id_
    return Plan(sizes, progress, cursor, key, items_cost)


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
        self._utilization: float | None = None
        self._pressure: float | None = None
        self._chunk_began_s = now_s
        self._has_begun = False
        self._to_skip = 0 if plan.key is not None or position is None else _count(position)
        self._done = self._to_skip
        self.shown = ShownProgress(plan.progress, name, source, now_s)

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
        self._has_begun = True
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
        """Once its position is saved."""
        self.shown.show(self._done, items, self._utilization, now_s)

    def finish(self, cursor: Cursor) -> Position:
        """The position to keep: a count is good for the list that it counted, and that is done. A
        key stays, and a second run would end without a word."""
        if self.skips_any and not self._has_begun:
            at = getattr(cursor, "path", "the cursor")
            message = "nothing was left to do: %s is at %r; save None, or remove it, to start over"
            warn(message, at, self.position)
        return None if self._key is None else self.position

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
