"""What was decided here reaches the agent's history: exactly once, by client and cause (R98)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from headgate.check.model import Verdict
from headgate.check.snapshot_api import MAX_ROWS as ROWS_IN_A_BATCH
from headgate.proxy.agents import Agents, Reply
from headgate.proxy.assemble import note_budget
from headgate.proxy.gates import GateOutcome, GatePart
from headgate.proxy.layout import EVENT_BLOCKED, EVENT_DELAYED, EVENT_WARNED
from headgate.proxy.ports import ActCause, ClientCounts, ClientGate, ClientKey
from headgate.proxy.reports import MAX_BATCHES, MAX_ROWS, PendingReports, Reports, decided
from tests.fixtures.fakes import HandClock
from tests.proxy.fakes import FakeDialling, FakeLine, FakeRelay, client, counts, event

JOB = client(2, "nightly:etl")
URL = "http://a:1"
HELD = GateOutcome(
    ClientGate(),
    rule=GatePart(
        0.5, verdict=Verdict.REJECTED_BY_RATIO, by="rule:r1", reason="rule r1 throttles 50%"
    ),
    health=GatePart(1.0, verdict=Verdict.THRESHOLD_EXCEEDED, by="shard/lag"),
)


def blocked(**by: int) -> tuple[int, ...]:
    return tuple(by.get(cause.name.lower(), 0) for cause in ActCause)


class Stage:
    def __init__(self, *table: ClientCounts) -> None:
        self.clock, self.relay = HandClock(), FakeRelay(table=list(table))
        dialling = FakeDialling(self.clock)
        self.agents = Agents(dialling, [URL], "main")
        self.line: FakeLine = dialling.lines[URL]
        self.line.answer = lambda *_: Reply(200, {}, b"{}")
        self.looked: list[list[ClientCounts]] = []
        self.reports = Reports(
            self.relay, self.agents, self.clock, self._explained, self.looked.append,
            instance="ab" * 16,
        )  # fmt: skip
        self.reports.begin()

    def _explained(self, _: ClientKey) -> GateOutcome:
        return HELD

    async def second(self, *table: ClientCounts) -> None:
        if table:
            self.relay.table = list(table)
        await self.clock.advance(1.0)
        self.reports.look()
        await self.reports.tell()

    @property
    def batches(self) -> list[Any]:
        return [json.loads(body) for _, _, _, body in self.line.asked]

    def rows(self) -> dict[tuple[str, str, str], int]:
        found: dict[tuple[str, str, str], int] = {}
        for batch in {b["batch"]: b for b in self.batches}.values():
            for row in batch["rows"]:
                key = (row["app"], row["verdict"], row["by"])
                found[key] = found.get(key, 0) + row["times"]
        return found


async def test_history_says_who_was_blocked_and_by_what() -> None:
    stage = Stage(counts(JOB))
    now = counts(
        JOB, statements=9, admitted=3, blocked=blocked(rule=2, health=1, pace=1, loss=1, cancel=1)
    )
    await stage.second(now)
    assert stage.rows() == {
        ("nightly:etl", "OK", ""): 3,
        ("nightly:etl", "REJECTED_BY_RATIO", "rule:r1"): 2,
        ("nightly:etl", "THRESHOLD_EXCEEDED", "shard/lag"): 1,
        ("nightly:etl", "PACED", ""): 1,
        ("nightly:etl", "METRIC_UNAVAILABLE", ""): 1,
    }


async def test_what_was_counted_before_this_process_began_is_not_reported_again() -> None:
    """The process before it has: both look at the same counters."""
    stage = Stage(counts(JOB, statements=5, admitted=5))
    await stage.second(counts(JOB, statements=7, admitted=7))
    assert stage.rows() == {("nightly:etl", "OK", ""): 2}


async def test_two_processes_on_one_memory_do_not_both_report() -> None:
    """A hand-over: the old one reports until it has handed over, then the new one from there."""
    stage, ours = Stage(counts(JOB)), False
    new = Reports(stage.relay, stage.agents, stage.clock, ours=lambda: ours)
    running = asyncio.ensure_future(new.run())
    stage.relay.table = [counts(JOB, statements=5, admitted=5)]
    await stage.clock.advance(2.0)
    assert stage.line.asked == []
    ours = True
    stage.relay.table = [counts(JOB, statements=6, admitted=6)]
    await stage.clock.advance(2.0)
    assert stage.rows() == {("nightly:etl", "OK", ""): 6}, "nobody had told the first five"
    running.cancel()


@pytest.mark.parametrize("away", [False, True], ids=["heard", "away"])
async def test_each_decision_around_a_hand_over_is_reported_by_one_of_both(away: bool) -> None:
    """Those between two looks, while it is handed over, and of sessions that drain; what the old
    one could not tell at once it tells while it drains."""
    stage, ours = Stage(counts(JOB)), False
    new = Reports(stage.relay, stage.agents, stage.clock, ours=lambda: ours, instance="cd" * 16)
    loops = [asyncio.ensure_future(one.run()) for one in (stage.reports, new)]
    for n in range(1, 9):
        stage.relay.table = [counts(JOB, statements=n, admitted=n, blocked=blocked(pace=2 * n))]
        await stage.clock.advance(0.7)
        if n == 3:
            stage.line.away = away
        if n == 4:
            stage.reports.hand_over()
            ours = True
    stage.line.away = False
    await stage.clock.advance(40.0)
    told: dict[str, int] = {}
    for batch in {(b["instance"], b["batch"]): b for b in stage.batches}.values():
        for row in batch["rows"]:
            told[row["verdict"]] = told.get(row["verdict"], 0) + row["times"]
    assert told == {"OK": 8, "PACED": 16}
    assert {batch["instance"] for batch in stage.batches} == {"ab" * 16, "cd" * 16}
    for loop in loops:
        loop.cancel()


async def test_an_old_one_that_ends_after_the_hand_over_looks_no_more() -> None:
    stage = Stage(counts(JOB))
    stage.reports.hand_over()
    stage.relay.table = [counts(JOB, statements=5, admitted=5)]
    await stage.reports.close()
    assert stage.line.asked == [] and stage.relay.clients.all()[0].reported.admitted == 0


async def test_what_nobody_kept_account_of_is_not_reported_as_if_it_were_current() -> None:
    """Reports were off for a while, or forever."""
    stage = Stage(counts(JOB, statements=3, admitted=3))
    stage.relay.table = [counts(JOB, statements=90, admitted=90)]
    await stage.clock.advance(60.0)
    stage.reports.begin()
    await stage.second(counts(JOB, statements=91, admitted=91))
    assert stage.rows() == {("nightly:etl", "OK", ""): 1}


async def test_another_client_in_the_same_place_counts_from_zero() -> None:
    stage = Stage(counts(JOB, statements=50, admitted=50))
    other = client(JOB.index, "web", key=9)
    await stage.second(counts(other, statements=60, admitted=60))
    assert stage.rows() == {("web", "OK", ""): 60}


async def test_an_answer_that_was_lost_makes_no_second_count() -> None:
    """Exactly once: the batch keeps its number until it is taken."""
    stage = Stage(counts(JOB))
    stage.line.away = True
    await stage.second(counts(JOB, statements=1, admitted=1))
    stage.line.away = False
    for n in range(2, 5):
        await stage.second(counts(JOB, statements=n, admitted=n))
    numbers = [batch["batch"] for batch in stage.batches]
    assert numbers[:2] == [1, 1]
    assert stage.rows() == {("nightly:etl", "OK", ""): 4}


async def test_nothing_counts_as_reported_before_it_is() -> None:
    stage = Stage(counts(JOB))
    assert "yet" in stage.reports.state().summary
    await stage.second(counts(JOB, statements=1, admitted=1))
    assert "is in the agent's history" in stage.reports.state().summary


async def test_an_agent_that_is_away_is_not_tried_each_second() -> None:
    stage = Stage(counts(JOB))
    stage.line.away = True
    for n in range(1, 61):
        await stage.second(counts(JOB, statements=n, admitted=n))
    assert len(stage.line.asked) <= 8
    assert not stage.reports.state().healthy


async def test_a_batch_that_is_blocked_is_dropped_and_said() -> None:
    stage = Stage(counts(JOB))
    stage.line.answer = lambda *_: Reply(400, {}, b'{"detail": "no such database"}')
    await stage.second(counts(JOB, statements=1, admitted=1))
    await stage.second(counts(JOB, statements=2, admitted=2))
    assert [batch["batch"] for batch in stage.batches] == [1, 2]
    assert "no such database" in stage.reports.state().summary


async def test_nothing_is_reported_while_nothing_happens() -> None:
    stage = Stage(counts(JOB))
    await stage.second()
    assert stage.line.asked == []
    assert len(stage.looked) == 1


def test_blocks_by_budgets_are_named_as_far_as_events_reported() -> None:
    now = counts(JOB, statements=10, blocked=blocked(budget=10))
    found = list(decided(now, HELD, {"etl": 6, "web": 1}))
    assert [(one.by, one.times) for one in found] == [("budget:web", 1), ("budget:etl", 9)]
    assert [one.by for one in decided(now, HELD, {})] == [""]


async def test_what_a_budget_delayed_or_warned_of_is_no_block_of_it() -> None:
    stage = Stage(counts(JOB))
    about = {"number": JOB.index, "by": ActCause.BUDGET}
    note_budget(stage.reports, event(EVENT_BLOCKED, budget="etl", **about))
    for kind in (EVENT_DELAYED, EVENT_WARNED):
        for _ in range(5):
            note_budget(stage.reports, event(kind, budget="slow", **about))
    await stage.second(counts(JOB, statements=12, admitted=10, blocked=blocked(budget=2)))
    assert stage.rows() == {
        ("nightly:etl", "OK", ""): 10,
        ("nightly:etl", "OVER_BUDGET", "budget:etl"): 2,
    }


async def test_more_clients_than_rows_are_added_up_and_sums_stay_exact() -> None:
    tally = PendingReports("main", "ab" * 16)
    for n in range(MAX_ROWS + 500):
        tally.add((1, f"c{n}", Verdict.OK, ""), 2, 1.0)
    assert tally.waiting <= MAX_ROWS + 1
    total = 0
    while body := tally.batch(2.0):
        document = json.loads(body)
        assert len(document["rows"]) <= ROWS_IN_A_BATCH
        total += sum(row["times"] for row in document["rows"])
        tally.taken()
    assert total == 2 * (MAX_ROWS + 500)


async def test_one_second_sends_a_bounded_number_of_batches() -> None:
    many = [client(n, f"c{n}") for n in range(2000)]
    stage = Stage(*(counts(who) for who in many))
    await stage.second(*(counts(who, statements=1, admitted=1) for who in many))
    assert len(stage.line.asked) == MAX_BATCHES


@pytest.mark.parametrize("cause", list(ActCause))
def test_every_cause_is_reported_or_left_out_on_purpose(cause: ActCause) -> None:
    now = counts(JOB, statements=1, blocked=blocked(**{cause.name.lower(): 1}))
    told = list(decided(now, HELD, {}))
    assert bool(told) is (cause not in (ActCause.NOTHING, ActCause.CANCEL))
