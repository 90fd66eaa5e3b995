"""What a fleet's log has besides (test_change_log.py): several clients, watches, leases, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import pytest

from headgate.base.keyvalue import Changes, Compare, KeyEvent, Lease, Put
from headgate.base.ports import SharedLog
from headgate.changes.etcd.client import MAX_COMMIT_BYTES, MAX_COMMIT_OPS
from headgate.errors import Compacted, Conflict, LeaseLost, StoreUnavailable
from tests.contracts.logs import Fleet
from tests.fixtures.eventually import DEADLINE_S, aeventually


async def events_of(watch: AsyncGenerator[Changes], count: int) -> list[KeyEvent]:
    """The next `count`; more in the same Changes are a fault of the test."""
    seen: list[KeyEvent] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(seen) < count:
            changes = await anext(watch)
            assert changes.newest <= changes.revision + 1  # of the newest commit there may be more
            seen.extend(changes.events)
    assert len(seen) == count
    return seen


async def test_every_client_sees_the_same_data_and_the_same_store(fleet: Fleet) -> None:
    one, other = fleet.client(), fleet.client()
    await one.commit([], [Put("a", b"1")])
    mine, theirs = await one.list(["a"]), await other.list(["a"])
    assert mine.entries == theirs.entries
    assert mine.store_id == theirs.store_id
    assert (await other.list(["a"], allow_stale=True)).store_id == mine.store_id


async def test_of_many_at_once_no_update_is_lost(fleet: Fleet) -> None:
    """R85: each reads, compares and swaps until it went through."""
    clients = [fleet.client() for _ in range(4)]
    await clients[0].commit([], [Put("n", b"0")])
    await asyncio.gather(*(_raise_n(client, times=5) for client in clients))
    (entry,) = (await clients[0].list(["n"])).entries
    assert entry.value == b"20"


async def _raise_n(store: SharedLog, times: int) -> None:
    while times:
        (entry,) = (await store.list(["n"])).entries
        try:
            raised = b"%d" % (int(entry.value) + 1)
            await store.commit([Compare("n", entry.revision)], [Put("n", raised)])
            times -= 1
        except Conflict:
            continue


TOO_MUCH = {
    "too many": [Put(f"a{i}", b"") for i in range(MAX_COMMIT_OPS + 1)],
    "too large": [Put("a", b"x" * MAX_COMMIT_BYTES)],
}


async def test_what_etcd_would_not_take_is_rejected_everywhere(fleet: Fleet) -> None:
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


# --- watches -------------------------------------------------------------------------------


async def test_changes_of_others_come_in_order_each_once(fleet: Fleet) -> None:
    """R84."""
    one, other = fleet.client(), fleet.client()
    begun = (await one.list(["a/"])).revision
    async with aclosing(one.watch(["a/"], after_revision=begun)) as watch:
        wanted = []
        for i in range(5):
            revision = await other.commit([], [Put(f"a/{i}", b"%d" % i)])
            wanted.append(KeyEvent(f"a/{i}", b"%d" % i, revision))
        assert await events_of(watch, 5) == wanted


async def test_a_waiting_watch_gets_the_change(fleet: Fleet) -> None:
    one, other = fleet.client(), fleet.client()
    begun = (await one.list(["a"])).revision
    async with aclosing(one.watch(["a"], after_revision=begun)) as watch:
        waiting = asyncio.ensure_future(events_of(watch, 1))
        await asyncio.sleep(0)
        revision = await other.commit([], [Put("a", b"1")])
        assert await waiting == [KeyEvent("a", b"1", revision)]


async def test_a_watch_from_before_begins_with_what_was_missed(fleet: Fleet) -> None:
    store = fleet.client()
    first = await store.commit([], [Put("a", b"1")])
    second = await store.commit([], [Put("a", b"2")])
    third = await store.commit([], [Put("a", None)])
    async with aclosing(store.watch(["a"], after_revision=first)) as watch:
        assert await events_of(watch, 2) == [
            KeyEvent("a", b"2", second),
            KeyEvent("a", None, third),
        ]


async def test_a_commit_arrives_whole(fleet: Fleet) -> None:
    store = fleet.client()
    begun = await store.commit([], [Put("b/gone", b"")])
    puts = [Put("a/1", b""), Put("b/1", b""), Put("b/gone", None), Put("a/2", b"")]
    revision = await store.commit([], puts)
    async with aclosing(store.watch(["a/", "b/"], after_revision=begun)) as watch:
        changes = await _first_with_events(watch)
    assert {event.key: event.value for event in changes.events} == {
        put.key: put.value for put in puts
    }
    assert {event.revision for event in changes.events} == {revision}


async def _first_with_events(watch: AsyncGenerator[Changes]) -> Changes:
    async with asyncio.timeout(DEADLINE_S):
        async for changes in watch:
            if changes.events:
                return changes
    raise AssertionError("a watch ends by an error only")


async def test_what_no_prefix_names_does_not_arrive(fleet: Fleet) -> None:
    one, other = fleet.client(), fleet.client()
    begun = (await one.list(["a/"])).revision
    async with aclosing(one.watch(["a/", "beat"], after_revision=begun)) as watch:
        for key in ("a", "b/1", "a/1", "bea", "ab", "beat"):
            await other.commit([], [Put(key, b"")])
        assert [event.key for event in await events_of(watch, 2)] == ["a/1", "beat"]


async def test_the_order_holds_across_prefixes_also_overlapping_ones(fleet: Fleet) -> None:
    one, other = fleet.client(), fleet.client()
    keys = [f"{'ab'[i % 2]}/{i}" for i in range(12)]
    begun = (await one.list(["a/"])).revision
    async with aclosing(one.watch(["a/", "b/", "b/1"], after_revision=begun)) as watch:
        for key in keys:
            await other.commit([], [Put(key, b"")])
        assert [event.key for event in await events_of(watch, len(keys))] == keys


async def test_a_large_change_arrives(fleet: Fleet) -> None:
    store = fleet.client()
    value = b"x" * 60_000
    begun = (await store.list(["a/"])).revision
    await store.commit([], [Put(f"a/{i}", value) for i in range(15)])
    async with aclosing(store.watch(["a/"], after_revision=begun)) as watch:
        assert all(event.value == value for event in await events_of(watch, 15))


async def test_changes_that_are_no_longer_known_are_not_left_out_in_silence(
    fleet: Fleet,
) -> None:
    """R84: the reader has to list again, and from there on it goes on."""
    store = fleet.client()
    begun = await store.commit([], [Put("a", b"1")])
    await store.commit([], [Put("a", b"2")])
    await store.commit([], [Put("a", b"3")])
    await fleet.compact()
    async with aclosing(store.watch(["a"], after_revision=begun)) as watch:
        with pytest.raises(Compacted):
            await events_of(watch, 1)
    listing = await store.list(["a"])
    async with aclosing(store.watch(["a"], after_revision=listing.revision)) as watch:
        revision = await store.commit([], [Put("a", b"4")])
        assert await events_of(watch, 1) == [KeyEvent("a", b"4", revision)]


async def test_a_rejected_commit_does_not_arrive(fleet: Fleet) -> None:
    store = fleet.client()
    begun = (await store.list(["a"])).revision
    async with aclosing(store.watch(["a"], after_revision=begun)) as watch:
        with pytest.raises(LeaseLost):
            await store.commit([], [Put("a", b"no", lease=987654321)])
        await store.commit([], [Put("a", b"yes")])
        assert [event.value for event in await events_of(watch, 1)] == [b"yes"]


async def test_a_watch_ends_with_its_store(fleet: Fleet) -> None:
    store = fleet.client()
    begun = (await store.list(["a"])).revision
    await store.commit([], [Put("a", b"")])
    async with aclosing(store.watch(["a"], after_revision=begun)) as watch:
        await events_of(watch, 1)
        waiting = asyncio.ensure_future(events_of(watch, 1))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreUnavailable):
            await waiting


async def test_a_watch_that_is_given_up_leaves_the_store_well(fleet: Fleet) -> None:
    store = fleet.client()
    begun = (await store.list(["a"])).revision
    for _ in range(3):
        async with aclosing(store.watch(["a"], after_revision=begun)) as watch:
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
    await store.commit([], [Put("a", b"1")])
    assert await store.count("a") == 1


# --- leases --------------------------------------------------------------------------------


async def test_what_lies_under_a_lease_goes_with_it(fleet: Fleet) -> None:
    store = fleet.client()
    lease = await store.grant(60)
    assert lease.ttl_s >= 60
    begun = await store.commit([], [Put("a", b"", lease=lease.id), Put("b", b"")])
    async with aclosing(store.watch([""], after_revision=begun)) as watch:
        await store.revoke(lease.id)
        assert [(event.key, event.value) for event in await events_of(watch, 1)] == [("a", None)]
    assert [entry.key for entry in (await store.list([""])).entries] == ["b"]
    with pytest.raises(LeaseLost):
        await store.renew(lease.id)


async def test_a_lease_that_is_not_there_is_not_missed_when_given_back(fleet: Fleet) -> None:
    store = fleet.client()
    await store.revoke(123456789)


async def test_nothing_can_be_put_under_a_lease_that_is_not_there(fleet: Fleet) -> None:
    store = fleet.client()
    with pytest.raises(LeaseLost):
        await store.commit([], [Put("b", b""), Put("a", b"", lease=123456789)])
    assert await store.count("") == 0


async def test_an_entry_put_again_without_the_lease_stays(fleet: Fleet) -> None:
    store = fleet.client()
    lease = await store.grant(60)
    await store.commit([], [Put("a", b"1", lease=lease.id)])
    await store.commit([], [Put("a", b"2")])
    await store.revoke(lease.id)
    assert [entry.value for entry in (await store.list(["a"])).entries] == [b"2"]


async def test_a_lease_that_nobody_renews_runs_out(fleet: Fleet) -> None:
    """R86: some time after, and by the next write at the latest; nothing is decided by it."""
    store = fleet.client()
    lease = await _put_under_a_short_lease(fleet, store, "a")
    await fleet.let_pass(lease.ttl_s * 1.1)

    async def gone() -> bool:
        await store.commit([], [Put("other", b"")])
        return await store.count("a") == 0

    await aeventually(gone)  # type: ignore[arg-type]
    with pytest.raises(LeaseLost):
        await store.renew(lease.id)


async def _put_under_a_short_lease(fleet: Fleet, store: SharedLog, key: str) -> Lease:
    """On a machine that is too busy, one may run out before anything could be put under it."""
    while True:
        lease = await store.grant(fleet.shortest_ttl_s)
        with suppress(LeaseLost):
            await store.commit([], [Put(key, b"", lease=lease.id)])
            return lease


async def test_a_lease_that_is_renewed_goes_on(fleet: Fleet) -> None:
    """Through several of its times where the clock is ours; else nobody waits for so long."""
    store, other = fleet.client(), fleet.client()
    lease = await store.grant(120)
    await store.commit([], [Put("a", b"", lease=lease.id)])
    for _ in range(3):
        await fleet.let_pass(0.9 * lease.ttl_s if fleet.turns_its_clock else 0.01)
        assert (await other.renew(lease.id)).ttl_s == lease.ttl_s
        await store.commit([], [Put("other", b"")])
    assert await store.count("a") == 1


async def test_two_who_want_to_lead_get_one_leader(fleet: Fleet) -> None:
    """R53: created if it is absent, under a lease; the next leads when that is given back."""
    one, other = fleet.client(), fleet.client()
    mine, theirs = await one.grant(60), await other.grant(60)
    await one.commit([Compare("leaders/x", 0)], [Put("leaders/x", b"one", lease=mine.id)])
    take_over = [Put("leaders/x", b"other", lease=theirs.id)]
    with pytest.raises(Conflict):
        await other.commit([Compare("leaders/x", 0)], take_over)
    await one.revoke(mine.id)
    await other.commit([Compare("leaders/x", 0)], take_over)
