"""How much may be released while the gate is open (R142).

    readings, admitted cost ──► Observation ──step──► Pace.rate ──► Pacer's bucket

A gate alone swings: all come in while it is open, and what they did shows only when the
metric is read again. Here a PI controller with slow start steers the worst paced metric to
its set point. It works on the logarithm of the rate, so a database that bears ten units a
second and one that bears ten thousand are steered alike. Pure and total: `step` knows no
clock, and whatever it is told, the rate stays within MIN_RATE and MAX_RATE.

Replication lag is a queue, and a queue tells more than one number: what was admitted before
`now - lag` has been replayed, the rest waits. So for lag the integral term is measured (what
the replica really replays), and the error is that of the queue now, not of the lag, which
shows a queue only once it has been waited in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

MIN_RATE = 0.1
MAX_RATE = 1e9
INITIAL_RATE = 2.0
"""Cost units a second, before anything is known: slow start is there soon."""

GROWTH = 2.0
"""Slow start: times this at each reading, while all that was released is taken."""
STARTED_AT = 0.5
"""Slow start ends at this share of the set point."""
RESTART_BELOW, RESTART_AFTER = 0.25, 6
"""Below this share of the set point for so many readings, though all is taken: start anew."""
PROPORTIONAL = 0.5
INTEGRAL_PER_S = 0.4
MOST_CHANGE = 0.4
"""Of the integral term from one reading to the next: a metric that is read rarely is not
steered by a guess about the time between."""
MOST_UP, MOST_DOWN = 1.2, 0.3
"""How far the rate may stand from what the database is thought to bear."""
CUT = 0.7
"""What a breach by our own work leaves of the rate, where no queue tells better."""
USED_SHARE = 0.9
FORGET_PER_S = 0.05
"""What is not used is doubted: the rate sinks towards twice what was used."""

USED_KEPT = 0.25
"""What was used counts a quarter at the next reading, where less was."""

MAX_DEBT_S = 10.0
"""However much a check declares, nobody waits longer for it."""
MOST_S, MOST_TYPICAL = 0.25, 8.0
"""What is declared is believed as far as this: so many seconds of the rate, or so many times
what is usual. One who lies, or is mistaken, holds nobody up for long."""
UNIT = 1.0
"""What a check costs that declares nothing."""

LEARN_OVER_S, LEARN_OVER_READINGS = 0.5, 2
"""What a queue drains is averaged over this long: a lag that is read 0.1 s off is work that
seems to have been drained in no time."""
MOST_NEWS = 4.0
"""One reading that is off may say that nothing drains; it is believed as far as this factor."""
NEARLY_DRY = 0.25
"""Below this share of the set point, a queue drains what it is given, and may drain more."""
DRAINS_SHARE = 0.8
"""A queue grows when it drains less than this share of what was admitted."""


class Queue(NamedTuple):
    """What a delay in seconds tells of the work before and behind it."""

    drained_per_s: float | None
    """Cost a second that went through since the last reading; None where it ran dry."""
    waiting: float
    """Cost admitted and not yet through."""
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
    """Whether anybody was sent away for the pace alone since then."""
    queue: Queue | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    rate: float = INITIAL_RATE
    """Cost units a second to release until the next step."""
    bears: float = INITIAL_RATE
    """What the database is thought to bear: the integral term."""
    starting: bool = True
    low_for: int = 0
    """Readings in a row far below the set point, though all was taken."""
    used_per_s: float = 0.0
    """The most that was taken of late."""


def is_delay(metric: str, unit: str) -> bool:
    """Seconds that work waits behind other work: replication lag, by whatever means."""
    return unit == "s" and (metric == "lag" or metric.endswith(("_lag", "-lag")))


def default_target(metric: str, unit: str) -> float:
    """A queue that is never empty drains all it can, however short: so a short one is kept,
    for what has been released stands in it when the database slows down."""
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
    bears = _bears(pace, seen, used=used)
    low_for = pace.low_for + 1 if used and seen.load < RESTART_BELOW and seen.queue is None else 0
    if low_for >= RESTART_AFTER:
        return Pace(_bounded(bears), _bounded(bears), starting=True)
    rate = bears * _correction(bears, seen)
    # A queue that seems to grow slows the start down; it has started when the load shows it.
    starting = pace.starting and not _has_load(seen)
    return Pace(_bounded(rate), _bounded(bears), starting, low_for)


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
    return Pace(rate, min(rate, pace.bears), pace.starting)


def _bears(pace: Pace, seen: Observation, *, used: bool) -> float:
    before = pace.bears
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
    before, measured = pace.bears, queue.drained_per_s
    if measured is None or (seen.load < NEARLY_DRY and not _grows(seen, queue)):
        # It drains all that it is given: it bears at least that, and may bear more.
        return max(before, pace.rate) if used else before
    learning_s = seen.elapsed_s + max(LEARN_OVER_S, LEARN_OVER_READINGS * seen.interval_s)
    weight = 1.0 if pace.starting else seen.elapsed_s / learning_s
    measured = min(MOST_NEWS * before, max(before / MOST_NEWS, measured))
    return before + weight * (measured - before)


def _correction(bears: float, seen: Observation) -> float:
    load, gain = seen.load, PROPORTIONAL
    if seen.queue is not None:
        load = seen.queue.waiting / bears / seen.queue.full_s
        # What is amiss now shows in the lag only after two readings and the queue itself.
        gain = seen.queue.full_s / (2 * seen.interval_s + seen.queue.full_s)
    return min(MOST_UP, max(MOST_DOWN, 1 + gain * (1 - load)))


def _bounded(rate: float) -> float:
    return min(MAX_RATE, max(MIN_RATE, rate))
