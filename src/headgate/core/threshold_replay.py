"""What a threshold would have done to the checks of the last hour. Pure.

metrics by minute, checks by minute, a metric as it would be ──replay_threshold──► ThresholdReplay

History keeps the lowest and the highest value of a minute, but not when each was. If the lowest
breaches the threshold, it would have rejected all checks of that minute; if only the highest does,
some of them. What rejected clients would have done next is not known and not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headgate.core.decision import Verdict
from headgate.core.metrics import MetricSpec
from headgate.core.names import Scope
from headgate.core.records import MetricMinute, Tally

REPLAYED_MINUTES = 60


@dataclass(frozen=True, slots=True)
class ThresholdReplay:
    minutes: int
    """Number of minutes replayed."""
    checks: int
    """Checks of the database."""
    at_least: int
    """At least this many of them would have been rejected by this metric,"""
    at_most: int
    """and at most this many."""
    rejected: int
    """Rejected by this metric's current threshold."""
    unknown: int
    """Checks of minutes without a stored value; in neither bound."""

    @property
    def words(self) -> str:
        if not self.checks:
            return f"no client checked in the last {self.minutes} minutes, so there is no preview"
        if self.unknown == self.checks:
            return f"no values of the last {self.minutes} minutes are kept, so there is no preview"
        bounds = f"{self.at_least:,}"
        if self.at_most != self.at_least:
            bounds = f"between {self.at_least:,} and {self.at_most:,}"
        told = (
            f"would have rejected {bounds} of {self.checks:,} checks of the last {self.minutes} "
            f"minutes (now: {self.rejected:,})"
        )
        unknown = f"; the value is unknown for {self.unknown:,} checks" if self.unknown else ""
        return told + unknown


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
    return ThresholdReplay(minutes, sum(checks.values()), at_least, at_most, rejected, unknown)


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
