"""Nobody checks: less is done, then nothing; the first check brings everything back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.base.names import Scope
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demand, Demands, Work
from headgate.check.health import ShardHealth, never_read, stand
from headgate.check.model import Activity, Idleness, Verdict
from headgate.check.sampler import Sampler
from headgate.history.recorder import Recorder
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Absent, Cause, Sample
from tests.builders import check, metric
from tests.fixtures.fakes import FakeProbe, HandClock, settle

AWAKE, IDLE, HIBERNATING = Activity.AWAKE, Activity.IDLE, Activity.HIBERNATING


class World:
    """One database whose metrics are really sampled, on a clock wound by hand."""

    def __init__(self, *specs: MetricSpec) -> None:
        self.clock = HandClock()
        self.board = Board()
        self.demands = Demands(self.clock)
        self.demand = self.demands.open("main", Idleness(idle_after_s=2, hibernate_after_s=6))
        self.sampler = Sampler(self.board, self.clock, self.demands)
        self.board.open("main", None)
        self.probes: dict[str, FakeProbe] = {}
        for spec in specs or (metric("threads_running", interval_s=0.25),):
            self.board.place("main", spec, at=self.clock.now().mono_s)
            self.probes[spec.name] = FakeProbe(lambda: self.clock.now().mono_s)
            self.sampler.start("main", spec, self.probes[spec.name])
        self.checker = Checker(
            self.board,
            Recorder(max_clients=10),
            self.demands,
            self.clock,
            lambda: 0.5,
            anonymous_may_pass=True,
        )
        self._tick = asyncio.create_task(self._ticks())

    async def _ticks(self) -> None:
        while True:
            self.demands.tick(self.clock.now().mono_s)
            await self.clock.sleep(0.5)

    def reads(self) -> int:
        return sum(probe.reads for probe in self.probes.values())

    def reading(self, name: str = "threads_running") -> Sample | Absent | None:
        window = self.board.window("main", name)
        assert window is not None
        return window.latest

    async def until(self, state: Activity, within_s: float = 20.0) -> None:
        for _ in range(int(within_s * 4)):
            if self.demand.state is state:
                return
            await self.clock.advance(0.25)
        raise AssertionError(f"{self.demand.state} after {within_s} s")

    async def close(self) -> None:
        self._tick.cancel()
        await self.sampler.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def test_awake_then_idle_then_hibernating(world: World) -> None:
    """R56"""
    world.checker.check(check())
    began = world.clock.now().mono_s
    seen: dict[Activity, float] = {}
    for _ in range(40):
        await world.clock.advance(0.25)
        seen.setdefault(world.demand.state, world.clock.now().mono_s - began)
    assert seen[IDLE] == pytest.approx(2.0, abs=0.75)
    assert seen[HIBERNATING] == pytest.approx(6.0, abs=0.75)


async def test_an_agent_begins_awake(world: World) -> None:
    assert world.demand.state is AWAKE
    await world.clock.advance(0.1)
    assert isinstance(world.reading(), Sample)


async def test_throttler_self_load_idle_reads_a_tenth_as_often(world: World) -> None:
    """R56, R62"""
    await world.until(IDLE)
    await world.clock.advance(0.25)
    before = world.reads()
    await world.clock.advance(2.6)
    assert world.reads() - before <= 2


async def test_a_hibernating_database_costs_nothing(world: World) -> None:
    """R57, R62: after the probe that was under way, not one."""
    await world.until(HIBERNATING)
    await world.clock.advance(3)
    before, costs = world.reads(), dict(world.demand.costs)
    await world.clock.advance(300)
    assert world.reads() == before
    assert world.demand.costs == costs
    assert world.demand.costs[(HIBERNATING, Work.PROBES)] <= len(world.probes)
    assert world.demand.costs[(AWAKE, Work.PROBES)] >= 8


async def test_a_hibernating_database_says_so(world: World) -> None:
    """R151"""
    await world.until(HIBERNATING)
    await world.clock.advance(3)
    reading = world.reading()
    assert isinstance(reading, Absent) and reading.cause is Cause.HIBERNATING
    decision = world.checker.check(check())
    assert decision.verdict is Verdict.METRIC_UNAVAILABLE
    assert "wakes it" in decision.failing[0].detail


async def test_cold_start_on_stale_data_the_first_check_is_rejected_and_wakes(world: World) -> None:
    """R58, R59: within one interval a retrying client is admitted."""
    world.probes["threads_running"].answer = lambda: 1.0
    await world.until(HIBERNATING)
    await world.clock.advance(20)
    assert not world.checker.check(check()).admitted
    assert world.demand.state is AWAKE
    await world.clock.advance(0.25)
    assert world.checker.check(check()).admitted


async def test_an_idle_database_is_brought_back_at_once(world: World) -> None:
    """R59: not after what is left of a long pause."""
    world.probes["threads_running"].answer = lambda: 1.0
    await world.until(IDLE)
    await world.clock.advance(1.2)
    world.checker.check(check())
    await world.clock.advance(0.25)
    assert world.checker.check(check()).admitted


async def test_self_checks_wake_nobody(world: World) -> None:
    """R60: status and scrapes ask with explain."""
    await world.until(HIBERNATING)
    await world.clock.advance(3)
    before = world.reads()
    for _ in range(20):
        assert not world.checker.explain(check()).admitted
        await world.clock.advance(1)
    assert world.demand.state is HIBERNATING and world.reads() == before


async def test_a_passive_standby_is_not_kept_awake_by_those_it_sends_away(world: World) -> None:
    """R52"""
    await world.until(HIBERNATING)
    world.checker.active_agent = "http://active"
    assert world.checker.check(check()).verdict is Verdict.WRONG_AGENT
    assert world.demand.state is HIBERNATING


async def test_checks_keep_it_awake(world: World) -> None:
    for _ in range(20):
        await world.clock.advance(1)
        world.checker.check(check())
        assert world.demand.state is AWAKE


async def test_a_rate_over_the_time_asleep_says_nothing_of_now() -> None:
    """R59: warming up, then a value."""
    world = World(metric("bytes", sql="select 1", threshold=9, mode="rate", interval_s=0.25))
    await world.until(HIBERNATING)
    await world.clock.advance(100)
    world.checker.check(check())
    await settle()
    reading = world.reading("bytes")
    assert isinstance(reading, Absent) and reading.cause is Cause.WARMING_UP
    await world.clock.advance(0.25)
    reading = world.reading("bytes")
    assert isinstance(reading, Sample) and reading.value == pytest.approx(1.0)
    await world.close()


async def test_whatever_depends_on_it_keeps_it_awake(world: World) -> None:
    """R61: budgets that act by metrics, a warm standby."""
    world.demand.keep_awake("budgets")
    world.demand.keep_awake("standby")
    await world.clock.advance(20)
    assert world.demand.state is AWAKE
    world.demand.keep_awake("budgets", on=False)
    await world.clock.advance(20)
    assert world.demand.state is AWAKE
    world.demand.keep_awake("standby", on=False)
    assert world.demand.state is HIBERNATING


async def test_a_keeper_wakes_what_sleeps(world: World) -> None:
    """R61"""
    await world.until(HIBERNATING)
    await world.clock.advance(3)
    before = world.reads()
    world.demand.keep_awake("budgets")
    await world.clock.advance(1)
    assert world.reads() > before


async def test_a_database_added_later_is_kept_awake_as_well(world: World) -> None:
    """R61: a reload must not put half of a warm standby to sleep."""
    world.demands.keep_awake("standby")
    late = world.demands.open("late", Idleness(idle_after_s=2, hibernate_after_s=6))
    await world.clock.advance(30)
    assert late.state is AWAKE


async def test_a_pulled_member_is_as_awake_as_the_primary(world: World) -> None:
    """R58"""
    await world.until(HIBERNATING)
    await world.clock.advance(3)
    before = world.reads()
    now = world.clock.now().mono_s
    world.demand.follow(AWAKE, now=now, for_s=10)
    assert world.demand.state is AWAKE
    await world.clock.advance(1)
    assert world.reads() >= before + 4
    world.demand.follow(IDLE, now=world.clock.now().mono_s, for_s=10)
    assert world.demand.state is IDLE


async def test_a_member_that_is_pulled_no_longer_goes_back_to_sleep(world: World) -> None:
    await world.until(HIBERNATING)
    world.demand.follow(AWAKE, now=world.clock.now().mono_s, for_s=10)
    await world.clock.advance(9)
    assert world.demand.state is AWAKE
    await world.clock.advance(2)
    assert world.demand.state is HIBERNATING


async def test_an_idle_primary_does_not_idle_a_member_that_is_checked(world: World) -> None:
    """Hosts hibernate independently (R58)."""
    world.checker.check(check())
    world.demand.follow(HIBERNATING, now=world.clock.now().mono_s, for_s=10)
    assert world.demand.state is AWAKE


async def test_a_search_does_not_idle_members_that_the_primary_keeps_awake(world: World) -> None:
    """Another replica's agent that looks for the primary pulls, too, and wants nothing."""
    await world.until(HIBERNATING)
    now = world.clock.now().mono_s
    world.demand.follow(AWAKE, now=now, for_s=10)
    world.demand.follow(HIBERNATING, now=now, for_s=10)
    assert world.demand.state is AWAKE


async def test_a_wake_is_as_good_as_a_check_of_the_shard(world: World) -> None:
    await world.until(HIBERNATING)
    woken: list[int] = []
    world.demand.on_shard_asked = lambda: woken.append(1)
    now = world.clock.now().mono_s
    world.demands.wake("main", now)
    assert world.demands.state("main") is AWAKE and woken == [1]
    assert world.demand.shard_state(now) is AWAKE


class TestTheShards:
    """Host and shard are wanted separately: only who is asked does the work (R57, R58)."""

    @pytest.fixture
    def demand(self, world: World) -> Demand:
        spec = world.board.healths["main"].standings["threads_running"].spec
        rolled = stand(spec, never_read(spec, at=world.clock.now().mono_s), scope=Scope.SHARD)
        world.board.set_shard("main", ShardHealth("s", {spec.name: rolled}))
        return world.demand

    async def test_checks_of_the_host_are_no_demand_for_the_shard(
        self, world: World, demand: Demand
    ) -> None:
        asked: list[int] = []
        demand.on_shard_asked = lambda: asked.append(1)
        for _ in range(10):
            await world.clock.advance(1)
            world.checker.check(check("etl", "self/threads_running"))
        assert demand.state is AWAKE and asked == []
        assert demand.shard_state(world.clock.now().mono_s) is HIBERNATING

    async def test_the_first_check_of_the_shard_is_noticed_among_many_of_the_host(
        self, world: World, demand: Demand
    ) -> None:
        """R58: not a quarter of a second later."""
        asked: list[float] = []
        demand.on_shard_asked = lambda: asked.append(world.clock.now().mono_s)
        await world.clock.advance(10)
        world.checker.check(check("etl", "self/threads_running"))
        world.checker.check(check("etl", "shard/threads_running"))
        assert asked == [world.clock.now().mono_s]

    async def test_a_busy_client_is_noted_a_few_times_a_second_only(
        self, world: World, demand: Demand
    ) -> None:
        asked: list[int] = []
        demand.on_shard_asked = lambda: asked.append(1)
        for _ in range(100):
            world.checker.check(check("etl", "shard/threads_running"))
            await world.clock.advance(0.01)
        assert 3 <= len(asked) <= 5

    async def test_keepers_keep_the_shard_awake(self, world: World, demand: Demand) -> None:
        demand.keep_awake("budgets")
        await world.clock.advance(20)
        assert demand.shard_state(world.clock.now().mono_s) is AWAKE


async def test_never_means_never(world: World) -> None:
    """0 for `never`; a reload changes it for a database that is known already."""
    world.demands.open("main", Idleness(idle_after_s=0, hibernate_after_s=0))
    await world.clock.advance(50)
    assert world.demand.state is AWAKE


async def test_a_database_that_is_gone_needs_no_check() -> None:
    world = World()
    await world.close()
    world.demands.shut("main")
    assert list(world.demands) == []
    assert world.checker.check(check()).verdict is Verdict.UNKNOWN_METRIC
