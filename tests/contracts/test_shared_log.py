"""What `SharedLog` of agent/ports.py promises, asked of every store alike: entries and commits."""

from __future__ import annotations

import asyncio

import pytest

from headgate.agent.ports import SharedLog
from headgate.core.keyvalue import Compare, Entry, Put
from headgate.errors import Conflict, StoreUnavailable
from headgate.stores.etcd.client import MAX_COMMIT_BYTES, MAX_COMMIT_OPS
from tests.contracts.fleets import Fleet

HARD_VALUES = [b"", b"\x00", b"\xff\xfe", "🐘".encode(), b"x" * 50_000]
HARD_KEYS = ["a/é", "a/名前", "a/%2F", "a/*", "a/'; --", "a/🐘", "a/" + "k" * 500]


async def under(store: SharedLog, *prefixes: str) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.list(prefixes)).entries}


async def test_a_new_store_is_empty_and_has_a_name(fleet: Fleet) -> None:
    store = fleet.client()
    listing = await store.list(["a/", "head"])
    assert (listing.entries, await store.count("")) == ((), 0)
    assert listing.store_id
    assert store.name


async def test_what_was_committed_is_listed_by_key_at_its_revision(fleet: Fleet) -> None:
    store = fleet.client()
    revision = await store.commit([], [Put("a/2", b"two"), Put("a/1", b"one"), Put("b", b"")])
    listing = await store.list(["a/"])
    assert listing.entries == (Entry("a/1", b"one", revision), Entry("a/2", b"two", revision))
    assert listing.revision >= revision
    assert await store.count("a/") == 2


async def test_every_client_sees_the_same_data_and_the_same_store(fleet: Fleet) -> None:
    one, other = fleet.client(), fleet.client()
    await one.commit([], [Put("a", b"1")])
    mine, theirs = await one.list(["a"]), await other.list(["a"])
    assert mine.entries == theirs.entries
    assert mine.store_id == theirs.store_id
    assert (await other.list(["a"], at_any_member=True)).store_id == mine.store_id


async def test_revisions_rise_with_every_commit(fleet: Fleet) -> None:
    store = fleet.client()
    revisions = [await store.commit([], [Put("a", b"%d" % i)]) for i in range(5)]
    assert revisions == sorted(set(revisions))
    assert (await store.list(["a"])).entries == (Entry("a", b"4", revisions[-1]),)


async def test_prefixes_are_of_characters_and_may_overlap(fleet: Fleet) -> None:
    store = fleet.client()
    await store.commit([], [Put(key, b"") for key in ("a", "a/1", "a0", "ab/1", "b", "beat")])
    assert list(await under(store, "a/")) == ["a/1"]
    assert list(await under(store, "a", "a/", "be")) == ["a", "a/1", "a0", "ab/1", "beat"]
    assert list(await under(store, "c")) == []


async def test_any_value_comes_back_as_it_was(fleet: Fleet) -> None:
    store = fleet.client()
    wanted = {f"a/{place}": value for place, value in enumerate(HARD_VALUES)}
    await store.commit([], [Put(key, value) for key, value in wanted.items()])
    assert await under(store, "a/") == wanted


async def test_any_key_comes_back_as_it_was(fleet: Fleet) -> None:
    store = fleet.client()
    await store.commit([], [Put(key, key.encode()) for key in HARD_KEYS])
    assert await under(store, "a/") == {key: key.encode() for key in HARD_KEYS}
    assert list(await under(store, "a/")) == sorted(HARD_KEYS)


# --- taking out ----------------------------------------------------------------------------


async def test_what_is_taken_out_is_gone_in_the_same_commit(fleet: Fleet) -> None:
    store = fleet.client()
    await store.commit([], [Put("a", b"1"), Put("b", b"1")])
    await store.commit([], [Put("a", None), Put("c", b"1")])
    assert list(await under(store, "")) == ["b", "c"]


async def test_what_is_not_there_may_be_taken_out(fleet: Fleet) -> None:
    store = fleet.client()
    await store.commit([], [Put("a", b"1")])
    await store.commit([], [Put("nothing", None)])
    assert await under(store, "") == {"a": b"1"}


async def test_an_entry_that_was_taken_out_can_be_made_anew(fleet: Fleet) -> None:
    store = fleet.client()
    await store.commit([Compare("a", 0)], [Put("a", b"1")])
    await store.commit([], [Put("a", None)])
    await store.commit([Compare("a", 0)], [Put("a", b"2")])
    assert await under(store, "a") == {"a": b"2"}


# --- compares ------------------------------------------------------------------------------


async def test_only_the_first_creates(fleet: Fleet) -> None:
    one, other = fleet.client(), fleet.client()
    await one.commit([Compare("head", 0)], [Put("head", b"one")])
    with pytest.raises(Conflict):
        await other.commit([Compare("head", 0)], [Put("head", b"other")])
    assert await under(other, "head") == {"head": b"one"}


async def test_a_change_built_on_what_no_longer_stands_does_nothing_at_all(fleet: Fleet) -> None:
    store = fleet.client()
    first = await store.commit([], [Put("head", b"1")])
    await store.commit([Compare("head", first)], [Put("head", b"2")])
    before = await store.list([""])
    with pytest.raises(Conflict):
        await store.commit(
            [Compare("other", 0), Compare("head", first)], [Put("other", b""), Put("head", b"3")]
        )
    assert (await store.list([""])).entries == before.entries


async def test_a_compare_with_an_entry_that_is_gone_fails(fleet: Fleet) -> None:
    store = fleet.client()
    revision = await store.commit([], [Put("head", b"1")])
    await store.commit([], [Put("head", None)])
    with pytest.raises(Conflict):
        await store.commit([Compare("head", revision)], [Put("head", b"2")])


async def test_of_many_at_once_no_update_is_lost(fleet: Fleet) -> None:
    """R85: each reads, compares and swaps until it went through."""
    clients = [fleet.client() for _ in range(4)]
    await clients[0].commit([], [Put("n", b"0")])
    await asyncio.gather(*(_raise_n(client, times=5) for client in clients))
    assert await under(clients[0], "n") == {"n": b"20"}


async def _raise_n(store: SharedLog, times: int) -> None:
    while times:
        (entry,) = (await store.list(["n"])).entries
        try:
            raised = b"%d" % (int(entry.value) + 1)
            await store.commit([Compare("n", entry.revision)], [Put("n", raised)])
            times -= 1
        except Conflict:
            continue


# --- bounds, and the end -------------------------------------------------------------------


TOO_MUCH = {
    "same key twice": [Put("a", b""), Put("a", b"")],
    "empty key": [Put("", b"")],
    "too many": [Put(f"a{i}", b"") for i in range(MAX_COMMIT_OPS + 1)],
    "too large": [Put("a", b"x" * MAX_COMMIT_BYTES)],
}


async def test_what_etcd_would_not_take_is_refused_everywhere(fleet: Fleet) -> None:
    store = fleet.client()
    for puts in TOO_MUCH.values():
        with pytest.raises(ValueError, match="commit"):
            await store.commit([], puts)
    assert await store.count("") == 0


async def test_as_much_as_is_allowed_goes_through(fleet: Fleet) -> None:
    store = fleet.client()
    value = b"x" * (MAX_COMMIT_BYTES // MAX_COMMIT_OPS - 10)
    await store.commit([], [Put(f"a{i:03}", value) for i in range(MAX_COMMIT_OPS)])
    assert await store.count("a") == MAX_COMMIT_OPS
    assert len((await store.list(["a"])).entries) == MAX_COMMIT_OPS


async def test_a_closed_store_says_so(fleet: Fleet) -> None:
    store, other = fleet.client(), fleet.client()
    await store.commit([], [Put("a", b"1")])
    await store.close()
    await store.close()
    for attempt in (store.list(["a"]), store.commit([], [Put("a", b"2")]), store.grant(5)):
        with pytest.raises(StoreUnavailable):
            await attempt
    assert await under(other, "a") == {"a": b"1"}
