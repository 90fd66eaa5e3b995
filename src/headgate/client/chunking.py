"""How large the next chunk is, and how long to pause before it. Pure arithmetic.

A job that takes all it can until it is rejected, and then stops, makes the database's load swing.
Chunks avoid that: from half of the threshold on, they shrink from `max_size` towards `min_size`
and are spaced out towards one per `target_s`. Near the threshold the job does little work, and
far from it the job loses no time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from headgate.errors import Fault, InvalidSettings

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
swing between everything and nothing: see tests/client/test_chunking.py."""


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
        wanted = min(self._by_pressure(size, utilization), self._by_time(size, took_s))
        step = min(max(wanted, size * SHRINKAGE), max(size * GROWTH, size + 1))
        return int(min(max(step, self.min_size), self.max_size))

    def pause_s(self, took_s: float, utilization: float | None) -> float:
        """None of it while the database is at ease; the rest of `target_s` at its threshold."""
        if not self.adapts or utilization is None:
            return 0.0
        return max(0.0, self.target_s - took_s) * (1.0 - room(utilization))

    def _by_pressure(self, size: int, utilization: float | None) -> float:
        if utilization is None:
            return size  # Unknown is not low: no smaller, and no larger either.
        return self.min_size + (self.max_size - self.min_size) * room(utilization)

    def _by_time(self, size: int, took_s: float) -> float:
        return math.inf if took_s <= 0 else size * self.target_s / took_s


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
    begins = _beginning(size, min_size, max_size)
    low = max(1, begins // SPREAD) if min_size is None else min_size
    high = begins * SPREAD if max_size is None else max_size
    goal_s = DEFAULT_TARGET_S if target_s is None else target_s
    faults = [*_faults(begins, low, high, goal_s)]
    if faults:
        raise InvalidSettings(faults)
    return Sizes(begins, low, high, goal_s, adapts)


def _beginning(size: int | None, min_size: int | None, max_size: int | None) -> int:
    if size is not None:
        return size
    return max(min_size or 1, min(DEFAULT_SIZE, max_size or DEFAULT_SIZE))


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
