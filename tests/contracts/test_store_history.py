"""Metrics by the minute, and tallies summed up by level: alike in every store (R68, R145)."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.base.keyvalue import Put
from headgate.base.ports import Store
from headgate.errors import StoreUnavailable
from headgate.history.records import AuditEntry, MetricMinute, Tally
from headgate.store.statements import AddMetricMinutes
from tests.contracts.conftest import sqlite_store

LAG = MetricMinute(100, "main", "lag", 60, 10, 5, 75.0, 0.5, 7.0, 5.0)
LOST = MetricMinute(100, "main", "loadavg", 60, 60, 0, 0.0, None, None, 8.0)


async def minutes(store: Store) -> list[MetricMinute]:
    found = await store.history.metric_minutes(since_minute=0, until_minute=10**9)
    return list(found)


async def test_metrics_come_back_as_they_were_kept(store: Store) -> None:
    await store.history.add_metric_minutes([LOST, LAG])
    assert await minutes(store) == [LAG, LOST]


async def test_two_parts_of_one_minute_are_added_up(store: Store) -> None:
    more = MetricMinute(100, "main", "lag", 2, 0, 2, 20.0, 9.0, 11.0, 6.0)
    await store.history.add_metric_minutes([LAG, LOST])
    await store.history.add_metric_minutes([more, replace(LOST, looks=1, absent=1)])
    [lag, lost] = await minutes(store)
    assert lag == MetricMinute(100, "main", "lag", 62, 10, 7, 95.0, 0.5, 11.0, 6.0)
    assert (lost.looks, lost.low, lost.high, lost.mean) == (61, None, None, None)


async def test_old_metrics_are_forgotten_with_the_rest(store: Store) -> None:
    old = [replace(LAG, minute=minute) for minute in range(50)]
    await store.history.add_metric_minutes([*old, LAG])
    await store.history.forget_before(60)
    assert await minutes(store) == [LAG]


async def test_beyond_the_limit_the_oldest_are_left_out(store: Store) -> None:
    await store.history.add_metric_minutes([replace(LAG, minute=m) for m in range(5)])
    found = await store.history.metric_minutes(since_minute=0, until_minute=9, limit=2)
    assert [m.minute for m in found] == [3, 4]


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.history.add_metric_minutes([LAG])
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.history.sums((), since_minute=0, until_minute=9)


# --- sums ----------------------------------------------------------------------------------

TALLIES = [
    Tally(10, "main", "run1:etl:daily", "OK", "", 3),
    Tally(11, "main", "run2:etl:daily", "OK", "", 4),
    Tally(11, "main", "run2:etl:daily", "THRESHOLD_EXCEEDED", "shard/lag", 5),
    Tally(15, "main", "run2:etl:daily", "OK", "", 1),
    Tally(11, "main", "report", "OK", "", 7),
    Tally(11, "main", "etl-copy", "OK", "", 9),
    Tally(11, "main", "etl", "OK", "", 2),
    Tally(99, "main", "run9:etl", "OK", "", 1),
]


@pytest.mark.parametrize(
    ("tokens", "count"),
    [((), 31), (("etl",), 15), (("etl", "daily"), 13), (("etl:daily",), 13), (("e%",), 0)],
)
async def test_sums_are_of_a_level_or_of_several(
    store: Store, tokens: tuple[str, ...], count: int
) -> None:
    await store.history.add_tallies(TALLIES)
    found = await store.history.sums(tokens, since_minute=10, until_minute=20)
    assert sum(t.count for t in found) == count


async def test_sums_by_step_and_by_client(store: Store) -> None:
    await store.history.add_tallies(TALLIES)
    history = store.history
    assert await history.sums(
        ("etl",), since_minute=10, until_minute=20, step_minutes=5, by_client=False
    ) == [
        Tally(10, "main", "", "OK", "", 9),
        Tally(10, "main", "", "THRESHOLD_EXCEEDED", "shard/lag", 5),
        Tally(15, "main", "", "OK", "", 1),
    ]
    by_client = await history.sums(("etl",), since_minute=10, until_minute=20, step_minutes=None)
    assert [(t.client, t.verdict, t.count) for t in by_client] == [
        ("etl", "OK", 2),
        ("run1:etl:daily", "OK", 3),
        ("run2:etl:daily", "OK", 5),
        ("run2:etl:daily", "THRESHOLD_EXCEEDED", 5),
    ]
    assert len(await history.sums((), since_minute=10, until_minute=20, limit=2)) == 2


async def test_minutes_in_which_a_client_checked(store: Store) -> None:
    await store.history.add_tallies([*TALLIES, Tally(11, "other", "run1:etl", "PACED", "", 6)])
    found = await store.history.minutes_asked(("etl",), since_minute=10, until_minute=20)
    assert found == [(10, 3, 0), (11, 17, 11), (15, 1, 0)]
    found = await store.history.minutes_asked(
        ("etl",), since_minute=10, until_minute=20, database="main"
    )
    assert found == [(10, 3, 0), (11, 11, 5), (15, 1, 0)]


async def test_of_too_many_clients_the_least_are_left_out(store: Store) -> None:
    await store.history.add_tallies(TALLIES)
    found = await store.history.client_sums((), since_minute=0, until_minute=99, limit=2)
    assert [(t.client, t.count) for t in found] == [("etl-copy", 9), ("report", 7)]


async def test_what_is_forgotten_is_gone_from_whole_hours_too(store: Store) -> None:
    """And a name that nobody is counted under any more is not kept either."""
    await store.history.add_tallies(
        [Tally(m, "main", f"u{m // 60}", "OK", "", 1) for m in range(180)]
    )
    await store.history.forget_before(90)
    [summed] = await store.history.sums(
        (), since_minute=0, until_minute=179, step_minutes=None, by_client=False
    )
    assert summed.count == 90
    by_client = await store.history.client_sums((), since_minute=0, until_minute=179, limit=9)
    assert [(t.client, t.count) for t in by_client] == [("u2", 60), ("u1", 30)]


async def test_names_that_nothing_is_counted_under_are_forgotten(tmp_path: Path) -> None:
    """R66: a name made up for each check must not stay forever."""
    store = sqlite_store(tmp_path / "state.db")
    await store.open()
    for minute in range(0, 600, 60):
        await store.history.add_tallies(
            [Tally(minute, "main", f"{minute}:etl", "OK", f"rule:{minute}", 1)]
        )
    await store.history.forget_before(540)
    await store.close()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert connection.execute("SELECT name FROM clients").fetchall() == [("540:etl",)]
        assert connection.execute("SELECT metric FROM kinds").fetchall() == [("rule:540",)]
    connection.close()


async def test_a_look_back_that_takes_too_long_says_what_to_do(tmp_path: Path) -> None:
    """The disk is not to blame, and writes and other reads go on meanwhile."""
    store = sqlite_store(tmp_path / "state.db", look_back_s=0.0)
    await store.open()
    await store.history.add_tallies(TALLIES)
    with pytest.raises(StoreUnavailable, match=r"looking back.*shorter.*--since 1d") as raised:
        await store.history.sums((), since_minute=0, until_minute=99)
    assert "disk" not in str(raised.value)
    assert len((await store.list([""])).entries) == 0
    await store.close()


async def test_a_step_of_nothing_is_rejected(store: Store) -> None:
    with pytest.raises(ValueError, match="0 minutes"):
        await store.history.sums((), since_minute=0, until_minute=9, step_minutes=0)


async def test_a_write_that_came_too_late_is_taken_back_whole(tmp_path: Path) -> None:
    """What its caller was told is not kept must not be, lows and highs included."""
    store = sqlite_store(tmp_path / "state.db")
    await store.open()
    await store.history.add_metric_minutes([LAG])
    await store.close()
    with sqlite3.connect(tmp_path / "state.db", isolation_level=None) as connection:
        write = AddMetricMinutes([replace(LAG, low=0.1, high=99.0), LOST, LOST])
        write.do(connection)
        write.take_back(connection)
    connection.close()
    await store.open()
    assert await minutes(store) == [LAG]
    await store.close()


# --- bounded disk --------------------------------------------------------------------------


def busy_minute(minute: int, clients: int = 500) -> list[Tally]:
    return [
        Tally(minute, "main", f"{n:032x}:etl:nightly", "THRESHOLD_EXCEEDED", "shard/lag", 3)
        for n in range(clients)
    ]


async def test_history_leaves_room_for_what_operators_set(tmp_path: Path) -> None:
    """R135: a file that is nearly full loses its oldest history, and never a rule or a setting."""
    store = sqlite_store(tmp_path / "state.db", max_bytes=512 * 1024)
    await store.open()
    try:
        for minute in range(60):
            await store.history.add_tallies(busy_minute(minute))
            await store.history.forget_before(0)
        size = (tmp_path / "state.db").stat().st_size
        assert size <= 0.75 * 512 * 1024
        kept = await store.history.sums((), since_minute=0, until_minute=99, by_client=False)
        assert [t.minute for t in kept] == list(range(kept[0].minute, 60)), "the newest stay"
        assert kept[0].minute > 0 and {t.count for t in kept} == {1500}
        audit = AuditEntry(0.0, "me", "metric.set", "main/lag", None, {})
        await store.commit([], [Put("items/wide/metric/main%2Flag", b"{}")], audit=[audit])
    finally:
        await store.close()


async def test_a_row_of_history_costs_about_twenty_bytes(tmp_path: Path) -> None:
    """What docs/howto/history.md reckons with."""
    store = sqlite_store(tmp_path / "state.db")
    await store.open()
    try:
        for minute in range(240):
            await store.history.add_tallies(busy_minute(minute, clients=100))
    finally:
        await store.close()
    assert (tmp_path / "state.db").stat().st_size / (240 * 100) < 25
