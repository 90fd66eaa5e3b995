"""Following a fleet's store: what ends a watch, what is resumed, and what is never dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from headgate.base.keyvalue import Changes, Listing, Put
from headgate.changes.log_copy import LogCopy
from headgate.changes.mirror import Mirror
from headgate.changes.model import HEAD, WIDE, followed_prefixes, shard_items
from headgate.changes.reach import Level, Reach
from headgate.errors import Compacted, StoreRejected, StoreUnavailable
from headgate.fleet.beat import FleetTiming
from tests.builders import NOW
from tests.changes.fleetfakes import (
    AWAY,
    PREFIXES,
    FakeReader,
    Follow,
    item,
    set_items,
    wide,
    write_beat,
)
from tests.fixtures.eventually import aeventually
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_log import KeptInMemory

SHARD = Reach(Level.SHARD, "commerce/-80")


async def test_a_rule_set_for_the_fleet_is_announced_when_it_is_there() -> None:
    kept = KeptInMemory()
    set_items(kept, item("f-1"))
    async with Follow(FakeReader(kept)) as follow:
        await follow.pass_s(0.5)
        assert follow.told == [{wide("f-1")}]
        set_items(kept, item("f-2"), item("f-3", reach=SHARD))
        await settle()
        assert follow.told[1] == {wide("f-2"), f"{shard_items('commerce/-80')}rule/f-3"}
        state = follow.follower.state()
        assert (state.source, state.direct, state.n) == ("etcd", True, 2)
        assert state.stale_since is None


async def test_a_watch_that_is_cut_goes_on_where_it_was() -> None:
    kept = KeptInMemory()
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        set_items(kept, item("f-1"))
        await settle()
        etcd.cut()
        await settle()
        set_items(kept, item("f-2"))
        await follow.pass_s(1.0)
        assert follow.mirror.get(wide("f-2")) is not None
        assert etcd.watched_after == [0, 1]
        assert etcd.lists.count((HEAD, *PREFIXES)) == 1


async def test_changes_that_were_compacted_meanwhile_are_listed() -> None:
    kept = KeptInMemory(max_log_commits=2)
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        etcd.cut()
        await settle()
        for number in range(5):
            set_items(kept, item(f"f-{number}"))
        await follow.pass_s(3.0)
        assert len(list(follow.mirror.entries(WIDE))) == 5
        assert etcd.lists.count((HEAD, *PREFIXES)) == 2


async def test_a_watch_that_goes_silent_is_found_out_by_the_beat() -> None:
    kept = KeptInMemory()
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        await follow.beats(kept, 8)
        assert follow.follower.state().losses_total == 0
        etcd.silent = True
        set_items(kept, item("f-1"))
        await follow.pass_s(5.0)
        assert follow.follower.state().losses_total == 0
        etcd.silent = False  # What it has swallowed it does not tell any more.
        await follow.pass_s(2.0)
        assert follow.follower.state().losses_total == 1
        assert follow.mirror.get(wide("f-1")) is not None
        assert follow.follower.state().fault == ""


async def test_a_store_that_takes_no_changes_is_not_left() -> None:
    """Nobody can beat: its watch is as good as ever, and it has enough to bear."""
    kept = KeptInMemory()
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.beats(kept, 4)
        set_items(kept, item("f-1"))
        await follow.pass_s(30.0)
        state = follow.follower.state()
        assert (state.losses_total, state.stale_since, state.source) == (0, None, "etcd")
        assert "no agent has written its beat" in state.fault
        assert len(etcd.lists) < 16
        etcd.silent = True
        set_items(kept, item("f-2"))
        await follow.pass_s(0.25)
        etcd.silent = False
        await follow.pass_s(4.0)
        assert follow.mirror.get(wide("f-2")) is not None
        assert follow.follower.state().losses_total == 1
        await follow.beats(kept, 2)
        assert follow.follower.state().fault == ""


async def test_half_a_commit_before_a_silence_is_made_whole_without_listing() -> None:
    """R84: etcd's watches tell a commit in pieces, and the way may die between them."""
    kept = KeptInMemory()
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        etcd.halves = True
        set_items(kept, item("f-1"), item("f-2"))
        await settle()
        assert (follow.mirror.revision, follow.mirror.newest) == (0, 1)
        assert follow.mirror.get(wide("f-2")) is None
        etcd.halves = False
        etcd.cut()
        await follow.pass_s(1.0)
        assert follow.mirror.get(wide("f-2")) is not None
        assert etcd.watched_after == [0, 0]
        assert follow.follower.state().listings_total == 1


async def test_silence_is_reported_with_its_source() -> None:
    kept = KeptInMemory()
    etcd = FakeReader(kept)
    async with Follow(etcd, roll=lambda: 0.99) as follow:
        await follow.pass_s(0.5)
        etcd.fault, etcd.silent = AWAY, True
        await follow.pass_s(6.25)
        assert "etcd: no beat for 6 s" in follow.follower.state().fault
        assert follow.follower.state().stale_since is not None


async def test_a_store_away_for_hours_changes_nothing_but_how_old_it_is() -> None:
    kept = KeptInMemory()
    set_items(kept, item("f-1"))
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        heard = follow.follower.state().heard_at
        etcd.fault = AWAY
        etcd.cut()
        await follow.pass_s(7200, step_s=10.0)
        state = follow.follower.state()
        assert heard is not None
        assert state.stale_since == heard.wall_s
        assert state.stale_for_s == pytest.approx(7200, abs=10)
        assert (state.source, state.fault) == ("", str(AWAY))
        assert follow.mirror.get(wide("f-1")) is not None
        assert 7200 / 8 < len(etcd.lists) < 7200 / 4
        etcd.fault = None
        await follow.beats(kept, 10)
        assert follow.follower.state().stale_since is None
        assert follow.told[:2] == [{wide("f-1")}, {"beat"}]


async def test_a_store_that_rejects_is_tried_again_and_reported() -> None:
    etcd = FakeReader(KeptInMemory())
    etcd.fault = StoreRejected("etcd: the password is wrong")
    async with Follow(etcd) as follow:
        await follow.pass_s(1.0)
        assert follow.follower.state().fault == "etcd: the password is wrong"
        etcd.fault = None
        await follow.pass_s(3.0)
        assert follow.follower.state().source == "etcd"


async def test_a_recreated_store_is_listed_and_nothing_is_dropped() -> None:
    kept = KeptInMemory()
    set_items(kept, item("f-1"))
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        etcd.store.kept = KeptInMemory()
        etcd.cut()
        await follow.pass_s(1.0)
        state = follow.follower.state()
        assert state.went_back is not None
        assert (state.went_back.from_n, state.went_back.to_n) == (1, 0)
        assert follow.mirror.get(wide("f-1")) is not None
        set_items(etcd.store.kept, item("f-1"))  # What a restore does.
        await settle()
        assert follow.follower.state().went_back is None


async def test_a_store_whose_keys_were_deleted_is_behind_too() -> None:
    """The same store, without a head although n is known."""
    kept = KeptInMemory()
    set_items(kept, item("f-1"))
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        kept.commit([], [Put(HEAD, None), Put(wide("f-1"), None)])
        await settle()
        assert follow.mirror.get(wide("f-1")) is not None
        etcd.cut()
        await follow.pass_s(1.0)
        assert follow.mirror.get(wide("f-1")) is not None
        assert follow.follower.state().went_back is not None


async def test_a_database_added_by_a_reload_is_listed_at_once() -> None:
    kept = KeptInMemory()
    other = Reach(Level.SHARD, "commerce/80-")
    set_items(kept, item("f-1", reach=other))
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        assert follow.told == []
        follow.prefixes = followed_prefixes(["commerce/-80", "commerce/80-"])
        follow.follower.look_again()
        await settle()
        assert follow.told == [{f"{shard_items('commerce/80-')}rule/f-1"}]
        assert follow.follower.state().losses_total == 0


async def test_without_a_notice_a_reload_is_seen_at_the_next_beat() -> None:
    kept = KeptInMemory()
    async with Follow(FakeReader(kept)) as follow:
        await follow.pass_s(0.5)
        follow.prefixes = followed_prefixes(["commerce/80-"])
        write_beat(kept)
        await settle()
        assert follow.mirror.prefixes == follow.prefixes


async def test_a_watcher_that_raises_is_called_again_and_delays_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = KeptInMemory()
    async with Follow(FakeReader(kept)) as follow:
        await follow.pass_s(0.5)
        told: list[frozenset[str]] = []
        faults = [ValueError("not yet")]

        def picky(changed: frozenset[str]) -> None:
            if faults:
                raise faults.pop()
            told.append(changed)

        follow.follower.watch(picky)
        set_items(kept, item("f-1"))
        await settle()
        assert told == []
        assert follow.told[-1] == {wide("f-1")}
        write_beat(kept)
        await settle()
        assert told == [{wide("f-1"), "beat"}]


async def test_what_was_on_disk_is_in_force_before_any_store_is_read() -> None:
    kept = KeptInMemory()
    set_items(kept, item("f-1"))
    write_beat(kept, shards=2000)
    etcd = FakeReader(kept)
    follow = Follow(etcd, roll=lambda: 0.9)
    follow.follower.recall(copy_of(kept, wall_s=NOW.wall_s - 3600))
    assert follow.told == [{wide("f-1"), "beat"}]
    state = follow.follower.state()
    assert (state.from_cache_of, state.stale_for_s) == (NOW.wall_s - 3600, 3600)
    set_items(kept, item("f-2"))
    async with follow:
        await follow.pass_s(8.5)
        assert etcd.lists == []  # 2,000 shards are spread over 10 s.
        await follow.pass_s(1.0)
        assert follow.told[1:] == [{wide("f-2")}]
        assert etcd.lists == [(HEAD,)]  # The same store: it goes on from the copy.
        assert follow.follower.state().from_cache_of is None


async def test_without_a_quorum_one_member_is_believed_and_marked() -> None:
    kept = KeptInMemory()
    set_items(kept, item("f-1"))
    etcd = FakeReader(kept)
    etcd.fault, etcd.quorum = AWAY, False
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        assert follow.told == [{wide("f-1")}]
        state = follow.follower.state()
        assert state.heard_at is None
        assert state.stale_since is not None
        assert state.fault == str(AWAY)
        etcd.fault = None
        await follow.pass_s(3.0)
        assert follow.follower.state().stale_since is None
        assert follow.told == [{wide("f-1")}]


async def test_a_lone_member_that_was_wiped_is_not_believed() -> None:
    kept = KeptInMemory()
    set_items(kept, item("f-1"))
    etcd = FakeReader(KeptInMemory())
    etcd.fault, etcd.quorum = AWAY, False
    follow = Follow(etcd)
    follow.follower.recall(copy_of(kept))
    async with follow:
        await follow.pass_s(1.0)
        assert follow.mirror.store_id == kept.store_id
        assert follow.follower.state().went_back is None


async def test_a_list_that_hangs_is_given_up() -> None:
    class Hanging(FakeReader):
        async def list(self, *_: object, **__: object) -> Listing:
            await asyncio.Event().wait()
            raise AssertionError

    timing = FleetTiming(timeout_s=0.001)
    async with Follow(Hanging(KeptInMemory()), timing=timing) as follow:
        await follow.pass_s(0.5)
        await aeventually(lambda: follow.follower.state().fault)
        assert "no answer in 0.003 s" in follow.follower.state().fault


async def test_without_any_source_it_says_so_and_waits_for_one() -> None:
    kept = KeptInMemory()
    async with Follow() as follow:
        await follow.pass_s(1.0)
        assert "waiting for the roles of our servers" in follow.follower.state().fault
        follow.sources.append(FakeReader(kept))
        await follow.pass_s(0.5)  # Though nobody says look_again.
        assert follow.follower.state().source == "etcd"
        assert follow.follower.state().fault == ""


async def test_cancelled_it_leaves_nothing_behind() -> None:
    kept = KeptInMemory()
    before = asyncio.all_tasks()
    async with Follow(FakeReader(kept)) as follow:
        await follow.pass_s(0.5)
        assert follow.follower.reader is not None
    await settle()
    assert asyncio.all_tasks() == before
    assert follow.follower.reader is None


async def test_a_watch_that_opens_and_breaks_at_once_is_not_tried_in_a_hurry() -> None:
    class Broken(FakeReader):
        async def watch(
            self, prefixes: Sequence[str], *, after_revision: int
        ) -> AsyncGenerator[Changes]:
            self.watched_after.append(after_revision)
            for error in [StoreUnavailable("etcd: bad gateway")]:
                raise error
            yield Changes((), 0)

    etcd = Broken(KeptInMemory())
    async with Follow(etcd) as follow:
        await follow.pass_s(60.0)
        assert 10 < len(etcd.watched_after) < 25


async def test_compaction_again_and_again_is_not_tried_in_a_hurry() -> None:
    class Forgetful(FakeReader):
        async def watch(
            self, prefixes: Sequence[str], *, after_revision: int
        ) -> AsyncGenerator[Changes]:
            for error in [Compacted("etcd: compacted")]:
                raise error
            yield Changes((), 0)

    etcd = Forgetful(KeptInMemory())
    async with Follow(etcd) as follow:
        await follow.pass_s(60.0)
        assert 10 < len(etcd.lists) < 25


async def test_a_watch_that_the_server_cancels_is_one_that_was_lost() -> None:
    class Cancelling(FakeReader):
        async def watch(
            self, prefixes: Sequence[str], *, after_revision: int
        ) -> AsyncGenerator[Changes]:
            self.watched_after.append(after_revision)
            for error in [asyncio.CancelledError()]:
                raise error
            yield Changes((), 0)

    etcd = Cancelling(KeptInMemory())
    async with Follow(etcd) as follow:
        await follow.pass_s(10.0)
        assert len(etcd.watched_after) > 2
        assert follow.follower.state().losses_total > 2


async def test_how_far_the_fleet_is_counts_when_it_has_arrived_and_not_before() -> None:
    """A head that is read before a watch goes on says nothing of what that watch has told."""
    kept = KeptInMemory()
    etcd = FakeReader(kept)
    async with Follow(etcd) as follow:
        await follow.pass_s(0.5)
        etcd.cut()
        etcd.silent = True
        set_items(kept, item("f-1"))
        await follow.pass_s(1.0)
        assert follow.follower.state().source == "etcd"
        assert follow.follower.state().n == 0


def copy_of(kept: KeptInMemory, *, wall_s: float = NOW.wall_s) -> LogCopy:
    mirror = Mirror(HandClock())
    mirror.adopt(kept.listing((HEAD, *PREFIXES)), PREFIXES)
    return mirror.copy(wall_s)
