"""What clients counted locally is counted once, in its minute, and wakes who sleeps."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.base.names import OTHER
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Activity, Decision, Idleness, Verdict
from headgate.check.reporting import Intake
from headgate.check.snapshot import Counted
from headgate.history.recorder import UNKNOWN_DATABASE, Recorder
from tests.builders import NOW, check, health
from tests.fixtures.fakes import HandClock

OK, REJECTED, DICED = Verdict.OK, Verdict.THRESHOLD_EXCEEDED, Verdict.REJECTED_BY_RATIO
MINUTE = int(NOW.wall_s // 60)


class World:
    def __init__(self, max_clients: int = 100) -> None:
        self.clock = HandClock()
        self.board = Board()
        self.board.healths["main"] = health()
        self.demands = Demands(self.clock)
        self.demand = self.demands.open("main", Idleness(60, 600))
        self.recorder = Recorder(max_clients=max_clients)
        self.intake = Intake(self.recorder, self.board, self.clock, self.demands)
        self.told: dict[Any, int] = {}
        self.recorder.watch(self._told)

    def _told(self, counted: list[tuple[Any, int]]) -> None:
        for key, count in counted:
            self.told[key] = self.told.get(key, 0) + count

    def take(self, *rows: Counted, batch: int = 1, sender: str = "a") -> bool:
        return self.intake.take(sender, batch, rows)

    def history(self) -> dict[tuple[int, str, str, str], int]:
        drained = self.recorder.drain(self.clock.now().wall_s)
        return {(t.minute, t.client, t.verdict, t.metric): t.count for t in drained}


def row(verdict: Verdict = OK, times: int = 1, by: str = "", **more: Any) -> Counted:
    return Counted(check("etl:nightly"), verdict, by, times, **more)


@pytest.fixture
def world() -> World:
    return World()


def test_a_batch_counts_once_however_often_it_comes(world: World) -> None:
    assert world.take(row(times=40), batch=1)
    assert not world.take(row(times=40), batch=1)
    assert world.take(row(times=2), batch=2)
    assert not world.take(row(times=40), batch=1), "an old one, late"
    assert world.take(row(times=1), batch=1, sender="b")
    assert world.recorder.totals() == {("main", "etl:nightly", OK, ""): 43}
    assert (world.intake.batches_total, world.intake.repeated_total) == (3, 2)


def test_reported_and_decided_here_add_up(world: World) -> None:
    world.recorder.record(Decision(OK, check("etl:nightly"), NOW, health()))
    world.take(
        row(times=9), row(REJECTED, 4, "lag"), row(OK, 2, "rule:free"), row(DICED, 1, "rule:r")
    )
    expected = {
        ("main", "etl:nightly", OK, ""): 10,
        ("main", "etl:nightly", REJECTED, "lag"): 4,
        ("main", "etl:nightly", OK, "rule:free"): 2,
        ("main", "etl:nightly", DICED, "rule:r"): 1,
    }
    assert world.recorder.totals() == expected
    assert sum(world.history().values()) == 17
    assert world.told == expected, "who watches for starvation is told of all"
    assert world.recorder.totals() == expected


def test_each_counts_in_the_minute_in_which_it_was_decided(world: World) -> None:
    """R134–R136: also when an agent was away and gets it late."""
    into_s = NOW.wall_s % 60
    world.take(
        row(times=1), row(times=2, last_s_ago=into_s + 1), row(times=4, last_s_ago=into_s + 90)
    )
    world.take(row(REJECTED, 8, "lag", last_s_ago=into_s + 1), batch=2)
    assert world.history() == {
        (MINUTE, "etl:nightly", "OK", ""): 1,
        (MINUTE - 1, "etl:nightly", "OK", ""): 2,
        (MINUTE - 2, "etl:nightly", "OK", ""): 4,
        (MINUTE - 1, "etl:nightly", "THRESHOLD_EXCEEDED", "lag"): 8,
    }
    assert sum(world.recorder.totals().values()) == 15
    assert sum(world.told.values()) == 15


def test_what_is_older_than_history_takes_is_counted_in_its_oldest_minute(world: World) -> None:
    world.take(row(times=5, last_s_ago=80_000))
    assert world.history() == {(MINUTE - 15, "etl:nightly", "OK", ""): 5}


def test_a_client_is_shown_as_it_was_last(world: World) -> None:
    world.take(
        row(REJECTED, 3, "lag", first_s_ago=0.9, last_s_ago=0.5), row(times=2, last_s_ago=0.1)
    )
    ((_, _, record),) = world.recorder.clients()
    assert (record.admitted, record.rejected, record.last_verdict) == (2, 3, OK)
    assert record.rejected_since is None
    world.take(row(REJECTED, 3, "lag", first_s_ago=0.04, last_s_ago=0.0), batch=2)
    assert record.rejected_since == pytest.approx(NOW.wall_s - 0.04)
    assert record.rejected_by == "lag"


def test_a_rejection_is_kept_in_the_clients_words(world: World) -> None:
    world.take(row(REJECTED, 3, "lag", reason="main: lag is 7 s, above its threshold of 5 s"))
    (kept,) = world.recorder.recent()
    assert kept.note == "lag is 7 s, above its threshold of 5 s"


def test_made_up_names_share_one_record() -> None:
    world = World(max_clients=1)
    world.take(row(times=2), Counted(check("b"), OK, "", 3), Counted(check("c"), OK, "", 4))
    assert world.recorder.totals()[("main", OTHER, OK, "")] == 7


def test_a_database_that_is_not_here_is_counted_as_unknown(world: World) -> None:
    world.take(Counted(check("etl", database="gone"), OK, "", 3))
    assert world.recorder.totals() == {(UNKNOWN_DATABASE, "etl", OK, ""): 3}


async def test_a_report_wakes_a_database_that_is_idle(world: World) -> None:
    """R58, R61: clients that decide locally, and those of a proxy, need it measured as well."""
    await world.clock.advance(700)
    world.demands.tick(world.clock.now().mono_s)
    assert world.demands.state("main") is Activity.HIBERNATING
    world.take(row(times=1, last_s_ago=100))
    assert world.demands.state("main") is Activity.HIBERNATING, "that was long ago"
    world.take(row(times=1), batch=2)
    assert world.demands.state("main") is Activity.AWAKE
