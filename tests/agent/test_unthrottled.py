"""The book of periods without a throttler (R55): bounded, kept, and each counted once."""

from __future__ import annotations

import asyncio

import pytest

from headgate.agent import unthrottled
from headgate.agent.unthrottled import UNTHROTTLED, Told, UnthrottledBook
from headgate.core.records import AuditEntry, Record
from headgate.errors import StoreUnavailable
from headgate.stores.memory import MemoryStore
from headgate.wire.unthrottled import MAX_PERIODS, UnthrottledDoc, unthrottled_advice
from tests.agent.fakes import HandClock
from tests.builders import NOW


def told(number: int, *, ended_ago_s: float = 0.0, pieces: int = 3) -> Told:
    return Told(f"{number:032x}", ended_ago_s, 10.0, pieces)


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


@pytest.fixture
def book(store: MemoryStore) -> UnthrottledBook:
    return UnthrottledBook(store, HandClock())


async def test_a_period_is_dated_by_the_agents_clock(book: UnthrottledBook) -> None:
    assert await book.take("etl", ["main"], [told(1, ended_ago_s=5.0)]) == 1
    ((client, period),) = book.since(0)
    assert (client, period.databases, period.pieces) == ("etl", ("main",), 3)
    assert (period.started_at, period.duration_s) == (NOW.wall_s - 15, 10.0)
    assert book.since(NOW.wall_s - 4) == []


async def test_told_twice_it_counts_once(book: UnthrottledBook) -> None:
    assert await book.take("etl", ["main"], [told(1), told(2)]) == 2
    assert await book.take("etl", ["main"], [told(2), told(3)]) == 1
    assert len(book.since(0)) == 3


async def test_two_that_tell_at_once_are_both_heard(book: UnthrottledBook) -> None:
    taken = await asyncio.gather(*(book.take("etl", ["main"], [told(n)]) for n in range(10)))
    assert sum(taken) == len(book.since(0)) == 10


async def test_it_outlives_the_process_and_is_in_the_audit(
    book: UnthrottledBook, store: MemoryStore
) -> None:
    await book.take("etl", ["main"], [told(1)])
    again = UnthrottledBook(store, HandClock())
    again.load(await store.records(UNTHROTTLED))
    assert again.since(0) == book.since(0)
    assert await again.take("etl", ["main"], [told(1)]) == 0
    assert await again.take("etl", ["main"], [told(2)]) == 1
    entries = await store.audit()
    assert [(e.who, e.action, e.target) for e in entries] == [
        ("client:etl", "unthrottled.reported", "etl")
    ] * 2
    assert entries[0].after["periods"][0]["pieces"] == 3


async def test_a_client_keeps_its_newest_periods(book: UnthrottledBook) -> None:
    assert unthrottled.MAX_PERIODS == MAX_PERIODS, "a whole report is known again by its ids"
    for number in range(MAX_PERIODS + 5):
        await book.take("etl", ["main"], [told(number)])
    kept = book.since(0)
    assert len(kept) == MAX_PERIODS
    assert told(0).id not in {period.id for _, period in kept}


async def test_made_up_clients_push_out_the_oldest_and_no_more(
    book: UnthrottledBook, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unthrottled, "MAX_CLIENTS", 3)
    for number in range(5):
        await book.take(f"c{number}", ["main"], [told(number, ended_ago_s=100 - number)])
    assert {client for client, _ in book.since(0)} == {"c2", "c3", "c4"}
    assert len(await store.records(UNTHROTTLED)) == 3


class AwayStore(MemoryStore):
    away = False

    async def put_record(self, record: Record, audit: AuditEntry) -> Record:
        if self.away:
            raise StoreUnavailable("disk full")
        return await super().put_record(record, audit)


async def test_what_the_store_does_not_take_is_told_again() -> None:
    store = AwayStore()
    await store.open()
    book = UnthrottledBook(store, HandClock())
    store.away = True
    with pytest.raises(StoreUnavailable):
        await book.take("etl", ["main"], [told(1)])
    assert book.since(0) == []
    store.away = False
    assert await book.take("etl", ["main"], [told(1)]) == 1


def test_the_advice_names_the_most_work_first() -> None:
    docs = [
        UnthrottledDoc(f"c{n}", ["main"], "2026-01-01T00:00:00Z", 60.0, 120.0 * n, n)
        for n in (1, 2, 3, 4, 5, 6, 6)
    ]
    lines = unthrottled_advice(docs)
    assert lines[0] == (
        "c6 went without a throttler for 2 min and started 12 pieces of work meanwhile; "
        "that ended 12 min ago: could it reach its agent?"
    )
    assert lines[-1] == "and 1 more clients went without a throttler"
    assert len(lines) == 6
    assert unthrottled_advice([]) == []
