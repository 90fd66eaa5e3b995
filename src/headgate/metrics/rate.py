"""The rate of a counter: two readings make one value."""

from __future__ import annotations

from headgate.metrics.samples import Absent, Cause, Reading, Sample, reading_of


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
