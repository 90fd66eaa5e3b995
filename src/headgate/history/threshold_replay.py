"""What a threshold would have done to the checks of the last hour. Pure.

metrics by minute, checks by minute, a metric as it would be ──replay_threshold──► ThresholdReplay

History keeps the lowest and the highest value of a minute, but not when each was. If the lowest
breaches the threshold, it would have rejected all checks of that minute; if only the highest does,
some of them. What rejected clients would have done next is not known and not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headgate.base.names import Scope
from headgate.check.model import Verdict
from headgate.history.records import MetricMinute, Tally
from headgate.metrics.model import MetricSpec

REPLAYED_MINUTES = 60


@dataclass(frozen=True, slots=True)
class ThresholdReplay:
    """What a metric as it would be had done to the checks of the last hour."""

    minutes: int
    """How many minutes were replayed."""
    checks: int
    """Of the database, within these minutes."""
    at_least: int
    """So many of them would have been rejected by this metric; `at_most` no more than that. Within
    a minute only the lowest and the highest value are kept."""
    at_most: int
    rejected: int
    """By its threshold, as it was."""
    unknown: int
    """Checks of minutes without a value; in neither bound."""
    says: str
    """In a line."""


def _says(minutes: int, checks: int, bounds: tuple[int, int], rejected: int, unknown: int) -> str:
    if not checks:
        return f"no client checked in the last {minutes} minutes, so there is no preview"
    if unknown == checks:
        return f"no values of the last {minutes} minutes are kept, so there is no preview"
    low, high = bounds
    told = f"{low:,}" if low == high else f"between {low:,} and {high:,}"
    left = f"; the value is unknown for {unknown:,} checks" if unknown else ""
    of = f"of {checks:,} checks of the last {minutes} minutes (now: {rejected:,})"
    return f"would have rejected {told} {of}{left}"


def replay_threshold(
    spec: MetricSpec,
    values: Iterable[MetricMinute],
    tallies: Iterable[Tally],
    *,
    enabled: bool = True,
    minutes: int = REPLAYED_MINUTES,
) -> ThresholdReplay:
    """`values` and `tallies`: of one database and these minutes, of whatever metrics."""
    told = list(values)
    name = replayed_name(spec, told)
    mine = {one.minute: one for one in told if one.metric == name}
    checks: dict[int, int] = {}
    rejected = 0
    for tally in tallies:
        checks[tally.minute] = checks.get(tally.minute, 0) + tally.count
        if tally.metric == name and tally.verdict == Verdict.THRESHOLD_EXCEEDED.value:
            rejected += tally.count
    at_least, at_most, unknown = _bounds(spec, mine, checks) if enabled else (0, 0, 0)
    total = sum(checks.values())
    says = _says(minutes, total, (at_least, at_most), rejected, unknown)
    return ThresholdReplay(minutes, total, at_least, at_most, rejected, unknown, says)


def replayed_name(spec: MetricSpec, values: Iterable[MetricMinute]) -> str:
    """The metric for a check that names no scope: the shard's, if the metric says so and this agent
    has it."""
    shard = f"{Scope.SHARD.value}/{spec.name}"
    has_shard = any(one.metric == shard for one in values)
    return shard if spec.scope is Scope.SHARD and has_shard else spec.name


def _bounds(
    spec: MetricSpec, values: Mapping[int, MetricMinute], checks: Mapping[int, int]
) -> tuple[int, int, int]:
    at_least = at_most = unknown = 0
    for minute, count in checks.items():
        value = values.get(minute)
        if value is None or value.low is None or value.high is None:
            unknown += count
            continue
        at_least += count if spec.breaches(value.low) else 0
        at_most += count if spec.breaches(value.high) else 0
    return at_least, at_most, unknown
