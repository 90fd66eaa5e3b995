"""The book of periods without a throttler (R55): bounded, kept, and each counted once.

Anybody may report, so what they can take up of the store is bounded (H5)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.history import unthrottled
from headgate.history.records import Report
from headgate.history.unthrottled import (
    ALL,
    EACH,
    MAX_ROW_BYTES,
    Quota,
    Rate,
    ReportedPeriod,
    UnthrottledBook,
)
from headgate.history.unthrottled_api import MAX_PERIODS, UnthrottledDoc, unthrottled_advice
from headgate.store.locallog import to_json
from tests.builders import NOW
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_store import MemoryStore


def told(number: int, *, ended_ago_s: float = 0.0, pieces: int = 3) -> ReportedPeriod:
    return ReportedPeriod(f"{number:032x}", ended_ago_s, 10.0, pieces)


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


async def test_reported_twice_it_counts_once(book: UnthrottledBook) -> None:
    assert await book.take("etl", ["main"], [told(1), told(2)]) == 2
    assert await book.take("etl", ["main"], [told(2), told(3)]) == 1
    assert len(book.since(0)) == 3


async def test_two_reports_at_once_both_count(book: UnthrottledBook) -> None:
    taken = await asyncio.gather(*(book.take("etl", ["main"], [told(n)]) for n in range(10)))
    assert sum(taken) == len(book.since(0)) == 10


async def test_it_outlives_the_process(book: UnthrottledBook, store: MemoryStore) -> None:
    await book.take("etl", ["main"], [told(1)])
    again = UnthrottledBook(store, HandClock())
    again.load(await store.reports())
    assert again.since(0) == book.since(0)
    assert await again.take("etl", ["main"], [told(1)]) == 0
    assert await again.take("etl", ["main"], [told(2)]) == 1


async def test_reports_are_no_audit_entries(book: UnthrottledBook, store: MemoryStore) -> None:
    """H5: what operators changed is not pushed out of sight by what anybody may send."""
    await book.take("etl", ["main"], [told(1)])
    assert list(await store.audit()) == []


async def test_databases_are_kept_with_each_period(
    book: UnthrottledBook, store: MemoryStore
) -> None:
    await book.take("etl", ["main"], [told(1), told(2)])
    await book.take("etl", ["main", "other"], [told(3)])
    await book.take("etl", ["main"], [told(4)])
    again = UnthrottledBook(store, HandClock())
    again.load(await store.reports())
    assert {p.id[-1]: p.databases for _, p in again.since(0)} == {
        "1": ("main",),
        "2": ("main",),
        "3": ("main", "other"),
        "4": ("main",),
    }


async def test_a_report_as_an_earlier_version_kept_it_is_read(store: MemoryStore) -> None:
    period = {"id": "f" * 32, "started_at": 1.0, "duration_s": 2.0, "pieces": 3}
    both = [{**period, "databases": ["main"]}, {**period, "id": "e" * 32, "databases": ["x"]}]
    book = UnthrottledBook(store, HandClock())
    book.load([Report("etl", "", 5.0, {"periods": both})])
    assert [(p.id[0], p.databases) for _, p in book.since(0)] == [("f", ("main",)), ("e", ("x",))]


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
    monkeypatch.setattr(unthrottled, "MAX_ROWS", 3)
    for number in range(5):
        await book.take(f"c{number}", ["main"], [told(number)])
        await book._clock.advance(1.0)  # type: ignore[attr-defined]
    assert {client for client, _ in book.since(0)} == {"c2", "c3", "c4"}
    assert len(await store.reports()) == 3


async def test_made_up_clients_of_one_address_push_out_no_other_addresses(
    book: UnthrottledBook, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H5."""
    monkeypatch.setattr(unthrottled, "MAX_ROWS", 10)
    await book.take("etl", ["main"], [told(1)], origin="10.0.0.1")
    for number in range(50):
        await book.take(f"c{number}", ["main"], [told(100 + number)], origin="10.6.6.6")
    await book.take("etl", ["main"], [told(n) for n in range(200, 300)], origin="10.6.6.6")
    assert told(1).id in {period.id for client, period in book.since(0) if client == "etl"}
    assert len(await store.reports()) == 10


async def test_reports_are_bounded_in_bytes(
    book: UnthrottledBook, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H5: each period of one report once had a list of its databases of its own."""
    monkeypatch.setattr(unthrottled, "MAX_BYTES", 3 * MAX_ROW_BYTES)
    most = [f"{n:063}" for n in range(64)]
    for client in range(9):
        many = [told(client * 1000 + n, ended_ago_s=0.123456789) for n in range(MAX_PERIODS)]
        assert await book.take(f"c{client}", most, many) == MAX_PERIODS
    rows = await store.reports()
    assert [row.client for row in rows][-1] == "c8"
    assert sum(len(to_json(row.value)) for row in rows) <= 3 * MAX_ROW_BYTES
    assert len(rows[-1].value["periods"]) == MAX_PERIODS, "a whole report fits"
    for number in range(100):
        await book.take("c8", [*most[:-1], f"d{number}"], [told(50_000 + number)])
    by_client = {row.client: row for row in await store.reports()}
    assert len(to_json(by_client["c8"].value)) <= MAX_ROW_BYTES


async def test_too_many_reports_are_rejected_and_come_back(store: MemoryStore) -> None:
    """H5: by address, and in all."""
    clock = HandClock()
    book = UnthrottledBook(store, clock)
    for number in range(EACH.burst):
        await book.take("etl", ["main"], [told(number)], origin="10.6.6.6")
    with pytest.raises(InvalidRequest, match=r"too many reports .* again in 0\.2 s") as caught:
        await book.take("etl", ["main"], [told(-1)], origin="10.6.6.6")
    assert caught.value.status == 429
    assert caught.value.retry_after_s == pytest.approx(0.2)
    assert await book.take("web", ["main"], [told(1)], origin="10.0.0.1") == 1
    await clock.advance(1.0)
    assert await book.take("late", ["main"], [told(2)], origin="10.6.6.6") == 1
    with pytest.raises(InvalidRequest):
        for number in range(ALL.burst):
            await book.take("x", ["main"], [told(3)], origin=f"10.0.1.{number}")


class AwayStore(MemoryStore):
    away = False

    async def put_report(self, report: Report, *, forget: Sequence[Report] = ()) -> None:
        if self.away:
            raise StoreUnavailable("disk full")
        await super().put_report(report, forget=forget)


async def test_what_the_store_rejects_is_reported_again() -> None:
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
        "c6 worked without a throttler for 2 min and started 12 pieces of work; "
        "that ended 12 min ago. Check whether it can reach its agent"
    )
    assert lines[-1] == "and 1 more clients worked without a throttler"
    assert len(lines) == 6
    assert unthrottled_advice([]) == []


# How often something may be done, by each key and by all together.

FREE = Rate(1e6, 10**6)


def test_a_burst_passes_and_then_the_rate() -> None:
    quota = Quota(Rate(2.0, 3), FREE)
    assert [quota.take("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert quota.take("a", 100.25) == 0.25
    assert quota.take("a", 100.5) == 0.0
    assert quota.take("a", 100.5) > 0


def test_keys_do_not_take_each_others_share() -> None:
    quota = Quota(Rate(1.0, 1), FREE)
    assert quota.take("a", 0.0) == 0.0
    assert quota.take("a", 0.0) > 0
    assert quota.take("b", 0.0) == 0.0


def test_all_together_have_a_bound() -> None:
    quota = Quota(Rate(1.0, 1), Rate(1.0, 2))
    assert [quota.take(key, 0.0) for key in "abc"] == [0.0, 0.0, 1.0]
    assert quota.take("c", 1.0) == 0.0, "a rejection counted against its key"


def test_many_keys_take_bounded_memory_and_are_still_counted() -> None:
    quota = Quota(Rate(1.0, 1), FREE, max_keys=3)
    assert [quota.take(str(key), 0.0) for key in range(4)] == [0.0] * 4
    assert quota.take("one more", 0.0) > 0, "beyond the bound they share one place"
    assert quota.take("later", 10.0) == 0.0
    assert len(quota._paid_until) <= 4
