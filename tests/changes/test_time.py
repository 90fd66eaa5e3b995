"""A change that ends gets back none of its time, whatever its kind and the clock (R87)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.base.keyvalue import Listing
from headgate.changes.model import NOTES
from headgate.changes.reach import EVERYWHERE, HERE, Level, Place, Reach
from headgate.errors import StoreUnavailable
from tests.budgets.budget_world import ETL, BudgetWorld, document
from tests.changes import verbs
from tests.changes.own_world import OwnLog
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_store import MemoryStore
from tests.metrics import test_reaching as metrics
from tests.shard.shard_world import SHARD, ShardWorld

FOR_S = 600.0
OF_SHARD = Reach(Level.SHARD, SHARD)


class Metric:
    """A threshold, for this agent or for its shard."""

    def __init__(self, store: MemoryStore, reach: str) -> None:
        self.world = metrics.World(store)
        self.log, self.clock = self.world.log, self.world.clock
        self.start, self._reach = self.world.start, reach

    async def set(self) -> None:
        raw = {"threshold": "2s", "for": f"{FOR_S:.0f}s"}
        book = self.world.book if self._reach == str(HERE) else self.world.wide(self._reach)
        await book.patch("main", "lag", raw, who="ops")

    async def is_in_force(self) -> bool:
        await self.world.book.tick()
        return self.world.threshold() == 2

    async def close(self) -> None:
        await self.world.book.close()


class Skipped:
    def __init__(self, store: MemoryStore, reach: Reach) -> None:
        self.world = ShardWorld("db-b", "db-c", store=store, reach=reach)
        self.log, self.clock = self.world.log, self.world.clock
        self.start, self.close = self.world.start, self.world.close

    async def set(self) -> None:
        await self.world.shards.keeper.skip(
            "main", "db-c", for_s=FOR_S, reason="rebuilt", who="ops"
        )

    async def is_in_force(self) -> bool:
        return bool(self.world.shards.keeper.skips("main"))


class HandedOver(Skipped):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, HERE)

    async def set(self) -> None:
        await self.world.shards.keeper.hand_over("main", for_s=FOR_S, reason="upgrade", who="ops")

    async def is_in_force(self) -> bool:
        handover = self.world.shards.each[SHARD].handover
        return handover is not None and handover.holds(self.clock.now().mono_s)


class Budget:
    """A budget, for this agent or for all."""

    def __init__(self, store: MemoryStore, reach: Reach) -> None:
        self.world = BudgetWorld(store=store, base={})
        self.log, self.clock = self.world.log, self.world.clock
        self.start, self._reach = self.world.start, reach

    async def set(self) -> None:
        raw = {**ETL, "expires_at": self.clock.now().wall_s + FOR_S}
        if self._reach == HERE:
            await self.world.main.book.set_budget("etl", raw, who="ops")
        else:
            await verbs.set_budget(self.log.book, "etl", raw, reach=self._reach, who="ops")

    async def is_in_force(self) -> bool:
        await self.world.budgets.tick()
        wall_ms = int(self.clock.now().wall_s * 1000)
        policy = self.world.main.edition.in_force(wall_ms)
        return [budget.name for budget in policy.budgets] == ["etl"]

    async def close(self) -> None: ...


class BudgetOfTheFile(Budget):
    """One of the settings file, that is to end by what was changed here."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, HERE)
        self.world.base = document(ETL)

    async def set(self) -> None:
        ends = {"expires_at": self.clock.now().wall_s + FOR_S}
        await self.world.main.book.patch_budget("etl", ends, who="ops")


class HidingNotes(MemoryStore):
    is_hiding = False

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        if self.is_hiding and NOTES in prefixes:
            raise StoreUnavailable("the disk hangs")
        return await super().list(prefixes, allow_stale=allow_stale)


class RuleSet:
    """A rule, for this agent or for its shard."""

    def __init__(self, store: MemoryStore, reach: Reach) -> None:
        self.clock, self._store = HandClock(), store
        self.log = OwnLog(store, self.clock, places=(Place(database="main", shard=SHARD),))
        self._reach = reach

    async def start(self) -> None:
        await self._store.open()
        await self.log.load()

    async def set(self) -> None:
        raw = {"id": "half", "target": "etl", "ratio": 0.5, "for": f"{FOR_S:.0f}s"}
        if self.log.book.held.rule("half") is None:
            await verbs.put_rule(self.log.book, raw, reach=self._reach, who="ops")
        else:
            await verbs.patch_rule(self.log.book, "half", {"for": raw["for"]}, who="ops")

    async def is_in_force(self) -> bool:
        return any(rule.in_force(self.clock.now().wall_s) for rule in self.log.rules.book.rules)

    async def close(self) -> None: ...


KINDS: dict[str, Callable[[MemoryStore], Any]] = {
    "rule of this agent": lambda store: RuleSet(store, HERE),
    "rule of a shard": lambda store: RuleSet(store, OF_SHARD),
    "metric of this agent": lambda store: Metric(store, str(HERE)),
    "metric of a shard": lambda store: Metric(store, metrics.SHARD),
    "skip of this agent": lambda store: Skipped(store, HERE),
    "skip of a shard": lambda store: Skipped(store, OF_SHARD),
    "handover": HandedOver,
    "budget of this agent": lambda store: Budget(store, HERE),
    "budget of a shard": lambda store: Budget(store, OF_SHARD),
    "budget of all": lambda store: Budget(store, EVERYWHERE),
    "budget of the settings file": BudgetOfTheFile,
}


@pytest.fixture(params=KINDS)
def open_agent(request: pytest.FixtureRequest) -> Callable[[MemoryStore, float], Any]:
    @asynccontextmanager
    async def opened(store: MemoryStore, wall_by_s: float = 0.0) -> AsyncIterator[Any]:
        agent = KINDS[request.param](store)
        agent.clock.set_wall(wall_by_s)
        await agent.start()
        notes = asyncio.create_task(agent.log.rules.run())
        try:
            yield agent
        finally:
            notes.cancel()
            await agent.close()

    return opened


async def is_listed(agent: Any) -> bool:
    """By `headgate changes`, and in the file that it writes."""
    book, wall_s = agent.log.book, agent.clock.now().wall_s
    listed = (await book.items()).standing(wall_s)
    written = await book.export()
    assert bool(listed) is any([*written.document.values(), written.left_out])
    return bool(listed)


async def pass_s(agent: Any, seconds: float) -> None:
    for _ in range(int(seconds // 5)):
        await agent.clock.leap(5)


async def test_what_was_used_up_before_a_restart_stays_used_up(open_agent: Any) -> None:
    store = MemoryStore()
    async with open_agent(store) as agent:
        await agent.set()
        await pass_s(agent, 400)
        assert await agent.is_in_force()
    async with open_agent(store, -7200) as again:
        await pass_s(again, 150)
        assert await again.is_in_force()
        await pass_s(again, 80)
        assert not await again.is_in_force()


async def test_what_has_ended_stays_so_after_a_restart(open_agent: Any) -> None:
    store = MemoryStore()
    async with open_agent(store) as agent:
        await agent.set()
        await pass_s(agent, 620)
        assert not await agent.is_in_force()
        assert not await is_listed(agent)
    async with open_agent(store, -7200) as again:
        assert not await again.is_in_force()
        assert not await is_listed(again)


async def test_a_clock_that_is_set_back_meanwhile_gives_no_more_time(open_agent: Any) -> None:
    async with open_agent(MemoryStore()) as agent:
        await agent.set()
        agent.clock.set_wall(-7200)
        await pass_s(agent, 580)
        assert await agent.is_in_force()
        assert await is_listed(agent)
        await pass_s(agent, 30)
        assert not await agent.is_in_force()
        assert not await is_listed(agent)


async def test_notes_that_come_late_count_as_well(open_agent: Any) -> None:
    """The own disk hung while they were to be read."""
    store = HidingNotes()
    async with open_agent(store) as agent:
        await agent.set()
        await pass_s(agent, 620)
    store.is_hiding = True
    async with open_agent(store, -7200) as again:
        store.is_hiding = False
        await again.log.load()
        assert not await again.is_in_force()


async def test_set_again_it_has_all_of_its_time(open_agent: Any) -> None:
    store = MemoryStore()
    async with open_agent(store) as agent:
        await agent.set()
        await pass_s(agent, 400)
        await agent.set()
        await pass_s(agent, 400)
        assert await agent.is_in_force()


async def replaced(agent: Any) -> int:
    """Set, and after most of its time set again; the revision to go back to."""
    await agent.set()
    n: int = (await agent.log.book.items()).n
    await pass_s(agent, 400)
    await agent.set()
    await pass_s(agent, 10)
    return n


async def test_one_that_was_replaced_comes_back_with_what_is_left_of_it(open_agent: Any) -> None:
    """Whatever became of the clock and of the agent since."""
    store = MemoryStore()
    async with open_agent(store) as agent:
        n = await replaced(agent)
    async with open_agent(store, -7200) as again:
        await pass_s(again, 10)
        if not (await again.log.book.rollback(n, who="ops")).changes:
            return  # A switchover is not announced again.
        await pass_s(again, 150)
        assert await again.is_in_force()
        await pass_s(again, 60)
        assert not await again.is_in_force()


async def test_one_that_was_replaced_and_has_ended_since_does_not_come_back(
    open_agent: Any,
) -> None:
    store = MemoryStore()
    async with open_agent(store) as agent:
        n = await replaced(agent)
        await pass_s(agent, 250)
    async with open_agent(store, -7200) as again:
        await pass_s(again, 10)
        assert await again.is_in_force()
        made = await again.log.book.rollback(n, who="ops")
        assert [one.code for one in made.advice] == ["over"]
        assert not await is_listed(again)
