"""The agent notices starvation, tells of it once, and guards exemptions (R79, R88–R92)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headgate.check.board import Board
from headgate.check.decide import decide
from headgate.check.model import Verdict
from headgate.errors import StoreUnavailable
from headgate.history.alerts import Alerts
from headgate.history.keeper import MetricMinutes
from headgate.history.recorder import Recorder
from headgate.history.starvation import Culprit, StarvationFinding, Starved
from headgate.history.starvation_courses import StarvationTerms
from headgate.history.watch import (
    BEGINS,
    ENDS,
    KEEP_S,
    MAX_STRETCHES,
    SUSPENDED,
    TICK_INTERVAL_S,
    Charges,
    Watch,
)
from headgate.metrics.samples import Sample
from headgate.rules.matching import DiceOrder, Kind, Rule, RuleBook, book_of
from tests.builders import check, metric
from tests.fixtures.fakes import HandClock


class Agent:
    """As much of one as decides, counts and watches; its clock is wound by hand."""

    def __init__(self, *rules: Rule, suspend_fails: bool = False) -> None:
        self.clock = HandClock()
        self.board = Board()
        self.board.open("main", None)
        self.lag = metric("lag", max_age_s=7200)
        for spec in (self.lag, metric("loadavg", max_age_s=7200, threshold=8.0)):
            self.board.place("main", spec, at=0.0)
        self.rules: RuleBook = book_of(rules)
        self.recorder = Recorder(max_clients=100)
        self.alerts = Alerts(self.clock)
        self.told: list[tuple[str, str]] = []
        self.suspended: list[str] = []
        self.suspend_fails = suspend_fails
        self.minutes = MetricMinutes()
        self.watch = Watch(
            self.recorder,
            self.board,
            self.clock,
            self.alerts,
            rules=lambda: self.rules,
            minutes=self.minutes,
            exemptions=self,
        )
        self.roll = 0.5
        self.measure(lag=1.0, loadavg=1.0)

    def charged(self, rule_id: str) -> Mapping[str, float]:
        return {}

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None: ...

    async def suspend(self, rule_id: str, why: str) -> bool:
        if self.suspend_fails:
            raise StoreUnavailable("the disk is full")
        self.suspended.append(why)
        self.rules = RuleBook(self.rules.rules, suspended=frozenset({rule_id}))
        return True

    def measure(self, **values: float) -> None:
        for name, value in values.items():
            self.board.push("main", name, Sample(value, self.clock.now().mono_s))

    async def work(self, minutes: float, *clients: str, mover: str = "", **more: Any) -> None:
        """All ask once in each tick; a mover as often as it likes, and lag follows it."""
        for turn in range(int(minutes * 60 / TICK_INTERVAL_S)):
            often = turn * turn % 7 % 3
            if mover:
                self.measure(lag=9.0 + often)
            for client in (*clients, *([mover] * often if mover else ())):
                asked = check(client, **more)
                health = self.board.healths["main"]
                now = self.clock.now()
                self.recorder.record(decide(asked, health, self.rules, now=now, roll=self.roll))
            await self.clock.advance(TICK_INTERVAL_S)
            self.recorder.drain(self.clock.now().wall_s)
            await self.watch.tick()

    def count(self, kind: str) -> int:
        return self.alerts.outcomes[kind, "raised"]


EXEMPT = Rule("r7", "fix", kind=Kind.EXEMPT)


async def test_client_starvation_is_reported_once_and_its_end_too() -> None:
    agent = Agent()
    agent.measure(lag=9.0)
    await agent.work(9, "etl:nightly")
    assert not agent.watch.findings
    await agent.work(6, "etl:nightly")
    [finding] = agent.watch.findings
    assert (finding.client, finding.cause) == ("etl:nightly", Culprit.UNEXPLAINED_LOAD)
    assert (agent.count(BEGINS), agent.count(ENDS)) == (1, 0)
    agent.measure(lag=1.0)
    await agent.work(1, "etl:nightly")
    assert agent.watch.findings == ()
    assert (agent.count(BEGINS), agent.count(ENDS)) == (1, 1)


async def test_exemption_starvation_suspends_the_exemption() -> None:
    """R79, R90"""
    agent = Agent(EXEMPT)
    await agent.work(19, "etl:nightly", mover="fix:x")
    [finding] = agent.watch.findings
    assert finding.cause is Culprit.EXEMPT_CLIENT and finding.rule == "r7"
    assert finding.effect == pytest.approx(1 / agent.lag.threshold)
    assert agent.suspended == [] and agent.count(BEGINS) == 1
    await agent.work(2, "etl:nightly", mover="fix:x")
    [why] = agent.suspended
    assert "starves etl:nightly on main: lag has rejected it for 20 min" in why
    assert agent.count(SUSPENDED) == 1


async def test_an_exempt_client_whose_effect_may_be_zero_is_neither_blamed_nor_suspended() -> None:
    """R90, R154: however much it does while others are starved."""
    agent = Agent(EXEMPT)
    agent.watch.policy = StarvationTerms(exemption_budget_s=0.0)
    for minute in range(40):
        agent.measure(lag=9.0 + minute * minute % 5)  # A rogue's doing.
        await agent.work(1, "etl:nightly", *["fix:x"] * (1 + minute % 3))
    [finding] = agent.watch.findings
    assert finding.cause is Culprit.UNEXPLAINED_LOAD
    assert (finding.blamed, finding.effect, agent.suspended) == ((), None, [])


def finding(
    since_s: float, for_s: float, client: str = "etl", rule: str = "r7"
) -> StarvationFinding:
    starved = Starved(
        database="main",
        client=client,
        is_level=False,
        members=(client,),
        metric="lag",
        cause=Culprit.EXEMPT_CLIENT,
        why="",
        starved_s=for_s,
        runtime_s=for_s,
        share=1.0,
        alarming=True,
        rejections=1,
        breached_share=1.0,
        mean_utilization=2.0,
        dice_s=0.0,
        rule=rule,
    )
    return StarvationFinding(starved, since_s)


def test_a_breath_now_and_then_does_not_refill_an_exemptions_budget() -> None:
    """R79: what an exemption is charged for adds up over stretches, client by client."""
    charges, book = Charges(), book_of([EXEMPT])
    assert charges.add(finding(0, 600), book) == 600
    assert charges.add(finding(0, 605), book) == 605
    assert charges.add(finding(1000, 600), book) == 1205
    assert charges.add(finding(1000, 600, client="report"), book) == 600
    for since_s in range(2000, 2000 + 3 * MAX_STRETCHES):
        spent_s = charges.add(finding(since_s, 1), book)
    assert spent_s == 1205 + 3 * MAX_STRETCHES
    assert charges.add(finding(0, 1, rule="r8"), book_of([])) == 1
    assert charges.add(finding(9000, 1), book) == 1, "a rule that ended is forgotten"


class Kept:
    """Exemptions whose charges outlive the process."""

    def __init__(self) -> None:
        self.by_rule: dict[str, dict[str, float]] = {}
        self.writes = 0

    async def suspend(self, rule_id: str, why: str) -> bool:
        return True

    def charged(self, rule_id: str) -> dict[str, float]:
        return self.by_rule.get(rule_id, {})

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None:
        self.by_rule[rule_id] = dict(charged)
        self.writes += 1


async def test_a_restart_does_not_refill_an_exemptions_budget() -> None:
    """R79"""
    kept, book = Kept(), book_of([EXEMPT])
    charges = Charges(kept)
    assert charges.add(finding(0, 900), book) == 900
    await charges.keep("r7", 900.0)
    after = Charges(kept)
    assert after.add(finding(5, 60), book) == 960
    await after.keep("r7", 65.0)
    assert kept.by_rule == {"r7": {"main etl": 960}}


async def test_charges_are_kept_every_few_seconds_and_when_the_budget_is_spent() -> None:
    kept, book = Kept(), book_of([EXEMPT])
    charges = Charges(kept)
    for second in range(10):
        charges.add(finding(0, second), book)
        await charges.keep("r7", float(second))
    assert kept.writes == 1 + 9 // KEEP_S
    charges.add(finding(0, 10), book)
    await charges.keep("r7", 9.1, at_once=True)
    assert kept.by_rule == {"r7": {"main etl": 10}}


async def test_without_a_budget_an_exemption_is_suspended_as_soon_as_anybody_is_starved() -> None:
    agent = Agent(EXEMPT)
    agent.watch.policy = StarvationTerms(exemption_budget_s=0.0)
    await agent.work(12, "etl:nightly", mover="fix:x")
    assert len(agent.suspended) == 1


async def test_an_exemption_that_cannot_be_suspended_is_tried_again() -> None:
    agent = Agent(EXEMPT, suspend_fails=True)
    await agent.work(22, "etl:nightly", mover="fix:x")
    assert agent.suspended == []
    agent.suspend_fails = False
    await agent.work(1, "etl:nightly", mover="fix:x")
    assert len(agent.suspended) == 1


async def test_an_exemption_that_harms_nobody_is_left_alone() -> None:
    agent = Agent(EXEMPT)
    await agent.work(12, "etl:nightly", "fix:x")
    assert agent.suspended == [] and agent.watch.findings == ()


async def test_differential_metric_starvation_names_who_depends_on_fewer_metrics() -> None:
    """R80, R90"""
    agent = Agent(Rule("r1", "backfill", kind=Kind.METRICS, metrics=("loadavg",)))
    await agent.work(12, "etl:nightly", mover="backfill:x")
    [finding] = agent.watch.findings
    assert finding.cause is Culprit.DIFFERENTIAL_METRICS
    assert finding.blamed == ("backfill:x",)
    command = "headgate rule metrics backfill:x --database all lag loadavg --for 1h"
    assert finding.proposal == command


async def test_a_stricter_threshold_of_ones_own_is_named() -> None:
    agent = Agent(Rule("r2", "etl", kind=Kind.THRESHOLDS, thresholds={"lag": 0.5}))
    await agent.work(15, "etl:nightly", "backfill:x")
    [finding] = agent.watch.findings
    assert finding.cause is Culprit.DIFFERENTIAL_METRICS
    assert (finding.rule, finding.proposal) == ("r2", "headgate rule lift r2")


@pytest.mark.parametrize(
    "rule",
    [
        Rule("r3", "etl", kind=Kind.HOLD),
        Rule("r3", "etl", ratio=0.9),
        Rule("r3", "etl", ratio=0.9, order=DiceOrder.AFTER),
    ],
    ids=["hold", "dice", "dice after metrics"],
)
async def test_what_an_operator_wanted_is_no_starvation(rule: Rule) -> None:
    """R91"""
    agent = Agent(rule)
    await agent.work(20, "etl:nightly", "backfill:x")
    assert agent.watch.findings == ()


async def test_a_database_that_was_removed_is_forgotten() -> None:
    agent = Agent()
    agent.measure(lag=9.0)
    await agent.work(12, "etl:nightly")
    agent.board.shut("main")
    await agent.watch.tick()
    assert agent.watch.findings == () and agent.watch.scene("main") is None
    assert agent.count(ENDS) == 1


async def test_metrics_are_kept_by_the_minute() -> None:
    agent = Agent()
    start = agent.clock.now()
    for value in (1.0, 3.0, 9.0):
        agent.measure(lag=value)
        agent.minutes.look(agent.board.healths, start)
    later = start.wall_s + 60
    [lag, _] = agent.minutes.drain(later)
    assert (lag.metric, lag.looks, lag.breached) == ("lag", 3, 1)
    assert (lag.low, lag.high) == (1.0, 9.0)
    assert lag.mean == pytest.approx(13 / 3)
    agent.minutes.restore([lag])
    assert agent.minutes.drain(later) == [lag]
    assert agent.minutes.drain(start.wall_s) == []


async def test_exempt_admissions_are_counted_by_their_rule() -> None:
    """Loud: what an exemption admitted is distinguished, and sums stay exact."""
    agent = Agent(EXEMPT)
    agent.measure(lag=9.0)
    await agent.work(1, "fix:x")
    agent.measure(lag=1.0)
    await agent.work(1, "fix:x")
    assert agent.recorder.totals() == {
        ("main", "fix:x", Verdict.OK, "rule:r7"): 12,
        ("main", "fix:x", Verdict.OK, ""): 12,
    }
