"""The controller of paced admission (R142): bounded, total, and steady."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.pacing.model import (
    INITIAL_RATE,
    MAX_DEBT_S,
    MAX_RATE,
    MIN_RATE,
    UNIT,
    Observation,
    Pace,
    Queue,
    default_target,
    is_delay,
    most_charged,
    step,
)

QUIET = Observation(0.0, False, 0.25, 0.25, taken=0.0, limited=False)
ANY = st.floats(0, 1e12)
QUEUES = st.builds(Queue, st.none() | ANY, ANY, st.floats(1e-3, 1e4))
OBSERVATIONS = st.builds(
    Observation,
    load=st.floats(0, 1e12),
    breached=st.booleans(),
    elapsed_s=st.floats(0, 1e6),
    interval_s=st.floats(0.01, 3600),
    taken=ANY,
    limited=st.booleans(),
    queue=st.none() | QUEUES,
)


def after(pace: Pace, seen: Observation, readings: int) -> Pace:
    for _ in range(readings):
        pace = step(pace, seen)
    return pace


@given(st.lists(OBSERVATIONS, max_size=30))
def test_the_rate_is_bounded_whatever_is_observed(observed: list[Observation]) -> None:
    pace = Pace()
    for seen in observed:
        pace = step(pace, seen)
        assert MIN_RATE <= pace.rate <= MAX_RATE
        assert MIN_RATE <= pace.sustained <= MAX_RATE


@given(OBSERVATIONS)
def test_a_step_depends_on_nothing_but_its_arguments(seen: Observation) -> None:
    assert step(Pace(), seen) == step(Pace(), seen)


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0, math.nan])
def test_a_clock_that_stops_changes_nothing(elapsed_s: float) -> None:
    assert step(Pace(), QUIET._replace(elapsed_s=elapsed_s, limited=True)) == Pace()


def test_slow_start_doubles_while_all_that_is_released_is_taken() -> None:
    busy = QUIET._replace(limited=True)
    assert after(Pace(), busy, 5).rate == pytest.approx(INITIAL_RATE * 2**5)


def test_slow_start_only_doubles_whatever_was_declared_and_borne() -> None:
    """R142: one check with a cost of a million says nothing of what the database sustained."""
    assert step(Pace(), QUIET._replace(taken=1e6)).rate == pytest.approx(INITIAL_RATE * 2)


def test_a_breach_leaves_no_more_than_was_really_used() -> None:
    far_too_high = Pace(rate=1e9, sustained=1e9, starting=False)
    seen = QUIET._replace(load=2.0, breached=True, taken=25.0)
    assert step(far_too_high, seen).sustained == 100
    at_start = Pace(rate=1e9, sustained=1e9)
    assert step(at_start, seen).rate <= 100


@given(st.floats(MIN_RATE, MAX_RATE), st.floats(0.001, 1e12), st.floats(0.01, 60), st.booleans())
def test_what_one_check_is_charged_is_bounded_by_the_rate(
    rate: float, typical: float, interval_s: float, starting: bool
) -> None:
    most = most_charged(Pace(rate, rate, starting), typical, interval_s)
    longest_s = max(interval_s, UNIT / rate) if starting else MAX_DEBT_S
    assert 0 < most <= longest_s * rate * (1 + 1e-9)


def test_idle_then_burst_an_idle_system_builds_up_no_rate() -> None:
    grown = after(Pace(), QUIET._replace(limited=True), 8)
    assert after(Pace(), QUIET, 100).rate == INITIAL_RATE
    assert after(grown, QUIET, 1000).rate < grown.rate / 10


def test_no_growth_while_the_limit_is_not_what_limits() -> None:
    settled = Pace(rate=100, sustained=100, starting=False)
    half_used = QUIET._replace(load=0.5, taken=12.0)
    assert after(settled, half_used, 50).sustained == 100


def test_windup_a_breach_by_others_does_not_cut_what_we_did_not_use() -> None:
    """The gate is closed, nobody is admitted: the rate waits for the end of it."""
    settled = Pace(rate=100, sustained=100, starting=False)
    assert after(settled, QUIET._replace(load=3.0, breached=True), 1000).sustained == 100


def test_missed_recovery_an_idle_database_is_tried_again() -> None:
    """R27: after a long trouble the rate comes back by itself, soon."""
    cut = Pace(rate=MIN_RATE, sustained=MIN_RATE, starting=False)
    assert after(cut, QUIET._replace(limited=True), 40).rate > 1000


def test_missed_recovery_of_a_queue_that_stopped() -> None:
    empty = Queue(drained_per_s=None, waiting=0.0, full_s=0.5)
    cut = Pace(rate=MIN_RATE, sustained=MIN_RATE, starting=False)
    assert after(cut, QUIET._replace(limited=True, queue=empty), 40).rate > 100


@pytest.mark.parametrize(("load", "grows"), [(0.5, True), (1.5, False)])
def test_near_the_set_point_the_rate_follows_the_error(load: float, grows: bool) -> None:
    settled = Pace(rate=100, sustained=100, starting=False)
    found = step(settled, QUIET._replace(load=load, taken=25.0, limited=True))
    assert (found.sustained > 100) is grows
    assert (found.rate > 100) is grows


def test_a_queue_is_measured_by_its_length_not_by_the_lag_it_showed() -> None:
    """The lag is still fine; what has been released since will be waited for."""
    settled = Pace(rate=400, sustained=400, starting=False)
    long = Queue(drained_per_s=400, waiting=800, full_s=0.5)
    short = long._replace(waiting=50)
    seen = QUIET._replace(load=0.5, taken=100.0, limited=True)
    assert step(settled, seen._replace(queue=long)).rate < 200
    assert step(settled, seen._replace(queue=short)).rate > 400


def test_one_reading_that_is_off_does_not_stop_the_release() -> None:
    settled = Pace(rate=400, sustained=400, starting=False)
    off = Queue(drained_per_s=0.0, waiting=200, full_s=0.5)
    assert step(settled, QUIET._replace(load=1.0, taken=100.0, queue=off)).sustained > 200


@given(st.floats(0.01, 1000), st.sampled_from([0.1, 0.25, 1.0]))
def test_a_metric_that_follows_the_rate_at_once_is_brought_to_its_set_point(
    capacity: float, interval_s: float
) -> None:
    """Threads running, CPU: no queue, the load is the rate's share of what is borne."""
    pace = Pace()
    for _ in range(int(120 / interval_s)):
        load = pace.rate / max(capacity, 2 * MIN_RATE)
        seen = Observation(load, load > 1.25, interval_s, interval_s, pace.rate * interval_s, True)
        pace = step(pace, seen)
    assert load == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("metric", "unit", "target"),
    [("lag", "s", 0.5), ("etl_lag", "s", 0.5), ("lag", "bytes", 0.8), ("commit_delay", "s", 0.8)],
)
def test_only_a_delay_in_seconds_is_a_queue(metric: str, unit: str, target: float) -> None:
    assert default_target(metric, unit) == target
    assert is_delay(metric, unit) is (target == 0.5)
