"""What is etcd's own behind the port SharedLog; the rest is in tests/contracts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import pytest

from headgate.base.keyvalue import Changes, Compare, KeyEvent, Put
from headgate.base.ports import SharedLog
from headgate.changes.etcd import EtcdAccess, EtcdStore, client, parse_endpoint
from headgate.changes.etcd.gateway import MAX_CONNECTIONS, Gateway
from headgate.errors import (
    Compacted,
    Conflict,
    LeaseLost,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from tests.fixtures.etcd import EtcdCluster, etcd_store
from tests.fixtures.eventually import DEADLINE_S, aeventually
from tests.fleet.live.following import reading as followed
from tests.fleet.live.slow_network import SlowRoad


@pytest.fixture
async def store(etcd_endpoints: list[str], etcd_prefix: str) -> AsyncIterator[EtcdStore]:
    made = etcd_store(etcd_endpoints, etcd_prefix)
    yield made
    await made.close()


def test_it_is_what_the_port_wants(etcd_endpoints: list[str]) -> None:
    store: SharedLog = etcd_store(etcd_endpoints, "/p/")
    assert store.name.startswith("etcd 127.0.0.1:")


# --- which data ----------------------------------------------------------------------------


async def test_two_fleets_in_one_etcd_do_not_see_each_other(
    store: EtcdStore, etcd_endpoints: list[str], etcd_prefix: str
) -> None:
    other = etcd_store(etcd_endpoints, f"{etcd_prefix[:-1]}-2/")
    await other.commit([], [Put("a", b"theirs")])
    await store.commit([], [Put("a", b"ours")])
    assert [e.value for e in (await store.list([""])).entries] == [b"ours"]
    assert [e.value for e in (await other.list([""])).entries] == [b"theirs"]
    await other.close()


async def test_data_are_named_before_anybody_knows_them_otherwise(
    etcd_endpoints: list[str], etcd_prefix: str
) -> None:
    """Else who listed before the first change knows them by another name than who comes later."""
    agent = EtcdStore(etcd_endpoints, EtcdAccess(), etcd_prefix, roll=lambda: 0.0, names_data=True)
    begun = await agent.list(["a"])
    await agent.commit([], [Put("a", b"1")])
    assert (await agent.list(["a"])).store_id == begun.store_id
    await agent.close()


async def test_more_watches_than_requests_at_once_may_be_open(store: EtcdStore) -> None:
    """An agent beside many Patroni clusters holds one for each."""
    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as ends:
        for number in range(MAX_CONNECTIONS + 2):
            watch = store.watch([f"{number}/"], after_revision=0)
            await anext(await ends.enter_async_context(aclosing(watch)))
        await store.list([""])


async def test_the_name_of_the_data_is_nobodys_entry(store: EtcdStore) -> None:
    unmarked = await store.list([])
    await store.commit([], [Put("a", b"1"), Put("stores", b"2")])
    assert await store.count("") == 2
    assert await store.count("sto") == 1
    listing = await store.list(["", "store"])
    assert [entry.key for entry in listing.entries] == ["a", "stores"]
    assert listing.store_id != unmarked.store_id
    assert (await store.list([])).store_id == listing.store_id
    async with aclosing(store.watch([""], after_revision=unmarked.revision)) as watch:
        seen: list[KeyEvent] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(seen) < 2:
                seen += (await anext(watch)).events
    assert {event.key for event in seen} == {"a", "stores"}


async def test_a_listing_of_many_pages_is_of_one_revision(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAGE_KEYS", 7)
    await store.commit([], [Put(f"a/{n:03}", b"v") for n in range(50)])
    await store.commit([], [Put(f"b/{n:03}", b"v") for n in range(7)])
    listing = await store.list(["b/", "a/"])
    wanted = [f"a/{n:03}" for n in range(50)] + [f"b/{n:03}" for n in range(7)]
    assert [entry.key for entry in listing.entries] == wanted


async def test_more_prefixes_than_one_transaction_takes(store: EtcdStore) -> None:
    prefixes = [f"items/shard/{n}/" for n in range(230)]
    await store.commit([], [Put(f"items/shard/{n}/x", b"v") for n in (0, 99, 100, 229)])
    listing = await store.list(prefixes)
    assert len(listing.entries) == 4
    revision = await store.commit([], [Put("items/shard/150/y", b"v")])
    async with aclosing(store.watch(prefixes, after_revision=listing.revision)) as watch:
        changes = await anext(watch)
    assert changes == Changes((KeyEvent("items/shard/150/y", b"v", revision),), revision)


async def test_too_much_below_a_prefix_is_reported_not_kept(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_LISTING_BYTES", 100)
    await store.commit([], [Put("a", b"x" * 200)])
    with pytest.raises(StoreUnavailable, match="check the prefix"):
        await store.list([""])


# --- watching ------------------------------------------------------------------------------


async def test_a_watch_says_that_it_is_open_before_anything_changes(store: EtcdStore) -> None:
    await store.commit([], [Put("a/1", b"")])
    listing = await store.list(["a/", "b/"])
    for prefixes in (["a/"], ["a/", "b/"]):
        async with aclosing(store.watch(prefixes, after_revision=listing.revision)) as watch:
            async with asyncio.timeout(DEADLINE_S):
                first = await anext(watch)
            assert first.events == ()
            assert first.revision >= listing.revision


async def test_data_that_got_their_name_under_a_watch_go_on_as_the_same(store: EtcdStore) -> None:
    begun = (await store.list(["a", "b"])).revision
    async with aclosing(store.watch(["a", "b"], after_revision=begun)) as watch:
        await anext(watch)
        await store.commit([], [Put("a", b"1")])
        await store.list([])
        async with asyncio.timeout(DEADLINE_S):
            heard = await anext(watch)
        assert [event.key for event in heard.events] == ["a"]
    async with aclosing(store.watch(["a", "b"], after_revision=heard.newest)) as watch:
        assert (await anext(watch)).events == ()


async def test_what_was_missed_comes_first_and_whole_across_prefixes(store: EtcdStore) -> None:
    """R84: etcd itself sends it prefix by prefix."""
    puts = [Put("a/1", b"1"), Put("b/1", b"1"), Put("c/gone", b"1"), Put("c/again", b"1")]
    begun = await store.commit([], puts)
    revisions = [
        await store.commit([], [Put("b/1", b"2"), Put("a/2", b"2")]),
        await store.commit([], [Put("c/gone", None), Put("c/again", None)]),
        await store.commit([], [Put("b/1", b"3"), Put("c/again", b"3")]),
        await store.commit([], [Put("a/1", None)]),
    ]
    async with aclosing(store.watch(["a/", "b/", "c/"], after_revision=begun)) as watch:
        first = await anext(watch)
    assert [event.revision for event in first.events] == sorted(revisions[:3] * 2 + revisions[3:])
    assert first.revision == revisions[-1]
    assert {(event.key, event.value) for event in first.events[-1:]} == {("a/1", None)}


async def test_under_many_writers_each_commit_arrives_whole_and_in_order(
    store: EtcdStore, etcd_endpoints: list[str], etcd_prefix: str
) -> None:
    """Whole by the time that its revision is: on a busy machine its pieces may come apart."""
    begun = (await store.list(["a/", "b/"])).revision
    writers = [etcd_store(etcd_endpoints[n:], etcd_prefix) for n in range(3)]

    async def write(number: int) -> None:
        for n in range(15):
            pair = [Put(f"a/{number}", b"%d" % n), Put(f"b/{number}", b"%d" % n)]
            await writers[number].commit([], [*pair, Put("elsewhere", b"")])

    seen: list[Changes] = []
    async with aclosing(store.watch(["a/", "b/"], after_revision=begun)) as watch:
        writing = asyncio.gather(*map(write, range(3)))
        async with asyncio.timeout(DEADLINE_S):
            while sum(len(changes.events) for changes in seen) < 90:
                seen.append(await anext(watch))
        await writing
    events = [event for changes in seen for event in changes.events]
    assert [e.revision for e in events] == sorted(e.revision for e in events)
    heard: list[KeyEvent] = []
    for changes in seen:
        heard += changes.events
        whole = [event for event in heard if event.revision <= changes.revision]
        by_prefix = [
            {(e.key[2:], e.revision, e.value) for e in whole if e.key[0] == p} for p in "ab"
        ]
        assert by_prefix[0] == by_prefix[1]
    for writer in writers:
        await writer.close()


async def test_a_watch_that_was_let_go_is_opened_at_the_next_member(
    etcd_endpoints: list[str], etcd_prefix: str
) -> None:
    async with (
        SlowRoad(etcd_endpoints[0], delay_s=0) as first,
        SlowRoad(etcd_endpoints[1], delay_s=0) as second,
    ):
        store = etcd_store([first.endpoint, second.endpoint], etcd_prefix)
        listing = await store.list(["a"])
        used = [first.connections, second.connections]
        async with aclosing(store.watch(["a"], after_revision=listing.revision)) as watch:
            await anext(watch)
        async with aclosing(store.watch(["a"], after_revision=listing.revision)) as watch:
            await anext(watch)
        assert first.connections > used[0]
        assert second.connections > used[1]
        await store.close()


async def test_agents_spread_over_the_members() -> None:
    endpoints = [f"http://10.0.0.{n}:2379" for n in range(3)]
    begun = set()
    for roll in (0.0, 0.4, 0.99):
        store = EtcdStore(endpoints, EtcdAccess(), "/", roll=lambda at=roll: at)  # type: ignore[misc]
        begun.add(store._gateway.current.authority)
        await store.close()
    assert begun == {"10.0.0.0:2379", "10.0.0.1:2379", "10.0.0.2:2379"}


async def test_a_compaction_under_a_watcher_costs_it_nothing(
    etcd_cluster: EtcdCluster, store: EtcdStore
) -> None:
    async with followed(store, ["a/", "b/"]) as reader:
        await aeventually(lambda: reader.heard)
        await store.commit([], [Put("a/1", b"1")])
        await asyncio.to_thread(etcd_cluster.compact)
        await store.commit([], [Put("b/1", b"2")])
        await aeventually(lambda: reader.values == {"a/1": b"1", "b/1": b"2"})
    assert reader.listings == 1


@pytest.mark.parametrize("prefixes", [["a"], ["a", "b"]], ids=["one", "several"])
async def test_who_was_away_past_a_compaction_has_to_list_again(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefixes: list[str]
) -> None:
    begun = await store.commit([], [Put("a", b"1")])
    await store.commit([], [Put("a", b"2")])
    await store.commit([], [Put("a", b"3")])
    await asyncio.to_thread(etcd_cluster.compact)
    async with (
        asyncio.timeout(DEADLINE_S),
        aclosing(store.watch(prefixes, after_revision=begun)) as watch,
    ):
        with pytest.raises(Compacted):
            async for _ in watch:
                pass


@pytest.mark.parametrize("prefixes", [["a"], ["a", "b"]], ids=["one", "several"])
async def test_a_revision_that_etcd_has_not_reached_is_not_waited_for(
    store: EtcdStore, prefixes: list[str]
) -> None:
    """It came back from an older copy: a watch would stay silent until it got there."""
    revision = await store.commit([], [Put("a", b"1")])
    with pytest.raises(Compacted, match="behind"):
        await anext(store.watch(prefixes, after_revision=revision + 1000))


# --- writing -------------------------------------------------------------------------------


async def test_as_many_compares_as_are_allowed(store: EtcdStore) -> None:
    compares = [Compare(f"k{n}", 0) for n in range(128)]
    await store.commit(compares, [Put("a", b"1")])
    with pytest.raises(Conflict):
        await store.commit([*compares[:-1], Compare("a", 0)], [Put("a", b"2")])


async def test_every_request_is_counted_by_its_outcome(store: EtcdStore) -> None:
    before = dict(store.requests)
    lease = await store.grant(60)
    revision = await store.commit([Compare("a", 0)], [Put("a", b"1", lease.id)])
    assert await store.count("a") == len((await store.list(["a"])).entries) == 1
    await store.renew(lease.id)
    with pytest.raises(Conflict, match="etcd: a changed meanwhile"):
        await store.commit([Compare("a", revision + 1)], [Put("a", b"2")])
    with pytest.raises(Compacted):
        await anext(store.watch(["a"], after_revision=revision + 1000))
    await store.revoke(lease.id)
    with pytest.raises(LeaseLost):
        await store.renew(lease.id)
    counted = {name: count - before[name] for name, count in store.requests.items()}
    assert {name: count for name, count in counted.items() if count} == {
        "ok": 6,
        "conflict": 1,
        "compacted": 1,
        "lease_lost": 1,
    }


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (StoreUnavailable("away"), "unavailable"),
        (StoreRejected("who are you"), "rejected"),
        (OutcomeUnknown("no answer"), "unknown"),
        (RuntimeError("a bug"), "other"),
    ],
)
async def test_what_goes_wrong_is_distinguished(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch, fault: Exception, outcome: str
) -> None:
    async def fail(*args: object, **kwargs: object) -> bytes:
        raise fault

    monkeypatch.setattr(Gateway, "ask", fail)
    with pytest.raises(type(fault)):
        await store.grant(5)
    assert store.requests[outcome] == 1


# --- where ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("http://etcd-1", "http://etcd-1:2379", "etcd-1:2379"),
        ("https://10.0.0.1:4001/", "https://10.0.0.1:4001", "10.0.0.1:4001"),
        ("https://[fd00::1]:2379", "https://[fd00::1]:2379", "[fd00::1]:2379"),
    ],
)
def test_endpoints_are_addresses(text: str, url: str, authority: str) -> None:
    endpoint = parse_endpoint(text)
    assert (endpoint.url, endpoint.authority) == (url, authority)


@pytest.mark.parametrize(
    "text", ["etcd-1:2379", "https://me:secret@etcd", "https://etcd/v3", "ftp://etcd", ""]
)
def test_what_is_no_endpoint_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="must be like"):
        parse_endpoint(text)


async def test_a_name_never_grows_with_the_cluster() -> None:
    endpoints = [f"http://10.0.0.{n}:2379" for n in range(5)]
    store = EtcdStore(endpoints, EtcdAccess("me", "secret"), "/", roll=lambda: 0.0)
    assert store.name == "etcd 10.0.0.0:2379, 10.0.0.1:2379, 10.0.0.2:2379, …"
    await store.close()
