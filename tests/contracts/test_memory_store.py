"""The store in memory has a bound: the oldest history goes first."""

from __future__ import annotations

from headgate.base.keyvalue import Put
from headgate.history.records import AuditEntry, Tally
from tests.fixtures.memory_store import MemoryStore

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
        await store.commit([], [Put(f"items/{n}", b"")], audit=[ENTRY])
    assert [entry.id for entry in await store.audit()] == [5, 4]
    assert len((await store.list(["items/"])).entries) == 5
