"""The store in memory must not grow for ever: the oldest history goes first."""

from __future__ import annotations

import pytest

from headgate.core.records import AuditEntry, MetricChange, Record, Tally
from headgate.errors import Conflict, StoreUnavailable
from headgate.stores import MemoryStore
from headgate.stores.entries import MAX_METRIC_CHANGES, MAX_RECORDS

ENTRY = AuditEntry(0.0, "ann", "metric.set", "main/lag", None, None)


async def test_the_oldest_minutes_make_room() -> None:
    store = MemoryStore(max_tallies=4)
    await store.open()
    for minute in range(10):
        await store.add_tallies([Tally(minute, "main", c, "OK", "", 1) for c in ("a", "b")])
    tallies = await store.tallies(since_minute=0, until_minute=99)
    assert [tally.minute for tally in tallies] == [8, 8, 9, 9]


async def test_the_oldest_audit_entries_make_room_but_settings_stay() -> None:
    store = MemoryStore(max_audit_entries=2)
    await store.open()
    for n in range(5):
        await store.put_metric(MetricChange("main", f"m{n}", {}, 0), ENTRY)
    assert [entry.id for entry in await store.audit()] == [5, 4]
    assert len(await store.metric_changes()) == 5


async def test_ever_new_names_cannot_fill_a_store() -> None:
    """The check is shared with the file's store (entries.py); here it costs no disk."""
    store = MemoryStore()
    await store.open()
    for n in range(MAX_METRIC_CHANGES):
        await store.put_metric(MetricChange("main", f"m{n}", None, 0), ENTRY)
    with pytest.raises(StoreUnavailable, match="10000 changed metrics"):
        await store.put_metric(MetricChange("main", "lag", {}, 0), ENTRY)
    assert (await store.put_metric(MetricChange("main", "m0", {}, 1), ENTRY)).raw == {}


async def test_a_full_kind_refuses_one_more_and_what_was_removed_makes_room() -> None:
    """For the store in a file: test_sqlite_faults.py."""
    store = MemoryStore()
    await store.open()
    for n in range(MAX_RECORDS):
        await store.put_record(Record("skip", f"s db-{n:05}", {}, 0), ENTRY)
    with pytest.raises(StoreUnavailable, match=r"s db-x: 10000 of kind skip are kept.*remove"):
        await store.put_record(Record("skip", "s db-x", {}, 0), ENTRY)
    await store.put_record(Record("peer", "s db-x", {}, 0), ENTRY)
    await store.put_record(Record("skip", "s db-00007", None, 8), ENTRY)
    await store.put_record(Record("skip", "s db-x", {}, 0), ENTRY)
    assert len(await store.records("skip")) == MAX_RECORDS
    with pytest.raises(Conflict, match="look again and add it as new"):
        await store.put_record(Record("skip", "s db-00007", {}, 8), ENTRY)
    with pytest.raises(StoreUnavailable, match="10000 of kind skip"):
        await store.put_record(Record("skip", "s db-00007", {}, 0), ENTRY)
