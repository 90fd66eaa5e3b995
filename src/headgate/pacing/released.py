"""How many statements a proxy may release, from the health of its database.

    readings, what the relay released ──► LoadReading ──stepped──► Steps.rate ──► the relay's bucket
                                     └──► Backlog ──► pacing/model.step ─► Pace.rate ──┘

Two control loops; the settings choose one. STEPS is the one that operators of transaction
throttlers know: below a target it goes up by at most `max_increase` at a time, between target and
maximum it stays, above the maximum it goes down by `emergency_decrease`, and between two changes
there is a minimum time. PI is the controller of paced checks (pacing/model.py); its input here is
what the relay released. Pure and total: no clock, and for any input the rates stay in bounds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from headgate.pacing.model import (
    FORGET_PER_S,
    MAX_RATE,
    MIN_RATE,
    USED_SHARE,
    Queue,
)
from headgate.proxy.model import Band, ReleaseTerms

MARKS_KEPT = 256
NEVER = -math.inf


class Phase(Enum):
    INCREASING = "increasing"
    """Below the target: up, once the time between changes has passed and the rate is used up."""
    HOLDING = "holding"
    """Between target and maximum, or health is unknown."""
    EMERGENCY = "emergency"
    """Above the maximum: down, at once."""


class LoadReading(NamedTuple):
    """One reading, and what went since the one before."""

    load: float | None
    """The worst metric as a share of its threshold; None: unknown."""
    at: float
    """Monotonic seconds."""
    elapsed_s: float
    taken: float
    """Units released since then."""
    limited: bool
    """Whether a statement had to wait, or was blocked, because of the rate alone."""


@dataclass(frozen=True, slots=True)
class Steps:
    """State of the STEPS loop."""

    rate: float
    """Units a second to release until the next step."""
    phase: Phase = Phase.HOLDING
    changed_at: float = NEVER
    """Time of the last step up or down: the next step up waits from here."""
    decreased_at: float = NEVER
    """The next step down waits from here: a step up never delays a step down."""


def begun(terms: ReleaseTerms) -> Steps:
    return Steps(_bounded(terms.initial_per_s))


def stepped(before: Steps, seen: LoadReading, terms: ReleaseTerms) -> Steps:
    """The loop after one more reading."""
    if seen.load is None or math.isnan(seen.load):
        # No failure is a 0: the rate stays, and the gate says what happens meanwhile.
        return replace(before, phase=Phase.HOLDING)
    if seen.load > terms.most:
        return _emergency(before, seen, terms)
    if seen.load > terms.target:
        return replace(before, phase=Phase.HOLDING)
    return _increasing(before, seen, terms)


def _emergency(before: Steps, seen: LoadReading, terms: ReleaseTerms) -> Steps:
    emergency = replace(before, phase=Phase.EMERGENCY)
    again = before.phase is Phase.EMERGENCY
    # What goes on although nothing of ours does is not cured by cutting deeper.
    if seen.at - before.decreased_at < terms.min_between_s or (again and seen.taken <= 0):
        return emergency
    rate = _bounded(before.rate * (1 - terms.emergency_decrease))
    return replace(emergency, rate=rate, changed_at=seen.at, decreased_at=seen.at)


def _increasing(before: Steps, seen: LoadReading, terms: ReleaseTerms) -> Steps:
    all_of_it = seen.taken >= USED_SHARE * before.rate * seen.elapsed_s
    used = seen.limited or (seen.taken > 0 and all_of_it)
    if not used:
        return replace(before, phase=Phase.INCREASING, rate=_doubted(before.rate, seen, terms))
    if seen.at - before.changed_at < terms.min_between_s:
        return replace(before, phase=Phase.INCREASING)
    rate = _bounded(before.rate * (1 + terms.max_increase))
    return replace(before, rate=rate, phase=Phase.INCREASING, changed_at=seen.at)


def _doubted(rate: float, seen: LoadReading, terms: ReleaseTerms) -> float:
    """An unused rate says nothing about what the database sustains. It falls toward twice what was
    used, so that a burst after a quiet night does not run at last evening's rate."""
    if not seen.elapsed_s > 0:
        return rate
    used_per_s = seen.taken / seen.elapsed_s
    forgotten = rate * math.exp(-FORGET_PER_S * seen.elapsed_s)
    return _bounded(min(rate, max(terms.initial_per_s, 2 * used_per_s, forgotten)))


def _bounded(rate: float) -> float:
    return min(MAX_RATE, max(MIN_RATE, rate))


# --- what a delay tells of the work before and behind it ---------------------------------------


class Backlog:
    """What was released when, so that a lag in seconds can be read as a queue (pacing/model.py)."""

    def __init__(self, at: float) -> None:
        self._marks: deque[tuple[float, float]] = deque([(at, 0.0)], maxlen=MARKS_KEPT)
        """(time, units released by then)."""
        self._through: float | None = 0.0
        """How much of it was replayed at the last look."""

    def mark(self, at: float, released: float) -> None:
        """A clock that stops or goes back adds no mark."""
        last_at, _ = self._marks[-1]
        if at > last_at:
            self._marks.append((at, released))
        else:
            self._marks[-1] = (last_at, released)

    def queue(self, lag_s: float, taken_at: float, elapsed_s: float, full_s: float) -> Queue:
        """As a lag of `lag_s`, read at `taken_at`, shows it."""
        _, released = self._marks[-1]
        through = self._released_by(taken_at - lag_s)
        waiting = released - through
        before, self._through = self._through, through
        if before is None or waiting <= 0 or lag_s <= 0 or not elapsed_s > 0:
            return Queue(None, waiting, full_s)
        return Queue(max(0.0, through - before) / elapsed_s, waiting, full_s)

    def skip(self) -> None:
        """Something else than a delay was looked at: what went through meanwhile is not known."""
        self._through = None

    def _released_by(self, at: float) -> float:
        """Between two marks, as if evenly."""
        later_at, later = self._marks[-1]
        for marked_at, marked in reversed(self._marks):
            if marked_at <= at:
                span_s = later_at - marked_at
                share = min(1.0, (at - marked_at) / span_s) if span_s > 0 else 0.0
                return marked + share * (later - marked)
            later_at, later = marked_at, marked
        return later


# --- the graded response -----------------------------------------------------------------------


def graded(bands: Sequence[Band], load: float) -> float:
    """The share to act upon at this load: that of the highest band it has reached."""
    reached = [band for band in bands if load >= band.at]
    return max(reached, key=lambda band: band.at).ratio if reached else 0.0
