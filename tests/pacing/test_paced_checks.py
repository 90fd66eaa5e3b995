"""The gate and the pacer behind it: one policy, one throw, and a time to come back (R142, R143)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.charging import Debits, LedgerOf
from headgate.budgets.layers import Edition
from headgate.budgets.parse import parse_policy
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.decide import decide
from headgate.check.demand import Demands
from headgate.check.model import Check, Decision, Verdict
from headgate.history.recorder import Recorder
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.pacing.pacer import Pacers
from headgate.rules.matching import DiceOrder, Justification, Kind, Rule, RuleBook, book_of
from tests.builders import NOW, check, metric
from tests.fixtures.fakes import HandClock

LAG = metric("lag", pace=True, threshold=1.0)
THREADS = metric("threads_running")
UNTIL = NOW.wall_s + 3600


class Gate:
    """A checker with a paced metric, whose dice land as given."""

    def __init__(self, *rules: Rule, lag: float | None = 0.1, anonymous: bool = False) -> None:
        self.rolls = 0
        self.lands = 0.5
        clock, self.board = HandClock(), Board()
        self.board.open("main", None)
        self._place(LAG, lag)
        self._place(THREADS, 1.0)
        self.checker = Checker(
            self.board, Recorder(max_clients=10), Demands(clock), clock, self._roll,
            anonymous_may_pass=anonymous,
        )  # fmt: skip
        self.checker.rules = book_of(rules)
        pacers = Pacers(self.board, clock)
        pacers.look("main")
        self.pacer = pacers.by_database["main"]
        self.checker.pacers = pacers.by_database

    def _place(self, spec: MetricSpec, value: float | None) -> None:
        self.board.place("main", spec, at=NOW.mono_s)
        if value is not None:
            self.board.push("main", spec.name, Sample(value, NOW.mono_s))

    def _roll(self) -> float:
        self.rolls += 1
        return self.lands

    def exhaust(self) -> Gate:
        self.pacer.charge(1000.0, NOW.mono_s)
        return self

    def ask(self, question: Check | None = None, *, lands: float = 0.5) -> Decision:
        self.lands = lands
        return self.checker.check(question or check())


# --- what the gate rejects ---------------------------------------------------------------------

TARGETS = st.sampled_from(["etl", "nightly", "etl:nightly", "all", "other"])
RULES = st.one_of(
    st.builds(lambda t, r, o: _rule(t, ratio=r, order=o), TARGETS, st.floats(0, 1),
              st.sampled_from(DiceOrder)),
    st.builds(lambda t: _rule(t, kind=Kind.HOLD), TARGETS),
    st.builds(lambda t, m: _rule(t, kind=Kind.EXEMPT, metrics=m, ceiling=1.5,
                                 justification=Justification.INCIDENT),
              TARGETS, st.sampled_from([(), ("lag",), ("threads_running",)])),
    st.builds(lambda t, m: _rule(t, kind=Kind.METRICS, metrics=m), TARGETS,
              st.sampled_from([("lag",), ("threads_running",)])),
    st.builds(lambda t, v: _rule(t, kind=Kind.THRESHOLDS, thresholds={"lag": v}), TARGETS,
              st.floats(0.05, 2)),
)  # fmt: skip
CHECKS = st.builds(
    lambda app, metrics, cost, read: check(
        app, *metrics, cost=cost, read_threshold=read if metrics else None
    ),
    st.sampled_from(["etl:nightly", "other", ""]),
    st.sampled_from([(), ("lag",), ("threads_running",), ("lag", "threads_running"), ("nope",)]),
    st.floats(0.01, 1e9),
    st.none() | st.floats(0.05, 3),
)


def _rule(target: str, **more: Any) -> Rule:
    return Rule(f"r-{target}", target, **{"expires_at": UNTIL, **more})


@given(
    st.lists(RULES, max_size=4),
    st.lists(st.tuples(CHECKS, st.floats(0, 1, exclude_max=True)), max_size=20),
    st.none() | st.floats(0, 3),
)
def test_pacing_admits_nothing_that_the_gate_rejects(
    rules: list[Rule], asked: list[tuple[Check, float]], lag: float | None
) -> None:
    """Whatever is ruled, asked and measured: an answer is the gate's own, or PACED where that
    was an OK; and each of them has a time to come back."""
    numbered = [replace(rule, id=f"{number}-{rule.id}") for number, rule in enumerate(rules)]
    gate = Gate(*numbered, lag=lag)
    for question, lands in asked:
        plain = gated(gate.checker.rules, gate, question, lands)
        decision = gate.ask(question, lands=lands)
        if decision.verdict is not plain.verdict:
            assert (plain.verdict, decision.verdict) == (Verdict.OK, Verdict.PACED)
        assert decision.admitted or (decision.retry_after_s or 0) > 0


def gated(rules: RuleBook, gate: Gate, question: Check, roll: float) -> Decision:
    health = gate.board.healths["main"]
    return decide(question, health, rules, now=NOW, roll=roll, anonymous_may_pass=False)


def test_the_dice_are_rolled_once_for_the_ratio_and_the_turn() -> None:
    gate = Gate(_rule("etl", ratio=0.3)).exhaust()
    assert gate.ask(lands=0.5).verdict is Verdict.PACED
    assert gate.ask(lands=0.1).verdict is Verdict.REJECTED_BY_RATIO
    assert gate.rolls == 2


def test_who_is_exempt_from_all_is_admitted_while_others_are_rejected() -> None:
    exempt = _rule("fix", kind=Kind.EXEMPT, justification=Justification.INCIDENT)
    gate = Gate(exempt).exhaust()
    before = gate.pacer.cost_total
    assert gate.ask(check("fix", cost=7.0)).admitted
    assert gate.pacer.cost_total == before + 7
    assert gate.ask().verdict is Verdict.PACED


def test_explaining_says_paced_and_costs_nothing() -> None:
    gate = Gate().exhaust()
    before = gate.pacer.cost_total
    assert gate.checker.explain(check()).verdict is Verdict.PACED
    assert gate.checker.gate(check()).verdict is Verdict.OK
    assert (gate.pacer.cost_total, gate.pacer.paced_total) == (before, 0)


# --- when to come back (R143) ------------------------------------------------------------------

Rejecting = Callable[[float], Decision]


def _told(gate: Gate, question: Check | None = None) -> Rejecting:
    return lambda lands: gate.ask(question, lands=lands)


def _broken() -> Gate:
    gate = Gate()
    gate.board.push("main", "lag", Absent(Cause.FAILED, "rejected", NOW.mono_s))
    return gate


def _standing_by() -> Gate:
    gate = Gate()
    gate.checker.active_agent = "http://db-b:8087"
    return gate


class _Charged(NamedTuple):
    edition: Edition
    ledger: LedgerOf


def _with_budget(**limits: Any) -> Rejecting:
    """In which a second and a half of CPU are debt already."""
    gate, budget = Gate(), {"name": "etl", "mode": "enforce", **limits}
    edition = Edition(0, {}, parse_policy({"budgets": [budget]}))
    charged = _Charged(edition, LedgerOf("main", None, 1000))
    gate.checker.debits = Debits({"main": charged}, lambda _: None)
    charged.ledger.current.debit(edition.policy.budgets[0], 1_500_000_000, NOW)
    return _told(gate, check("etl", budget="etl", cpu_s=1.0))


REJECTIONS: dict[str, tuple[Verdict, Rejecting]] = {
    "a metric breaches": (Verdict.THRESHOLD_EXCEEDED, _told(Gate(lag=2.0))),
    "a ratio, diced": (Verdict.REJECTED_BY_RATIO, _told(Gate(_rule("etl", ratio=0.999)))),
    "a hold that ends soon": (
        Verdict.ON_HOLD,
        _told(Gate(_rule("etl", kind=Kind.HOLD, expires_at=NOW.wall_s + 5))),
    ),
    "a hold for an hour": (Verdict.ON_HOLD, _told(Gate(_rule("etl", kind=Kind.HOLD)))),
    "no name": (Verdict.ON_HOLD, _told(Gate(), check(""))),
    "no such metric": (Verdict.UNKNOWN_METRIC, _told(Gate(), check("etl", "nope"))),
    "no such database": (Verdict.UNKNOWN_METRIC, _told(Gate(), check("etl", database="nope"))),
    "a metric never read": (Verdict.UNKNOWN_METRIC, _told(Gate(lag=None))),
    "a metric that failed": (Verdict.METRIC_UNAVAILABLE, _told(_broken())),
    "released all it sustained": (Verdict.PACED, _told(Gate().exhaust())),
    "a budget that is full": (Verdict.OVER_BUDGET, _with_budget(rate=50, capacity=200)),
    "a budget for less": (Verdict.OVER_BUDGET, _with_budget(rate=50, capacity=50)),
    "a budget that drains slowly": (Verdict.OVER_BUDGET, _with_budget(rate=0.1, capacity=200)),
    "another agent answers": (Verdict.WRONG_AGENT, _told(_standing_by())),
}


@pytest.mark.parametrize("why", REJECTIONS)
def test_release_thundering_herd_every_rejection_says_when_to_come_back(why: str) -> None:
    """R143: above 0, bounded, and not the same for all who are rejected at one instant."""
    verdict, reject = REJECTIONS[why]
    told = [reject(lands) for lands in (0.0, 0.25, 0.5, 0.75, 0.99)]
    assert {decision.verdict for decision in told} == {verdict}
    waits = [decision.retry_after_s or 0.0 for decision in told]
    assert min(waits) >= 0.01
    assert max(waits) <= 60
    assert len(set(waits)) == len(waits)
    assert max(waits) >= 1.25 * min(waits)


def test_no_verdict_is_left_out_of_that() -> None:
    no_decision = {Verdict.OK, Verdict.INTERNAL_ERROR}
    assert {verdict for verdict, _ in REJECTIONS.values()} == {*Verdict} - no_decision
