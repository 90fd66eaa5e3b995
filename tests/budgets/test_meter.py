"""What servers count, as minutes: exact, bounded, and never negative."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.base.names import OTHER
from headgate.budgets import meter as budgetmeter
from headgate.budgets.meter import BudgetWatch, ViolationMinutes, total_of
from headgate.budgets.readings import BudgetCounts
from headgate.errors import StoreUnavailable
from headgate.history.records import BudgetMinute
from tests.budgets.budget_world import BudgetWorld
from tests.builders import NOW
from tests.fixtures.memory_store import MemoryStore

MINUTE = int(NOW.wall_s // 60)
LATER_MS = int(NOW.wall_s * 1000) + 5000


async def kept(world: BudgetWorld) -> list[tuple[int, str, str, str, int]]:
    found = await world.store.history.budget_minutes(since_minute=0, until_minute=10**9)
    return [(m.minute - MINUTE, m.budget, m.what, m.limit, m.count) for m in found]


def blocked(count: int, limit: str = "capacity", **more: int) -> BudgetCounts:
    return BudgetCounts(blocked={limit: count}, **more)  # type: ignore[arg-type]


async def test_what_came_between_two_looks_is_kept_by_the_minute() -> None:
    """R137"""
    world = await BudgetWorld().start()
    world.server.counts(etl=blocked(7))
    await world.budgets.tick()
    assert await kept(world) == [], "when those seven came, nobody knows"
    world.server.counts(
        etl=BudgetCounts(blocked={"capacity": 9, "burst": 1}, warned={"threshold": 4}, delayed=2)
    )
    await world.budgets.tick()
    world.clock._step(60)
    world.server.counts(etl=blocked(10), new=blocked(3))
    await world.budgets.tick()
    assert await kept(world) == [
        (0, "etl", "blocked", "burst", 1),
        (0, "etl", "blocked", "capacity", 2),
        (0, "etl", "delayed", "", 2),
        (0, "etl", "warned", "threshold", 4),
        (1, "etl", "blocked", "capacity", 1),
        (1, "new", "blocked", "capacity", 3),
    ]


async def test_counters_that_restart_after_a_crash_are_never_negative() -> None:
    world = await BudgetWorld().start()
    world.server.counts(etl=blocked(100))
    await world.budgets.tick()
    world.server.reads = "the server is not running"
    await world.budgets.tick()
    assert world.main.watch is not None and world.main.watch.readings is None
    world.server.counts(started_ms=2, etl=blocked(2))
    await world.budgets.tick()
    world.server.counts(started_ms=2, etl=blocked(1))
    await world.budgets.tick()
    assert await kept(world) == [(0, "etl", "blocked", "capacity", 3)]


async def test_of_a_server_that_is_younger_than_the_agent_everything_counts() -> None:
    world = await BudgetWorld().start()
    world.clock._step(10)
    world.server.counts(started_ms=LATER_MS, etl=blocked(5))
    await world.budgets.tick()
    assert await kept(world) == [(0, "etl", "blocked", "capacity", 5)]


async def test_what_cannot_be_read_is_reported_and_is_no_zero() -> None:
    world = await BudgetWorld().start()
    watch = world.main.watch
    assert watch is not None
    assert (watch.fault, watch.readings, list(watch.labelled())) == ("not running", None, [])
    world.server.counts(etl=blocked(1))
    await world.budgets.tick()
    assert watch.fault == "" and watch.readings is not None


class AwayStore(MemoryStore):
    away = True

    async def add_budget_minutes(self, minutes: object) -> None:
        if self.away:
            raise StoreUnavailable("disk is full")
        await super().add_budget_minutes(minutes)  # type: ignore[arg-type]


async def test_violations_wait_for_a_store_that_is_away() -> None:
    store = AwayStore()
    world = await BudgetWorld(store=store).start()
    for count in (1, 3, 6):
        world.server.counts(etl=blocked(count))
        await world.budgets.tick()
    assert await kept(world) == []
    store.away = False
    await world.budgets.tick()
    assert await kept(world) == [(0, "etl", "blocked", "capacity", 5)]


def test_rows_and_what_waits_are_bounded_and_sums_stay_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R135"""
    monkeypatch.setattr(budgetmeter, "MAX_ROWS_A_MINUTE", 3)
    minutes = ViolationMinutes("main")
    minutes.add([((f"b{n}", "blocked", "burst"), 2) for n in range(10)], 60.0)
    drained = minutes.drain()
    assert len(drained) == 4 and sum(m.count for m in drained) == 20
    assert BudgetMinute(1, "main", OTHER, "blocked", "burst", 14) in drained
    monkeypatch.setattr(budgetmeter, "MAX_WAITING", 2)
    minutes.restore(drained)
    assert len(minutes.drain()) == 2 and minutes.dropped > 0


async def test_labels_of_metrics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgetmeter, "MAX_LABELLED", 2)
    world = await BudgetWorld().start()
    world.server.counts(a=blocked(1, admitted=5), b=blocked(2), c=blocked(3), d=blocked(4))
    await world.budgets.tick()
    watch = world.main.watch
    assert isinstance(watch, BudgetWatch)
    shown = dict(watch.labelled())
    assert list(shown) == ["a", "b", OTHER]
    assert shown[OTHER].blocked == {"capacity": 7} and shown["a"].admitted == 5
    assert (watch.label("a"), watch.label("d")) == ("a", OTHER)


def test_counts_add_up_by_limit() -> None:
    one = BudgetCounts(admitted=1, warned={"burst": 1}, last_violation_ms=5)
    both = total_of([one, replace(one, warned={"burst": 2, "capacity": 1}, last_violation_ms=9)])
    assert (both.admitted, both.warned, both.last_violation_ms) == (
        2,
        {"burst": 3, "capacity": 1},
        9,
    )


async def test_many_budgets_are_compared_beside_the_loop() -> None:
    world = await BudgetWorld().start()
    many: dict[str, Any] = {f"b{n}": BudgetCounts() for n in range(600)}
    world.server.counts(**many)
    await world.budgets.tick()
    world.server.counts(**many | {"b599": blocked(1)})
    await world.budgets.tick()
    assert await kept(world) == [(0, "b599", "blocked", "capacity", 1)]
