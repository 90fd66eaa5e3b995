"""What a threshold would have done to the checks of the last hour (R140). Pure.

metrics by minute, checks by minute, a metric as it would be ──replay_threshold──► ThresholdReplay

A minute keeps the lowest and the highest value, not when each was: where the lowest is beyond the
threshold all checks of that minute would have been rejected, where only the highest is some of
them. What clients would have done, had they been rejected, is not known and not guessed.
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
    """How many were looked at."""
    checks: int
    """Of the database."""
    at_least: int
    """So many of them would have been rejected by this metric, and"""
    at_most: int
    """no more than so many."""
    rejected: int
    """By this metric's threshold, as it was."""
    unknown: int
    """Checks of minutes of which no value is kept; in neither bound."""

    @property
    def words(self) -> str:
        if not self.checks:
            return f"nobody checked within the last {self.minutes} minutes, so there is no preview"
        if self.unknown == self.checks:
            return f"no values of the last {self.minutes} minutes are kept, so there is no preview"
        bounds = f"{self.at_least:,}"
        if self.at_most != self.at_least:
            bounds = f"between {self.at_least:,} and {self.at_most:,}"
        told = (
            f"would have rejected {bounds} of {self.checks:,} checks of the last {self.minutes} "
            f"minutes (now: {self.rejected:,})"
        )
        unknown = f"; of {self.unknown:,} checks the value is not known" if self.unknown else ""
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
    """What a check that names no scope is judged by: the shard's, where the metric says so and
    this agent has it."""
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
