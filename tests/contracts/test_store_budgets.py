"""Traffic policies and violations by the minute: alike in every store (R132, R137, R141)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.agent.ports import Store
from headgate.core.records import AuditEntry, BudgetMinute, PolicyRevision, Record
from headgate.errors import Conflict, InvalidSettings, StoreUnavailable
from headgate.stores import entries
from headgate.stores.budgets import AddBudgetMinutes, PutPolicy
from headgate.stores.entries import MAX_POLICIES
from tests.contracts.conftest import sqlite_store

ENTRY = AuditEntry(1_700_000_000.5, "ann", "budget.set", "main/etl", None, {"mode": "warn"})
DOCUMENT = {"policy": {}, "budgets": [{"name": "etl", "mode": "warn", "rules": []}]}
CHANGES = {"budgets": {"etl": {"whole": True}}}
FIRST = PolicyRevision(
    "main", 0, 1_700_000_000.5, "ann", "budget.set", "etl: new", DOCUMENT, CHANGES
)
BLOCKED = BudgetMinute(100, "main", "etl", "blocked", "capacity", 3)
WARNED = BudgetMinute(100, "main", "etl", "warned", "burst", 1)


async def minutes(store: Store, **wanted: Any) -> list[BudgetMinute]:
    return list(await store.budget_minutes(since_minute=0, until_minute=10**9, **wanted))


# --- policies ------------------------------------------------------------------------------


async def test_a_new_store_has_no_policy(store: Store) -> None:
    assert list(await store.policies()) == []
    assert list(await store.salvage_policies()) == []
    assert list(await store.policy_revisions("main")) == []
    assert await store.policy_revision("main", 1) is None


async def test_a_policy_comes_back_whole_after_close_and_open(store: Store) -> None:
    """R141"""
    kept = await store.put_policy(FIRST, ENTRY)
    assert kept == replace(FIRST, revision=kept.revision) and kept.revision > 0
    await store.close()
    await store.open()
    assert list(await store.policies()) == [kept]
    assert list(await store.salvage_policies()) == [kept]
    assert await store.policy_revision("main", kept.revision) == kept
    assert [entry.action for entry in await store.audit()] == ["budget.set"]


async def test_the_newest_counts_and_older_ones_stay_to_go_back_to(store: Store) -> None:
    first = await store.put_policy(FIRST, ENTRY)
    second = await store.put_policy(
        replace(first, document={"budgets": []}, summary="etl: gone"), ENTRY
    )
    other = await store.put_policy(replace(FIRST, database="aux"), ENTRY)
    assert first.revision < second.revision < other.revision
    assert list(await store.policies()) == [other, second]
    listed = await store.policy_revisions("main")
    assert [one.summary for one in listed] == ["etl: gone", "etl: new"]
    assert all(one.document == {} and one.changes == {} for one in listed)
    assert await store.policy_revision("main", first.revision) == first
    assert await store.policy_revision("aux", first.revision) is None
    assert [one.revision for one in await store.policy_revisions("main", limit=1)] == [
        second.revision
    ]


async def test_revisions_rise_over_policies_and_records_together(store: Store) -> None:
    record = await store.put_record(Record("skip", "x", {}, 0), ENTRY)
    policy = await store.put_policy(FIRST, ENTRY)
    assert policy.revision > record.revision
    assert (await store.put_record(record, ENTRY)).revision > policy.revision


async def test_a_late_policy_gets_a_conflict_that_names_who_when_and_what(store: Store) -> None:
    first = await store.put_policy(FIRST, ENTRY)
    later = replace(first, who="bob", action="policy.set", wall_s=1_700_000_060.0)
    second = await store.put_policy(later, ENTRY)
    for late in (first, FIRST, replace(FIRST, revision=99)):
        with pytest.raises(Conflict) as caught:
            await store.put_policy(late, ENTRY)
        named = ("policy of main", "bob", "2023-11-14T22:14:20Z", "policy.set")
        for part in (*named, str(second.revision)):
            assert part in str(caught.value)
    assert list(await store.policies()) == [second]
    assert len(await store.audit()) == 2


async def test_of_many_at_once_one_wins(store: Store) -> None:
    attempts = [store.put_policy(replace(FIRST, summary=str(n)), ENTRY) for n in range(5)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    won = [outcome for outcome in outcomes if isinstance(outcome, PolicyRevision)]
    assert list(await store.policies()) == won
    assert len(await store.audit()) == 1


async def test_only_so_many_are_kept_and_forgetting_history_keeps_them(store: Store) -> None:
    newest = await store.put_policy(FIRST, ENTRY)
    other = await store.put_policy(replace(FIRST, database="aux"), ENTRY)
    for n in range(MAX_POLICIES + 5):
        newest = await store.put_policy(replace(newest, summary=f"n{n}"), ENTRY)
    await store.forget_before(10**8)
    listed = await store.policy_revisions("main", limit=1000)
    assert len(listed) == MAX_POLICIES and listed[0].summary == newest.summary
    assert list(await store.policies()) == [other, newest]


async def test_large_ones_make_room_and_the_newest_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "budgets"):
        monkeypatch.setattr(f"headgate.stores.{module}.MAX_POLICIES_BYTES", 1000)
    large = replace(FIRST, document={"comment": "x" * 600})
    first = await store.put_policy(large, ENTRY)
    second = await store.put_policy(replace(large, revision=first.revision), ENTRY)
    assert [one.revision for one in await store.policy_revisions("main")] == [second.revision]
    huge = replace(second, document={"comment": "x" * 2000})
    third = await store.put_policy(huge, ENTRY)
    assert list(await store.policies()) == [third]


async def test_one_that_is_too_large_is_refused_by_its_size(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MAX_POLICY_BYTES", 100)
    with pytest.raises(InvalidSettings, match=r"policy of main: takes \d+ bytes .* may take 100"):
        await store.put_policy(replace(FIRST, document={"comment": "x" * 600}), ENTRY)
    assert list(await store.audit()) == []


async def test_nobody_can_edit_what_is_kept(store: Store) -> None:
    document = {"budgets": [{"name": "etl"}]}
    kept = await store.put_policy(replace(FIRST, document=document), ENTRY)
    document["budgets"].append({"name": "late"})
    kept.document["budgets"].clear()
    (found,) = await store.policies()
    assert found.document == {"budgets": [{"name": "etl"}]}


# --- violations ----------------------------------------------------------------------------


async def test_violations_of_a_minute_add_up(store: Store) -> None:
    """R137"""
    await store.add_budget_minutes([BLOCKED, WARNED])
    await store.add_budget_minutes([BLOCKED, replace(BLOCKED, limit="concurrency")])
    assert await minutes(store) == [
        replace(BLOCKED, count=6),
        replace(BLOCKED, limit="concurrency"),
        WARNED,
    ]


async def test_violations_are_found_by_time_database_and_budget(store: Store) -> None:
    later = replace(BLOCKED, minute=101)
    elsewhere = replace(BLOCKED, database="aux", budget="web")
    await store.add_budget_minutes([later, elsewhere, BLOCKED])
    assert await minutes(store) == [elsewhere, BLOCKED, later]
    assert await minutes(store, database="main") == [BLOCKED, later]
    assert await minutes(store, budget="web") == [elsewhere]
    assert list(await store.budget_minutes(since_minute=101, until_minute=200)) == [later]
    newest = await store.budget_minutes(since_minute=0, until_minute=200, limit=1)
    assert list(newest) == [later]


async def test_violations_are_forgotten_with_the_rest_of_history(store: Store) -> None:
    later = replace(BLOCKED, minute=101)
    await store.add_budget_minutes([BLOCKED, later])
    await store.forget_before(101)
    await store.close()
    await store.open()
    assert await minutes(store) == [later]


@pytest.mark.parametrize("count", [0, -1])
async def test_a_minute_that_counts_nothing_is_refused(store: Store, count: int) -> None:
    with pytest.raises(ValueError, match=f"etl.* counts {count}"):
        await store.add_budget_minutes([BLOCKED, replace(BLOCKED, count=count)])
    assert await minutes(store) == []


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    for attempt in (
        store.policies(),
        store.put_policy(FIRST, ENTRY),
        store.policy_revisions("main"),
        store.policy_revision("main", 1),
        store.add_budget_minutes([BLOCKED]),
        store.budget_minutes(since_minute=0, until_minute=1),
    ):
        with pytest.raises(StoreUnavailable, match="not open"):
            await attempt


# --- of the file alone ---------------------------------------------------------------------


async def test_writes_that_came_too_late_are_taken_back_whole(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "state.db")
    await store.open()
    first = await store.put_policy(FIRST, ENTRY)
    await store.add_budget_minutes([BLOCKED])
    await store.close()
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
        put = PutPolicy(replace(first, summary="late"), ENTRY)
        put.do(connection)
        put.take_back(connection)
        add = AddBudgetMinutes([BLOCKED, WARNED])
        add.do(connection)
        add.take_back(connection)
    await store.open()
    assert list(await store.policies()) == [first]
    assert len(await store.audit()) == 1
    assert await minutes(store) == [BLOCKED]
    await store.close()


async def test_a_file_that_cannot_be_opened_still_tells_its_policies(tmp_path: Path) -> None:
    """An operator's policy must not be dropped because the disk is full."""
    path = tmp_path / "state.db"
    store = sqlite_store(path)
    await store.open()
    kept = await store.put_policy(FIRST, ENTRY)
    other = sqlite_store(path)
    assert list(await other.salvage_policies()) == [kept]
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE policy_revisions; PRAGMA user_version = 4")
    assert list(await other.salvage_policies()) == []
