"""Violations of budgets by the minute: alike in every store (R137, R141)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.base.ports import Store
from headgate.errors import StoreUnavailable
from headgate.history.records import BudgetMinute
from headgate.store.statements import AddBudgetMinutes
from tests.contracts.conftest import sqlite_store

BLOCKED = BudgetMinute(100, "main", "etl", "blocked", "capacity", 3)
WARNED = BudgetMinute(100, "main", "etl", "warned", "burst", 1)


async def minutes(store: Store, **wanted: Any) -> list[BudgetMinute]:
    return list(await store.history.budget_minutes(since_minute=0, until_minute=10**9, **wanted))


async def test_violations_of_a_minute_add_up(store: Store) -> None:
    """R137"""
    await store.history.add_budget_minutes([BLOCKED, WARNED])
    await store.history.add_budget_minutes([BLOCKED, replace(BLOCKED, limit="concurrency")])
    assert await minutes(store) == [
        replace(BLOCKED, count=6),
        replace(BLOCKED, limit="concurrency"),
        WARNED,
    ]


async def test_violations_are_found_by_time_database_and_budget(store: Store) -> None:
    later = replace(BLOCKED, minute=101)
    elsewhere = replace(BLOCKED, database="aux", budget="web")
    await store.history.add_budget_minutes([later, elsewhere, BLOCKED])
    assert await minutes(store) == [elsewhere, BLOCKED, later]
    assert await minutes(store, database="main") == [BLOCKED, later]
    assert await minutes(store, budget="web") == [elsewhere]
    assert list(await store.history.budget_minutes(since_minute=101, until_minute=200)) == [later]
    newest = await store.history.budget_minutes(since_minute=0, until_minute=200, limit=1)
    assert list(newest) == [later]


async def test_violations_are_forgotten_with_the_rest_of_history(store: Store) -> None:
    later = replace(BLOCKED, minute=101)
    await store.history.add_budget_minutes([BLOCKED, later])
    await store.history.forget_before(101)
    await store.close()
    await store.open()
    assert await minutes(store) == [later]


@pytest.mark.parametrize("count", [0, -1])
async def test_a_minute_that_counts_nothing_is_rejected(store: Store, count: int) -> None:
    with pytest.raises(ValueError, match=f"etl.* counts {count}"):
        await store.history.add_budget_minutes([BLOCKED, replace(BLOCKED, count=count)])
    assert await minutes(store) == []


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    for attempt in (
        store.history.add_budget_minutes([BLOCKED]),
        store.history.budget_minutes(since_minute=0, until_minute=1),
    ):
        with pytest.raises(StoreUnavailable, match="not open"):
            await attempt


# --- of the file alone ---------------------------------------------------------------------


async def test_writes_that_came_too_late_are_taken_back_whole(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "state.db")
    await store.open()
    await store.history.add_budget_minutes([BLOCKED])
    await store.close()
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
        add = AddBudgetMinutes([BLOCKED, WARNED])
        add.do(connection)
        add.take_back(connection)
    await store.open()
    assert await minutes(store) == [BLOCKED]
    await store.close()
