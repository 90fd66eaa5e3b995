"""How much work pacing admits while the metrics are healthy.

    readings, admitted cost ──► Observation ──step──► Pace.rate ──► Pacer's bucket

A gate alone oscillates: all clients start while it is open, and the effect shows only at the
next reading. Here a PI controller with slow start keeps the worst paced metric at its set
point. It works on the logarithm of the rate, so databases that sustain ten units a second and
ten thousand are controlled alike. Pure and total: `step` uses no clock, and for any input the
rate stays within MIN_RATE and MAX_RATE.

Replication lag is a queue, which gives more than one number: what was admitted before
`now - lag` has been replayed, the rest waits. So for lag the integral term is measured (what
the replica really replays), and the error is that of the current queue. The lag itself shows a
queue only after something has waited in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

MIN_RATE = 0.1
MAX_RATE = 1e9
INITIAL_RATE = 2.0
"""Cost units a second, before anything is known; slow start raises it quickly."""

GROWTH = 2.0
"""Slow start: the factor at each reading, while the whole allowance is used."""
STARTED_AT = 0.5
"""Slow start ends at this share of the set point."""
RESTART_BELOW, RESTART_AFTER = 0.25, 6
"""Slow start begins again after this many readings below this share of the set point, while the
whole allowance is used."""
PROPORTIONAL = 0.5
INTEGRAL_PER_S = 0.4
MOST_CHANGE = 0.4
"""Change of the integral term from one reading to the next: a metric that is read rarely is not
controlled by guesses about the time between."""
MOST_UP, MOST_DOWN = 1.2, 0.3
"""How far the rate may be from the estimate of what the database sustains."""
CUT = 0.7
"""Factor on the rate after a breach by our own work, if there is no queue to measure."""
USED_SHARE = 0.9
FORGET_PER_S = 0.05
"""An unused rate is not trusted: it falls toward twice what was used."""

USED_KEPT = 0.25
"""At the next reading, what was used before counts a quarter if less was used since."""

MAX_DEBT_S = 10.0
"""No client waits longer than this for the cost that it declares."""
MOST_S, MOST_TYPICAL = 0.25, 8.0
"""A declared cost is believed up to this many seconds of the rate, or this many times the usual
cost. A client that declares too much delays the others only briefly."""
UNIT = 1.0
"""Cost of a check that declares none."""

LEARN_OVER_S, LEARN_OVER_READINGS = 0.5, 2
"""What a queue drains is averaged over this time: one lag reading that is off by 0.1 s would look
like work that drained instantly."""
MOST_NEWS = 4.0
"""One wrong reading may say that nothing drains; the estimate falls by at most this factor."""
NEARLY_DRY = 0.25
"""Below this share of the set point, a queue drains all it gets, and could drain more."""
DRAINS_SHARE = 0.8
"""A queue grows when it drains less than this share of what was admitted."""


class Queue(NamedTuple):
    """What a delay in seconds tells of the work before and behind it."""

    drained_per_s: float | None
    """Cost a second that was replayed since the last reading; None if the queue ran empty."""
    waiting: float
    """Cost admitted and not yet replayed."""
    full_s: float
    """Seconds of delay at the set point."""


class Observation(NamedTuple):
    load: float
    """The worst paced metric as a share of its set point: 1 is where it should be."""
    breached: bool
    elapsed_s: float
    """Since the last step."""
    interval_s: float
    """Between two readings of that metric."""
    taken: float
    """Cost admitted since the last step."""
    limited: bool
    """Whether pacing alone rejected a check since then."""
    queue: Queue | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    rate: float = INITIAL_RATE
    """Cost units a second to admit until the next step."""
    sustained: float = INITIAL_RATE
    """Estimate of what the database sustains: the integral term."""
    starting: bool = True
    low_for: int = 0
    """Readings in a row far below the set point, while the whole allowance was used."""
    used_per_s: float = 0.0
    """The most that was used recently."""


def is_delay(metric: str, unit: str) -> bool:
    """Seconds that work waits behind other work: replication lag, by whatever means."""
    return unit == "s" and (metric == "lag" or metric.endswith(("_lag", "-lag")))


def default_target(metric: str, unit: str) -> float:
    """A queue that is never empty drains all it can, even a short one. So the set point is a short
    queue: admitted work waits in it when the database slows down."""
    return 0.5 if is_delay(metric, unit) else 0.8


def most_charged(pace: Pace, typical: float, interval_s: float) -> float:
    """Of one check, whatever it declares."""
    if pace.starting:
        # The rate says nothing yet: one piece a reading, whatever its size, lets it grow.
        return max(interval_s * pace.rate, UNIT)
    return min(MAX_DEBT_S * pace.rate, max(MOST_S * pace.rate, MOST_TYPICAL * typical))


def step(pace: Pace, seen: Observation) -> Pace:
    """The pace after one more reading."""
    if not seen.elapsed_s > 0 or math.isnan(seen.load):
        return pace
    used_per_s = max(seen.taken / seen.elapsed_s, USED_KEPT * pace.used_per_s)
    return replace(_stepped(replace(pace, used_per_s=used_per_s), seen), used_per_s=used_per_s)


def _stepped(pace: Pace, seen: Observation) -> Pace:
    used = seen.limited or seen.taken >= USED_SHARE * pace.rate * seen.elapsed_s
    if pace.starting and not _found_limit(seen):
        return _start(pace, seen, used=used)
    sustained = _sustained(pace, seen, used=used)
    low_for = pace.low_for + 1 if used and seen.load < RESTART_BELOW and seen.queue is None else 0
    if low_for >= RESTART_AFTER:
        return Pace(_bounded(sustained), _bounded(sustained), starting=True)
    rate = sustained * _correction(sustained, seen)
    # A queue that seems to grow slows the start down; it has started when the load shows it.
    starting = pace.starting and not _has_load(seen)
    return Pace(_bounded(rate), _bounded(sustained), starting, low_for)


def _has_load(seen: Observation) -> bool:
    return seen.breached or seen.load >= STARTED_AT


def _found_limit(seen: Observation) -> bool:
    if _has_load(seen):
        return True
    queue = seen.queue
    if queue is None or queue.drained_per_s is None:
        return False
    # What work that joins the queue now will find; and whether the queue has begun to grow.
    if queue.waiting >= STARTED_AT * queue.full_s * queue.drained_per_s:
        return True
    return _grows(seen, queue) and queue.waiting > seen.interval_s * queue.drained_per_s


def _grows(seen: Observation, queue: Queue) -> bool:
    """More went in than came out."""
    drained_per_s = queue.drained_per_s
    return drained_per_s is not None and drained_per_s * seen.elapsed_s < DRAINS_SHARE * seen.taken


def _start(pace: Pace, seen: Observation, *, used: bool) -> Pace:
    if not used:
        return _doubted(pace, seen)
    # Whatever was declared and borne: one lie would do away with the limit.
    rate = _bounded(pace.rate * _growth(seen))
    return Pace(rate, rate, starting=True)


def _growth(seen: Observation) -> float:
    """At most doubled from one reading to the next; less where that alone would fill the queue."""
    most = GROWTH
    if seen.queue is not None:
        most = min(most, 1 + 2 * seen.queue.full_s / seen.interval_s)
    return float(most ** min(1.0, seen.elapsed_s / seen.interval_s))


def _doubted(pace: Pace, seen: Observation) -> Pace:
    used_per_s = seen.taken / seen.elapsed_s
    kept = max(INITIAL_RATE, 2 * used_per_s, pace.rate * math.exp(-FORGET_PER_S * seen.elapsed_s))
    rate = _bounded(min(pace.rate, kept))
    return Pace(rate, min(rate, pace.sustained), pace.starting)


def _sustained(pace: Pace, seen: Observation, *, used: bool) -> float:
    before = pace.sustained
    if seen.queue is not None:
        return _drains(pace, seen, seen.queue, used=used)
    if seen.breached or pace.starting:
        # What was never used says nothing of what is borne.
        return min(before * CUT, pace.used_per_s) if seen.taken > 0 else before
    error = 1 - seen.load
    # Anti-windup: up only while the limit is what limits, down only where we are the load.
    if (error > 0 and not used) or (error < 0 and seen.taken <= 0):
        return before
    change = INTEGRAL_PER_S * error * seen.elapsed_s
    return before * math.exp(min(MOST_CHANGE, max(-MOST_CHANGE, change)))


def _drains(pace: Pace, seen: Observation, queue: Queue, *, used: bool) -> float:
    """The integral term of a queue: what it is seen to drain, evened out over its length."""
    before, measured = pace.sustained, queue.drained_per_s
    if measured is None or (seen.load < NEARLY_DRY and not _grows(seen, queue)):
        # It drains all that it gets: it sustains at least that, and perhaps more.
        return max(before, pace.rate) if used else before
    learning_s = seen.elapsed_s + max(LEARN_OVER_S, LEARN_OVER_READINGS * seen.interval_s)
    weight = 1.0 if pace.starting else seen.elapsed_s / learning_s
    measured = min(MOST_NEWS * before, max(before / MOST_NEWS, measured))
    return before + weight * (measured - before)


def _correction(sustained: float, seen: Observation) -> float:
    load, gain = seen.load, PROPORTIONAL
    if seen.queue is not None:
        load = seen.queue.waiting / sustained / seen.queue.full_s
        # What is amiss now shows in the lag only after two readings and the queue itself.
        gain = seen.queue.full_s / (2 * seen.interval_s + seen.queue.full_s)
    return min(MOST_UP, max(MOST_DOWN, 1 + gain * (1 - load)))


def _bounded(rate: float) -> float:
    return min(MAX_RATE, max(MIN_RATE, rate))
