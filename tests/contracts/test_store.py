"""What `Store` of agent/ports.py promises, asked of every store alike (conftest.py)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from headgate.agent.ports import Store
from headgate.core.records import AuditEntry, MetricChange, Tally
from headgate.errors import Conflict, StoreUnavailable

ENTRY = AuditEntry(1_700_000_000.5, "ann", "metric.set", "main/lag", None, {"threshold": 5})
LAG = MetricChange("main", "lag", {"threshold": 5.0}, 0)
ADMITTED = Tally(100, "main", "etl:nightly", "OK", "", 3)

HARD_TEXTS = ["", "naïve", "名前", "🐘", "a\x00b", "'; --", "%_", "x" * 5000]


async def all_tallies(store: Store) -> list[Tally]:
    return list(await store.tallies(since_minute=0, until_minute=10**9, limit=10**6))


# --- empty, open, closed -------------------------------------------------------------------


async def test_a_new_store_is_empty_and_has_a_name(store: Store) -> None:
    assert list(await store.metric_changes()) == []
    assert list(await store.audit()) == []
    assert await all_tallies(store) == []
    assert store.name


async def test_what_was_kept_is_there_after_close_and_open(store: Store) -> None:
    """R141."""
    kept = await store.put_metric(LAG, ENTRY)
    await store.add_tallies([ADMITTED])
    await store.close()
    await store.open()
    assert list(await store.metric_changes()) == [kept]
    assert [entry.who for entry in await store.audit()] == ["ann"]
    assert await all_tallies(store) == [ADMITTED]


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    for attempt in (store.metric_changes(), store.audit(), store.add_tallies([ADMITTED])):
        with pytest.raises(StoreUnavailable, match="not open"):
            await attempt


async def test_open_and_close_may_be_repeated(store: Store) -> None:
    await store.open()
    await store.put_metric(LAG, ENTRY)
    await store.close()
    await store.close()


# --- metrics -------------------------------------------------------------------------------


async def test_a_change_comes_back_with_its_new_revision(store: Store) -> None:
    kept = await store.put_metric(LAG, ENTRY)
    assert kept == replace(LAG, revision=kept.revision)
    assert kept.revision > 0
    assert list(await store.metric_changes()) == [kept]


async def test_revisions_rise_over_the_whole_store(store: Store) -> None:
    first = await store.put_metric(LAG, ENTRY)
    other = await store.put_metric(MetricChange("main", "loadavg", {}, 0), ENTRY)
    again = await store.put_metric(replace(first, raw={"threshold": 6.0}), ENTRY)
    assert first.revision < other.revision < again.revision
    assert list(await store.metric_changes()) == [other, again]


async def test_revisions_rise_even_when_the_audit_was_forgotten(store: Store) -> None:
    first = await store.put_metric(LAG, ENTRY)
    await store.forget_before(int(ENTRY.wall_s // 60) + 1)
    await store.close()
    await store.open()
    assert list(await store.audit()) == []
    assert (await store.put_metric(first, ENTRY)).revision > first.revision


async def test_a_removal_is_kept_and_can_be_replaced(store: Store) -> None:
    first = await store.put_metric(LAG, ENTRY)
    removed = await store.put_metric(replace(first, raw=None), ENTRY)
    assert removed.raw is None
    assert list(await store.metric_changes()) == [removed]
    back = await store.put_metric(replace(removed, raw={"threshold": 1.0}), ENTRY)
    assert list(await store.metric_changes()) == [back]


async def test_a_late_change_gets_a_conflict_that_names_who_when_and_what(store: Store) -> None:
    first = await store.put_metric(LAG, ENTRY)
    later = replace(ENTRY, who="bob", action="metric.remove", wall_s=1_700_000_060.0)
    second = await store.put_metric(replace(first, raw=None), later)
    with pytest.raises(Conflict) as caught:
        await store.put_metric(first, ENTRY)
    for part in ("main/lag", "bob", "2023-11-14T22:14:20Z", "metric.remove", str(second.revision)):
        assert part in str(caught.value)
    assert list(await store.metric_changes()) == [second]
    assert len(await store.audit()) == 2


@pytest.mark.parametrize("revision", [0, 7, -1])
async def test_a_conflict_names_its_author_after_the_audit_was_forgotten(
    store: Store, revision: int
) -> None:
    await store.put_metric(LAG, ENTRY)
    await store.forget_before(10**8)
    with pytest.raises(Conflict, match="ann"):
        await store.put_metric(replace(LAG, revision=revision), ENTRY)


async def test_a_change_to_what_was_never_there_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict, match="revision 4"):
        await store.put_metric(replace(LAG, revision=4), ENTRY)
    assert list(await store.audit()) == []


async def test_of_many_changes_at_once_one_wins(store: Store) -> None:
    first = await store.put_metric(LAG, ENTRY)
    attempts = [store.put_metric(replace(first, raw={"n": n}), ENTRY) for n in range(8)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(outcome, MetricChange) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
    assert len(await store.audit()) == 2


async def test_a_change_that_is_no_json_leaves_nothing_behind(store: Store) -> None:
    with pytest.raises(TypeError, match="set"):
        await store.put_metric(LAG, replace(ENTRY, after={1, 2}))
    with pytest.raises(TypeError, match="set"):
        await store.put_metric(replace(LAG, raw={"names": {1}}), ENTRY)
    assert list(await store.metric_changes()) == []
    assert list(await store.audit()) == []


@pytest.mark.parametrize("text", HARD_TEXTS)
async def test_any_text_is_kept_as_it_is(store: Store, text: str) -> None:
    raw: dict[str, Any] = {"query": text, text: [text, {"deep": text}]}
    kept = await store.put_metric(MetricChange(text, text, raw, 0), replace(ENTRY, who=text))
    tally = Tally(1, text, text, text, text, 1)
    await store.add_tallies([tally])
    assert kept.raw == raw
    assert list(await store.metric_changes()) == [kept]
    assert (await store.audit())[0].who == text
    assert await all_tallies(store) == [tally]


@pytest.mark.parametrize(
    "value", [None, 0, -1.5, 1e308, True, [], {}, ["\ud800"], {"a": {"b": [1, None]}}, 2**70]
)
async def test_any_json_is_kept_as_it_is(store: Store, value: Any) -> None:
    await store.put_metric(
        replace(LAG, raw=MappingProxyType({"v": value})), replace(ENTRY, before=value, after=value)
    )
    (change,), (entry,) = await store.metric_changes(), await store.audit()
    assert change.raw == {"v": value}
    assert (entry.before, entry.after) == (value, value)


async def test_nobody_can_edit_what_is_kept(store: Store) -> None:
    raw = {"names": ["a"]}
    kept = await store.put_metric(replace(LAG, raw=raw), replace(ENTRY, after=raw))
    raw["names"].append("b")
    assert kept.raw is not None
    kept.raw["names"].append("c")
    (await store.audit())[0].after["names"].append("d")
    assert [change.raw for change in await store.metric_changes()] == [{"names": ["a"]}]
    assert [entry.after for entry in await store.audit()] == [{"names": ["a"]}]


# --- audit ---------------------------------------------------------------------------------


async def test_the_audit_is_newest_first_even_when_the_clock_went_back(store: Store) -> None:
    for n, wall_s in enumerate([50.0, 40.0, 60.0]):
        change = MetricChange("main", f"m{n}", {}, 0)
        await store.put_metric(change, replace(ENTRY, wall_s=wall_s, target=f"main/m{n}"))
    entries = await store.audit()
    assert [entry.target for entry in entries] == ["main/m2", "main/m1", "main/m0"]
    assert [entry.wall_s for entry in entries] == [60.0, 40.0, 50.0]
    assert len({entry.id for entry in entries}) == 3


@pytest.mark.parametrize(("limit", "found"), [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 3), (100, 3)])
async def test_the_audit_gives_at_most_its_limit(store: Store, limit: int, found: int) -> None:
    for n in range(3):
        await store.put_metric(MetricChange("main", f"m{n}", {}, 0), ENTRY)
    assert len(await store.audit(limit=limit)) == found


# --- tallies -------------------------------------------------------------------------------


async def test_counts_of_what_is_alike_are_added(store: Store) -> None:
    """R135: counters stay exact."""
    refused = replace(ADMITTED, verdict="THRESHOLD_EXCEEDED", metric="lag")
    await store.add_tallies([ADMITTED, refused, ADMITTED])
    await store.add_tallies([replace(ADMITTED, count=10)])
    assert await all_tallies(store) == [replace(ADMITTED, count=16), refused]


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
    await store.add_tallies([ADMITTED, other])
    assert await all_tallies(store) == [ADMITTED, other]


@pytest.mark.parametrize("count", [0, -1])
async def test_tallies_are_added_all_or_none(store: Store, count: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        await store.add_tallies([ADMITTED, replace(ADMITTED, count=count)])
    assert await all_tallies(store) == []


async def test_no_tallies_is_a_write_that_changes_nothing(store: Store) -> None:
    await store.add_tallies([])
    assert await all_tallies(store) == []


async def test_tallies_come_oldest_first_then_by_name(store: Store) -> None:
    tallies = [
        Tally(minute, database, client, "OK", "", 1)
        for minute in (9, 10, 100)
        for database in ("a", "b")
        for client in ("Z", "a", "é", "名")
    ]
    await store.add_tallies(tallies[::-1])
    assert await all_tallies(store) == tallies


@pytest.mark.parametrize(
    ("since", "until", "found"), [(1, 3, [1, 2, 3]), (2, 2, [2]), (3, 2, []), (4, 9, [])]
)
async def test_both_ends_of_a_span_are_included(
    store: Store, since: int, until: int, found: list[int]
) -> None:
    await store.add_tallies([replace(ADMITTED, minute=minute) for minute in (1, 2, 3)])
    tallies = await store.tallies(since_minute=since, until_minute=until)
    assert [tally.minute for tally in tallies] == found


@pytest.mark.parametrize(("limit", "found"), [(-1, []), (0, []), (2, [2, 3]), (9, [1, 2, 3])])
async def test_a_limit_leaves_out_the_oldest(store: Store, limit: int, found: list[int]) -> None:
    await store.add_tallies([replace(ADMITTED, minute=minute) for minute in (1, 2, 3)])
    tallies = await store.tallies(since_minute=0, until_minute=9, limit=limit)
    assert [tally.minute for tally in tallies] == found


# --- forgetting ----------------------------------------------------------------------------


async def test_forgetting_drops_what_is_older_and_keeps_the_minute_itself(store: Store) -> None:
    await store.add_tallies([replace(ADMITTED, minute=minute) for minute in (99, 100, 101)])
    for n, wall_s in enumerate([5999.9, 6000.0]):
        change = MetricChange("main", f"m{n}", {}, 0)
        await store.put_metric(change, replace(ENTRY, wall_s=wall_s))
    await store.forget_before(100)
    assert [tally.minute for tally in await all_tallies(store)] == [100, 101]
    assert [entry.wall_s for entry in await store.audit()] == [6000.0]
    assert len(await store.metric_changes()) == 2


async def test_forgetting_takes_more_than_one_batch_and_one_crowded_minute(store: Store) -> None:
    crowded = [Tally(1, "main", f"c{n}", "OK", "", 1) for n in range(6000)]
    spread = [Tally(n, "main", "c", "OK", "", 1) for n in range(6000)]
    await store.add_tallies([*crowded, *spread])
    await store.forget_before(5999)
    assert [tally.minute for tally in await all_tallies(store)] == [5999]


async def test_forgetting_nothing_is_no_fault(store: Store) -> None:
    await store.forget_before(0)
    await store.forget_before(10**8)
    assert await all_tallies(store) == []
