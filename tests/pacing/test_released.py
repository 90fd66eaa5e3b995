"""The control loop of a proxy (R99) and its graded response (R100): bounded, as specified."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.pacing.model import MAX_RATE, MIN_RATE
from headgate.pacing.released import Backlog, LoadReading, Phase, Steps, begun, graded, stepped
from headgate.proxy.model import Band, ReleaseKind, ReleaseTerms

TERMS = ReleaseTerms(
    kind=ReleaseKind.STEPS, target=0.7, most=1.0, max_increase=0.1, emergency_decrease=0.5,
    min_between_s=1.0, initial_per_s=100.0,
)  # fmt: skip
SEEN = LoadReading(load=0.1, at=100.0, elapsed_s=0.25, taken=25.0, limited=True)
SEENS = st.builds(
    LoadReading,
    load=st.none() | st.floats(0, 1e9) | st.just(math.nan),
    at=st.floats(0, 1e6),
    elapsed_s=st.floats(0, 1e4),
    taken=st.floats(0, 1e12),
    limited=st.booleans(),
)
ALL_TERMS = st.builds(
    ReleaseTerms,
    target=st.floats(0.05, 0.9),
    most=st.floats(0.9, 5),
    max_increase=st.floats(0.01, 5),
    emergency_decrease=st.floats(0.05, 0.99),
    min_between_s=st.floats(0, 60),
    initial_per_s=st.floats(0.01, 1e6),
)


def after(steps: Steps, *seen: LoadReading, terms: ReleaseTerms = TERMS) -> Steps:
    for one in seen:
        steps = stepped(steps, one, terms)
    return steps


def every(seconds: float, times: int, **changes: object) -> list[LoadReading]:
    return [
        SEEN._replace(at=100.0 + n * seconds, elapsed_s=seconds, **changes)  # type: ignore[arg-type]
        for n in range(times)
    ]


# --- as specified -------------------------------------------------------------------------


def test_below_the_target_it_goes_up_by_max_increase_and_no_more() -> None:
    """R99."""
    assert after(begun(TERMS), SEEN).rate == pytest.approx(110)


def test_two_steps_up_are_min_between_s_apart() -> None:
    """R99: ten readings a second are still one step a second."""
    steps = after(begun(TERMS), *every(0.1, 31))
    assert steps.rate == pytest.approx(100 * 1.1**4)


def test_between_target_and_maximum_it_stays() -> None:
    found = after(begun(TERMS), *every(1.0, 50, load=0.85))
    assert (found.rate, found.phase) == (100, Phase.HOLDING)


def test_above_the_maximum_it_gives_up_its_share_at_once() -> None:
    """R99: however shortly before it went up."""
    risen = after(begun(TERMS), SEEN)
    cut = after(risen, SEEN._replace(at=100.05, load=1.2))
    assert cut.rate == pytest.approx(55)
    assert cut.phase is Phase.EMERGENCY


def test_two_steps_down_are_min_between_s_apart() -> None:
    found = after(begun(TERMS), *every(0.25, 5, load=2.0))
    assert found.rate == pytest.approx(25)


def test_after_an_emergency_the_way_up_waits_as_well() -> None:
    cut = after(begun(TERMS), SEEN._replace(load=1.5))
    assert after(cut, SEEN._replace(at=100.9)).rate == 50
    assert after(cut, SEEN._replace(at=101.1)).rate == pytest.approx(55)


def test_windup_trouble_that_others_make_does_not_cut_what_we_do_not_use() -> None:
    """The gate is shut and nothing of ours runs: cutting deeper cures nothing."""
    found = after(begun(TERMS), *every(1.0, 100, load=3.0, taken=0.0, limited=False))
    assert found.rate == 50


def test_no_reading_is_no_reading_of_zero() -> None:
    found = after(begun(TERMS), *every(1.0, 20, load=None))
    assert (found.rate, found.phase) == (100, Phase.HOLDING)


def test_idle_then_burst_a_rate_that_nobody_used_is_doubted() -> None:
    grown = replace(begun(TERMS), rate=10_000.0)
    found = after(grown, *every(1.0, 300, taken=5.0, limited=False))
    assert found.rate == pytest.approx(100)


def test_no_growth_while_the_limit_is_not_what_limits() -> None:
    assert after(begun(TERMS), *every(1.0, 50, taken=20.0, limited=False)).rate <= 100


# --- invariants -----------------------------------------------------------------------------


@given(st.lists(SEENS, max_size=30), ALL_TERMS)
def test_the_rate_is_bounded_whatever_is_seen(seen: list[LoadReading], terms: ReleaseTerms) -> None:
    steps = begun(terms)
    for one in seen:
        steps = stepped(steps, one, terms)
        assert MIN_RATE <= steps.rate <= MAX_RATE


@given(SEENS, ALL_TERMS, st.floats(MIN_RATE, MAX_RATE))
def test_it_rises_only_below_the_target_and_never_by_more_than_it_may(
    seen: LoadReading, terms: ReleaseTerms, rate: float
) -> None:
    before = Steps(rate)
    found = stepped(before, seen, terms)
    assert found.rate <= max(MIN_RATE, rate * (1 + terms.max_increase)) * (1 + 1e-9)
    if found.rate > rate:
        assert seen.load is not None and seen.load <= terms.target


@given(SEENS, ALL_TERMS, st.floats(1.0, 1e8))
def test_an_emergency_is_never_missed(seen: LoadReading, terms: ReleaseTerms, rate: float) -> None:
    """From any state but an emergency, the first reading above the maximum cuts."""
    high = seen._replace(load=terms.most * 1.01 + 0.01)
    found = stepped(Steps(rate), high, terms)
    assert found.rate == pytest.approx(max(MIN_RATE, rate * (1 - terms.emergency_decrease)))


def test_a_stable_system_settles_between_target_and_maximum() -> None:
    """A metric that follows the rate at once: the loop ends where it may stay."""
    steps, loads = begun(TERMS), []
    for n in range(400):
        load = steps.rate / 500.0
        loads.append(load)
        seen = LoadReading(load, 100.0 + n * 0.5, 0.5, steps.rate * 0.5, limited=True)
        steps = stepped(steps, seen, TERMS)
    assert all(0.7 <= load <= 1.0 for load in loads[-100:])


# --- the backlog ------------------------------------------------------------------------------


def test_a_lag_shows_how_much_of_what_was_released_still_waits() -> None:
    backlog = Backlog(0.0)
    for second in range(1, 11):
        backlog.mark(float(second), 100.0 * second)
    queue = backlog.queue(lag_s=2.0, taken_at=10.0, elapsed_s=1.0, full_s=0.5)
    assert (queue.waiting, queue.drained_per_s) == (200, 800)
    backlog.mark(11.0, 1100.0)
    again = backlog.queue(lag_s=2.0, taken_at=11.0, elapsed_s=1.0, full_s=0.5)
    assert (again.waiting, again.drained_per_s) == (200, 100)


def test_a_dry_queue_does_not_say_what_it_could_drain() -> None:
    backlog = Backlog(0.0)
    backlog.mark(1.0, 100.0)
    assert backlog.queue(0.0, 1.0, 1.0, 0.5).drained_per_s is None


# --- the graded response ----------------------------------------------------------------------

BANDS = (Band(0.8, 0.1), Band(0.9, 0.5), Band(1.0, 1.0))


@pytest.mark.parametrize(
    ("load", "share"), [(0.0, 0), (0.79, 0), (0.8, 0.1), (0.95, 0.5), (1.0, 1.0), (7.0, 1.0)]
)
def test_bands_map_a_share_of_the_threshold_to_a_share_of_statements(
    load: float, share: float
) -> None:
    """R100."""
    assert graded(BANDS, load) == share
    assert graded(tuple(reversed(BANDS)), load) == share
