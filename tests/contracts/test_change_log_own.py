"""What an agent's own log has besides (test_change_log.py): its audit, its bounds, its file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.base.keyvalue import Compare, Entry, Listing, Put
from headgate.base.ports import Store
from headgate.changes.model import log_key
from headgate.changes.state import MAX_OWN_ITEM_BYTES
from headgate.errors import Conflict, InvalidSettings, StoreUnavailable
from headgate.history.records import AuditEntry
from headgate.store import locallog
from headgate.store.locallog import MAX_LOG_KEY_CHARS, MAX_REVISION_BYTES, Commit
from tests.contracts.conftest import sqlite_store

ENTRY = AuditEntry(1_700_000_000.5, "ann", "rule.set", "r-1", None, {"kind": "hold"})
RULE, SKIP, NOTE = "items/wide/rule/r-1", "items/wide/skip/s%20db-b", "notes/rule/r-1"


async def values(store: Store, *prefixes: str) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.list(prefixes or [""])).entries}


async def put(store: Store, key: str, value: bytes | None, **more: object) -> int:
    return await store.commit([], [Put(key, value)], audit=[ENTRY], **more)  # type: ignore[arg-type]


# --- listed ----------------------------------------------------------------------------------


async def test_a_new_log_is_empty_at_revision_0(store: Store) -> None:
    listing = await store.list(["items/", "notes/", "head"])
    assert (listing.entries, listing.revision) == ((), 0)
    assert len((await store.list([""])).entries) == 0
    assert (await store.list([""], allow_stale=True)).entries == ()


async def test_what_is_put_is_listed_by_key_with_the_revision_of_its_commit(store: Store) -> None:
    first = await store.commit([], [Put(SKIP, b"skip"), Put(RULE, b"rule")])
    second = await store.commit([], [Put("head", b"2"), Put(SKIP, b"again")])
    assert (first, second) == (1, 2)
    listing = await store.list(["items/", "head"])
    assert listing.revision == second
    assert listing.entries == (
        Entry("head", b"2", 2),
        Entry(RULE, b"rule", 1),
        Entry(SKIP, b"again", 2),
    )
    assert (await store.list(["items/", "head"], allow_stale=True)).entries == listing.entries


async def test_it_is_the_same_log_after_close_and_open(store: Store) -> None:
    """R141."""
    await put(store, RULE, b"rule")
    before = await store.list([""])
    await store.close()
    await store.open()
    assert await store.list([""]) == before
    assert before.store_id
    assert await put(store, RULE, b"again") == before.revision + 1


async def test_a_commit_that_changes_nothing_raises_no_revision(store: Store) -> None:
    await put(store, RULE, b"rule")
    assert await store.commit([], [Put(SKIP, None)]) == 1
    assert await store.commit([], []) == 1
    assert await store.commit([], [], audit=[ENTRY]) == 1
    assert (await store.list([""])).revision == 1
    assert len(await store.audit()) == 2


async def test_a_lease_means_nothing(store: Store) -> None:
    await store.commit([], [Put(RULE, b"rule", lease=17)])
    await store.close()
    await store.open()
    assert await values(store) == {RULE: b"rule"}


@pytest.mark.parametrize("key", ["x", "%_", "'; --", "a\x00b", "名前/🐘", "é" * MAX_LOG_KEY_CHARS])
async def test_any_text_is_a_key(store: Store, key: str) -> None:
    await put(store, key, b"value")
    assert await values(store, key) == {key: b"value"}
    assert len((await store.list([key])).entries) == 1


# --- compared --------------------------------------------------------------------------------


async def test_of_many_at_once_one_wins_and_is_audited(store: Store) -> None:
    """The others are named with what they were built on; nothing of them is kept."""
    attempts = [
        store.commit([Compare("head", 0)], [Put("head", b"1"), Put(RULE, b"x")], audit=[ENTRY])
        for _ in range(10)
    ]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [1]
    conflicts = [str(outcome) for outcome in outcomes if isinstance(outcome, Conflict)]
    assert len(conflicts) == 9
    assert all("has revision 1, not 0: another change was first" in one for one in conflicts)
    assert len(await store.audit()) == 1


# --- audited ---------------------------------------------------------------------------------


async def test_every_audit_entry_is_kept_with_the_puts_in_its_order(store: Store) -> None:
    """R76: two rules that only make sense together."""
    lifted = replace(ENTRY, who="bob", action="rule.lifted", before={"kind": "hold"}, after=None)
    await store.commit([], [Put(RULE, b"1"), Put(SKIP, b"2")], audit=[ENTRY, lifted])
    await put(store, RULE, b"3")
    assert [entry.id for entry in await store.audit()] == [3, 2, 1]
    assert [replace(entry, id=0) for entry in await store.audit()] == [ENTRY, lifted, ENTRY]


async def test_what_the_agent_notes_is_not_audited(store: Store) -> None:
    await store.commit([], [Put(NOTE, b"1")])
    assert list(await store.audit()) == []


async def test_an_audit_entry_that_is_no_json_leaves_nothing_behind(store: Store) -> None:
    with pytest.raises(TypeError, match="set"):
        await store.commit([], [Put(RULE, b"")], audit=[ENTRY, replace(ENTRY, after={1, 2})])
    assert await values(store) == {}
    assert list(await store.audit()) == []
    assert await put(store, RULE, b"") == 1


async def test_forgetting_history_keeps_the_log_and_its_revision(store: Store) -> None:
    await store.commit([], [Put(RULE, b"1"), Put("log/000000000001", b"who")], audit=[ENTRY])
    before = await store.list([""])
    await store.history.forget_before(10**8)
    await store.close()
    await store.open()
    assert list(await store.audit()) == []
    assert await store.list([""]) == before
    await put(store, RULE, b"2")
    assert [entry.id for entry in await store.audit()] == [2], "an id was given twice"


# --- bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "size_bytes", "message"),
    [
        (RULE, MAX_OWN_ITEM_BYTES + 1, rf"{RULE}: has 16,777,217 bytes, at most 16,777,216"),
        (NOTE, MAX_OWN_ITEM_BYTES + 1, rf"{NOTE}: has 16,777,217 bytes, at most 16,777,216"),
        ("log/1", MAX_REVISION_BYTES + 1, r"log/1: has 33,554,433 bytes, at most 33,554,432"),
        ("k" * (MAX_LOG_KEY_CHARS + 1), 1, r"key: 'kkk.* has 4097 characters, at most 4096"),
        ("\ud800", 1, r"key: '\\ud800' has half of a surrogate pair"),
    ],
)
async def test_what_is_too_long_or_no_text_is_rejected_by_name(
    store: Store, key: str, size_bytes: int, message: str
) -> None:
    with pytest.raises(InvalidSettings, match=message) as caught:
        await store.commit([], [Put(SKIP, b""), Put(key, b"x" * size_bytes)], audit=[ENTRY])
    assert len(str(caught.value)) < 200
    assert await values(store) == {}
    assert list(await store.audit()) == []


async def test_a_revision_may_say_more_than_an_item(store: Store) -> None:
    await store.commit([], [Put("log/1", b"x" * MAX_REVISION_BYTES)])
    assert len((await values(store, "log/"))["log/1"]) == MAX_REVISION_BYTES


async def test_history_has_a_bound_and_its_oldest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locallog, "MAX_HISTORY_BYTES", 250_000)
    store = sqlite_store(tmp_path / "state.db")
    await store.open()
    for n in range(1, 6):
        await store.commit([], [Put(f"log/{n}", b"x" * 100_000), Put(RULE, str(n).encode())])
    assert sorted(await values(store, "log/")) == ["log/4", "log/5"]
    await store.commit([], [Put("log/6", b"x" * 300_000)])
    assert sorted(await values(store, "log/")) == ["log/6"], "the newest stays in any case"
    assert (await values(store))[RULE] == b"5"
    await store.close()


async def test_revisions_go_by_their_numbers_though_some_are_skipped(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "state.db")
    await store.open()
    for n in (1, 2, 400, 502, 900, 903):
        await store.commit([], [Put(log_key(n), b"x"), Put(RULE, b"r")])
    assert sorted(await values(store, "log/")) == [log_key(n) for n in (502, 900, 903)]
    await store.close()


async def test_all_of_a_commit_has_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locallog, "MAX_COMMIT_BYTES", 10)
    with pytest.raises(InvalidSettings, match="the whole change: has 12 bytes, at most"):
        await store.commit([], [Put(RULE, b"x" * 6), Put(SKIP, b"x" * 6)])
    await store.commit([], [Put(RULE, b"x" * 10)])


async def test_a_full_log_rejects_one_more_until_one_is_taken_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locallog, "MAX_ENTRIES", 3)
    await store.commit([], [Put(f"items/{n}", b"") for n in range(3)])
    message = r"items/ has 3 entries and would have 4; at most 3 are allowed: remove some"
    with pytest.raises(StoreUnavailable, match=message):
        await store.commit([], [Put("head", b""), Put("items/3", b"")], audit=[ENTRY])
    assert len((await store.list([""])).entries) == 3
    assert list(await store.audit()) == []
    await store.commit([], [Put("items/1", b"changed"), Put("notes/1", b""), Put("head", b"")])
    await store.commit([], [Put("items/0", None), Put("items/3", b"")])
    assert len((await store.list(["items/"])).entries) == 3
    with pytest.raises(StoreUnavailable):
        await store.commit([], [Put("items/1", None), Put("items/4", b""), Put("items/5", b"")])


# --- of the file alone -------------------------------------------------------------------------


def taken_back(path: Path, commit: Commit) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        commit.do(connection)
        commit.take_back(connection)


async def test_a_commit_that_came_too_late_is_taken_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = sqlite_store(path)
    await store.open()
    await store.commit([], [Put(RULE, b"1"), Put(SKIP, b"2")], audit=[ENTRY])
    before = await store.list([""])
    await store.close()
    puts = [Put(RULE, b"late"), Put(SKIP, None), Put(NOTE, b"late"), Put("items/none", None)]
    taken_back(path, Commit([Compare(RULE, 1)], puts, [ENTRY, replace(ENTRY, who="bob")]))
    await store.open()
    after = await store.list([""])
    assert (after.entries, after.store_id) == (before.entries, before.store_id)
    assert len(await store.audit()) == 1
    revision = await store.commit([Compare(RULE, 1), Compare(NOTE, 0)], [Put(RULE, b"3")])
    assert revision > before.revision + 1, "a revision was given twice"
    await store.close()


async def test_of_another_file_nothing_is_taken_back(tmp_path: Path) -> None:
    stores = [sqlite_store(tmp_path / name) for name in ("state.db", "other.db")]
    for store in stores:
        await store.open()
        await store.commit([], [Put(RULE, b"1"), Put(SKIP, b"2")], audit=[ENTRY])
        await store.commit([], [Put(RULE, b"2"), Put(SKIP, None)], audit=[ENTRY])
        await store.close()
    late = Commit([], [Put(RULE, b"late"), Put(SKIP, None)], [ENTRY])
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
        late.do(connection)
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as connection:
        late.take_back(connection)
    await stores[1].open()
    assert await values(stores[1]) == {RULE: b"2"}
    assert (await stores[1].list([""])).revision == 2
    assert len(await stores[1].audit()) == 2
    await stores[1].close()


async def test_a_file_that_cannot_be_opened_still_shows_its_log(tmp_path: Path) -> None:
    """An operator's rule must not be dropped because another process holds the file."""
    path = tmp_path / "state.db"
    store, other = sqlite_store(path), sqlite_store(path)
    assert await other.list([""], allow_stale=True) == Listing((), 0, "")
    await store.open()
    await store.commit([], [Put(RULE, b"1"), Put("log/1", b"who"), Put(NOTE, b"2")])
    assert await other.list([""], allow_stale=True) == await store.list([""])
    assert await other.list(["items/"], allow_stale=True) == await store.list(["items/"])
    await store.close()


async def test_the_copy_has_each_commit_at_once_and_no_history(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = sqlite_store(path)
    await store.open()
    await store.commit([], [Put(NOTE, b"1"), Put(RULE, b"1"), Put("log/1", b"who")])
    await store.commit([], [Put(NOTE, b"2"), Put("log/2", b"who")])
    listing = await store.list(["items/", "notes/"])
    path.rename(tmp_path / "elsewhere.db")
    assert await store.list([""], allow_stale=True) == listing
    (tmp_path / "elsewhere.db").rename(path)
    await store.close()
