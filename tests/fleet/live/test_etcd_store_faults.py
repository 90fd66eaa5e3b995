"""Three real members, broken one way after the other; afterwards nothing acknowledged is missing.

They are repaired after each test, and shared by this module.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from uuid import uuid4

import pytest

from headgate.base.keyvalue import Compare, Put
from headgate.changes.etcd import EtcdAccess, EtcdStore
from headgate.demo.servers import copy_tree
from headgate.errors import Compacted, Conflict, OutcomeUnknown, StoreUnavailable
from tests.fixtures.etcd import QUICK, EtcdCluster
from tests.fixtures.eventually import DEADLINE_S, aeventually
from tests.fleet.live.following import Reader, reading
from tests.fleet.live.slow_network import SlowRoad, in_own_namespace, make_thin

HASTY_S = 2.0
"""For questions to members that do not answer."""
LONG_S = 10 * DEADLINE_S
TOO_LARGE_BYTES = 500_000
"""Under way for a quarter of a minute on a thin line."""
PREFIXES = ["beat", "items/wide/", "items/shard/a/"]


@pytest.fixture(scope="module")
def shared() -> Iterator[EtcdCluster]:
    with EtcdCluster.started(members=3, pace=QUICK) as cluster:
        yield cluster


@pytest.fixture
def breakable(shared: EtcdCluster) -> Iterator[EtcdCluster]:
    """Whole again for the next test, whatever became of this one."""
    yield shared
    shared.heal()


class Clients:
    """Each as an agent of its own would have one."""

    def __init__(self) -> None:
        self._prefix = f"/test-{uuid4().hex}/"
        self._made: list[EtcdStore] = []

    def of(
        self, cluster: EtcdCluster, *, first: str = "", timeout_s: float = DEADLINE_S
    ) -> EtcdStore:
        """`first`: the endpoint that is asked first."""
        ordered = sorted(cluster.endpoints, key=lambda endpoint: endpoint != first)
        return self.at(*ordered, timeout_s=timeout_s)

    def at(self, *endpoints: str, timeout_s: float = DEADLINE_S) -> EtcdStore:
        store = EtcdStore(
            endpoints, EtcdAccess(), self._prefix, timeout_s=timeout_s, roll=lambda: 0.0
        )
        self._made.append(store)
        return store

    async def close(self) -> None:
        for store in self._made:
            await store.close()


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.close()


class Writer:
    """Puts numbers under keys of several prefixes, as fast as it can, and keeps the account."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.acknowledged: dict[str, bytes] = {}
        self.unknown: set[str] = set()
        self._n = 0

    async def run(self) -> None:
        while True:
            self._n += 1
            with suppress(StoreUnavailable):
                await self._write()
            await asyncio.sleep(0.005)

    async def _write(self) -> None:
        value = b"%d" % self._n
        keys = [f"{PREFIXES[self._n % 2 + 1]}{self._n}", "beat"]
        self.unknown.add(keys[0])
        try:
            await self._store.commit([], [Put(key, value) for key in keys])
        except OutcomeUnknown:
            raise
        except StoreUnavailable:
            self.unknown.discard(keys[0])
            raise
        self.unknown.discard(keys[0])
        self.acknowledged |= dict.fromkeys(keys, value)

    def is_all_in(self, reader: Reader) -> bool:
        """And nothing else but what may have been made; the beat is of the last writer."""
        own = {key: value for key, value in self.acknowledged.items() if key != "beat"}
        read = {key: value for key, value in reader.values.items() if key != "beat"}
        return own.items() <= read.items() and read.keys() - own.keys() <= self.unknown


@asynccontextmanager
async def writing(store: EtcdStore) -> AsyncIterator[Writer]:
    writer = Writer(store)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.wait([task])


async def more_acknowledged(writer: Writer, count: int = 20) -> None:
    wanted = len(writer.acknowledged) + count
    await aeventually(lambda: len(writer.acknowledged) >= wanted)


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_a_leader_is_lost_and_no_acknowledged_change_with_it(
    breakable: EtcdCluster, clients: Clients, fault: str
) -> None:
    """R85: watchers at every member, the lost one too, go on without a gap."""
    leader = await asyncio.to_thread(breakable.leader)
    store = clients.of(breakable, first=leader.endpoint, timeout_s=HASTY_S)
    near = [
        clients.of(breakable, first=endpoint, timeout_s=HASTY_S) for endpoint in breakable.endpoints
    ]
    async with (
        reading(near[0], PREFIXES) as one,
        reading(near[1], PREFIXES) as two,
        reading(near[2], PREFIXES) as three,
        reading(store, PREFIXES) as own,
    ):
        async with writing(store) as writer:
            await more_acknowledged(writer)
            await asyncio.to_thread(leader.kill if fault == "killed" else leader.pause)
            await more_acknowledged(writer)
            await asyncio.to_thread(leader.start if fault == "killed" else leader.resume)
            await more_acknowledged(writer)
        for reader in (one, two, three, own):
            await aeventually(lambda which=reader: writer.is_all_in(which))  # type: ignore[misc]
            assert reader.listings <= 2


async def test_readers_converge_after_a_leader_was_frozen(
    breakable: EtcdCluster, clients: Clients
) -> None:
    """The one whose member froze too, once someone has it look elsewhere."""
    leader = await asyncio.to_thread(breakable.leader)
    store = clients.of(breakable, timeout_s=HASTY_S)
    near = clients.of(breakable, first=leader.endpoint)
    other = next(e for e in breakable.endpoints if e != leader.endpoint)
    async with reading(clients.of(breakable, first=other), PREFIXES) as reader:
        async with writing(store) as writer:
            await more_acknowledged(writer, 5)
            begun = (await near.list(PREFIXES)).revision
            async with aclosing(near.watch(PREFIXES, after_revision=begun)) as watch:
                await anext(watch)
                await asyncio.to_thread(leader.pause)
                await more_acknowledged(writer)
            # Let go of, as the follower does when it hears no beat: the next one is asked.
            async with (
                asyncio.timeout(DEADLINE_S),
                aclosing(near.watch(PREFIXES, after_revision=begun)) as watch,
            ):
                assert (await anext(watch)).events
            await asyncio.to_thread(leader.resume)
            await more_acknowledged(writer, 5)
        await aeventually(lambda: writer.is_all_in(reader))
    assert reader.listings <= 2


async def test_without_a_quorum_everything_says_so_and_comes_back(
    breakable: EtcdCluster, clients: Clients
) -> None:
    left, *lost = breakable.members
    store = clients.of(breakable, first=left.endpoint)
    await commits(store, b"before")
    near = clients.of(breakable, first=left.endpoint, timeout_s=HASTY_S)
    async with reading(near, PREFIXES) as reader:
        await aeventually(lambda: reader.values)
        for member in lost:
            await asyncio.to_thread(member.pause)
        await _is_told_everywhere(clients.of(breakable, first=left.endpoint, timeout_s=HASTY_S))
        # An open watch would stay open and silent: it is ended instead.
        await aeventually(lambda: any("no leader" in str(end) for end in reader.ends))
        anyone = await store.list(["items/"], allow_stale=True)
        assert [entry.value for entry in anyone.entries] == [b"before"]
        assert anyone.store_id.startswith("etcd-")
        for member in lost:
            await asyncio.to_thread(member.resume)
        await asyncio.to_thread(breakable.wait_until_ready)
        await commits(store, b"after")
        await aeventually(lambda: reader.values.get("items/wide/1") == b"after")


async def _is_told_everywhere(store: EtcdStore) -> None:
    for question in (
        store.list(["items/"]),
        store.commit([], [Put("items/wide/3", b"never")]),
        store.grant(5),
        store.count("items/"),
        anext(store.watch(PREFIXES, after_revision=1)),
    ):
        with pytest.raises(StoreUnavailable):
            await question


async def commits(store: EtcdStore, value: bytes) -> None:
    """As soon as it can: members may be electing."""

    async def is_done() -> bool:
        with suppress(StoreUnavailable):
            await store.commit([], [Put("items/wide/1", value)])
            return True
        return False

    await aeventually(is_done)  # type: ignore[arg-type]


async def test_a_change_of_unknown_outcome_is_found_by_looking(
    breakable: EtcdCluster, clients: Clients
) -> None:
    """R85: a compare on what was read keeps a second attempt from doing it twice."""
    store = clients.of(breakable)
    revision = await store.commit([], [Put("head", b"1")])
    async with SlowRoad(breakable.endpoints[0], delay_s=0) as road:
        far = clients.at(road.endpoint, timeout_s=HASTY_S)
        road.delay_back_s = LONG_S
        with pytest.raises(OutcomeUnknown):
            await far.commit([Compare("head", revision)], [Put("head", b"2")])
    async with reading(store, ["head"]) as reader:
        await aeventually(lambda: reader.values == {"head": b"2"})
    with pytest.raises(Conflict):
        await store.commit([Compare("head", revision)], [Put("head", b"2")])


async def test_a_member_with_a_new_disk_serves_like_the_others(
    breakable: EtcdCluster, clients: Clients
) -> None:
    store = clients.of(breakable)
    await store.commit([], [Put("items/wide/1", b"1")])
    listed = await store.list(PREFIXES)
    member = (await asyncio.to_thread(breakable.followers))[0]
    async with reading(clients.of(breakable, first=member.endpoint), PREFIXES) as reader:
        await aeventually(lambda: reader.listings)
        await asyncio.to_thread(breakable.replace, member)
        await store.commit([], [Put("items/wide/2", b"2")])
        await aeventually(lambda: len(reader.values) == 2)
    only = clients.at(member.endpoint)
    again = await only.list(PREFIXES)
    assert again.store_id == listed.store_id
    assert len(again.entries) == 2
    assert reader.listings == 1


# --- data that went back -------------------------------------------------------------------


async def test_empty_disks_are_other_data_though_the_cluster_has_the_same_id(
    clients: Clients,
) -> None:
    with EtcdCluster.started() as cluster:
        store = clients.of(cluster)
        await store.commit([], [Put("items/wide/1", b"1")])
        before = await store.list(PREFIXES)
        await asyncio.to_thread(cluster.lose_all)
        with pytest.raises(Compacted, match="created again"):
            await anext(store.watch(PREFIXES, after_revision=before.revision))
        empty = await store.list(PREFIXES)
        assert (empty.entries, empty.revision < before.revision) == ((), True)
        assert empty.store_id != before.store_id
        await store.commit([], [Put("items/wide/1", b"1")])
        after = await store.list(PREFIXES)
        assert after.store_id not in (before.store_id, empty.store_id)
        assert after.store_id.split("-")[1] == before.store_id.split("-")[1]


async def test_an_older_copy_of_the_data_is_marked_as_other_data(clients: Clients) -> None:
    """Its revisions will be counted a second time, and mean something else then."""
    with EtcdCluster.started() as cluster:
        member = cluster.members[0]
        store, reader, fresh = (clients.of(cluster) for _ in range(3))
        await store.commit([], [Put("items/wide/1", b"1")])
        await asyncio.to_thread(member.stop)
        copy_tree(member.home / "data", member.home / "copy")
        await asyncio.to_thread(member.start)
        for n in range(5):
            await store.commit([], [Put("items/wide/2", b"%d" % n)])
        before = await store.list(PREFIXES)
        await reader.list(PREFIXES)
        await asyncio.to_thread(_put_back, cluster)
        after = await store.list(PREFIXES)
        assert after.revision < before.revision
        assert after.store_id != before.store_id
        assert [entry.key for entry in after.entries] == ["items/wide/1"]
        with pytest.raises(Compacted):
            await anext(reader.watch(PREFIXES, after_revision=before.revision))
        assert {(await each.list([])).store_id for each in (reader, fresh)} == {after.store_id}


def _put_back(cluster: EtcdCluster) -> None:
    member = cluster.members[0]
    member.kill()
    member.wipe()
    copy_tree(member.home / "copy", member.home / "data")
    member.start()


# --- slow ----------------------------------------------------------------------------------


async def test_far_away_is_slow_and_nothing_else(breakable: EtcdCluster, clients: Clients) -> None:
    async with SlowRoad(breakable.endpoints[0], delay_s=0.1) as road:
        far = clients.at(road.endpoint)
        async with reading(far, PREFIXES) as reader:
            await aeventually(lambda: reader.listings)
            await far.commit([], [Put("items/wide/1", b"1"), Put("items/shard/a/1", b"1")])
            await aeventually(lambda: len(reader.values) == 2)
        assert reader.ends == []


async def test_too_far_away_says_how_long_was_waited(
    breakable: EtcdCluster, clients: Clients
) -> None:
    async with SlowRoad(breakable.endpoints[0], delay_s=LONG_S) as road:
        far = clients.at(road.endpoint, timeout_s=HASTY_S)
        with pytest.raises(StoreUnavailable, match=r"no answer in 2\.0 s"):
            await far.list([])
        with pytest.raises(OutcomeUnknown, match=r"no answer in 2\.0 s"):
            await far.commit([], [Put("a", b"")])


def test_a_thin_line_carries_changes_and_gives_up_what_is_too_large() -> None:
    """Real packets, in a namespace: 256 kbit/s for etcd and its client together."""

    async def body() -> None:
        clients = Clients()
        with EtcdCluster.started() as cluster:
            make_thin(rate_kbit=256)
            store, hasty = clients.of(cluster), clients.of(cluster, timeout_s=HASTY_S)
            async with reading(store, PREFIXES) as reader:
                await aeventually(lambda: reader.listings)
                await commits(store, b"before")
                await aeventually(lambda: reader.values)
                with pytest.raises(OutcomeUnknown):
                    await hasty.commit([], [Put("elsewhere", os.urandom(TOO_LARGE_BYTES))])
                await commits(store, b"after")
                await aeventually(lambda: reader.values["items/wide/1"] == b"after")
            await clients.close()

    in_own_namespace(body)
