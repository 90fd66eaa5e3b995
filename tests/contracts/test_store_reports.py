"""What `Store` promises of what clients report, of every store alike (H5)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.base.keyvalue import Put
from headgate.base.ports import Store
from headgate.errors import InvalidSettings, StoreUnavailable
from headgate.history.records import AuditEntry, Report, Tally
from headgate.store import SqliteStore
from headgate.store.locallog import MAX_KEY_CHARS, MAX_VALUE_BYTES

ONE = Report("etl", "10.0.0.1", 1_700_000_000.5, {"periods": [{"pieces": 3}]})
OTHER = Report("web", "10.0.0.2", 1_700_000_001.5, {"periods": []})
ENTRY = AuditEntry(1_700_000_000.5, "ann", "skip.set", "x", None, {"why": "disk"})


async def test_reports_are_kept_in_the_order_in_which_they_came(store: Store) -> None:
    assert list(await store.reports()) == []
    for report in (OTHER, ONE):
        await store.put_report(report)
    assert list(await store.reports()) == [ONE, OTHER]
    await store.close()
    await store.open()
    assert list(await store.reports()) == [ONE, OTHER]


async def test_a_later_one_of_the_same_client_and_origin_replaces_it(store: Store) -> None:
    elsewhere = replace(ONE, origin="10.0.0.9")
    for report in (ONE, elsewhere, later := replace(ONE, wall_s=1_700_000_009.0, value={})):
        await store.put_report(report)
    assert list(await store.reports()) == [elsewhere, later]


async def test_what_gives_way_goes_in_the_same_step(store: Store) -> None:
    await store.put_report(ONE)
    await store.put_report(OTHER, forget=[replace(ONE, value={}), replace(ONE, client="none")])
    assert list(await store.reports()) == [OTHER]


async def test_they_are_neither_audited_nor_given_revisions(store: Store) -> None:
    first = await store.commit([], [Put("items/x", b"")], audit=[ENTRY])
    await store.put_report(ONE)
    second = await store.commit([], [Put("items/y", b"")], audit=[ENTRY])
    assert second == first + 1
    assert len(await store.audit()) == 2


@pytest.mark.parametrize(
    "bad",
    [
        replace(ONE, client="x" * (MAX_KEY_CHARS + 1)),
        replace(ONE, client="\ud800"),
        replace(ONE, origin="x" * (MAX_KEY_CHARS + 1)),
        replace(ONE, value={"x": "y" * MAX_VALUE_BYTES}),
    ],
)
async def test_what_is_too_long_is_not_kept(store: Store, bad: Report) -> None:
    with pytest.raises(InvalidSettings):
        await store.put_report(bad, forget=[ONE])
    assert list(await store.reports()) == []


async def test_where_room_is_short_reports_go_and_history_and_audit_stay(tmp_path: Path) -> None:
    """A file as full as it may be gets its room from what anybody may send."""
    store = SqliteStore(tmp_path / "state.db", max_bytes=2 * 1024 * 1024)
    await store.open()
    minute = 28_333_333
    await store.history.add_tallies([Tally(minute, "main", "etl", "OK", "", 3)])
    await store.commit([], [Put("items/x", b"")], audit=[ENTRY])
    value = {"x": "y" * 32_000}
    with pytest.raises(StoreUnavailable, match="full"):
        for number in range(100):
            await store.put_report(Report(f"c{number}", "", float(number), value))
    await store.history.forget_before(0)
    assert list(await store.reports()) == []
    kept = await store.history.tallies(since_minute=0, until_minute=10**9)
    assert [(tally.minute, tally.count) for tally in kept] == [(minute, 3)]
    assert [entry.action for entry in await store.audit()] == ["skip.set"]
    await store.put_report(ONE)
    await store.close()
