"""Down the hierarchy: a replica's agent follows its primary's, and the store when that is away."""

from __future__ import annotations

from headgate.base.keyvalue import Changes, KeyEvent
from headgate.changes.mirror import Mirror
from headgate.changes.model import BEAT, HEAD, followed_prefixes
from headgate.fleet.feed_reader import AgentReader
from tests.changes.fleetfakes import (
    AWAY,
    GONE,
    PREFIXES,
    FakeReader,
    FeedLink,
    Follow,
    item,
    set_items,
    wide,
    write_beat,
)
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_log import KeptInMemory


class Shard:
    """A primary's agent that follows the store, and a replica's that has both."""

    def __init__(self, *, cold: bool = False) -> None:
        self.kept = KeptInMemory()
        self.clock = HandClock()
        self.primary = Follow(FakeReader(self.kept), clock=self.clock)
        self.link = FeedLink(self.primary.mirror)
        self.etcd = FakeReader(self.kept)
        self.replica = Follow(AgentReader(self.link), self.etcd, clock=self.clock)
        self.cold = cold

    async def __aenter__(self) -> Shard:
        await self.primary.__aenter__()
        await self.primary.pass_s(0.5)
        await self.replica.__aenter__()
        await self.replica.pass_s(0.5)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.replica.__aexit__()
        await self.primary.__aexit__()

    async def beats(self, seconds: float) -> None:
        await self.replica.beats(self.kept, seconds)

    @property
    def source(self) -> str:
        return self.replica.follower.state().source


NEAR = "agent http://primary:8087"


async def test_a_replica_learns_of_the_fleet_by_its_primary_alone() -> None:
    async with Shard() as shard:
        await shard.beats(20)
        set_items(shard.kept, item("f-1"))
        await settle()
        await settle()
        assert shard.replica.mirror.get(wide("f-1")) is not None
        assert shard.etcd.lists == []
        state = shard.replica.follower.state()
        assert (state.source, state.direct, state.stale_since) == (NEAR, False, None)
        assert state.revision == shard.kept.revision


async def test_a_primary_that_is_away_is_done_without_and_gone_back_to() -> None:
    async with Shard() as shard:
        await shard.beats(10)
        shard.link.fault = GONE
        await shard.beats(6)
        assert shard.source == "etcd"
        # The same store's revisions: nothing had to be listed again.
        assert (HEAD, *PREFIXES) not in shard.etcd.lists
        set_items(shard.kept, item("f-1"))
        await settle()
        assert shard.replica.mirror.get(wide("f-1")) is not None
        shard.link.fault = None
        await shard.beats(8)
        assert shard.source == "etcd"
        await shard.beats(16)
        assert shard.source == NEAR
        assert shard.replica.follower.state().listings_total == 1


async def test_a_primary_that_is_stale_is_done_without_though_it_answers() -> None:
    async with Shard() as shard:
        await shard.beats(10)
        reader = shard.primary.sources[0]
        assert isinstance(reader, FakeReader)
        reader.fault = AWAY
        reader.cut()
        await shard.beats(12)
        assert shard.source == "etcd"
        await shard.beats(60)
        assert shard.source == "etcd"
        reader.fault = None
        await shard.beats(40)
        assert shard.source == NEAR


async def test_a_primary_that_comes_and_goes_is_gone_back_to_later_and_later() -> None:
    async with Shard() as shard:
        await shard.beats(70)
        for _ in range(3):
            shard.link.fault = GONE
            await shard.beats(6)
            shard.link.fault = None
            for _ in range(100):
                if shard.source == NEAR:
                    break
                await shard.beats(2)
            await shard.beats(2)
        shard.link.fault = GONE
        await shard.beats(6)
        shard.link.fault = None
        await shard.beats(60)
        assert shard.source == "etcd"


async def test_with_everybody_away_what_is_known_stays_and_is_called_stale() -> None:
    async with Shard() as shard:
        set_items(shard.kept, item("f-1"))
        await shard.beats(10)
        shard.link.fault = GONE
        shard.etcd.fault = AWAY
        await shard.replica.pass_s(600, step_s=5.0)
        state = shard.replica.follower.state()
        assert state.source == ""
        assert state.stale_since is not None
        assert shard.replica.mirror.get(wide("f-1")) is not None
        shard.etcd.fault = None
        await shard.beats(10)
        assert shard.source == "etcd"


async def test_a_promoted_replica_turns_to_the_store_at_once() -> None:
    async with Shard() as shard:
        await shard.beats(4)
        shard.replica.sources = [shard.etcd]
        shard.replica.follower.look_again()
        await settle()
        await settle()
        assert shard.source == "etcd"
        assert shard.replica.follower.state().losses_total == 0


async def test_a_primary_on_another_store_is_not_believed_that_ours_is_gone() -> None:
    """Only the store says that it went back."""
    async with Shard() as shard:
        set_items(shard.kept, item("f-1"))
        await shard.beats(10)
        stranger = KeptInMemory()
        mirror = Mirror(shard.clock)
        mirror.adopt(stranger.listing((HEAD, *PREFIXES)), PREFIXES)
        shard.link.mirror = mirror
        await shard.replica.pass_s(7.0)
        await shard.beats(10)
        assert shard.replica.follower.state().went_back is None
        assert shard.source == "etcd"
        await shard.beats(40)
        assert shard.source == "etcd"


async def test_two_that_follow_each_other_find_out_that_nobody_knows_anything() -> None:
    async with Shard() as shard:
        await shard.beats(4)
        link = FeedLink(shard.replica.mirror, "http://replica:8087")
        shard.primary.sources.insert(0, AgentReader(link))
        await shard.beats(30)
        primary, replica = shard.primary.follower.state(), shard.replica.follower.state()
        assert primary.stale_since is None
        assert replica.stale_since is None
        set_items(shard.kept, item("f-1"))
        await shard.beats(30)
        assert shard.primary.mirror.get(wide("f-1")) is not None
        assert shard.replica.mirror.get(wide("f-1")) is not None


async def test_a_primary_without_news_is_no_sign_of_the_store() -> None:
    """Both start with etcd gone; the primary's copy is handed down, and called stale."""
    kept, clock = KeptInMemory(), HandClock()
    set_items(kept, item("f-1"))
    primary = Mirror(clock)
    source = Mirror(clock)
    source.adopt(kept.listing((HEAD, *PREFIXES)), PREFIXES)
    primary.recall(source.copy(0.0))
    etcd = FakeReader(kept)
    etcd.fault = AWAY
    async with Follow(AgentReader(FeedLink(primary)), etcd, clock=clock) as replica:
        await replica.pass_s(1.0)
        assert replica.mirror.get(wide("f-1")) is not None
        assert replica.follower.state().stale_since is not None
        etcd.fault = None
        await replica.beats(kept, 20)
        assert replica.follower.state().source == "etcd"


async def test_a_commit_too_large_for_one_answer_is_listed() -> None:
    async with Shard() as shard:
        await shard.beats(4)
        large = [item(f"f-{i}", value={"why": "x" * 40_000}) for i in range(8)]
        set_items(shard.kept, *large)
        await shard.replica.pass_s(3.0)
        await settle()
        assert len(list(shard.replica.mirror.entries("items/"))) == 8
        assert shard.source == NEAR


async def test_other_prefixes_than_the_primary_follows_are_had_from_the_store() -> None:
    async with Shard() as shard:
        await shard.beats(4)
        shard.replica.prefixes = followed_prefixes(["commerce/-80", "other"])
        shard.replica.follower.look_again()
        await shard.beats(6)
        assert shard.source == "etcd"
        assert shard.replica.mirror.prefixes == shard.replica.prefixes


async def test_changes_handed_down_late_change_nothing() -> None:
    async with Shard() as shard:
        set_items(shard.kept, item("f-1"))
        await shard.beats(4)
        known = shard.replica.mirror.get(wide("f-1"))
        shard.primary.mirror.apply(Changes((KeyEvent(wide("f-1"), b"old", 1),), 1))
        write_beat(shard.kept)
        await settle()
        assert shard.replica.mirror.get(wide("f-1")) == known
        assert shard.replica.mirror.get(BEAT) is not None


async def test_a_primary_that_is_replaced_is_left_without_a_fault() -> None:
    """Its way is closed under us by the part that knows that another one leads now."""
    async with Shard() as shard:
        await shard.beats(4)
        successor = FeedLink(shard.primary.mirror, "http://successor:8087")
        shard.replica.sources = [AgentReader(successor), shard.etcd]
        shard.link.fault = GONE
        await shard.beats(4)
        state = shard.replica.follower.state()
        assert (state.source, state.losses_total) == ("agent http://successor:8087", 0)
        assert shard.etcd.lists == []
