"""A check that is like an earlier one is decided by what is kept of that one: answer and counts are
the same as if it were parsed and decided as the first of its kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.check.checker import Fairness
from headgate.check.model import Idleness
from headgate.check.routes import CheckAnswer, CheckRoutes
from headgate.http.listener import Request
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.rules.matching import DiceOrder, Kind, Rule, book_of
from tests.builders import NOW, metric
from tests.check.test_checker import World

FOREVER_S = NOW.wall_s + 1e6
NAMES = ["a", "job1:etl", "job2:etl", "anonymous", "x:pay:roll", "a::b", "y" * 129]
FORMS = [
    "GET /v1/check?app={}&database=main",
    "GET /v1/check?app={}&database=main&detail=true",
    "GET /v1/check?app={}&database=main&metrics=threads_running",
    "GET /v1/check?app={}&database=main&metrics=unknown",
    "GET /v1/check?app={}&database=main&budget=b&cpu_s=1",
    "GET /v1/check?app={}&database=elsewhere",
    "HEAD /v1/check?app={}&database=main",
    "GET /v1/check-read?app={}&database=main&metric=lag&threshold=3",
    "GET /check/{}/mysql/main",
    "HEAD /freno/check-if-exists/{}/mysql/main",
]
BOOKS: list[Sequence[Rule]] = [
    (),
    (Rule("other", "nobody", 0.5, FOREVER_S),),
    (Rule("half", "etl", 0.5, FOREVER_S),),
    (Rule("after", "etl", 0.5, FOREVER_S, order=DiceOrder.AFTER),),
    (Rule("held", "etl", 1.0, NOW.wall_s + 30, Kind.HOLD),),
    (Rule("strict", "etl", 0, NOW.wall_s + 30, Kind.THRESHOLDS, thresholds={"lag": 0.5}),),
    (Rule("own", "all", 0, FOREVER_S, Kind.METRICS, metrics=("threads_running",)),),
    (Rule("free", "etl", 0, FOREVER_S, Kind.EXEMPT, ceiling=10.0),),
]


@dataclass(frozen=True)
class Ask:
    form: int
    name: int
    keeps: bool


@dataclass(frozen=True)
class Change:
    what: str
    value: Any


class Door:
    """One agent's, whose dice fall as those of another."""

    def __init__(self) -> None:
        dice = Random(7)
        self.rolls = 0

        def roll() -> float:
            self.rolls += 1
            return dice.random()

        self.world = World(roll, rules=())
        world = self.world
        world.board.place(
            "main", metric("threads_running", max_age_s=10.0, absence="ignore"), at=0.0
        )
        world.board.place("main", metric("lag", max_age_s=5.0), at=0.0)
        self.change(Change("threads_running", 1.0))
        world.checker.fairness = None
        self.demand = world.demands.open("main", Idleness())
        self.routes = CheckRoutes(world.checker)
        self._forms: dict[int, CheckAnswer] = {}
        self._named: dict[tuple[int, int], CheckAnswer] = {}

    def change(self, change: Change) -> None:
        checker, now_s = self.world.checker, self.world.clock.now().mono_s
        if change.what == "time":
            self.world.clock._step(change.value)
        elif change.what == "rules":
            checker.rules = book_of(BOOKS[change.value])
        elif change.what == "fairness":
            checker.fairness = Fairness(change.value) if change.value else None
        elif change.what in ("closed", "active_agent"):
            setattr(checker, change.what, change.value)
        elif change.value is None:
            absent = Absent(Cause.FAILED, "no answer", now_s)
            self.world.board.push("main", change.what, absent)
        else:
            self.world.board.push("main", change.what, Sample(change.value, now_s))

    def parsed(self, ask: Ask) -> bytes:
        method, target = FORMS[ask.form].format(NAMES[ask.name]).split(" ")
        answer = self.routes.prepare(Request(method, target.encode(), (), b"", True))
        assert answer is not None
        return answer if isinstance(answer, bytes) else answer()

    def again(self, ask: Ask) -> bytes:
        """As the listener does."""
        form, name = self._forms.get(ask.form), NAMES[ask.name]
        if form is None:
            method, target = FORMS[ask.form].format(name).split(" ")
            answer = self.routes.prepare(Request(method, target.encode(), (), b"", True))
            if isinstance(answer, CheckAnswer):
                self._forms[ask.form] = answer
                return answer()
            return self.parsed(ask)
        if not ask.keeps:
            return form.once(name) or self.parsed(ask)
        known = self._named.get((ask.form, ask.name)) or form.named(name)
        if known is None:
            return self.parsed(ask)
        self._named[ask.form, ask.name] = known
        return known()

    def counted(self) -> Any:
        recorder = self.world.recorder
        return (
            recorder.totals(),
            [(d.verdict, d.check, d.failing, d.rule, d.retry_after_s) for d in recorder.recent()],
            {
                (database, client): [getattr(record, name) for name in record.__slots__]
                for database, client, record in recorder.clients()
            },
            recorder.without_value,
            self.demand.asked_at,
            self.rolls,
        )


ASKS = st.builds(Ask, st.integers(0, len(FORMS) - 1), st.integers(0, len(NAMES) - 1), st.booleans())
CHANGES = st.one_of(
    # Longer than a rendered answer is kept: ages are the same on both sides.
    st.builds(Change, st.just("time"), st.sampled_from([0.01, 0.3, 4.99, 5.0, 61.0])),
    st.builds(Change, st.just("lag"), st.sampled_from([0.25, 1.0, 7.0, None])),
    st.builds(Change, st.just("threads_running"), st.sampled_from([1.0, 1e6, None])),
    st.builds(Change, st.just("rules"), st.integers(0, len(BOOKS) - 1)),
    st.builds(Change, st.just("fairness"), st.sampled_from([0.0, 0.2])),
    st.builds(Change, st.just("closed"), st.sampled_from(["", "state lost"])),
    st.builds(Change, st.just("active_agent"), st.sampled_from(["", "http://b:8087"])),
)


@given(st.lists(st.one_of(ASKS, ASKS, ASKS, CHANGES), min_size=10, max_size=120))
def test_what_is_kept_of_a_check_changes_no_answer_and_no_count(steps: list[Ask | Change]) -> None:
    """R135"""
    agree(steps)


EVERY_CHANGE = [
    *(Change("time", seconds) for seconds in (0.01, 5.0, 61.0)),
    *(Change("lag", value) for value in (0.25, 7.0, None)),
    *(Change("threads_running", value) for value in (1e6, None)),
    *(Change("rules", number) for number in range(len(BOOKS))),
    Change("fairness", 0.2),
    Change("closed", "lost"),
    Change("active_agent", "http://b:8087"),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("lag", [0.25, 7.0])
def test_the_next_check_sees_each_change(form: int, lag: float) -> None:
    for change in EVERY_CHANGE:
        asks = [Ask(form, name, keeps) for name in range(4) for keeps in (True, False)]
        agree([Change("lag", lag), asks[2], *asks, change, asks[2], *asks])


def test_a_check_that_reaches_the_metrics_ends_the_wait() -> None:
    """R82"""
    ask = Ask(0, 1, True)
    ratio, none = Change("rules", 2), Change("rules", 0)
    agree([ask, Change("fairness", 0.2), ratio, ask, Change("time", 0.3), none, ask, ratio, ask])


def test_freno_shows_no_value_that_has_become_stale() -> None:
    """The rule's metric decides, and freno's number is the lag. It ages without a new reading."""
    ask = Ask(8, 1, True)
    agree([Change("rules", 6), ask, Change("time", 4.99), ask, Change("time", 0.3), ask])


def agree(steps: Sequence[Ask | Change]) -> None:
    kept, fresh = Door(), Door()
    for step in steps:
        if isinstance(step, Change):
            kept.change(step)
            fresh.change(step)
        else:
            assert kept.again(step) == fresh.parsed(step), step
    assert kept.counted() == fresh.counted()


def test_ages_in_a_rejection_are_at_most_a_few_ms_too_low() -> None:
    door = Door()
    door.change(Change("lag", 7.0))
    ages = []
    for _ in range(50):
        door.change(Change("time", 0.001))
        told = re.search(rb'"lag".*?"age_ms":(\d+)', door.again(Ask(0, 1, True)))
        assert told
        ages.append(int(told[1]))
    assert all(0 <= n + 1 - age <= 6 for n, age in enumerate(ages))
    assert ages[-1] >= 44
