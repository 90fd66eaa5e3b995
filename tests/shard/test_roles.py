"""What a server is, from moment to moment: a role that is lost is not held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.check.demand import Demand, Work
from headgate.check.model import Activity, Idleness
from headgate.errors import ProbeFailed
from headgate.metrics.samples import Absent, Cause
from headgate.shard.roles import RoleWatcher
from headgate.shard.topology import Role, RoleSeen
from tests.fixtures.eventually import aeventually
from tests.fixtures.fakes import FakeRole, HandClock, primary, replica, settle


class World:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.demand = Demand("main", Idleness(idle_after_s=60, hibernate_after_s=600), self.clock)
        self.server = FakeRole(self.clock, primary(term=1))
        self.watcher = RoleWatcher(
            "main", self.server, self.clock, self.demand, interval_s=0.25, timeout_s=0.05
        )
        self.changes: list[RoleSeen | Absent] = []
        self.watcher.on_change = lambda: self.changes.append(self.watcher.seen)
        self.task = asyncio.create_task(self.watcher.run())

    def seen(self) -> RoleSeen | Absent:
        return self.watcher.seen

    def role(self) -> Role | None:
        seen = self.watcher.seen
        return seen.role if isinstance(seen, RoleSeen) else None

    def cause(self) -> Cause | None:
        seen = self.watcher.seen
        return seen.cause if isinstance(seen, Absent) else None

    async def sleep_well(self) -> None:
        self.demand.refresh(self.clock.now().mono_s + 700)
        assert self.demand.state is Activity.HIBERNATING
        await self.clock.advance(1)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def test_never_read_is_no_role() -> None:
    world = World()
    assert world.cause() is Cause.NEVER_READ
    await settle()
    await world.close()


async def test_a_promotion_is_seen_within_one_interval(world: World) -> None:
    world.server.says = replica(term=1)
    await world.clock.advance(1)
    assert world.role() is Role.REPLICA
    world.server.says = primary(term=2)
    await world.clock.advance(0.25)
    assert world.role() is Role.PRIMARY


async def test_each_reading_is_sent_since_ages_count(world: World) -> None:
    await world.clock.advance(1.1)
    assert len(world.changes) == 5 and world.server.reads == 5
    assert world.demand.costs[(Activity.AWAKE, Work.PROBES)] == 5


async def test_a_lost_connection_voids_the_role_at_once(world: World) -> None:
    """Not from the next question on: a primary that goes away is none from that moment."""
    await world.clock.advance(0.1)
    assert world.role() is Role.PRIMARY
    world.server.says = ProbeFailed(Cause.FAILED, "connection refused")
    before = len(world.changes)
    world.server.hang_up()
    await settle()
    lost, rejected = world.changes[before:]
    assert isinstance(lost, Absent) and lost.cause is Cause.UNREACHABLE
    assert isinstance(rejected, Absent) and rejected.cause is Cause.FAILED
    assert world.role() is None


async def test_a_server_that_is_down_is_not_probed_faster_than_usual(world: World) -> None:
    """A lost connection is read again at once, once."""
    await world.clock.advance(0.1)
    world.server.says = ProbeFailed(Cause.FAILED, "connection refused")
    world.server.hang_up()
    await settle()
    before = world.server.reads
    await world.clock.advance(1.01)
    assert world.server.reads - before <= 5


async def test_a_failed_reading_is_no_role_and_a_good_one_brings_it_back(world: World) -> None:
    await world.clock.advance(0.1)
    world.server.says = ProbeFailed(Cause.FAILED, "starting up")
    await world.clock.advance(0.25)
    assert world.cause() is Cause.FAILED
    world.server.says = primary()
    await world.clock.advance(0.25)
    assert world.role() is Role.PRIMARY


async def test_a_hung_probe_is_given_up_and_voids_the_role(world: World) -> None:
    """R26"""
    await world.clock.advance(0.1)
    world.server.says = None
    await world.clock.advance(0.25)
    await aeventually(lambda: world.cause() is Cause.TIMED_OUT)
    seen = world.seen()
    assert isinstance(seen, Absent) and "0.05 s" in seen.detail


async def test_a_hung_probe_is_not_believed_past_the_age_limit(world: World) -> None:
    """What it said before it hung is dated."""
    await world.clock.advance(0.1)
    seen = world.seen()
    assert isinstance(seen, RoleSeen)
    assert world.watcher.max_age_s == world.watcher.strict_age_s == pytest.approx(0.55)


async def test_hibernation_stops_the_reading(world: World) -> None:
    """R62"""
    await world.sleep_well()
    before = world.server.reads
    await world.clock.advance(3600)
    assert world.server.reads == before


async def test_a_check_after_hibernation_reads_at_once(world: World) -> None:
    """R58"""
    await world.sleep_well()
    await world.clock.advance(1000)
    before = world.server.reads
    world.server.says = replica(term=2)
    world.demand.wake(world.clock.now().mono_s)
    await settle()
    assert world.server.reads == before + 1 and world.role() is Role.REPLICA


async def test_a_connection_lost_while_hibernating_voids_the_role_and_wakes_nobody(
    world: World,
) -> None:
    """R57, R62"""
    await world.sleep_well()
    before = world.server.reads
    world.server.hang_up()
    await settle()
    assert world.cause() is Cause.UNREACHABLE
    await world.clock.advance(3600)
    assert world.server.reads == before
    world.demand.wake(world.clock.now().mono_s)
    await settle()
    assert world.role() is Role.PRIMARY


async def test_an_idle_watcher_may_be_older_but_no_answer_depends_on_that(world: World) -> None:
    world.demand.refresh(world.clock.now().mono_s + 100)
    assert world.demand.state is Activity.IDLE
    assert world.watcher.max_age_s == pytest.approx(5.05)
    assert world.watcher.strict_age_s == pytest.approx(0.55)


async def test_stopping_closes_the_connection(world: World) -> None:
    await settle()
    await world.close()
    assert world.server.closed == 1
