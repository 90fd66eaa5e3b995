"""Active–passive: a standby sends everybody away until nobody else answers (R52, R53)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.model import Activity, Idleness, Verdict
from headgate.errors import PeerFailed
from headgate.history.recorder import Recorder
from headgate.metrics.samples import Sample
from headgate.shard.standby import ElectedStandby, Standby
from tests.builders import check, metric
from tests.fixtures.fakes import UNREACHABLE, HandClock, settle
from tests.shard.elections import Pair

ACTIVE = "http://127.0.0.1:9"


class World:
    def __init__(self, *, warm: bool = True, active_answers: bool = True) -> None:
        self.clock = HandClock()
        self.board = Board()
        self.demands = Demands(self.clock)
        self.demand = self.demands.open("main", Idleness(idle_after_s=2, hibernate_after_s=5))
        self.board.open("main", None)
        self.board.place("main", metric("loadavg", max_age_s=7200), at=self.clock.now().mono_s)
        self.board.push("main", "loadavg", Sample(0.1, self.clock.now().mono_s))
        self.recorder = Recorder(max_clients=10)
        self.checker = Checker(
            self.board,
            self.recorder,
            self.demands,
            self.clock,
            lambda: 0.5,
            anonymous_may_pass=True,
        )
        self.fault: PeerFailed | None = None if active_answers else UNREACHABLE
        self.looks = 0
        self.standby = Standby(
            ACTIVE,
            self._look,
            self.checker,
            self.demands,
            self.clock,
            takeover_after_s=2.0,
            warm=warm,
        )
        self.task = asyncio.create_task(self.standby.run())

    async def _look(self) -> None:
        self.looks += 1
        if self.fault is not None:
            raise self.fault

    def passive(self) -> bool:
        return self.standby.passive

    def verdict(self) -> Verdict:
        return self.checker.check(check()).verdict

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await settle()
    yield world
    await world.close()


async def test_a_standby_sends_everybody_to_the_active_agent(world: World) -> None:
    decision = world.checker.check(check())
    assert decision.verdict is Verdict.WRONG_AGENT and decision.check_at == ACTIVE
    assert world.passive() and world.standby.takeovers_total == 0


async def test_a_standby_is_active_until_the_other_was_seen() -> None:
    """A host without an answer is the worse mistake."""
    world = World(active_answers=False)
    assert world.verdict() is Verdict.OK, "before the first look"
    await world.clock.advance(60)
    assert world.verdict() is Verdict.OK and not world.passive()
    assert world.standby.takeovers_total == 0, "it never was passive"
    world.fault = None
    await world.clock.advance(1)
    assert world.verdict() is Verdict.WRONG_AGENT
    await world.close()


async def test_it_takes_over_after_its_time_and_not_before(world: World) -> None:
    """R52"""
    await world.clock.advance(10)
    world.fault = UNREACHABLE
    await world.clock.advance(1.9)
    assert world.verdict() is Verdict.WRONG_AGENT
    await world.clock.advance(1.1)
    assert world.verdict() is Verdict.OK
    assert not world.passive() and world.standby.takeovers_total == 1
    assert world.standby.fault == "connection refused"


async def test_one_lost_answer_is_no_takeover(world: World) -> None:
    for _ in range(20):
        world.fault = UNREACHABLE
        await world.clock.advance(1.0)
        world.fault = None
        await world.clock.advance(0.5)
        assert world.passive()
    assert world.standby.takeovers_total == 0


async def test_it_steps_back_after_two_answers(world: World) -> None:
    world.fault = UNREACHABLE
    await world.clock.advance(5)
    assert not world.passive()
    world.fault = None
    before = world.looks
    await world.clock.advance(0.5)
    assert world.looks == before + 1 and not world.passive()
    await world.clock.advance(0.5)
    assert world.passive() and world.verdict() is Verdict.WRONG_AGENT
    assert world.standby.fault == ""


async def test_an_active_agent_that_flaps_does_not_get_its_clients_back_for_one_answer(
    world: World,
) -> None:
    """Oscillation"""
    world.fault = UNREACHABLE
    await world.clock.advance(5)
    for _ in range(10):
        world.fault = None
        await world.clock.advance(0.5)
        world.fault = UNREACHABLE
        await world.clock.advance(0.5)
        assert not world.passive()
    assert world.standby.takeovers_total == 1


async def test_each_takeover_is_counted_and_dated(world: World) -> None:
    """R53: both may answer for a moment; both show it."""
    for takeovers in (1, 2, 3):
        world.fault = UNREACHABLE
        await world.clock.advance(5)
        assert world.standby.takeovers_total == takeovers
        assert world.clock.now().mono_s - world.standby.since.mono_s <= 3.1
        world.fault = None
        await world.clock.advance(2)
        assert world.passive()


async def test_a_warm_standby_stays_awake_while_it_is_passive(world: World) -> None:
    """R61: taking over needs no warming up."""
    for _ in range(20):
        await world.clock.advance(1)
        world.demands.tick(world.clock.now().mono_s)
    assert world.demand.state is Activity.AWAKE
    assert world.demand.keepers


async def test_a_cold_standby_hibernates() -> None:
    """R57"""
    world = World(warm=False)
    await world.clock.advance(20)
    world.demands.tick(world.clock.now().mono_s)
    assert world.passive() and world.demand.state is Activity.HIBERNATING
    await world.close()


async def test_after_a_takeover_demand_alone_decides(world: World) -> None:
    """R57"""
    world.fault = UNREACHABLE
    await world.clock.advance(30)
    world.demands.tick(world.clock.now().mono_s)
    assert not world.demand.keepers and world.demand.state is Activity.HIBERNATING


async def test_a_takeover_of_a_warm_standby_finds_it_awake(world: World) -> None:
    """R52, R59: a moment after the keeper is gone, idleness counts from the takeover."""
    await world.clock.advance(100)
    world.fault = UNREACHABLE
    await world.clock.advance(3)
    assert not world.passive()
    assert world.demand.state is Activity.AWAKE


async def test_a_rejection_by_the_store_is_no_decision_of_ours(world: World) -> None:
    """Counted where it is decided."""
    for _ in range(3):
        world.verdict()
    assert world.recorder.totals() == {}


async def test_explaining_goes_on_while_passive(world: World) -> None:
    """An operator may look at a standby."""
    assert world.checker.explain(check()).verdict is Verdict.OK


# --- elected -----------------------------------------------------------------------------------


class ElectedWorld:
    """Two agents of a pair, each with a checker of its own, over one store."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.unreachable: set[str] = set()
        self.seats: dict[str, ElectedStandby] = {}
        self.checkers: dict[str, Checker] = {}
        for name, elector in self.pair.electors.items():
            world = World(active_answers=False)
            world.task.cancel()
            self.checkers[name] = world.checker
            self.seats[name] = ElectedStandby(
                elector,
                world.checker,
                world.demands,
                self.pair.true,
                warm=True,
                look=self._look,
                takeover_after_s=2.0,
            )
            self.pair.tasks[name].cancel()
            self.pair.tasks[name] = asyncio.create_task(self.seats[name].run())

    async def _look(self, url: str) -> None:
        if url in self.unreachable:
            raise UNREACHABLE

    def verdicts(self) -> dict[str, Verdict]:
        return {name: c.explain(check()).verdict for name, c in self.checkers.items()}

    def asked(self, name: str) -> str | None:
        return self.checkers[name].check(check()).check_at

    def leader(self) -> str:
        [leader] = self.pair.leaders()
        return leader


@pytest.fixture
async def elected() -> AsyncIterator[ElectedWorld]:
    elected = ElectedWorld()
    yield elected
    await elected.pair.close()


async def test_the_one_that_does_not_lead_sends_everybody_to_the_one_that_does(
    elected: ElectedWorld,
) -> None:
    """R52"""
    await elected.pair.true.advance(1)
    leader = elected.leader()
    other = "b" if leader == "a" else "a"
    assert not elected.seats[leader].passive and not elected.asked(leader)
    assert elected.seats[other].passive and elected.asked(other) == f"http://{leader}:8087"
    assert elected.seats[leader].words("1 s") == "this agent leads the pair pair, since 1 s"
    assert elected.seats[other].words("1 s") == (
        f"http://{leader}:8087 leads the pair pair: this agent sends checks there"
    )


async def test_it_takes_over_when_the_leader_is_gone(elected: ElectedWorld) -> None:
    """R52"""
    changes: list[bool] = []
    await elected.pair.true.advance(1)
    leader = elected.leader()
    other = "b" if leader == "a" else "a"
    elected.seats[other].on_change = lambda: changes.append(elected.seats[other].passive)
    await elected.pair.kill(leader)
    await elected.pair.true.advance(15)
    assert not elected.seats[other].passive and not elected.asked(other)
    assert elected.seats[other].takeovers_total == 1 and changes == [False]


async def test_while_the_store_is_away_each_answers_alone_and_says_so(
    elected: ElectedWorld,
) -> None:
    """R53"""
    await elected.pair.true.advance(1)
    elected.pair.set_away(True)
    await elected.pair.true.advance(30)
    for name, seat in elected.seats.items():
        assert not seat.passive and not elected.asked(name)
        assert seat.words("30 s").startswith("no leader of the pair pair is known, since 30 s")
        assert "rough: away" in seat.words("30 s")
    elected.pair.set_away(False)
    await elected.pair.true.advance(15)
    assert sorted(seat.passive for seat in elected.seats.values()) == [False, True]


async def test_before_the_store_was_read_both_answer() -> None:
    """A host without an answer is the worse mistake."""
    elected = ElectedWorld()
    assert set(elected.verdicts().values()) == {Verdict.OK}
    await elected.pair.close()


async def test_the_other_one_replaces_a_leader_by_the_store_that_answers_nobody(
    elected: ElectedWorld,
) -> None:
    """Its address leads nowhere: a host without an answer is the worse mistake."""
    await elected.pair.true.advance(1)
    leader = elected.leader()
    other = "b" if leader == "a" else "a"
    seat, url = elected.seats[other], f"http://{leader}:8087"

    def passive() -> bool:
        return seat.passive

    assert passive()
    elected.unreachable = {url}
    await elected.pair.true.advance(1.5)
    assert passive(), "not for one question that was lost"
    await elected.pair.true.advance(2)
    assert not passive() and not elected.asked(other)
    assert "does not answer: this agent answers alone" in seat.words("2 s")
    await elected.pair.true.advance(60)
    assert not passive() and seat.takeovers_total == 1
    elected.unreachable = set()
    await elected.pair.true.advance(2)
    assert passive() and elected.asked(other) == url
    assert seat.words("1 s").endswith("this agent sends checks there")
