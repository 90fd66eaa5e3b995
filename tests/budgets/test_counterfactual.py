"""What would have happened: the same meaning as in a server, and honest about the rest (R145)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.consequences import Fate, ReplayKey, ReplayOutcome, ReplayTally
from headgate.budgets.counterfactual import ReplayServer, counterfactual, newest_within
from headgate.budgets.model import Limit, StatementIdentity, StatementVerdict
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from headgate.budgets.traces import Trace, TraceFlag
from tests.budgets.recorded import STAGE, START_MS, Arrival, recorded
from tests.budgets.worlds import MS, budget

ONE_CPU = ReplayServer(cpus_milli=1000, workers=20)
HALF: dict[str, Any] = {"rate": 50, "capacity": 100}
"""Of one CPU: drains half a second of CPU in a second, holds one."""


def policy(*budgets: dict[str, Any], **general: Any) -> Policy:
    return parse_policy({"policy": general, "budgets": list(budgets)})


def ran(at_ms: int, cost_ms: int = 300, *, user: str = "app", **more: Any) -> Trace:
    """A statement that ran for as long as it took CPU, and was expected to."""
    cost_ns = cost_ms * MS
    given = {"estimate_ns": cost_ns, "actual_ns": cost_ns, "wall_ns": cost_ns, "plan_cost": 9.0}
    return Trace(at_ms, START_MS + at_ms, StatementIdentity(username=user), **{**given, **more})


def blocked(at_ms: int, cost_ms: int = 300, **more: Any) -> Trace:
    blocked = {
        "verdict": StatementVerdict.BLOCK,
        "limit": Limit.BUCKET,
        "actual_ns": 0,
        "wall_ns": 0,
    }
    return ran(at_ms, cost_ms, **{**blocked, **more})


def fates(outcome: ReplayOutcome, name: str = "b") -> dict[Fate, float]:
    sums = dict.fromkeys(Fate, 0.0)
    for row in outcome.rows:
        if row.key.budget == name:
            for fate, count in row.tally.after.items():
                sums[fate] += count
    return {fate: count for fate, count in sums.items() if count}


def play(
    traces: list[Trace], *budgets: dict[str, Any], stage: ReplayServer = ONE_CPU
) -> ReplayOutcome:
    return counterfactual(traces, policy(*budgets), stage)


# --- the policy that was in force gives what was recorded ---------------------------------------

arrivals = st.builds(
    Arrival,
    after_ms=st.integers(0, 400),
    username=st.sampled_from(["app", "etl"]),
    tenant=st.sampled_from(["a", "b", "c"]),
    pattern=st.integers(2, 4),
    plan_cost=st.sampled_from([10.0, 100.0, 5000.0]),
    actual_ns=st.integers(1, 800 * MS),
    wall_ns=st.integers(0, 2000).map(lambda ms: ms * MS),
    workers=st.integers(1, 3),
    in_transaction=st.booleans(),
)
limits = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.sampled_from([0, 1, 20, 50]),
        "capacity": st.sampled_from([0, 1, 50, 200]),
        "burst": st.sampled_from([10, 60]),
        "max_workers": st.integers(0, 3),
        "warning_threshold": st.just(80),
        "mode": st.sampled_from(["enforce", "warn"]),
        "in_transaction": st.sampled_from(("charge", "block")),
        "rules": st.sampled_from(
            [
                [{}],
                [{"match": {"username": "etl"}}],
                [{"match": {"tag.tenant": "a"}}, {"match": {"username": "app"}}],
                [{"each": ["tag.tenant"]}],
                [{"match": {"query": 3}}],
            ]
        ),
    },
)


@given(st.lists(limits, min_size=1, max_size=3), st.lists(arrivals, max_size=40))
def test_the_policy_that_was_in_force_gives_the_verdicts_that_were_recorded(
    budgets: list[dict[str, Any]], came: list[Arrival]
) -> None:
    """R145, R152: to the statement, where every one of them was traced."""
    named = [budget(f"b{at}", **one) for at, one in enumerate(budgets)]
    traces = recorded(policy(*named), came)
    outcome = counterfactual(traces, policy(*named), STAGE)
    assert outcome.total.changed == 0
    assert outcome.total.cpu_before_ns == outcome.total.cpu_after_ns
    by_query: dict[str, set[Fate]] = {}
    for row in outcome.rows:
        by_query.setdefault(row.key.client, set()).update(
            fate for fate, count in row.tally.after.items() if count
        )
    for trace in traces:
        found = by_query[str(trace.query_id)]
        assert (Fate.BLOCKED in found) is (trace.verdict is StatementVerdict.BLOCK)
        assert (Fate.WARNED in found) is (trace.verdict is StatementVerdict.WARN)


# --- what changes ------------------------------------------------------------------------------


def test_what_a_budget_would_have_blocked_is_listed_by_client_and_time() -> None:
    """R145: by budget, client and hour."""
    hour_ms = 3_600_000
    traces = [ran(at) for at in range(5)] + [ran(hour_ms, user="etl"), ran(hour_ms + 1, 10)]
    outcome = play(traces, budget(**HALF))
    first = START_MS - START_MS % hour_ms
    assert [(row.key, row.tally.newly_blocked) for row in outcome.rows] == [
        (ReplayKey("b", "app", first), 2.0),
        (ReplayKey("b", "app", first + hour_ms), 0.0),
        (ReplayKey("b", "etl", first + hour_ms), 0.0),
    ]
    total = outcome.total
    assert (total.statements, total.ran_before, total.after[Fate.BLOCKED]) == (7, 7, 2)
    assert (total.cpu_before_ns, total.cpu_after_ns) == (1810 * MS, 1210 * MS)
    assert total.changed_error == 0


def test_a_budget_that_warns_changes_nothing_and_shows_what_enforcing_would() -> None:
    traces = [ran(at) for at in range(5)]
    outcome = play(traces, budget(mode="warn", **HALF))
    assert fates(outcome) == {Fate.RAN: 3, Fate.WARNED: 2}
    assert outcome.total.changed == 0


def test_what_was_blocked_would_have_run_without_the_budget() -> None:
    outcome = play([ran(0), blocked(1), blocked(2)])
    assert fates(outcome, "") == {Fate.RAN: 3}
    assert (outcome.total.blocked_before, outcome.total.newly_admitted) == (2, 2)
    assert outcome.total.cpu_after_ns == 900 * MS


def test_a_block_by_another_budget_is_distinguished() -> None:
    traces = [ran(at) for at in range(5)]
    outcome = play(traces, budget("tight", **HALF), budget("wide", rate=90, capacity=6000))
    assert fates(outcome, "tight") == {Fate.RAN: 3, Fate.BLOCKED: 2}
    assert fates(outcome, "wide") == {Fate.RAN: 3, Fate.ELSEWHERE: 2}
    assert outcome.total.after[Fate.BLOCKED] == 2


def test_a_budget_with_a_delay_delays_what_fits_soon() -> None:
    """The ladder: two wait 0.4 s for room; when there is, it is the first one's."""
    traces = [ran(at) for at in range(5)]
    outcome = play(traces, budget(max_delay_s=0.5, **HALF))
    assert fates(outcome) == {Fate.RAN: 3, Fate.DELAYED: 1, Fate.BLOCKED: 1}
    assert 780 * MS < outcome.total.waited_ns < 800 * MS


def test_no_more_wait_than_the_budget_may_delay() -> None:
    traces = [ran(at) for at in range(6)]
    outcome = play(traces, budget(max_delay_s=5, max_delayed=1, **HALF))
    assert fates(outcome) == {Fate.RAN: 3, Fate.DELAYED: 1, Fate.BLOCKED: 2}


def test_a_place_is_free_when_its_statement_has_ended() -> None:
    outcome = play([ran(0), ran(299), ran(300)], budget(max_workers=1))
    assert fates(outcome) == {Fate.RAN: 2, Fate.BLOCKED: 1}


def test_one_after_the_other_in_a_session_are_never_two_at_once() -> None:
    """Starts are told in whole milliseconds: from 0.9 ms to 10.95 ms, and the next from then."""
    first = replace(ran(0), wall_ns=10_050_000)
    assert not play([first, ran(10)], budget(max_workers=1)).total.changed


def test_inside_a_transaction_it_passes_as_in_a_server() -> None:
    """R148."""
    inside = [replace(ran(at), flags=2) for at in range(5)]
    assert fates(play(inside, budget(**HALF))) == {Fate.RAN: 5}
    assert fates(play(inside, budget(in_transaction="block", **HALF)))[Fate.BLOCKED] == 2


# --- what is known of then -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "blocks"),
    [
        ((), 0),
        (((START_MS, False),), 4),
        (((START_MS, True),), 0),
        (((START_MS, True), (START_MS + 2, False)), 2),
        (((START_MS, False), (START_MS + 3, None)), 3),
    ],
)
def test_a_budget_for_bad_times_bites_when_they_were_bad(
    health: tuple[tuple[int, bool | None], ...], blocks: int
) -> None:
    """R147."""
    closed = budget(max_workers=0, when="unhealthy")
    outcome = play([ran(at) for at in range(4)], closed, stage=replace(ONE_CPU, health=health))
    assert outcome.total.newly_blocked == blocks


def test_a_budget_ends_in_the_replay_when_it_says() -> None:
    closed = budget(max_workers=0, expires_at=(START_MS + 2000) // 1000)
    outcome = play([ran(at) for at in (0, 1999, 2000, 3000)], closed)
    assert outcome.total.newly_blocked == 2


def test_rules_match_tags_queries_and_addresses_of_a_trace() -> None:
    odd = ((b"tenant", b"a,b:c"), (b"route", b"/x"))
    traces = [ran(0, tags=odd), ran(1), ran(2, query_id=2**64 - 5)]
    by_tag = budget("tag", max_workers=0, rules=[{"match": {"tag.tenant": "a,b:c"}}])
    by_query = budget("query", max_workers=0, rules=[{"match": {"query": -5}}])
    outcome = play(traces, by_tag, by_query)
    assert fates(outcome, "tag") == {Fate.BLOCKED: 1}
    assert fates(outcome, "query") == {Fate.BLOCKED: 1}


def test_clients_are_grouped_by_any_key() -> None:
    trace = ran(0, user="etl", tags=((b"tenant", b"acme"),), query_id=2**64 - 5)
    stage = replace(ONE_CPU, by=("username", "tag.tenant", "query", "database"))
    (row,) = play([trace], budget(**HALF), stage=stage).rows
    assert row.key.client == "etl tenant=acme query=-5 database=(none)"


# --- sampling ------------------------------------------------------------------------------------


def test_cheap_statements_that_were_drawn_count_for_those_they_stand_for() -> None:
    """10,000 of 1 ms, one in ten drawn: over a second as much CPU as all of them together."""
    traces = [ran(at, 1, weight=10.0) for at in range(0, 10_000, 10)]
    outcome = play(traces, budget(rate=50, capacity=100))
    total = outcome.total
    assert (total.statements, total.cpu_before_ns) == (10_000, 10_000 * MS)
    # R110, and what one trace stands for: half of ten seconds, and a bucket.
    assert abs(total.cpu_after_ns - 6000 * MS) <= 20 * MS
    assert 100 < total.changed_error < 300


def test_a_drawn_statement_is_decided_by_its_own_cost() -> None:
    """Not by that of all for which it stands: none of them breaks the limit."""
    assert not play([ran(0, 1, weight=1000.0)], budget(burst=1)).total.changed


def test_places_are_taken_as_long_as_all_that_a_trace_represents() -> None:
    outcome = play([ran(0, 1, weight=100.0), ran(50, 1), ran(100, 1)], budget(max_workers=1))
    assert fates(outcome) == {Fate.RAN: 101, Fate.BLOCKED: 1}


# --- those that were blocked ----------------------------------------------------------------------


def test_a_blocked_statement_costs_its_estimate() -> None:
    outcome = play([blocked(0, 700), ran(1, 400)], budget(**HALF))
    assert fates(outcome) == {Fate.RAN: 1, Fate.BLOCKED: 1}


def test_one_blocked_before_planning_costs_what_its_like_costs() -> None:
    """What it was blocked by then was a quarter of it, or nothing."""
    early = blocked(1, 0, plan_cost=1.0, estimate_ns=1, query_id=7)
    outcome = play([ran(0, 600, query_id=7), early], budget(**HALF))
    assert fates(outcome) == {Fate.RAN: 1, Fate.BLOCKED: 1}
    alone = play([early], budget(**HALF))
    assert alone.total.cpu_after_ns == 1


def test_one_that_nobody_estimated_is_decided_by_the_mean_of_its_like() -> None:
    """No budget concerned it then: 200 ms and 600 ms, so 400 ms expected of either."""
    both = [ran(0, 200, estimate_ns=0, query_id=7), ran(5000, 600, estimate_ns=0, query_id=7)]
    assert fates(play(both, budget(burst=39))) == {Fate.BLOCKED: 2}
    assert fates(play(both, budget(burst=41))) == {Fate.RAN: 2}
    alone = play([ran(0, 200, estimate_ns=0)], budget(burst=19))
    assert fates(alone) == {Fate.BLOCKED: 1}


# --- honesty, and bounds --------------------------------------------------------------------------


def test_what_it_cannot_know_is_said() -> None:
    traces = [
        ran(0, 1, weight=10.0),
        blocked(1),
        ran(2, flags=TraceFlag.ABORTED),
        ran(3, tags_left_out=1, estimate_ns=0),
    ]
    named = budget(rules=[{"match": {"fingerprint": "00000000000000ab", "tag.a": "b"}}])
    told = " ".join(play(traces, named).notes)
    for words in (
        "1 traces are of statements that no budget matched",
        "1 of 4 traces represent several",
        "1 statements were blocked then",
        "4 traces have no fingerprint",
        "2 traces lack some or all of their tags",
    ):
        assert words in told
    assert play([ran(0)], budget()).notes == ()


def test_nothing_traced_is_nothing_changed() -> None:
    outcome = play([], budget(**HALF))
    assert (outcome.rows, outcome.total, outcome.traces) == ((), ReplayTally(), 0)


def test_of_too_much_to_match_the_oldest_is_left_out() -> None:
    many = policy(budget(rules=[{"match": {"username": f"u{n}"}} for n in range(10)]))
    traces = [ran(at, user=f"u{at % 4}") for at in range(8)]
    assert list(newest_within(traces, many, 40)) == traces
    assert [trace.sequence for trace in newest_within(traces, many, 39)] == [5, 6, 7]


def test_weights_that_cannot_be_are_cut_to_what_can() -> None:
    """Three blocks that say they stand for ten million each, in a second or so of one CPU."""
    absurd = [blocked(at, cost_ms=0, weight=1e7) for at in (0, 1, 2)]
    outcome = play([*absurd, ran(5)], budget("b", **HALF))
    assert outcome.total.blocked_before < 250_000, "5 us of a CPU each at least"
    assert "3 traces represent more statements" in outcome.notes[0]
    usual = [blocked(at, weight=300.0) for at in (0, 10, 20)]
    assert play(usual, budget("b", **HALF)).total.blocked_before == 900
