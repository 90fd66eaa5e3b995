"""What a probe returns: a value with its time, or no value and a cause.

Nothing here turns into 0, and nothing without a time can be called fresh.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple


class Instant(NamedTuple):
    """One moment on two clocks: `mono_s` measures ages, `wall_s` dates rules and reports."""

    mono_s: float
    wall_s: float


class BootInstant(NamedTuple):
    """One moment within one run of the machine: it outlives processes, and nobody can set it."""

    id: str
    s: float
    """Since the machine booted, with the time that it slept."""


class Cause(Enum):
    """Why there is no value."""

    NEVER_READ = "never_read"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INVALID = "invalid"
    STALE = "stale"
    WARMING_UP = "warming_up"
    HIBERNATING = "hibernating"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"
    REPLICATION_STOPPED = "replication_stopped"
    REPLICATION_BROKEN = "replication_broken"
    REPLICATION_SILENT = "replication_silent"
    HEARTBEAT_IDLE = "heartbeat_idle"
    HEARTBEAT_DEAD = "heartbeat_dead"
    CLOCK_SKEW = "clock_skew"
    UNREACHABLE = "unreachable"
    EMPTY_SHARD = "empty_shard"
    NO_PRIMARY = "no_primary"
    SPLIT_BRAIN = "split_brain"
    ELSEWHERE = "elsewhere"
    HANDING_OVER = "handing_over"


CAUSE_MEANINGS: dict[Cause, str] = {
    Cause.NEVER_READ: "no probe of this metric has finished since the agent started it",
    Cause.FAILED: "the probe ran and failed; the detail is the server's own message",
    Cause.TIMED_OUT: "the probe did not finish within its timeout",
    Cause.INVALID: "the probe answered something that is no measurement: NaN, negative, NULL, "
    "no row, or more than one",
    Cause.STALE: "the last value is older than the metric's age limit",
    Cause.WARMING_UP: "a first value is not enough yet (rate of a counter, new role)",
    Cause.HIBERNATING: "no client checks the database, so nothing is measured; "
    "a check wakes it (about 1 s)",
    Cause.UNSUPPORTED: "this server or host does not have what the metric measures",
    Cause.UNKNOWN: "no metric of this name is configured on this database",
    Cause.REPLICATION_STOPPED: "replication was stopped, or replay paused, on purpose; lag grows",
    Cause.REPLICATION_BROKEN: "replication ended with an error, or cannot reach its primary",
    Cause.REPLICATION_SILENT: "nothing arrives from the primary and no heartbeat tells why: it is "
    "idle, or the network is dead. Lag counts from the last sign of life",
    Cause.HEARTBEAT_IDLE: "the primary's agent writes no heartbeat because no client checks",
    Cause.HEARTBEAT_DEAD: "replication runs, but no heartbeat is written: its writer is gone",
    Cause.CLOCK_SKEW: "the clocks of two hosts disagree by more than can be corrected",
    Cause.UNREACHABLE: "the agent of a member of the shard does not answer",
    Cause.EMPTY_SHARD: "no member of the shard is left to roll up",
    Cause.NO_PRIMARY: "no member of the shard is known to be its primary",
    Cause.SPLIT_BRAIN: "two members of the shard both say that they are its primary",
    Cause.ELSEWHERE: "the shard is rolled up by its primary's agent, not by this one",
    Cause.HANDING_OVER: "a planned switchover is announced: the primary is about to change",
}


class Measured(NamedTuple):
    """A number with something to say about it: lag that grows because replication stopped."""

    value: float
    cause: Cause | None = None
    detail: str = ""


Number = float | Measured
"""What a probe may return."""


class Sample(NamedTuple):
    value: float
    taken_at: float
    """Monotonic seconds at which the measured state held: the start of the probe."""
    cause: Cause | None = None
    """What the value is based on, if the probe knows; never a reason to doubt it."""
    detail: str = ""


class Absent(NamedTuple):
    cause: Cause
    detail: str
    at: float
    """Monotonic seconds at which the missing value was seen."""


Reading = Sample | Absent


def reading_of(number: Number, *, taken_at: float) -> Reading:
    """A finite number that is not negative, or no value with the cause INVALID."""
    value, cause, detail = number if isinstance(number, Measured) else (number, None, "")
    if math.isnan(value):
        return Absent(Cause.INVALID, "the probe answered NaN", taken_at)
    if math.isinf(value):
        return Absent(Cause.INVALID, "the probe answered infinity", taken_at)
    if value < 0:
        return Absent(Cause.INVALID, f"the probe answered {value:g}, below 0", taken_at)
    return Sample(value, taken_at, cause, detail)


# --- the rate of a counter: two readings make one value ----------------------------------------


def rate_between(before: Sample | None, after: Sample) -> Reading:
    """Increase per second. A first reading, or a counter that went back, has no rate yet."""
    if before is None:
        return Absent(Cause.WARMING_UP, "a rate needs a second reading", after.taken_at)
    if after.value < before.value:
        detail = f"the counter went back from {before.value:g} to {after.value:g}"
        return Absent(Cause.WARMING_UP, detail, after.taken_at)
    elapsed_s = after.taken_at - before.taken_at
    if elapsed_s <= 0:
        return Absent(Cause.WARMING_UP, "two readings at one instant", after.taken_at)
    return reading_of((after.value - before.value) / elapsed_s, taken_at=after.taken_at)
