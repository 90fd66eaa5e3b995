"""What a threshold would have done in the last hour, by minute (R140)."""

from __future__ import annotations

import pytest

from headgate.history.records import MetricMinute, Tally
from headgate.history.replay import ThresholdReplay, replay_threshold
from headgate.metrics.model import Comparison
from tests.builders import metric

FIRST = 28_000_020
OK, EXCEEDED = "OK", "THRESHOLD_EXCEEDED"


def minute(at: int, low: float | None, high: float | None, name: str = "lag") -> MetricMinute:
    absent = 60 if low is None else 0
    return MetricMinute(FIRST + at, "main", name, 60, absent, 0, 0.0, low, high, 5.0)


def checks(at: int, count: int, verdict: str = OK, by: str = "") -> Tally:
    return Tally(FIRST + at, "main", "", verdict, by, count)


@pytest.mark.parametrize(
    ("threshold", "comparison", "bounds"),
    [
        (10, Comparison.ABOVE, (0, 0)),
        (5, Comparison.ABOVE, (0, 100)),
        (5, Comparison.AT_LEAST, (0, 100)),
        (8, Comparison.ABOVE, (0, 0)),
        (8, Comparison.AT_LEAST, (0, 100)),
        (2, Comparison.ABOVE, (0, 100)),
        (2, Comparison.AT_LEAST, (100, 100)),
        (1, Comparison.ABOVE, (100, 100)),
    ],
)
def test_a_minute_counts_wholly_by_its_lowest_and_perhaps_by_its_highest_value(
    threshold: float, comparison: Comparison, bounds: tuple[int, int]
) -> None:
    spec = metric("lag", threshold=threshold, comparison=comparison.value)
    found = replay_threshold(spec, [minute(0, 2, 8)], [checks(0, 100)])
    assert (found.at_least, found.at_most) == bounds


def test_minutes_are_added_up_and_compared_with_what_was() -> None:
    values = [minute(0, 0, 1), minute(1, 2, 8), minute(2, 7, 9)]
    tallies = [
        checks(0, 100),
        checks(1, 30),
        checks(1, 20, EXCEEDED, "lag"),
        checks(2, 10, EXCEEDED, "lag"),
        checks(2, 7, EXCEEDED, "threads_running"),
        checks(2, 3, "REJECTED_BY_RATIO", "rule:r-1"),
    ]
    found = replay_threshold(metric("lag", threshold=5), values, tallies)
    assert found == ThresholdReplay(60, 170, 20, 70, 30, 0, found.says)
    assert found.says == (
        "would have rejected between 20 and 70 of 170 checks of the last 60 minutes (now: 30)"
    )


def test_minutes_without_values_are_in_neither_bound() -> None:
    values = [minute(0, None, None), minute(2, 9, 9)]
    tallies = [checks(0, 5), checks(1, 6), checks(2, 7)]
    found = replay_threshold(metric("lag", threshold=5), values, tallies)
    assert (found.at_least, found.at_most, found.unknown) == (7, 7, 11)
    assert found.says.startswith("would have rejected 7 of 18 checks")
    assert found.says.endswith("the value is unknown for 11 checks")


def test_without_history_it_says_so() -> None:
    spec = metric("lag", threshold=5)
    assert "no client checked" in replay_threshold(spec, [minute(0, 9, 9)], []).says
    assert "no values" in replay_threshold(spec, [], [checks(0, 5)]).says
    assert "no values" in replay_threshold(spec, [minute(0, 9, 9, "x")], [checks(0, 5)]).says


def test_one_that_is_switched_off_rejects_nobody() -> None:
    spec = metric("lag", threshold=5)
    tallies = [checks(0, 5, EXCEEDED, "lag")]
    found = replay_threshold(spec, [minute(0, 9, 9)], tallies, enabled=False)
    assert (found.at_least, found.at_most, found.rejected, found.unknown) == (0, 0, 5, 0)


def test_the_shards_value_counts_where_checks_are_decided_by_it() -> None:
    values = [minute(0, 1, 1), minute(0, 9, 9, "shard/lag")]
    tallies = [checks(0, 4, EXCEEDED, "shard/lag")]
    of_shard = metric("lag", threshold=5, scope="shard")
    assert replay_threshold(of_shard, values, tallies).at_least == 4
    assert replay_threshold(of_shard, values, tallies).rejected == 4
    of_host = metric("lag", threshold=5, scope="host")
    assert replay_threshold(of_host, values, tallies).at_most == 0
    assert replay_threshold(of_shard, values[:1], tallies).at_most == 0
