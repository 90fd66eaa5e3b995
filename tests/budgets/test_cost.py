"""What a statement will cost, learned from what it did (R105–R108)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.ask import MAX_COST_NS, StatementCheck, StatementFlags
from headgate.budgets.cost import (
    FinishedStatement,
    MedianCost,
    Pattern,
    averaged,
    estimate_ns,
    float32,
    informed,
    learned,
)
from headgate.budgets.ledger import Ledger
from tests.budgets.worlds import MS, learn


def after(*actuals: int, plan_cost: float = 100.0) -> Pattern:
    pattern = Pattern(7)
    for actual in actuals:
        pattern = learned(pattern, FinishedStatement(plan_cost, 1, actual), 0)
    return pattern


def estimated(pattern: Pattern | None, host: MedianCost | None = None, **ask: Any) -> int:
    return estimate_ns(
        StatementCheck(0, **{"plan_cost": 100.0, **ask}), pattern, host or MedianCost()
    )


def test_the_estimate_follows_the_plans_cost() -> None:
    """R105: the same pattern with twice the plan cost takes twice the time."""
    known = after(10 * MS, 10 * MS)
    assert estimated(known) == 10 * MS
    assert estimated(known, plan_cost=200.0) == 20 * MS


def test_the_first_four_are_their_mean_then_the_recent_weigh_more() -> None:
    assert after(10, 20, 30, 40).cpu == 25.0
    assert after(*[10] * 9, 50).cpu == 20.0


def test_a_step_is_followed_within_eight_executions() -> None:
    """R106: up or down, whatever came before."""
    for old, new in ((10 * MS, 80 * MS), (80 * MS, 10 * MS)):
        known = after(*[old] * 50, *[new] * 8)
        assert abs(estimated(known) - new) <= 0.101 * abs(new - old)


def test_the_cost_of_functions_says_nothing_about_plans_never_seen() -> None:
    """The planner cannot know them. A guess from them would reject others forever (R107)."""
    assert estimated(None, MedianCost(1e9, 5)) == 100 * 20_000
    assert estimated(None, MedianCost(1.0, 5)) == 100 * 500


def test_an_unknown_pattern_costs_what_the_host_knows() -> None:
    """R107."""
    assert estimated(None) == 500_000
    assert estimated(None, MedianCost(1000.0, 5)) == 100_000
    assert estimated(None, MedianCost(20.0, 5), flags=StatementFlags.UTILITY) == 1


def test_a_utility_has_no_plan_but_an_average() -> None:
    pattern = learned(Pattern(7), FinishedStatement(1.0, 1, 3 * MS, StatementFlags.UTILITY), 0)
    assert estimated(pattern, flags=StatementFlags.UTILITY) == 3 * MS
    assert (
        informed(MedianCost(), FinishedStatement(1.0, 1, 3 * MS, StatementFlags.UTILITY))
        == MedianCost()
    )


def test_the_median_moves_by_small_steps() -> None:
    host = MedianCost()
    for actual in (1000, 1000, 10**9, 10**9, 10):
        host = informed(host, FinishedStatement(10.0, 1, actual))
    assert host == MedianCost(100.0 * 17 / 16 * 17 / 16 * 16 / 17, 5)


def test_a_given_cost_is_taken_as_it_is() -> None:
    """R146."""
    known = after(10 * MS)
    assert estimated(known, flags=StatementFlags.COST_GIVEN, cost_ns=5) == 5
    assert estimated(known, flags=StatementFlags.COST_GIVEN, cost_ns=0) == 1
    assert estimated(known, flags=StatementFlags.COST_GIVEN, cost_ns=2**63) == MAX_COST_NS


def test_before_there_is_a_plan_a_quarter_of_a_known_average_counts() -> None:
    assert estimated(after(8 * MS, 8 * MS), flags=StatementFlags.EARLY) == 1
    assert estimated(after(8 * MS, 8 * MS, 8 * MS), flags=StatementFlags.EARLY) == 2 * MS


@pytest.mark.parametrize("plan_cost", [0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan")])
def test_no_plan_cost_is_too_odd(plan_cost: float) -> None:
    for pattern in (None, after(10, 20, 30)):
        assert 1 <= estimated(pattern, plan_cost=plan_cost) <= MAX_COST_NS
    odd = learned(Pattern(7), FinishedStatement(plan_cost, 1, 5), 0)
    assert 1 <= estimated(odd) <= MAX_COST_NS
    informed(
        informed(MedianCost(), FinishedStatement(plan_cost, 1, 5)),
        FinishedStatement(plan_cost, 1, 5),
    )


def test_an_aborted_statement_may_raise_what_is_known_never_lower_it() -> None:
    """R108."""
    known = after(10 * MS, 10 * MS)
    cut = learned(known, FinishedStatement(100.0, 10 * MS, 1 * MS, aborted=True), 9)
    assert (cut.cpu, cut.calls, cut.error) == (known.cpu, known.calls, known.error)
    assert (cut.cpu_ns, cut.last_ns) == (21 * MS, 9)
    long = learned(known, FinishedStatement(100.0, 10 * MS, 100 * MS, aborted=True), 9)
    assert long.cpu > known.cpu
    assert long.error == known.error


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


def test_patterns_are_bounded_and_the_stalest_goes() -> None:
    """R107."""
    ledger = Ledger(cpus_milli=1000, workers=1, patterns=4)
    for key in range(2, 6):
        learn(ledger, key, 10.0, MS, now_ns=10 - key)
    learn(ledger, 9, 10.0, MS, now_ns=99)
    assert ledger.pattern(5) is None
    assert all(ledger.pattern(key) is not None for key in (2, 3, 4, 9))
