"""What a statement will cost, learned from what it did (R105–R108, R162)."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.cost import (
    LINE_CALLS,
    NO_LINE,
    SHAPES,
    CostLine,
    FinishedStatement,
    Pattern,
    averaged,
    estimate,
    exp2,
    float32,
    informed,
    learned,
    log2,
)
from headgate.budgets.ledger import Ledger
from headgate.budgets.model import MAX_COST_NS, Estimate, StatementCheck, StatementFlags
from tests.budgets.worlds import MS, learn

COSTS = st.floats(0.01, 1e9)
ACTUALS = st.integers(0, 10**12)
RUNS = st.lists(st.tuples(COSTS, ACTUALS, st.integers(0, 5)), min_size=1, max_size=40)
ODD_COSTS = [0.0, -1.0, -1e300, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]


def after(*actuals: int, plan_cost: float = 100.0, shape: int = 0) -> Pattern:
    pattern = Pattern(7)
    for actual in actuals:
        pattern = learned(pattern, FinishedStatement(plan_cost, 1, actual, shape=shape), 0)
    return pattern


def taught(runs: list[tuple[float, int, int]]) -> Pattern:
    pattern = Pattern(7)
    for plan_cost, actual, shape in runs:
        run = FinishedStatement(plan_cost, 1, actual, shape=shape)
        pattern = learned(pattern, run, 0)
    return pattern


def estimated(pattern: Pattern | None, host: CostLine = NO_LINE, **ask: Any) -> Estimate:
    return estimate(StatementCheck(0, **{"plan_cost": 100.0, **ask}), pattern, host)


def mean(pattern: Pattern | None, host: CostLine = NO_LINE, **ask: Any) -> int:
    return estimated(pattern, host, **ask).mean_ns


def nearly(cost_ns: float, within: float = 1e-5) -> Any:
    return pytest.approx(cost_ns, rel=within)


# --- estimates -------------------------------------------------------------------------------


def test_the_estimate_follows_the_plans_cost() -> None:
    """R105: the same pattern with twice the plan cost takes twice the time."""
    known = after(10 * MS, 10 * MS)
    assert mean(known) == nearly(10 * MS)
    assert mean(known, plan_cost=200.0) == nearly(20 * MS)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, 1.5])
def test_how_cpu_grows_with_plan_cost_is_learned(slope: float) -> None:
    """R105: plan cost says little where functions do the work, and too little beyond memory."""
    dice = random.Random(1)
    costs = [10 ** dice.uniform(1, 5) for _ in range(200)]
    known = taught([(cost, int(1000 * cost**slope), 0) for cost in costs])
    for cost in (100.0, 1000.0, 10_000.0):
        assert mean(known, plan_cost=cost) == nearly(1000 * cost**slope, 0.12)


def test_a_line_bends_where_cpu_does() -> None:
    """R162: 1 ms to start, whatever is read, then in proportion."""
    dice = random.Random(2)
    costs = [10 ** dice.uniform(0, 5) for _ in range(600)]
    known = taught([(cost, int(MS + 1000 * cost), 0) for cost in costs])
    off = [abs(math.log2(mean(known, plan_cost=c) / (MS + 1000 * c))) for c in costs[-200:]]
    assert sorted(off)[100] < 0.4


def test_p90_covers_nine_of_ten_and_the_sum_is_right() -> None:
    """R162: executions of one plan cost: 10 ms in the middle, a standard deviation of that."""
    dice = random.Random(3)
    known, within, means, actuals = Pattern(7), 0, 0, 0
    for number in range(3000):
        actual = int(10 * MS * 2 ** dice.gauss(0, 1))
        if number >= 20:
            told = estimated(known)
            within += actual <= told.p90_ns
            means, actuals = means + told.mean_ns, actuals + actual
        known = learned(known, FinishedStatement(100.0, 1, actual), 0)
    assert 0.85 <= within / 2980 <= 0.95
    assert means / actuals == pytest.approx(1.0, abs=0.1)


def test_p90_of_what_has_run_once_leaves_room() -> None:
    """R162: then what is seen counts."""
    once, often = estimated(after(10 * MS)), estimated(after(*[10 * MS] * 64))
    assert 1.4 < once.p90_ns / once.mean_ns < 2.0
    assert 1.0 < often.p90_ns / often.mean_ns < 1.2


def test_p90_leaves_more_room_far_from_all_that_was_seen() -> None:
    """R162."""
    known = after(*[10 * MS] * 8)
    told = [estimated(known, plan_cost=cost) for cost in (100.0, 1e3, 1e4)]
    rooms = [one.p90_ns / one.mean_ns for one in told]
    assert rooms == sorted(rooms)
    assert rooms[2] > 2 * rooms[0]


def test_a_step_is_followed_within_sixteen_executions() -> None:
    """R106: up or down, whatever came before. The mean allows for the spread that the step was."""
    for old, new in ((10 * MS, 80 * MS), (80 * MS, 10 * MS)):
        known = after(*[old] * 100, *[new] * 16)
        assert exp2(known.whole.middle(log2(100.0))) == pytest.approx(new, rel=0.1)
        assert new * 0.9 <= mean(known) <= 1.25 * new
        settled = after(*[old] * 100, *[new] * 300)
        assert mean(settled) == pytest.approx(new, rel=0.05)


# --- plan shapes -----------------------------------------------------------------------------


def test_each_plan_shape_is_learned_apart() -> None:
    """R162: an index scan of one row and a scan of the whole table may have one cost."""
    known = taught([(100.0, n * n * MS, n) for n in (1, 5, 9)] * 4)
    for shape in (1, 5, 9):
        assert mean(known, shape=shape) == nearly(shape * shape * MS)
    unknown = mean(known, shape=2)
    assert MS < unknown < 81 * MS, "as the pattern's executions together"
    assert mean(known) == unknown


def test_a_shape_that_is_not_used_any_more_makes_room() -> None:
    """R107: and those that come once take no line from those that stay."""
    known = taught([(100.0, n * MS, n) for n in (1, 2, 3)] * 70)
    for odd in range(10, 30):
        known = learned(known, FinishedStatement(100.0, 1, 500 * MS, shape=odd), 0)
    assert [line.shape for line in known.shapes] == [1, 2, 3]
    for _ in range(LINE_CALLS + 1):
        known = learned(known, FinishedStatement(100.0, 1, 9 * MS, shape=9), 0)
    assert 9 in [line.shape for line in known.shapes]
    assert mean(known, shape=9) == nearly(9 * MS)


@given(RUNS)
def test_what_is_kept_is_bounded(runs: list[tuple[float, int, int]]) -> None:
    """R107: a line for the pattern and for three shapes, each in 32 bytes."""
    known = taught(runs)
    assert len(known.shapes) == SHAPES
    for line in (known.whole, *known.shapes):
        assert 0 <= line.calls <= LINE_CALLS
        assert 0 <= line.variance <= 36
        assert 0 <= line.slope <= 2
        assert all(-(2**13) <= bend <= 2**13 for bend in line.bends)
        kept = (line.variance, line.plan_cost, line.cpu, line.spread, line.common)
        assert all(math.isfinite(one) and one == float32(one) for one in kept)


@given(RUNS, COSTS, st.integers(0, 5))
def test_p90_is_never_below_the_mean(
    runs: list[tuple[float, int, int]], plan_cost: float, shape: int
) -> None:
    """R162."""
    told = estimated(taught(runs), plan_cost=plan_cost, shape=shape)
    assert 1 <= told.mean_ns <= told.p90_ns <= MAX_COST_NS


@given(RUNS, st.sampled_from(ODD_COSTS))
def test_no_plan_cost_is_too_odd(runs: list[tuple[float, int, int]], odd: float) -> None:
    known = taught([*runs, (odd, 5, 1), (odd, 10**13, 1)])
    for pattern in (None, known):
        for plan_cost in (*ODD_COSTS, 100.0):
            told = estimated(pattern, known.whole, plan_cost=plan_cost, shape=1)
            assert 1 <= told.mean_ns <= told.p90_ns <= MAX_COST_NS


# --- patterns that have never run ------------------------------------------------------------


def host_after(*runs: tuple[float, int]) -> CostLine:
    host = NO_LINE
    for plan_cost, actual in runs:
        host = informed(host, FinishedStatement(plan_cost, 1, actual), 1)
    return host


def test_an_unknown_pattern_costs_what_the_others_say() -> None:
    """R107: both figures are one guess. Nothing that a wide one blocked would ever correct it."""
    assert estimated(None) == Estimate(500_000, 500_000)
    host = host_after((10.0, 10_000), (1000.0, 10**6))
    assert estimated(None, host) == Estimate(mean(None, host), mean(None, host))
    assert mean(None, host) == nearly(100_000)
    assert mean(None, host, flags=StatementFlags.UTILITY) == 1


def test_the_cost_of_functions_says_nothing_about_plans_never_seen() -> None:
    """The planner cannot know them. A guess from them would reject others forever (R107)."""
    assert mean(None, host_after((1.0, 10**12))) == 100 * 20_000
    assert mean(None, host_after((1e6, 5))) == 100 * 500


@given(st.lists(st.tuples(COSTS, ACTUALS), max_size=30), COSTS)
def test_a_guess_stays_within_what_the_planner_knows(
    runs: list[tuple[float, int]], plan_cost: float
) -> None:
    """R107: 0.5 to 20 µs a unit."""
    guess = mean(None, host_after(*runs), plan_cost=plan_cost)
    assert max(1, 500 * plan_cost) * 0.999 - 1 <= guess <= max(1, 20_000 * plan_cost) + 1


def test_a_frequent_pattern_does_not_outweigh_all_others() -> None:
    """R107: it teaches at its 1st, 2nd, 4th, 8th … execution."""
    host, cheap = NO_LINE, Pattern(7)
    for _ in range(1000):
        run = FinishedStatement(100.0, 1, 100_000)
        cheap = learned(cheap, run, 0)
        host = informed(host, run, cheap.calls)
    assert host.calls == 10
    utility = FinishedStatement(1.0, 1, 5, StatementFlags.UTILITY)
    assert informed(host, utility, 1) == host


def test_a_utility_has_no_plan_but_an_average() -> None:
    pattern = learned(Pattern(7), FinishedStatement(1.0, 1, 3 * MS, StatementFlags.UTILITY), 0)
    assert mean(pattern, flags=StatementFlags.UTILITY) == nearly(3 * MS)


def test_a_given_cost_is_taken_as_it_is() -> None:
    """R146."""
    known = after(10 * MS)
    for cost_ns, p90_ns, told in (
        (5, 0, (5, 5)),
        (5, 9, (5, 9)),
        (0, 0, (1, 1)),
        (2**63, 0, (MAX_COST_NS, MAX_COST_NS)),
    ):
        flags = StatementFlags.COST_GIVEN
        assert estimated(known, flags=flags, cost_ns=cost_ns, p90_ns=p90_ns) == told


def test_before_there_is_a_plan_a_quarter_of_a_known_average_counts() -> None:
    assert mean(after(8 * MS, 8 * MS), flags=StatementFlags.EARLY) == 1
    assert mean(after(8 * MS, 8 * MS, 8 * MS), flags=StatementFlags.EARLY) == nearly(2 * MS)


def test_before_there_is_a_plan_executions_that_differ_much_count_for_less() -> None:
    """A cheap one must not be blocked for what the expensive ones cost."""
    dice = random.Random(4)
    actuals = [int(10 ** dice.uniform(5, 9)) for _ in range(400)]
    early = mean(after(*actuals), flags=StatementFlags.EARLY)
    assert sum(actual < early for actual in actuals) < 0.15 * len(actuals)


# --- learning --------------------------------------------------------------------------------


@given(RUNS, COSTS, ACTUALS, st.integers(0, 5), COSTS, st.integers(0, 5))
def test_an_aborted_statement_may_raise_what_is_known_never_lower_it(
    runs: list[tuple[float, int, int]],
    plan_cost: float,
    actual: int,
    shape: int,
    asked: float,
    of: int,
) -> None:
    """R108: whatever is asked afterwards."""
    known = taught(runs)
    cut = learned(known, FinishedStatement(plan_cost, 1, actual, aborted=True, shape=shape), 9)
    assert (cut.calls, cut.error, cut.last_ns) == (known.calls, known.error, 9)
    assert cut.cpu_ns == known.cpu_ns + actual
    before, told = (estimated(one, plan_cost=asked, shape=of) for one in (known, cut))
    assert told.mean_ns >= before.mean_ns
    assert told.p90_ns >= before.p90_ns


def test_an_aborted_statement_that_took_long_raises_the_estimate() -> None:
    """R108."""
    known = after(10 * MS, 10 * MS)
    long = learned(known, FinishedStatement(100.0, 10 * MS, 100 * MS, aborted=True), 9)
    assert mean(long) > 1.5 * mean(known)
    short = learned(known, FinishedStatement(100.0, 10 * MS, 1 * MS, aborted=True), 9)
    assert mean(short) == mean(known)


def test_the_error_of_the_estimates_is_kept() -> None:
    pattern = learned(Pattern(7), FinishedStatement(1.0, 15, 10), 0)
    assert pattern.error == 0.5
    assert learned(pattern, FinishedStatement(1.0, 10, 10), 0).error == 0.25


@given(st.floats(1, 1e9), st.floats(1, 1e9), st.integers(2, 9))
def test_averages_are_32_bit_floats(average: float, value: float, calls: int) -> None:
    made = averaged(float32(average), value, calls)
    assert made == float32(made)
    low, high = sorted((float32(average), value))
    assert low * (1 - 1e-6) <= made <= high * (1 + 1e-6)


@given(st.floats(1e-300, 1e300), st.floats(-63.0, 63.0))
def test_logarithms_are_as_exact_as_they_say(value: float, power: float) -> None:
    assert log2(value) == pytest.approx(math.log2(value), abs=2e-9, rel=1e-12)
    assert exp2(power) == pytest.approx(2.0**power, rel=2e-8)


def test_patterns_are_bounded_and_the_stalest_goes() -> None:
    """R107."""
    ledger = Ledger(cpus_milli=1000, workers=1, patterns=4)
    for key in range(2, 6):
        learn(ledger, key, 10.0, MS, now_ns=10 - key)
    learn(ledger, 9, 10.0, MS, now_ns=99)
    assert ledger.pattern(5) is None
    assert all(ledger.pattern(key) is not None for key in (2, 3, 4, 9))
