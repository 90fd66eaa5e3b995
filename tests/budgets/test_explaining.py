"""What is only looked at throws no dice, and is counted nowhere (R144)."""

from __future__ import annotations

import pytest

from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.model import Verdict
from headgate.history.recorder import Recorder
from headgate.metrics.samples import Sample
from headgate.rules.api import explain_doc
from headgate.rules.matching import DiceOrder, Kind, Rule, book_of
from tests.builders import NOW, check, metric
from tests.fixtures.fakes import HandClock


def no_dice() -> float:
    raise AssertionError("dice were thrown")


def checker(lag: float, *rules: Rule) -> Checker:
    board, clock = Board(), HandClock()
    board.open("main", None)
    board.place("main", metric("lag"), at=0.0)
    board.push("main", "lag", Sample(lag, NOW.mono_s))
    made = Checker(
        board, Recorder(max_clients=10), Demands(clock), clock, no_dice, anonymous_may_pass=True
    )
    made.rules = book_of(rules)
    return made


@pytest.mark.parametrize("order", list(DiceOrder))
def test_an_explanation_has_the_odds_and_not_one_throw(order: DiceOrder) -> None:
    made = checker(1.0, Rule("r", "etl", ratio=0.5, order=order))
    doc = explain_doc(made.explain(check("etl")), made.rules)
    assert (doc.verdict, doc.odds) == ("OK", 0.5)
    assert doc.reason.startswith("admitted with a chance of 50% (rule r on etl")


def test_of_one_that_the_metrics_reject_the_odds_come_on_top() -> None:
    made = checker(9.0, Rule("r", "etl", ratio=0.999))
    doc = explain_doc(made.explain(check("etl")), made.rules)
    assert doc.verdict == "THRESHOLD_EXCEEDED" and doc.odds == pytest.approx(0.001)
    assert "even once the metrics allow it, admitted with a chance of 0.1%" in doc.reason


@pytest.mark.parametrize("rule", [Rule("f", "etl", ratio=0.0), Rule("h", "etl", kind=Kind.HOLD)])
def test_where_no_dice_are_thrown_there_are_no_odds(rule: Rule) -> None:
    made = checker(1.0, rule)
    decision = made.explain(check("etl"))
    assert decision.odds is None
    assert decision.verdict is (Verdict.OK if rule.kind is Kind.RATIO else Verdict.ON_HOLD)


def test_a_databases_verdict_does_not_hang_on_dice() -> None:
    made = checker(1.0, Rule("r", "all", ratio=0.999))
    assert made.gate(check("headgate")).verdict is Verdict.OK
