"""R82: no client goes without a metric check for longer than the bound, and one of its own
intervals; and nobody gets past a metric by waiting."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.check.answers import answer_doc
from headgate.check.board import Board
from headgate.check.checker import IDLE_WAITS, Checker, Fairness
from headgate.check.demand import Demands
from headgate.check.model import Decision, Verdict
from headgate.check.reasons import reason_of
from headgate.history.recorder import Recorder
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.rules.api import explain_doc
from headgate.rules.matching import DiceOrder, Kind, Rule, book_of
from tests.builders import NOW, check, metric
from tests.fixtures.fakes import HandClock

BOUND_S = 30.0
REDUCED = Rule("r", "etl", 0.9, NOW.wall_s + 1e6)


class World:
    """A checker on a hand-wound clock, whose dice are given."""

    def __init__(
        self,
        roll: Callable[[], float] = lambda: 0.0,
        *,
        rules: Sequence[Rule] = (REDUCED,),
        fairness: Fairness | None = None,
    ) -> None:
        self.clock = HandClock()
        self.board = Board()
        self.board.open("main", None)
        self.spec = metric("lag", max_age_s=7200)
        self.board.place("main", self.spec, at=0.0)
        self.lag(1.0)
        self.recorder = Recorder(max_clients=100)
        self.demands = Demands(self.clock)
        self.checker = Checker(
            self.board,
            self.recorder,
            self.demands,
            self.clock,
            roll,
            anonymous_may_pass=False,
        )
        self.checker.rules = book_of(rules)
        self.fairness = fairness or Fairness(BOUND_S)
        self.checker.fairness = self.fairness

    def lag(self, value: float) -> None:
        self.board.push("main", "lag", Sample(value, self.clock.now().mono_s))

    def ask(self, app: str = "etl", *, after_s: float = 0.0) -> Decision:
        self.clock._step(after_s)
        return self.checker.check(check(app))


def test_dice_are_waived_after_the_bound_and_then_start_again() -> None:
    world = World()
    asked = [world.ask(after_s=10.0) for _ in range(9)]
    assert [d.verdict.value for d in asked] == [
        *["REJECTED_BY_RATIO"] * 3, "OK", *["REJECTED_BY_RATIO"] * 3, "OK", "REJECTED_BY_RATIO",
    ]  # fmt: skip
    assert [d.dice_waived for d in asked].count(True) == 2 == world.fairness.waived_total
    assert asked[3].turn is not None and asked[3].turn.waited_s == 30.0


def test_waiting_waives_no_metric() -> None:
    """R71: its turn is to be decided, not to be admitted."""
    world = World()
    world.lag(7.0)
    asked = [world.ask(after_s=10.0) for _ in range(4)]
    assert asked[-1].verdict is Verdict.THRESHOLD_EXCEEDED and asked[-1].dice_waived
    assert "dice" not in reason_of(asked[-1])


@pytest.mark.parametrize("order", list(DiceOrder))
def test_both_orders_are_bounded(order: DiceOrder) -> None:
    world = World(rules=[Rule("r", "etl", 0.9, NOW.wall_s + 1e6, order=order)])
    assert [world.ask(after_s=20.0).admitted for _ in range(6)] == [False, False, True] * 2


def test_a_hold_is_no_dice_and_is_not_waived() -> None:
    world = World(rules=[Rule("h", "etl", kind=Kind.HOLD, expires_at=NOW.wall_s + 1e6)])
    assert {world.ask(after_s=60.0).verdict for _ in range(5)} == {Verdict.ON_HOLD}
    assert world.fairness.clocks == 0


def test_a_metric_check_between_sets_the_clock_back() -> None:
    rolls = iter([0.0, 0.0, 0.95, 0.0, 0.0, 0.0, 0.0])
    world = World(lambda: next(rolls))
    asked = [world.ask(after_s=12.0).admitted for _ in range(7)]
    # Let through by its dice at the third; rejected for 36 s from the fourth on.
    assert asked == [False, False, True, False, False, False, True]


@given(
    ratio=st.floats(0.1, 0.999),
    gaps_s=st.lists(st.floats(0.01, 50.0), min_size=5, max_size=80),
    seed=st.integers(0, 2**32),
    lag=st.sampled_from([1.0, 7.0]),
    order=st.sampled_from(list(DiceOrder)),
)
def test_no_client_goes_without_a_metric_check_for_longer_than_the_bound_and_one_interval(
    ratio: float, gaps_s: list[float], seed: int, lag: float, order: DiceOrder
) -> None:
    world = World(
        Random(seed).random, rules=[Rule("r", "etl", ratio, NOW.wall_s + 1e6, order=order)]
    )
    world.lag(lag)
    diced_since: float | None = None
    for gap_s in gaps_s:
        decision = world.ask(after_s=gap_s)
        now_s = decision.at.mono_s
        assert not decision.admitted or lag == 1.0
        if decision.verdict is not Verdict.REJECTED_BY_RATIO:
            diced_since = None
            continue
        diced_since = now_s if diced_since is None else diced_since
        # It is rejected again: so the bound has not passed since the first of these rejections,
        # which came one interval after the last metric check.
        assert now_s - diced_since < BOUND_S


@given(seed=st.integers(0, 2**32))
def test_the_same_dice_and_clock_give_the_same_answers(seed: int) -> None:
    def verdicts() -> list[Verdict]:
        world, gaps = World(Random(seed).random), Random(seed + 1)
        return [world.ask(f"etl:{i % 3}", after_s=gaps.uniform(0, 9)).verdict for i in range(60)]

    assert verdicts() == verdicts()


# --- bounds (R69) ----------------------------------------------------------------------------


def test_names_made_up_per_check_fill_no_memory_and_push_nobody_out() -> None:
    world = World(fairness=Fairness(BOUND_S, max_clients=50))
    waived = 0
    for number in range(2000):
        world.ask(f"u{number}:etl")
        if number % 10 == 0:
            waived += world.ask("honest:etl", after_s=1.0).admitted
    assert world.fairness.clocks <= 51
    # 200 s of asking every second: a turn every 31.
    assert waived == 6


def test_those_without_a_clock_of_their_own_share_one() -> None:
    """As a class, they are not throttled for longer either."""
    world = World(fairness=Fairness(BOUND_S, max_clients=1))
    world.ask("first:etl")
    asked = [world.ask(f"u{number}:etl", after_s=1.0).admitted for number in range(62)]
    assert asked.count(True) == 2
    assert world.fairness.clocks <= 2


def test_a_client_that_is_gone_gives_its_place_away() -> None:
    world = World(fairness=Fairness(BOUND_S, max_clients=1))
    world.ask("gone:etl")
    world.ask("new:etl", after_s=IDLE_WAITS * BOUND_S + 1)
    assert list(world.fairness._waiting) == [("main", "new:etl")]


def test_databases_are_counted_apart() -> None:
    world = World()
    world.board.open("other", None)
    world.board.place("other", world.spec, at=0.0)
    world.board.push("other", "lag", Sample(1.0, NOW.mono_s))
    world.ask()
    world.clock._step(40.0)
    assert not world.checker.check(check("etl", database="other")).admitted
    assert world.ask().admitted


# --- seen ------------------------------------------------------------------------------------


def test_answers_and_explanations_say_it() -> None:
    world = World()
    rejected = world.ask(after_s=10.0)
    assert (
        "rejected by ratio for 0 ms, ratio rules are skipped in 30.0 s"
        in answer_doc(rejected).reason
    )
    later = world.ask(after_s=20.0)
    told = "rejected by ratio for 20.0 s, ratio rules are skipped in 10.0 s"
    assert told in answer_doc(later).reason and not answer_doc(later).dice_waived
    seen = explain_doc(world.checker.explain(check("etl")), world.checker.rules)
    assert seen.fairness == told
    assert seen.odds == pytest.approx(0.1) and "with a chance of 10% (rule r" in seen.reason
    world.clock._step(15.0)
    foreseen = world.checker.explain(check("etl"))
    assert foreseen.admitted and foreseen.dice_waived and foreseen.odds is None
    assert world.fairness.waived_total == 0, "explaining counts nothing"
    admitted = answer_doc(world.ask())
    assert (admitted.admitted, admitted.dice_waived, admitted.rule) == (True, True, "r")


def test_an_explanation_says_how_long_a_client_waits_although_these_dice_are_kind() -> None:
    rolls = iter([0.0, 0.95])
    world = World(lambda: next(rolls))
    world.ask()
    world.clock._step(10.0)
    seen = world.checker.explain(check("etl"))
    assert seen.admitted and seen.turn is not None and seen.turn.waited_s == 10.0


def test_off_it_is_not_there() -> None:
    world = World()
    world.checker.fairness = None
    assert {world.ask(after_s=100.0).turn for _ in range(20)} == {None}


def test_a_check_costs_the_same_few_calls_whatever_the_rules_and_reads_nothing() -> None:
    """R17, R31: in memory, so that hundreds a second of each client are nothing special."""

    def calls(rules: Sequence[Rule]) -> list[str]:
        world = World(lambda: 0.95, rules=rules)
        asked = check("etl")
        world.checker.check(asked)
        seen: list[str] = []

        def note(frame: FrameType, event: str, told: Any) -> None:
            if event == "call":
                seen.append(frame.f_code.co_qualname)
            elif event == "c_call":
                seen.append(getattr(told, "__qualname__", repr(told)))

        sys.setprofile(note)
        try:
            world.checker.check(asked)
        finally:
            sys.setprofile(None)
        return seen

    few = calls([REDUCED])
    many = calls(
        [REDUCED, *(Rule(f"r{n}", f"job{n}", 0.5, NOW.wall_s + 1e6) for n in range(5_000))]
    )
    assert len(few) == len(many) < 100
    waits = {"open", "read", "send", "recv", "connect", "execute", "sleep", "acquire", "fetchone"}
    assert not {name.rpartition(".")[2] for name in many} & waits


@pytest.mark.parametrize(
    "policy",
    [{"absence": "ignore"}, {"reject_for_s": 60.0}],
    ids=["ignore", "reject_for_s"],
)
def test_what_is_admitted_without_a_value_is_counted(policy: dict[str, Any]) -> None:
    """R54: exactly, and only while there is none."""
    world = World(rules=())
    world.checker.fairness = None
    world.spec = metric("lag", max_age_s=7200, **policy)
    world.board.place("main", world.spec, at=0.0)
    world.lag(1.0)
    assert world.ask().admitted and not world.recorder.without_value
    world.board.push("main", "lag", Absent(Cause.FAILED, "gone", world.clock.now().mono_s))
    answers = [world.ask(after_s=30.5).admitted for _ in range(4)]
    assert answers[1:] == [True] * 3
    assert world.recorder.without_value == {("main", "lag"): sum(answers)}
    world.lag(1.0)
    assert world.ask().admitted
    assert world.recorder.without_value == {("main", "lag"): sum(answers)}
