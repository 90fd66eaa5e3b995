"""A primary that becomes read only without a word is seen to, soon, while anybody asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from headgate.check.demand import Demand
from headgate.check.model import Idleness
from headgate.errors import ProbeFailed
from headgate.metrics.samples import Absent, Cause
from headgate.shard.roles import AGAIN_S, LOOK_EVERY_S, FenceWatcher, RoleWatcher
from headgate.shard.topology import Role, RoleSeen
from tests.fixtures.fakes import FakeRole, HandClock, primary, replica

AWAY = ProbeFailed(Cause.FAILED, "too many connections")


@dataclass
class FakeFence:
    says: bool | ProbeFailed = True
    reads: int = 0
    closed: int = 0

    async def read(self) -> bool:
        self.reads += 1
        if isinstance(self.says, ProbeFailed):
            raise self.says
        return self.says

    async def close(self) -> None:
        self.closed += 1


class World:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.demand = Demand("main", Idleness(idle_after_s=60, hibernate_after_s=600), self.clock)
        self.server = FakeRole(self.clock, primary(term=None))
        self.probe = FakeFence()
        self.watcher = RoleWatcher(
            "main", self.server, self.clock, self.demand, interval_s=0.25, timeout_s=0.05
        )
        self.fence = FenceWatcher(self.watcher, self.probe, self.clock, self.demand)
        self.tasks = [
            asyncio.create_task(self.watcher.run()),
            asyncio.create_task(self.fence.run()),
        ]

    def role(self) -> Role | None:
        return self.watcher.seen.role if isinstance(self.watcher.seen, RoleSeen) else None

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.clock.advance(0.01)
    yield world
    await world.close()


async def test_a_server_that_becomes_read_only_is_no_primary_from_the_next_look_on(
    world: World,
) -> None:
    assert world.role() is Role.PRIMARY
    world.probe.says, world.server.says = False, replica(term=None)
    await world.clock.advance(LOOK_EVERY_S)
    assert world.role() is Role.REPLICA, "and its role was read again at once"


async def test_a_role_that_was_read_before_the_look_is_not_believed_after_it(
    world: World,
) -> None:
    """A reading takes its time: what it says is of when it began."""
    began = world.clock.now().mono_s
    world.watcher.void("read only")
    old = primary(term=None)
    world.watcher._publish(RoleSeen(old.role, began))
    assert isinstance(world.watcher.seen, Absent)


async def test_only_a_primary_is_looked_at_and_only_while_a_client_checks(world: World) -> None:
    await world.clock.advance(1)
    assert 35 <= world.probe.reads <= 45
    world.server.says = replica(term=None)
    await world.clock.advance(0.5)
    before = world.probe.reads
    await world.clock.advance(5)
    assert world.probe.reads == before
    world.server.says = primary(term=None)
    await world.clock.advance(0.5)
    assert world.probe.reads > before
    await world.clock.advance(60)
    world.demand.refresh(world.clock.now().mono_s)
    before = world.probe.reads
    await world.clock.advance(30)
    assert world.probe.reads == before, "nobody has asked for a minute"


async def test_a_look_that_fails_is_reported_and_voids_nothing(world: World) -> None:
    world.probe.says = AWAY
    await world.clock.advance(LOOK_EVERY_S)
    before = world.probe.reads
    assert world.fence.fault == AWAY.detail and world.role() is Role.PRIMARY
    await world.clock.advance(AGAIN_S * 5 + 0.01)
    assert world.probe.reads - before == 5
    world.probe.says = True
    await world.clock.advance(AGAIN_S)
    assert world.fence.fault == ""


async def test_it_closes_with_its_loop(world: World) -> None:
    await world.close()
    assert world.probe.closed == 1


# --- the heartbeat's own write -------------------------------------------------------------------


async def test_a_rejected_heartbeat_voids_the_role_until_one_is_written(world: World) -> None:
    """Whatever the server's settings say of it meanwhile."""
    world.watcher.write_rejected("running with --read-only")
    assert world.role() is None
    await world.clock.advance(1)
    assert world.role() is None and "--read-only" in str(world.watcher.seen)
    world.watcher.write_done()
    await world.clock.advance(0.01)
    assert world.role() is Role.PRIMARY


async def test_a_server_that_calls_itself_a_replica_is_believed_at_once(world: World) -> None:
    world.server.says = replica(term=None)
    world.watcher.write_rejected("running with --read-only")
    await world.clock.advance(0.01)
    assert world.role() is Role.REPLICA
    world.server.says = primary(term=None)
    await world.clock.advance(0.25)
    assert world.role() is Role.PRIMARY
