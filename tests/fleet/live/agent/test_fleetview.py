"""An agent with the role follows what all others tell, and shows it: late, lost, unreadable too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.keyvalue import Changes, Entry, KeyEvent, Put
from headgate.changes.follower import LogFollower
from headgate.changes.mirror import Mirror
from headgate.changes.model import Change, shard_key
from headgate.changes.state import item_bytes
from headgate.fleet.cache import RosterFile
from headgate.fleet.members import FleetMember, ShardTold, member_bytes, told_bytes
from headgate.fleet.picture import (
    SILENT_KEPT_S,
    VIEW_PREFIXES,
    FleetLedger,
    FleetView,
    Noted,
    StoreLink,
)
from headgate.fleet.view import AgentProgress, FleetPicture, ShardSeen, ShardState
from headgate.metrics.samples import Instant
from tests.builders import NOW
from tests.fixtures.eventually import aeventually
from tests.fixtures.fakes import HandClock
from tests.fixtures.fleet_sights import (
    T0,
    entries_of,
    large_fleet,
    member_told,
    mirror_of,
    registered,
    rule_item,
    shard_told,
)
from tests.fixtures.memory_log import KeptInMemory, MemoryLog

TOLD = shard_told("a/0", member_told("db-a", "primary"), member_told("db-b"))
MEMBERS = [registered("a/0", "db-a", role="primary"), registered("a/0", "db-b")]
RULE = rule_item("f-1", "fleet", 7)


class Sight:
    """A view over a mirror that tests write to, as the follower does."""

    def __init__(
        self, *entries: Entry, spread_s: float = 0.5, roster: RosterFile | None = None
    ) -> None:
        self.clock = HandClock()
        self.mirror: Mirror = mirror_of(entries, self.clock)
        self.link = StoreLink("memory", 1)
        self.view = FleetView(
            self.mirror,
            self.clock,
            link=lambda: self.link,
            spread_s=lambda: spread_s,
            roster=roster,
        )
        self.view.note(entry.key for entry in entries)

    def put(self, key: str, value: bytes | None) -> None:
        revision = self.mirror.revision + 1
        self.view.note(self.mirror.apply(Changes((KeyEvent(key, value, revision),), revision)))

    def tell(self, told: ShardTold) -> None:
        self.put(shard_key(told.shard), told_bytes(told))

    def register(self, member: FleetMember) -> None:
        self.put(member.key, member_bytes(member))

    def set(self, item: Change) -> None:
        self.put(item.key, item_bytes(item))

    async def picture(self, after_s: float = 1.0) -> FleetPicture:
        await self.clock.advance(after_s)
        return (await self.view.look()).picture

    async def shard(self, after_s: float = 1.0) -> ShardSeen:
        [seen] = (await self.picture(after_s)).shards
        return seen


async def test_the_fleet_is_seen_as_it_lies_in_the_store() -> None:
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS, items=[RULE], n=7))
    picture = await sight.picture()
    assert picture.n == 7
    assert (picture.counts.shards, picture.counts.agents, picture.counts.current) == (1, 2, 2)
    assert [one.item.id for one in picture.items] == ["f-1"]
    assert sight.view.counts == picture.counts


async def test_an_agent_that_does_not_take_up_a_rule_is_behind_once_it_is_due() -> None:
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS, items=[RULE]))
    sight.set(rule_item("f-2", "region:eu-*", 8))
    sight.register(registered("a/0", "db-a", 8, role="primary"))
    progress = [agent.progress for agent in (await sight.shard()).agents]
    assert progress == [AgentProgress.CURRENT, AgentProgress.PENDING]
    picture = await sight.picture(after_s=60)
    assert [agent.member for agent in picture.behind] == ["db-b"]
    sight.register(registered("a/0", "db-b", 8))
    assert (await sight.picture()).behind == ()


async def test_a_rule_of_another_shard_leaves_nobody_here_behind() -> None:
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS, items=[RULE]))
    sight.set(rule_item("f-2", "shard:b/0", 8))
    assert (await sight.picture(after_s=600)).counts.behind == 0
    sight.set(rule_item("f-3", "shard:a/0", 9))
    await sight.picture()
    assert (await sight.picture(after_s=600)).counts.behind == 2


async def test_the_newest_item_that_is_collected_leaves_nobody_behind() -> None:
    """Who starts after that never learns of it: its revision is no more to be reached (R86)."""
    lifted = replace(rule_item("f-2", "fleet", 9), value=None)
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS, items=[RULE, lifted]))
    await sight.picture()
    assert (await sight.picture(after_s=600)).counts.behind == 2
    sight.put(lifted.key, None)
    assert (await sight.picture()).counts.behind == 0


async def test_a_shard_that_goes_silent_is_reported_with_what_it_said_last() -> None:
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS))
    await sight.picture()
    sight.put(shard_key("a/0"), None)
    gone_at = sight.clock.now().wall_s
    seen = await sight.shard()
    assert (seen.condition, seen.since) == (ShardState.SILENT, gone_at)
    assert seen.told == TOLD
    sight.tell(replace(TOLD, state="unhealthy"))
    assert (await sight.shard()).condition is ShardState.UNHEALTHY


async def test_a_shard_that_was_taken_out_of_service_is_forgotten_after_a_while() -> None:
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS))
    await sight.picture()
    sight.put(shard_key("a/0"), None)
    for member in MEMBERS:
        sight.put(member.key, None)
    assert (await sight.shard()).condition is ShardState.SILENT
    assert (await sight.picture(after_s=SILENT_KEPT_S + 1)).shards == ()


async def test_a_shard_that_never_spoke_is_missed_when_its_agents_are_gone() -> None:
    sight = Sight(*entries_of(members=MEMBERS))
    await sight.picture(after_s=120)
    for member in MEMBERS:
        sight.put(member.key, None)
    gone_at = sight.clock.now().wall_s
    seen = await sight.shard()
    assert (seen.condition, seen.since) == (ShardState.SILENT, gone_at)
    sight.register(MEMBERS[0])
    assert (await sight.shard()).condition is ShardState.SILENT, "it is back, and does not speak"


async def test_a_shard_whose_agents_are_all_dead_is_missed_over_a_restart(tmp_path: Path) -> None:
    """Of the view, which is a pod: in the store nothing tells of that shard any more."""
    roster = RosterFile(tmp_path / "fleet.shards")
    other = replace(TOLD, shard="b/0")
    sight = Sight(*entries_of(told=[TOLD, other]), roster=roster)
    assert (await sight.picture()).counts.shards == 2
    sight = Sight(roster=roster)
    assert (await sight.picture()).counts.shards == 0, "nothing was heard yet: nobody is missed"
    sight.tell(other)
    picture = await sight.picture()
    assert {s.place.shard: s.condition.value for s in picture.shards} == {
        "a/0": "silent",
        "b/0": "healthy",
    }
    sight.tell(TOLD)
    assert (await sight.picture()).counts.silent == 0
    (tmp_path / "fleet.shards").write_bytes(b"no JSON")
    assert (await Sight(*entries_of(told=[TOLD]), roster=roster).picture()).counts.shards == 1


async def test_agents_without_a_speaker_are_a_silent_shard() -> None:
    sight = Sight(*entries_of(members=MEMBERS))
    assert (await sight.shard()).condition is ShardState.STARTING
    assert (await sight.shard(after_s=120)).condition is ShardState.SILENT


async def test_a_database_in_no_shard_counts_as_an_agent() -> None:
    alone = registered("", "host-x.main", 3, host="host-x")
    sight = Sight(*entries_of(members=[alone], items=[RULE]))
    await sight.picture()
    picture = await sight.picture(after_s=600)
    assert (picture.counts.shards, picture.counts.shardless) == (0, 1)
    assert [agent.host for agent in picture.behind] == ["host-x"]


async def test_what_cannot_be_read_is_counted_and_the_rest_is_shown() -> None:
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS, n=7))
    for key in ("shards/b", "members/a%2F0/db-z", "items/wide/rule/f-9", "head"):
        sight.put(key, b"not for us")
    picture = await sight.picture()
    assert picture.unreadable == 4
    assert [seen.place.shard for seen in picture.shards] == ["a/0"]
    sight.tell(replace(TOLD, shard="b"))
    assert (await sight.picture()).unreadable == 3


async def test_rules_that_ended_are_no_longer_in_force_on_the_page() -> None:
    soon = rule_item("f-1", "fleet", 7, expires_at=T0 + 30)
    sight = Sight(*entries_of(items=[soon, rule_item("f-2", "fleet", 6)]))
    assert [one.ended for one in (await sight.picture()).items] == [False, False]
    assert [one.item.id for one in (await sight.picture(after_s=60)).items if not one.ended] == [
        "f-2"
    ]


async def test_several_who_look_at_once_are_shown_the_same() -> None:
    sight = Sight(*entries_of(told=[TOLD]))
    picture = (await sight.view.look()).picture
    sight.tell(replace(TOLD, state="unhealthy"))
    assert (await sight.view.look()).picture is picture
    assert (await sight.shard()).condition is ShardState.UNHEALTHY


async def test_a_reader_that_gives_up_waiting_loses_nothing_for_the_others() -> None:
    sight = Sight(*entries_of(told=[TOLD], members=MEMBERS, n=7))
    hasty = asyncio.create_task(sight.view.look())
    await asyncio.sleep(0)
    hasty.cancel()
    await asyncio.gather(hasty, return_exceptions=True)
    assert (await sight.view.look()).picture.counts.shards == 1


async def test_the_loop_digests_though_nobody_looks() -> None:
    """What a shard said last is known when it falls silent, and figures are there to be scraped."""
    sight = Sight(*entries_of(told=[replace(TOLD, state="unhealthy")]))
    task = asyncio.create_task(sight.view.run())
    try:
        await aeventually(lambda: sight.view.counts.unhealthy == 1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


ENTRIES = large_fleet(6)


@settings(max_examples=25)
@given(st.permutations(ENTRIES))
def test_the_picture_does_not_depend_on_the_order_of_what_came(entries: list[Entry]) -> None:
    one, other = FleetLedger(), FleetLedger()
    one.take(Noted(entry.key, entry.value, NOW) for entry in ENTRIES)
    other.take(Noted(entry.key, entry.value, NOW) for entry in entries)
    later = Instant(NOW.mono_s + 600, NOW.wall_s + 600)
    seen, also_seen = (ledger.picture(later, grace_s=12.0) for ledger in (one, other))
    assert seen.counts == also_seen.counts
    assert [s.place.shard for s in seen.shards] == [s.place.shard for s in also_seen.shards]
    assert seen.items == also_seen.items


async def test_from_one_agents_report_to_anothers_page() -> None:
    """Through a store and a follower, as in an agent."""
    kept, clock = KeptInMemory(), HandClock()
    store, mirror = MemoryLog(kept), Mirror(clock)
    follower = LogFollower(
        mirror, clock, lambda: 0.0, sources=lambda: (store,), prefixes=lambda: VIEW_PREFIXES
    )
    link = StoreLink("memory", 0)
    view = FleetView(mirror, clock, link=lambda: link, spread_s=lambda: 0.5)
    follower.watch(view.note)
    others = MemoryLog(kept)
    await others.commit((), [Put(shard_key("a/0"), told_bytes(TOLD))])
    task = asyncio.create_task(follower.run())
    try:
        await clock.advance(1.0)
        assert [seen.place.shard for seen in (await view.look()).picture.shards] == ["a/0"]
        late = replace(TOLD, shard="b/0", state="unhealthy")
        await others.commit((), [Put(shard_key("b/0"), told_bytes(late))])
        await others.commit((), [Put(shard_key("a/0"), None)])
        await clock.advance(1.5)
        conditions = {s.place.shard: s.condition for s in (await view.look()).picture.shards}
        assert conditions == {"b/0": ShardState.UNHEALTHY, "a/0": ShardState.SILENT}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
