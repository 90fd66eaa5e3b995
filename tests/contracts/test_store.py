"""What `Store` of base/ports.py promises, tested with every store alike (conftest.py)."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from headgate.base.keyvalue import Put
from headgate.base.ports import Store
from headgate.errors import StoreUnavailable
from headgate.history.records import AuditEntry, Tally
from tests.contracts.test_store_budgets import BLOCKED
from tests.contracts.test_store_history import LAG as LAG_MINUTE
from tests.contracts.test_store_reports import ONE as REPORT

ENTRY = AuditEntry(1_700_000_000.5, "ann", "metric.set", "main/lag", None, {"threshold": 5})
LAG = Put("items/wide/metric/main%2Flag", b"{}")
ADMITTED = Tally(100, "main", "etl:nightly", "OK", "", 3)

HARD_TEXTS = ["", "naïve", "名前", "🐘", "a\x00b", "'; --", "%_", "x" * 5000]


async def all_tallies(store: Store) -> list[Tally]:
    return list(await store.history.tallies(since_minute=0, until_minute=10**9, limit=10**6))


# --- empty, open, closed -------------------------------------------------------------------


async def audited(store: Store, entry: AuditEntry) -> None:
    await store.commit([], [LAG], audit=[entry])


async def test_a_new_store_is_empty_and_has_a_name(store: Store) -> None:
    assert (await store.list([""])).entries == ()
    assert list(await store.audit()) == []
    assert await all_tallies(store) == []
    assert store.name


async def test_what_was_kept_is_there_after_close_and_open(store: Store) -> None:
    """R141."""
    await audited(store, ENTRY)
    await store.history.add_tallies([ADMITTED])
    await store.close()
    await store.open()
    assert [entry.key for entry in (await store.list([""])).entries] == [LAG.key]
    assert [entry.who for entry in await store.audit()] == ["ann"]
    assert await all_tallies(store) == [ADMITTED]


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    for attempt in (
        store.list([""]),
        store.audit(),
        store.history.add_tallies([ADMITTED]),
        store.history.sums((), since_minute=0, until_minute=9),
        store.history.add_metric_minutes([LAG_MINUTE]),
        store.history.add_budget_minutes([BLOCKED]),
        store.history.budget_minutes(since_minute=0, until_minute=1),
        store.reports(),
        store.put_report(REPORT),
    ):
        with pytest.raises(StoreUnavailable, match="not open"):
            await attempt


async def test_open_and_close_may_be_repeated(store: Store) -> None:
    await store.open()
    await audited(store, ENTRY)
    await store.close()
    await store.close()


# --- values --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HARD_TEXTS)
async def test_any_text_is_kept_as_it_is(store: Store, text: str) -> None:
    said: dict[str, Any] = {"query": text, text: [text, {"deep": text}]}
    await audited(store, replace(ENTRY, who=text, action=text, target=text, after=said))
    tally = Tally(1, text, text, text, text, 1)
    await store.history.add_tallies([tally])
    (entry,) = await store.audit()
    assert (entry.who, entry.action, entry.target, entry.after) == (text, text, text, said)
    assert await all_tallies(store) == [tally]


@pytest.mark.parametrize(
    "value", [None, 0, -1.5, 1e308, True, [], {}, ["\ud800"], {"a": {"b": [1, None]}}, 2**70]
)
async def test_any_json_is_kept_as_it_is(store: Store, value: Any) -> None:
    await audited(store, replace(ENTRY, before=value, after=MappingProxyType({"v": value})))
    (entry,) = await store.audit()
    assert (entry.before, entry.after) == (value, {"v": value})


async def test_nobody_can_edit_what_is_kept(store: Store) -> None:
    raw = {"names": ["a"]}
    await audited(store, replace(ENTRY, after=raw))
    raw["names"].append("b")
    (await store.audit())[0].after["names"].append("d")
    assert [entry.after for entry in await store.audit()] == [{"names": ["a"]}]


# --- audit ---------------------------------------------------------------------------------


async def test_the_audit_is_newest_first_even_when_the_clock_went_back(store: Store) -> None:
    for n, wall_s in enumerate([50.0, 40.0, 60.0]):
        await audited(store, replace(ENTRY, wall_s=wall_s, target=f"main/m{n}"))
    entries = await store.audit()
    assert [entry.target for entry in entries] == ["main/m2", "main/m1", "main/m0"]
    assert [entry.wall_s for entry in entries] == [60.0, 40.0, 50.0]
    assert len({entry.id for entry in entries}) == 3


@pytest.mark.parametrize(("limit", "found"), [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 3), (100, 3)])
async def test_the_audit_gives_at_most_its_limit(store: Store, limit: int, found: int) -> None:
    for _ in range(3):
        await audited(store, ENTRY)
    assert len(await store.audit(limit=limit)) == found


# --- tallies -------------------------------------------------------------------------------


async def test_counts_of_what_is_alike_are_added(store: Store) -> None:
    """R135: counters stay exact."""
    rejected = replace(ADMITTED, verdict="THRESHOLD_EXCEEDED", metric="lag")
    await store.history.add_tallies([ADMITTED, rejected, ADMITTED])
    await store.history.add_tallies([replace(ADMITTED, count=10)])
    assert await all_tallies(store) == [replace(ADMITTED, count=16), rejected]


@pytest.mark.parametrize(
    "other",
    [
        replace(ADMITTED, minute=101),
        replace(ADMITTED, database="other"),
        replace(ADMITTED, client="other"),
        replace(ADMITTED, verdict="other"),
        replace(ADMITTED, metric="other"),
    ],
)
async def test_what_differs_in_anything_is_counted_apart(store: Store, other: Tally) -> None:
    await store.history.add_tallies([ADMITTED, other])
    assert await all_tallies(store) == [ADMITTED, other]


@pytest.mark.parametrize("count", [0, -1])
async def test_tallies_are_added_all_or_none(store: Store, count: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        await store.history.add_tallies([ADMITTED, replace(ADMITTED, count=count)])
    assert await all_tallies(store) == []


async def test_no_tallies_is_a_write_that_changes_nothing(store: Store) -> None:
    await store.history.add_tallies([])
    assert await all_tallies(store) == []


async def test_tallies_come_oldest_first_then_by_name(store: Store) -> None:
    tallies = [
        Tally(minute, database, client, "OK", "", 1)
        for minute in (9, 10, 100)
        for database in ("a", "b")
        for client in ("Z", "a", "é", "名")
    ]
    await store.history.add_tallies(tallies[::-1])
    assert await all_tallies(store) == tallies


@pytest.mark.parametrize(
    ("since", "until", "found"), [(1, 3, [1, 2, 3]), (2, 2, [2]), (3, 2, []), (4, 9, [])]
)
async def test_both_ends_of_a_span_are_included(
    store: Store, since: int, until: int, found: list[int]
) -> None:
    await store.history.add_tallies([replace(ADMITTED, minute=minute) for minute in (1, 2, 3)])
    tallies = await store.history.tallies(since_minute=since, until_minute=until)
    assert [tally.minute for tally in tallies] == found


@pytest.mark.parametrize(("limit", "found"), [(-1, []), (0, []), (2, [2, 3]), (9, [1, 2, 3])])
async def test_a_limit_leaves_out_the_oldest(store: Store, limit: int, found: list[int]) -> None:
    await store.history.add_tallies([replace(ADMITTED, minute=minute) for minute in (1, 2, 3)])
    tallies = await store.history.tallies(since_minute=0, until_minute=9, limit=limit)
    assert [tally.minute for tally in tallies] == found


# --- forgetting ----------------------------------------------------------------------------


async def test_forgetting_drops_what_is_older_and_keeps_the_minute_itself(store: Store) -> None:
    await store.history.add_tallies([replace(ADMITTED, minute=minute) for minute in (99, 100, 101)])
    for wall_s in (5999.9, 6000.0):
        await audited(store, replace(ENTRY, wall_s=wall_s))
    await store.history.forget_before(100)
    assert [tally.minute for tally in await all_tallies(store)] == [100, 101]
    assert [entry.wall_s for entry in await store.audit()] == [6000.0]
    assert len((await store.list(["items/"])).entries) == 1


async def test_forgetting_takes_more_than_one_batch_and_one_crowded_minute(store: Store) -> None:
    crowded = [Tally(1, "main", f"c{n}", "OK", "", 1) for n in range(6000)]
    spread = [Tally(n, "main", "c", "OK", "", 1) for n in range(6000)]
    await store.history.add_tallies([*crowded, *spread])
    await store.history.forget_before(5999)
    assert [tally.minute for tally in await all_tallies(store)] == [5999]


async def test_forgetting_nothing_is_no_fault(store: Store) -> None:
    await store.history.forget_before(0)
    await store.history.forget_before(10**8)
    assert await all_tallies(store) == []
