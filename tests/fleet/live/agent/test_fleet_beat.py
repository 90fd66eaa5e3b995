"""The beat: one writer goes on, someone steps in, nobody stampedes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random

from headgate.base.keyvalue import Put
from headgate.changes.beat import LogBeat
from headgate.changes.model import BEAT, SHARDS
from headgate.errors import OutcomeUnknown
from headgate.fleet.beat import Beat, beat_bytes, read_beat
from tests.changes.fleetfakes import FakeReader, Follow, item, set_items
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_log import KeptInMemory, MemoryLog


class Counting(MemoryLog):
    def __init__(self, kept: KeptInMemory, name: str = "etcd") -> None:
        super().__init__(kept, name=name)
        self.commits = self.counts = 0
        self.unknown = False

    async def commit(self, *given, **more):  # type: ignore[no-untyped-def]
        self.commits += 1
        revision = await super().commit(*given)
        if self.unknown:
            raise OutcomeUnknown("etcd: no answer in 2 s")
        return revision

    async def count(self, prefix: str) -> int:
        self.counts += 1
        return await super().count(prefix)


class Beaters:
    """Agents that follow one store directly, on one clock."""

    def __init__(self, *names: str, before: Sequence[Put] = ()) -> None:
        self.kept, self.clock = KeptInMemory(), HandClock()
        self.kept.commit([], before)
        self.stores = {name: Counting(self.kept) for name in names}
        self.follows, self.beats = {}, {}
        for seed, (name, store) in enumerate(self.stores.items()):
            roll = Random(seed).random
            follow = Follow(store, clock=self.clock, roll=roll)
            self.follows[name] = follow
            self.beats[name] = LogBeat(store, follow.follower, self.clock, roll, by=name)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Beaters:
        for name, follow in self.follows.items():
            await self._stack.enter_async_context(follow)
            self._tasks[name] = asyncio.ensure_future(self.beats[name].run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        for name in list(self._tasks):
            await self.stop(name)
        await self._stack.aclose()

    async def stop(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.wait({task})

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            await self.clock.advance(0.5)
            await settle()

    def last(self) -> Beat:
        return read_beat(self.kept.listing([BEAT]).entries[0].value)


async def test_one_agent_alone_beats_every_interval() -> None:
    async with Beaters("a") as fleet:
        await fleet.pass_s(21)
        assert 8 <= fleet.beats["a"].beats_total <= 11
        assert fleet.follows["a"].follower.state().losses_total == 0


async def test_among_many_one_writes_and_the_others_listen() -> None:
    async with Beaters(*"abcdefgh") as fleet:
        await fleet.pass_s(60)
        totals = [beat.beats_total for beat in fleet.beats.values()]
        assert 25 <= sum(totals) <= 32
        assert max(totals) >= sum(totals) - 1
        assert sum(store.commits for store in fleet.stores.values()) <= sum(totals) + 7
        assert all(f.follower.state().losses_total == 0 for f in fleet.follows.values())


async def test_when_the_writer_dies_another_steps_in_before_anybody_calls_it_silence() -> None:
    async with Beaters(*"abcd") as fleet:
        await fleet.pass_s(20)
        writer = fleet.last().by
        await fleet.stop(writer)
        await fleet.pass_s(20)
        assert fleet.last().by != writer
        assert all(f.follower.state().losses_total == 0 for f in fleet.follows.values())


async def test_few_that_are_left_of_a_large_fleet_do_not_let_the_beat_die() -> None:
    """Their turns lie far apart, for the beat says that there are many; and nobody is taken for
    silent in between, where nothing was written."""
    gone = beat_bytes(Beat("gone", 0.0, 10_000, 0))
    async with Beaters("a", "b", before=[Put(BEAT, gone)]) as fleet:
        await fleet.pass_s(300)
        assert sum(beat.beats_total for beat in fleet.beats.values()) > 10
        assert not any(f.follower.is_stale for f in fleet.follows.values())


async def test_shards_are_counted_once_a_minute_and_reported_to_all() -> None:
    async with Beaters("a", "b") as fleet:
        for number in range(7):
            fleet.kept.commit([], [Put(f"{SHARDS}s{number}", b"{}")])
        await fleet.pass_s(59)
        assert [f.follower.shards for f in fleet.follows.values()] == [7, 7]
        assert sum(store.counts for store in fleet.stores.values()) <= 2


async def test_the_beat_says_how_far_the_fleet_is_to_those_that_it_does_not_apply_to() -> None:
    async with Beaters("a") as fleet:
        await fleet.pass_s(4)
        set_items(fleet.kept, item("f-1"))
        set_items(fleet.kept)
        await fleet.pass_s(3)
        assert fleet.follows["a"].follower.state().n == 2


async def test_who_follows_another_agent_does_not_beat() -> None:
    kept, clock = KeptInMemory(), HandClock()
    store = Counting(kept)
    async with Follow(FakeReader(kept, "agent a"), store, clock=clock) as follow:
        beat = LogBeat(store, follow.follower, clock, lambda: 0.5, by="b")
        task = asyncio.ensure_future(beat.run())
        await follow.pass_s(4.0)
        assert follow.follower.state().source == "agent a"
        assert store.commits == 0
        task.cancel()
        await asyncio.wait({task})


async def test_a_beat_whose_outcome_is_not_known_is_reported_and_tried_at_the_next_turn() -> None:
    async with Beaters("a") as fleet:
        await fleet.pass_s(3)
        fleet.stores["a"].unknown = True
        await fleet.pass_s(4)
        assert "no answer" in fleet.beats["a"].fault
        fleet.stores["a"].unknown = False
        await fleet.pass_s(6)
        assert fleet.beats["a"].fault == ""
        assert fleet.follows["a"].follower.state().losses_total == 0
