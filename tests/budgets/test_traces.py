"""Traces: what rules see of them, and fewer of them for the same CPU (R145)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.model import Dialect, StatementFlags, StatementIdentity, StatementVerdict
from headgate.budgets.sql_text import read_tags
from headgate.budgets.traces import Trace, TraceFlag, thinned

tag_text = st.text("abcXYZ019_-./:,", min_size=1, max_size=12).map(str.encode)


def trace(number: int = 0, actual_ns: int = 10, weight: float = 1.0) -> Trace:
    return Trace(number, number, StatementIdentity(), actual_ns=actual_ns, weight=weight)


@given(st.dictionaries(tag_text, tag_text, max_size=5))
def test_rules_see_the_tags_that_were_traced(tags: dict[bytes, bytes]) -> None:
    """Whatever a tag may be made of: it is read back as it was."""
    text = Trace(0, 0, StatementIdentity(), tags=tuple(tags.items())).statement.text
    assert read_tags(text, Dialect.POSTGRES).pairs == tags


def test_flags_of_explain_are_distinguished_from_those_of_the_trace() -> None:
    flags = TraceFlag.ABORTED | StatementFlags.IN_TRANSACTION | StatementFlags.NO_DELAY
    found = Trace(0, 0, StatementIdentity(), flags=int(flags))
    assert (found.aborted, found.asked) == (True, StatementFlags.IN_TRANSACTION)


@pytest.mark.parametrize(
    ("plan_cost", "flags", "verdict", "early"),
    [
        (1.0, StatementFlags.PLANNED, StatementVerdict.BLOCK, True),
        (1.5, StatementFlags.PLANNED, StatementVerdict.BLOCK, False),
        (1.0, StatementFlags.UTILITY, StatementVerdict.BLOCK, False),
        (1.0, StatementFlags.PLANNED, StatementVerdict.RUN, False),
    ],
)
def test_a_block_before_planning_has_no_plan(
    plan_cost: float, flags: StatementFlags, verdict: StatementVerdict, early: bool
) -> None:
    found = Trace(0, 0, StatementIdentity(), plan_cost=plan_cost, flags=int(flags), verdict=verdict)
    assert found.blocked_early is early


costs = st.lists(st.tuples(st.integers(1, 10**10), st.integers(1, 50)), min_size=1, max_size=200)


@given(costs, st.integers(1, 200))
def test_thinned_traces_stand_for_the_same_cpu(made: list[tuple[int, int]], keep: int) -> None:
    traces = [trace(n, cost, float(weight)) for n, (cost, weight) in enumerate(made)]
    left = thinned(traces, keep)
    assert len(left) <= keep + 1
    before, after = (sum(t.stands_for_ns for t in some) for some in (traces, left))
    assert abs(before - after) <= before / min(keep, len(traces)) + 1
    assert [t.sequence for t in left] == sorted(t.sequence for t in left)


def test_an_expensive_statement_is_never_lost_to_chance() -> None:
    traces = [trace(n) for n in range(1000)] + [trace(1000, 10**9)]
    left = thinned(traces, 100)
    assert left[-1] == traces[-1]
    assert len(left) in (100, 101)
    assert all(t.weight == pytest.approx(1000 / 99) for t in left[:-1])


def test_few_enough_are_left_as_they_are() -> None:
    traces = [trace(n) for n in range(5)]
    assert thinned(traces, 5) == traces
