"""What the fleet says, put in force: when it is told to be, and how often that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.inforce import LONGEST_PAUSE_S, SharedInForce
from headgate.changes.model import Change
from headgate.changes.reach import Place
from headgate.changes.state import item_bytes
from headgate.fleet.members import FleetMember
from tests.changes.fleetfakes import FakeReader, Follow, item, set_items, wide, write_beat
from tests.fixtures.fakes import settle
from tests.fixtures.memory_log import KeptInMemory


class Rules:
    """Takes as long as it is told to, by the clock that is wound by hand."""

    def __init__(self, follow: Follow) -> None:
        self._clock = follow.clock
        self.takes_s = 0.0
        self.fault: Exception | None = None
        self.followed: list[set[str]] = []

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        if self.takes_s:
            await self._clock.sleep(self.takes_s)
        if self.fault is not None:
            raise self.fault
        self.followed.append({one.id for one in items})


class World:
    def __init__(self) -> None:
        self.kept = KeptInMemory()
        self.follow = Follow(FakeReader(self.kept))
        self.rules = Rules(self.follow)
        self.found: list[Sequence[FleetMember]] = []
        self.in_force = SharedInForce(
            self.follow.follower,
            self.follow.clock,
            (self.rules,),
            places=lambda: (),
            found=self.found.append,
        )

    async def __aenter__(self) -> World:
        await self.follow.__aenter__()
        self._task = asyncio.ensure_future(self.in_force.run())
        await self.follow.pass_s(1.0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.follow.__aexit__()


async def test_n_is_reported_once_it_is_in_force() -> None:
    """Anyone who waits for it after a change may rely on it."""
    async with World() as world:
        world.rules.takes_s = 0.5
        n = set_items(world.kept, item("f-1"))
        await settle()
        assert world.follow.follower.state().n == n
        assert world.in_force.state().n == 0
        await world.follow.pass_s(1.0)
        assert world.in_force.state().n == world.in_force.n == n
        assert world.rules.followed[-1] == {"f-1"}


async def test_an_n_of_other_shards_is_reported_with_the_beat_and_never_taken_back() -> None:
    async with World() as world:
        for _ in range(3):
            set_items(world.kept)
        write_beat(world.kept)
        await settle()
        assert world.in_force.state().n == 3
        assert world.in_force.n == 0  # Nothing is written anew to the registry for it.
        world.rules.takes_s = 0.5
        set_items(world.kept, item("f-1"))
        await settle()
        assert world.in_force.state().n == 3


async def test_many_revisions_are_put_in_force_a_few_at_a_time() -> None:
    async with World() as world:
        before, world.rules.takes_s = len(world.rules.followed), 0.25
        for number in range(40):
            set_items(world.kept, item(f"f-{number}"))
            await world.follow.pass_s(0.1, step_s=0.1)
        await world.follow.pass_s(2 * LONGEST_PAUSE_S)
        assert len(world.rules.followed) - before <= 4.0 / (0.25 + LONGEST_PAUSE_S) + 2
        assert len(world.rules.followed[-1]) == 40


async def test_what_failed_is_tried_again_without_anything_new() -> None:
    async with World() as world:
        world.rules.fault = RuntimeError("not now")
        set_items(world.kept, item("f-1"))
        with pytest.raises(RuntimeError):
            await world._task
        world.rules.fault = None
        world._task = asyncio.ensure_future(world.in_force.run())
        await settle()
        assert world.rules.followed[-1] == {"f-1"}


async def test_what_cannot_be_read_is_reported_by_its_key() -> None:
    async with World() as world:
        stray = item("hidden")
        world.kept.commit([], [Put(wide("stray"), item_bytes(stray))])
        await world.follow.pass_s(0.5)
        assert list(world.in_force.faults) == [wide("stray")]
        assert world.rules.followed[-1] == set()
