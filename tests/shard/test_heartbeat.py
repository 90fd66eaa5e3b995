"""Beats are leased by demand, end with a word, and never hang the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.check.demand import Demand, Work
from headgate.check.model import Activity, Idleness
from headgate.errors import ProbeFailed, WriteRejected
from headgate.metrics.samples import Cause
from headgate.shard.heartbeat import FAREWELL_TRIES, Heartbeat
from tests.builders import check
from tests.fixtures.eventually import aeventually
from tests.fixtures.fakes import FakeWriter, HandClock, settle

STALLED = ProbeFailed(Cause.FAILED, "disk full")


class World:
    def __init__(self, *, lease_s: float = 5.0, hibernate_after_s: float = 600.0) -> None:
        self.clock = HandClock()
        idleness = Idleness(idle_after_s=60, hibernate_after_s=hibernate_after_s)
        self.demand = Demand("main", idleness, self.clock)
        self.writer = FakeWriter()
        self.replica = False
        self.heart = Heartbeat(
            "main",
            self.writer,
            self.clock,
            self.demand,
            interval_s=0.5,
            lease_s=lease_s,
            stands_aside=lambda: self.replica,
        )
        self.task = asyncio.create_task(self.heart.run())

    def leased(self) -> bool:
        return self.heart.leased

    def fault(self) -> str | None:
        return self.heart.fault

    def ask(self) -> None:
        self.demand.note(check(), None, self.clock.now().mono_s)

    async def pass_s(self, seconds: float) -> None:
        """With the agent's tick, once a second."""
        for _ in range(int(seconds)):
            await self.clock.advance(1)
            self.demand.refresh(self.clock.now().mono_s)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def test_binlog_bloat_beats_end_with_their_lease(world: World) -> None:
    """R57, R60"""
    await world.clock.advance(4.9)
    assert world.writer.beats == [False] * 10
    await world.clock.advance(60)
    assert world.writer.beats == [*[False] * 10, True]


async def test_the_last_beat_says_that_it_is_the_last_once(world: World) -> None:
    """So that replicas do not take the silence for lag."""
    await world.clock.advance(60)
    assert world.writer.beats.count(True) == 1 and world.writer.beats[-1]


async def test_checks_renew_the_lease(world: World) -> None:
    """R60"""
    for _ in range(20):
        await world.clock.advance(1)
        world.ask()
    assert True not in world.writer.beats and len(world.writer.beats) >= 40


async def test_checks_at_another_member_renew_the_lease(world: World) -> None:
    """R60: a client of a replica wants its lag."""
    await world.clock.advance(20)
    assert not world.leased()
    world.heart.renew(world.clock.now().mono_s - 1)
    assert world.leased()
    before = len(world.writer.beats)
    await world.clock.advance(3)
    assert set(world.writer.beats[before:]) == {False}
    await world.clock.advance(60)
    assert world.writer.beats[-1] and world.writer.beats.count(True) == 2


async def test_an_older_check_does_not_shorten_the_lease(world: World) -> None:
    now = world.clock.now().mono_s
    world.heart.renew(now + 20)
    world.heart.renew(now - 100)
    await world.clock.advance(20)
    assert world.heart.leased


async def test_a_farewell_that_fails_is_tried_a_few_times_only(world: World) -> None:
    await world.clock.advance(4.9)
    world.writer.fault = STALLED
    await world.clock.advance(60)
    assert world.writer.beats.count(True) == FAREWELL_TRIES
    assert world.heart.fault == "disk full"


async def test_a_farewell_is_said_although_the_database_hibernates_first() -> None:
    """A lease longer than the time to hibernation ends with it; the word is not lost."""
    world = World(lease_s=3600, hibernate_after_s=10)
    await world.pass_s(9)
    world.writer.fault = STALLED
    await world.pass_s(3)
    assert world.demand.state is Activity.HIBERNATING
    world.writer.fault = None
    await world.pass_s(10)
    assert world.writer.beats[-1] is True and world.heart.fault is None
    await world.close()


async def test_a_hibernating_database_has_no_beats() -> None:
    """R62"""
    world = World(lease_s=5, hibernate_after_s=10)
    await world.pass_s(30)
    assert world.demand.state is Activity.HIBERNATING
    before = len(world.writer.beats)
    await world.pass_s(100)
    assert len(world.writer.beats) == before
    assert not world.demand.costs[(Activity.HIBERNATING, Work.BEATS)]
    await world.close()


async def test_a_wake_beats_at_once() -> None:
    """R58, R59"""
    world = World(lease_s=5, hibernate_after_s=10)
    await world.pass_s(20)
    before = len(world.writer.beats)
    world.demand.wake(world.clock.now().mono_s)
    await settle()
    assert world.writer.beats[before:] == [False]
    await world.close()


async def test_heartbeat_writer_on_the_wrong_host_none_on_a_replica(world: World) -> None:
    """R21: a beat written on a replica would hide the lag of everything below it."""
    world.replica = True
    before = len(world.writer.beats)
    await world.clock.advance(10)
    assert len(world.writer.beats) == before
    world.replica = False
    world.ask()
    await world.clock.advance(1)
    assert len(world.writer.beats) > before


async def test_a_demoted_primary_says_no_farewell_on_its_replica(world: World) -> None:
    await world.clock.advance(1)
    world.replica = True
    await world.clock.advance(60)
    assert True not in world.writer.beats


async def test_a_lease_of_0_beats_forever() -> None:
    """R60: also for readers that no agent knows of, and through hibernation."""
    world = World(lease_s=0, hibernate_after_s=10)
    await world.pass_s(30)
    assert world.demand.state is Activity.HIBERNATING
    before = len(world.writer.beats)
    await world.pass_s(10)
    assert len(world.writer.beats) == before + 20 and True not in world.writer.beats
    await world.close()


async def test_what_depends_on_it_keeps_it_beating(world: World) -> None:
    """R61"""
    world.demand.keep_awake("budgets")
    await world.pass_s(60)
    assert True not in world.writer.beats and len(world.writer.beats) >= 118


async def test_a_stalled_commit_is_given_up_never_waited_out(world: World) -> None:
    """A semi-sync primary without its replica must not hang the agent."""
    world.heart._timeout_s = 0.02  # Of the real clock: a second of it would be lost here.
    await settle()
    written = world.heart.beats_total
    world.writer.hangs = True
    await world.clock.advance(0.5)
    await aeventually(world.fault)
    assert world.fault() == "not written within 0.02 s"
    world.writer.hangs = False
    await world.clock.advance(0.5)
    assert world.fault() is None and world.heart.beats_total == written + 1


async def test_only_beats_that_were_written_are_counted() -> None:
    """R62: the writer found a replica, and wrote nothing."""
    world = World()
    world.writer.is_primary = False
    await world.clock.advance(2)
    assert world.writer.beats and world.heart.beats_total == 0
    assert not world.demand.costs[(Activity.AWAKE, Work.BEATS)]
    await world.close()


async def test_a_fault_is_reported_and_ends(world: World) -> None:
    world.writer.fault = STALLED
    await world.clock.advance(1)
    assert world.fault() == "disk full"
    world.writer.fault = None
    await world.clock.advance(1)
    assert world.fault() is None


async def test_stopping_closes_the_writer(world: World) -> None:
    await settle()
    await world.close()
    assert world.writer.closed


async def test_a_server_that_takes_no_writes_is_reported_and_one_that_does_again(
    world: World,
) -> None:
    told: list[str] = []
    world.heart.on_rejected, world.heart.on_written = told.append, lambda: told.append("written")
    world.writer.fault = WriteRejected(Cause.FAILED, "--read-only")
    await world.clock.advance(0.6)
    assert told[-1] == "--read-only" and world.fault() == "--read-only"
    world.writer.fault, world.writer.is_primary = None, False
    await world.clock.advance(0.5)
    assert told[-1] == "it says that it is not a primary"
    world.writer.is_primary = True
    await world.clock.advance(0.5)
    assert told[-1] == "written" and world.fault() is None
