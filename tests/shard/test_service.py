"""All shards of an agent: what is found, what operators set, and who may talk to whom."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headgate.changes.items import Forgetter
from headgate.changes.model import ITEMS, Change, ChangeKind
from headgate.changes.reach import EVERYWHERE, HERE, Level, Reach
from headgate.changes.state import ChangeMade, read_item_at
from headgate.check.model import Activity, Idleness, Verdict
from headgate.errors import HeadgateError, InvalidRequest, StoreUnavailable, WrongShard
from headgate.metrics.samples import Cause
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.keeper import NoSuchMember, NoSuchShard
from headgate.shard.model import MAX_MEMBERS, MAX_SKIP_S
from headgate.shard.shard import Shard
from headgate.shard.topology import Downstream, Leading
from tests.builders import metric
from tests.changes.changebook_world import FaultyStore, book_on
from tests.changes.own_world import Unwritable, keep, set_here
from tests.fixtures.fakes import FakeWriter, primary, replica, settle
from tests.fixtures.memory_log import KeptInMemory
from tests.fixtures.memory_store import MemoryStore
from tests.fixtures.worlds import OpenWorld
from tests.shard.shard_world import SHARD, ShardWorld, url

HOSTS = "https://{host}:8087"


# --- no talk across shards ---------------------------------------------------------------------


async def test_a_pull_for_another_shard_is_rejected_and_changes_nothing(
    open_world: OpenWorld,
) -> None:
    """R39"""
    world = await open_world("db-b", role=replica())
    with pytest.raises(WrongShard, match="'commerce/-80' at this agent, not to 'commerce/80-'"):
        await world.answer("db-b", primary(), shard="commerce/80-")
    assert world.unled() is Cause.NO_PRIMARY
    with pytest.raises(WrongShard):
        world.shards.woken("other", "main", "db-b")


async def test_a_pull_for_a_database_that_is_not_here_says_what_is(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    with pytest.raises(
        InvalidRequest, match="no database 'nope' in a shard of this agent: main"
    ) as error:
        await world.answer("db-b", primary(), database="nope")
    assert error.value.status == 404


async def test_no_message_crosses_shards(open_world: OpenWorld) -> None:
    """R39: two shards on one agent, each pulls its own members only."""
    world = await open_world(databases={"one": primary(), "two": primary()})
    plans = [
        world.plan("one", shard="s1", peers=world.plan("one").peers),
        world.plan("two", shard="s2"),
    ]
    await world.shards.adopt(plans)
    await world.shards.keeper.add_peer(
        "one", "db-b", url=url("db-b"), peer_database="main", who="ops"
    )
    await world.shards.keeper.add_peer(
        "two", "db-c", url=url("db-c"), peer_database="main", who="ops"
    )
    await world.pass_s(3, every_s=0.5)
    assert {pull.shard for _, pull in world.agents["db-b"].pulls} == {"s1"}
    assert {pull.shard for _, pull in world.agents["db-c"].pulls} == {"s2"}
    assert {pull.sender for _, pull in world.agents["db-c"].pulls} == {"two"}
    messages = {view.shard: view.messages_total for view in world.shards.views()}
    assert messages == {
        "s1": len(world.agents["db-b"].pulls),
        "s2": len(world.agents["db-c"].pulls),
    }


async def test_a_pull_keeps_a_member_as_awake_as_the_primary(open_world: OpenWorld) -> None:
    """R58"""
    idleness = Idleness(idle_after_s=2, hibernate_after_s=5)
    world = await open_world("db-b", role=replica(), idleness=idleness)
    await world.pass_s(8)
    assert world.state() is Activity.HIBERNATING
    await world.answer("db-b", primary())
    assert world.state() is Activity.AWAKE
    for _ in range(6):
        await world.answer("db-b", primary(), activity=Activity.IDLE)
        await world.pass_s(2.5, every_s=0.5)
    assert world.state() is Activity.IDLE
    await world.pass_s(12, every_s=1)
    assert world.state() is Activity.HIBERNATING


async def test_a_replica_that_needs_heartbeats_wakes_the_primarys_host_and_nobody_else(
    open_world: OpenWorld,
) -> None:
    """R58: hosts sleep and wake one by one."""
    idleness = Idleness(idle_after_s=2, hibernate_after_s=5)
    world = await open_world("db-b", "db-c", idleness=idleness)
    await world.pass_s(8)
    before = world.pulls()
    world.shards.woken(SHARD, "main", "db-b")
    await world.pass_s(1)
    assert world.state() is Activity.AWAKE and world.pulls() == before
    assert world.ask().failing
    await world.pass_s(1)
    assert world.pulls() > before, "a check of the shard still wakes the whole shard"


# --- discovery ---------------------------------------------------------------------------------


async def test_replicas_are_found_in_the_database(open_world: OpenWorld) -> None:
    """R44: the roster refreshes itself."""
    world = await open_world(role=primary(), discover=HOSTS)
    await world.pass_s(0.5)
    listed = (Downstream("db-b", "10.0.0.2"), Downstream("db-c", "10.0.0.3"))
    world.role.says = primary(downstream=listed)
    await world.pass_s(1)
    members = {view.member.name: view.member.url for view in world.view().members}
    assert members == {"db-a": "", "db-b": url("10.0.0.2"), "db-c": url("10.0.0.3")}
    assert world.ask().admitted
    assert len(world.links) == 2, "each is found once"


async def test_the_upstream_is_found_in_the_database(open_world: OpenWorld) -> None:
    """R37: a replica that is asked knows at least whom it follows."""
    world = await open_world(role=replica(upstream="10.0.0.1:5432"), discover=HOSTS)
    world.agents["10.0.0.1"].says = primary()
    world.ask()
    await world.pass_s(0.5)
    assert world.ask().verdict is Verdict.WRONG_AGENT
    assert world.ask().check_at == url("10.0.0.1")


async def test_an_address_of_version_6_is_put_in_brackets(open_world: OpenWorld) -> None:
    world = await open_world(role=replica(upstream="[fd00::1]:5432"), discover=HOSTS)
    assert [link.url for link in world.links] == ["https://[fd00::1]:8087"]


async def test_a_template_may_go_by_name(open_world: OpenWorld) -> None:
    listed = (Downstream("db-b", "10.0.0.2"), Downstream("", "10.0.0.3"), Downstream("", ""))
    world = await open_world(
        role=primary(downstream=listed), discover="https://{name}.example:8087"
    )
    assert [link.url for link in world.links] == [
        "https://db-b.example:8087",
        "https://10.0.0.3.example:8087",
    ]


async def test_two_replicas_of_one_default_name_are_two_members(open_world: OpenWorld) -> None:
    """Postgres calls every replica `walreceiver` that was given no name: none is left out."""
    listed = (Downstream("walreceiver", "10.0.0.2"), Downstream("walreceiver", "10.0.0.3"))
    world = await open_world(role=primary(downstream=listed), discover=HOSTS)
    await world.pass_s(0.5)
    assert {link.url for link in world.links} == {url("10.0.0.2"), url("10.0.0.3")}
    world.agents["10.0.0.3"].values["lag"] = 900.0
    await world.pass_s(1)
    assert not world.ask().admitted


async def test_a_member_in_the_file_is_not_found_again(open_world: OpenWorld) -> None:
    listed = (Downstream("db-b", "10.0.0.2"), Downstream("walreceiver", "db-c"))
    world = await open_world("db-b", "db-c", role=primary(downstream=listed), discover=HOSTS)
    await world.pass_s(1)
    assert len(world.links) == 2


async def test_discovery_is_bounded(open_world: OpenWorld) -> None:
    listed = tuple(Downstream(f"m{i}", f"10.0.{i // 250}.{i % 250}") for i in range(300))
    world = await open_world(role=primary(downstream=listed), discover=HOSTS)
    await settle()
    assert len(world.links) == MAX_MEMBERS
    assert len(world.view().unwatched) == 300 - MAX_MEMBERS


async def test_without_a_template_nothing_is_found(open_world: OpenWorld) -> None:
    world = await open_world(role=primary(downstream=(Downstream("db-b", "10.0.0.2"),)))
    await world.pass_s(0.5)
    assert world.links == [] and len(world.view().unwatched) == 1


async def test_a_discovered_member_that_was_removed_does_not_come_back(
    open_world: OpenWorld,
) -> None:
    """Either the removal holds, or it is rejected with the reason."""
    listed = (Downstream("db-b", "10.0.0.2"), Downstream("db-c", "10.0.0.3"))
    world = await open_world(role=primary(downstream=listed), discover=HOSTS)
    await world.pass_s(0.5)
    try:
        await world.shards.keeper.remove_peer("main", "db-c", who="ops")
    except InvalidRequest:
        return
    await world.pass_s(1)
    assert "db-c" not in {view.member.name for view in world.view().members}


# --- what operators set ------------------------------------------------------------------------


async def test_a_skip_is_kept_and_survives_a_restart(open_world: OpenWorld) -> None:
    """R150"""
    world = await open_world("db-b", "db-c")
    await world.shards.keeper.skip("main", "db-c", for_s=3600, reason="restoring", who="ops")
    (skip,) = world.shards.keeper.skips("main")
    assert (skip.who, skip.reason) == ("ops", "restoring") and skip.revision
    again = await open_world("db-b", "db-c", store=world.store)
    assert again.shards.keeper.skips("main") == [skip]
    again.agents["db-c"].values["lag"] = 900.0
    await again.pass_s(1)
    assert again.ask().admitted and again.member("db-c").skip == skip


async def test_a_skip_ends_with_its_time_also_after_a_restart(open_world: OpenWorld) -> None:
    """R150: by the clock on the wall."""
    world = await open_world("db-b", "db-c")
    await world.shards.keeper.skip("main", "db-c", for_s=10, reason="restoring", who="ops")
    again = await open_world("db-b", "db-c", store=world.store)
    again.agents["db-c"].values["lag"] = 900.0
    await again.pass_s(11, "shard/lag")
    assert not again.ask().admitted and again.shards.keeper.skips("main") == []


async def test_a_skip_is_taken_back(open_world: OpenWorld) -> None:
    world = await open_world("db-b", "db-c")
    world.agents["db-c"].values["lag"] = 900.0
    await world.pass_s(1)
    await world.shards.keeper.skip("main", "db-c", for_s=3600, reason="restoring", who="ops")
    assert world.ask().admitted
    await world.shards.keeper.unskip("main", "db-c", who="ops")
    assert not world.ask().admitted, "at once"
    await world.shards.keeper.skip("main", "db-c", for_s=60, reason="again", who="ops")
    await world.shards.keeper.skip("main", "db-c", for_s=90, reason="longer", who="ops")
    assert [skip.reason for skip in world.shards.keeper.skips("main")] == ["longer"]


@pytest.mark.parametrize("for_s", [0, -1, MAX_SKIP_S + 1, float("inf"), float("nan")])
async def test_a_skip_is_for_a_bounded_time(open_world: OpenWorld, for_s: float) -> None:
    """R150: a member must not be forgotten."""
    world = await open_world("db-b")
    with pytest.raises(InvalidRequest, match="at most 7 days"):
        await world.shards.keeper.skip("main", "db-b", for_s=for_s, reason="x", who="ops")
    assert await world.store.audit() == []


async def test_who_does_not_exist_cannot_be_skipped(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    with pytest.raises(NoSuchMember, match="it has db-a, db-b"):
        await world.shards.keeper.skip("main", "db-x", for_s=9, reason="x", who="ops")
    with pytest.raises(NoSuchMember, match="is not skipped"):
        await world.shards.keeper.unskip("main", "db-b", who="ops")
    with pytest.raises(NoSuchShard, match="belongs to no shard"):
        await world.shards.keeper.skip("elsewhere", "db-b", for_s=9, reason="x", who="ops")


async def test_what_operators_set_is_audited(open_world: OpenWorld) -> None:
    """R141: who, what, when; and what stood before."""
    world = await open_world("db-b")
    shards = world.shards
    await shards.keeper.skip("main", "db-b", for_s=60, reason="restoring", who="ann")
    await shards.keeper.unskip("main", "db-b", who="bob")
    await shards.keeper.add_peer("main", "db-c", url=url("db-c"), peer_database="app", who="ann")
    await shards.keeper.remove_peer("main", "db-c", who="bob")
    entries = list(reversed(await world.store.audit()))
    assert [(e.who, e.action) for e in entries] == [
        ("ann", "skip.set"),
        ("bob", "skip.removed"),
        ("ann", "peer.set"),
        ("bob", "peer.removed"),
    ]
    assert {e.target for e in entries} == {f"{SHARD} db-b", f"{SHARD} db-c"}
    assert entries[0].after["reason"] == "restoring"
    assert entries[2].after == {"url": url("db-c"), "database": "app"}
    assert entries[1].before["reason"] == "restoring"
    assert entries[3].before == {"url": url("db-c"), "database": "app"}


async def test_an_added_member_counts_at_once_and_survives_a_restart(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b")
    await world.pass_s(1)
    assert world.ask().admitted
    await world.shards.keeper.add_peer(
        "main", "db-c", url=url("db-c"), peer_database="app", who="ops"
    )
    world.agents["db-c"].values["lag"] = 9.0
    assert not (await world.pass_s(0.75, "shard/lag"))[-1].admitted
    assert world.agents["db-c"].pulls[0][1].database == "app"
    again = await open_world("db-b", store=world.store)
    again.agents["db-c"].values["lag"] = 9.0
    await again.pass_s(1)
    assert not again.ask().admitted


async def test_a_member_that_was_added_is_waited_for(open_world: OpenWorld) -> None:
    """R45: no OK in between that it had no part in."""
    world = await open_world("db-b")
    await world.pass_s(1)
    world.agents.setdefault("db-c", world.agents["db-b"])
    await world.shards.keeper.add_peer(
        "main", "db-c", url=url("db-x"), peer_database="main", who="ops"
    )
    world.agents["db-x"].hangs = True
    answers = await world.pass_s(2, "shard/lag")
    assert not any(answer.admitted for answer in answers[2:])


async def test_an_added_member_can_be_removed_and_added_again(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    for _ in range(2):
        await world.shards.keeper.add_peer(
            "main", "db-c", url=url("db-c"), peer_database="main", who="ops"
        )
        with pytest.raises(InvalidRequest, match="already has a member 'db-c'"):
            await world.shards.keeper.add_peer(
                "main", "db-c", url=url("db-c"), peer_database="main", who="ops"
            )
        await world.shards.keeper.remove_peer("main", "db-c", who="ops")
        assert world.links[-1].closed
    before = len(world.agents["db-c"].pulls)
    await world.pass_s(2)
    assert len(world.agents["db-c"].pulls) == before
    again = await open_world("db-b", store=world.store)
    assert "db-c" not in {view.member.name for view in again.view().members}


async def test_a_member_of_the_file_is_removed_in_the_file(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    with pytest.raises(InvalidRequest, match="is in the settings file"):
        await world.shards.keeper.remove_peer("main", "db-b", who="ops")
    with pytest.raises(NoSuchMember):
        await world.shards.keeper.remove_peer("main", "db-x", who="ops")


async def test_our_own_member_cannot_be_removed(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    with pytest.raises(HeadgateError):
        await world.shards.keeper.remove_peer("main", "db-a", who="ops")


async def test_our_own_member_cannot_be_added(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    with pytest.raises(InvalidRequest) as error:
        await world.shards.keeper.add_peer(
            "main", "db-a", url=url("x"), peer_database="main", who="ops"
        )
    assert error.value.status == 409


async def test_what_cannot_be_kept_takes_no_effect(open_world: OpenWorld) -> None:
    """It would be gone after a restart, and nobody would know."""
    world = await open_world("db-b", "db-c", store=Unwritable())
    world.agents["db-c"].values["lag"] = 900.0
    await world.pass_s(1)
    with pytest.raises(StoreUnavailable):
        await world.shards.keeper.skip("main", "db-c", for_s=60, reason="x", who="ops")
    with pytest.raises(StoreUnavailable):
        await world.shards.keeper.add_peer(
            "main", "db-d", url=url("d"), peer_database="main", who="ops"
        )
    assert world.shards.keeper.skips("main") == [] and not world.ask().admitted
    assert len(world.view().members) == 3


async def test_two_changes_of_one_member_at_once_are_made_one_after_the_other(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b")
    added = [
        world.shards.keeper.add_peer("main", "db-c", url=url(to), peer_database="main", who="ops")
        for to in ("db-c", "db-d")
    ]
    first, second = await asyncio.gather(*added, return_exceptions=True)
    assert (
        isinstance(first, ChangeMade)
        and isinstance(second, InvalidRequest)
        and second.status == 409
    )
    skips = [
        world.shards.keeper.skip("main", "db-c", for_s=for_s, reason="x", who="ops")
        for for_s in (60, 90)
    ]
    _, last = await asyncio.gather(*skips)
    assert [skip.revision for skip in world.shards.keeper.skips("main")] == [last.after_n]


async def test_what_another_version_left_in_the_log_is_kept_and_the_rest_counts(
    open_world: OpenWorld,
) -> None:
    """R156"""
    store = MemoryStore()
    await store.open()
    good = {"until_wall_s": 1e10, "who": "ops", "reason": "x", "set_wall_s": 1.0}
    left = [
        set_here(ChangeKind.SKIP, f"{SHARD} db-b", {"until": "another way to say it"}),
        set_here(ChangeKind.SKIP, f"{SHARD} db-c", good),
        set_here("curfew", "main", {"from": "22:00"}),
    ]
    await keep(store, *left)
    world = await open_world("db-b", "db-c", store=store)
    assert [skip.member for skip in world.shards.keeper.skips("main")] == ["db-c"]
    await world.shards.keeper.unskip("main", "db-c", who="ops")
    await world.shards.keeper.skip("main", "db-b", for_s=60, reason="y", who="ops")
    again = await open_world("db-b", "db-c", store=store)
    assert [skip.reason for skip in again.shards.keeper.skips("main")] == ["y"]
    assert again.log.standing("curfew") == {"main": left[2]}


# --- for a shard --------------------------------------------------------------------------------

OF_SHARD = Reach(Level.SHARD, SHARD)


async def test_a_skip_of_the_shard_is_in_force_at_the_agent_it_was_copied_to(
    open_world: OpenWorld,
) -> None:
    """R164: a promoted replica's agent has it."""
    leader = await open_world("db-b", "db-c", reach=OF_SHARD)
    await leader.shards.keeper.skip("main", "db-c", for_s=3600, reason="restoring", who="ops")
    (item,) = leader.log.standing(ChangeKind.SKIP).values()
    assert item.reach == OF_SHARD and item.key.startswith("items/shard/")
    other = await open_world("db-b", "db-c")
    await _copy(leader, other)
    assert [one.reason for one in other.shards.keeper.skips("main")] == ["restoring"]
    other.agents["db-c"].values["lag"] = 900.0
    await other.pass_s(1)
    assert other.ask().admitted
    await leader.shards.keeper.unskip("main", "db-c", who="ops")
    await _copy(leader, other)
    assert other.shards.keeper.skips("main") == [] and not other.ask().admitted


async def test_a_skip_for_the_shard_replaces_that_of_this_agent_alone(
    open_world: OpenWorld,
) -> None:
    """Else the one of this agent would hide it here, and nowhere else."""
    world = await open_world("db-b", "db-c")
    await world.shards.keeper.skip("main", "db-c", for_s=3600, reason="mine", who="ops")
    world.reach = OF_SHARD
    await world.shards.keeper.skip("main", "db-c", for_s=60, reason="all of us", who="ops")
    assert [skip.reason for skip in world.shards.keeper.skips("main")] == ["all of us"]
    audited = [(one.action, (one.after or {}).get("reason")) for one in await world.store.audit()]
    assert sorted(audited[:2], key=str) == [("skip.removed", None), ("skip.set", "all of us")]
    await world.shards.keeper.unskip("main", "db-c", who="ops")
    again = await open_world("db-b", "db-c", store=world.store)
    assert again.shards.keeper.skips("main") == []


async def test_what_is_set_at_an_agent_counts_before_its_shards(open_world: OpenWorld) -> None:
    leader = await open_world("db-b", "db-c", reach=OF_SHARD)
    await leader.shards.keeper.skip("main", "db-c", for_s=60, reason="all of us", who="ops")
    world = await open_world("db-b", "db-c")
    await world.shards.keeper.skip("main", "db-c", for_s=60, reason="mine", who="ops")
    await _copy(leader, world)
    assert [skip.reason for skip in world.shards.keeper.skips("main")] == ["mine"]


# --- for a shard of a fleet -----------------------------------------------------------------------


class InFleet:
    """Agents of a shard with a log that they share."""

    def __init__(self, *worlds: ShardWorld) -> None:
        self.worlds = worlds
        self.store = FaultyStore(KeptInMemory())
        for world in worlds:
            world.shards.keeper.make_shared = book_on(self.store, world.clock).make

    async def tell(self) -> None:
        """All of them learn of what is set."""
        listing = await self.store.list([ITEMS])
        items = [read_item_at(entry.key, entry.value) for entry in listing.entries]
        for world in self.worlds:
            await world.shards.keeper.follow(items, (), whole=True)


async def test_with_a_fleet_a_skip_is_for_its_shard_and_a_promotion_keeps_it(
    open_world: OpenWorld,
) -> None:
    leader, other = await open_world("db-b", "db-c"), await open_world("db-b", "db-c")
    fleet = InFleet(leader, other)
    made = await leader.shards.keeper.skip(
        "main", "db-c", for_s=3600, reason="restoring", who="ops"
    )
    assert [item.reach for item in made.items] == [OF_SHARD]
    assert len(leader.shards.keeper.skips("main")) == 1, "in force where it was set, at once"
    assert leader.log.standing(ChangeKind.SKIP) == {}
    await fleet.tell()
    assert [skip.reason for skip in other.shards.keeper.skips("main")] == ["restoring"]
    await other.shards.keeper.unskip("main", "db-c", who="ops")
    await fleet.tell()
    assert leader.shards.keeper.skips("main") == other.shards.keeper.skips("main") == []
    with pytest.raises(NoSuchMember, match="db-c is not skipped"):
        await leader.shards.keeper.unskip("main", "db-c", who="ops")


async def test_with_a_fleet_a_skip_of_this_agent_alone_works_while_etcd_is_away(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b", "db-c")
    fleet = InFleet(world)
    fleet.store.fates = ["away"] * 9
    with pytest.raises(StoreUnavailable):
        await world.shards.keeper.skip("main", "db-c", for_s=60, reason="ours", who="ops")
    assert world.shards.keeper.skips("main") == []
    await world.shards.keeper.skip("main", "db-c", for_s=60, reason="mine", reach=HERE, who="ops")
    assert [skip.reason for skip in world.shards.keeper.skips("main")] == ["mine"]
    await world.shards.keeper.unskip("main", "db-c", who="ops")
    assert world.shards.keeper.skips("main") == []
    await world.shards.keeper.skip("main", "db-c", for_s=60, reason="mine", reach=HERE, who="ops")
    fleet.store.fates = []
    await world.shards.keeper.skip("main", "db-c", for_s=90, reason="ours", who="ops")
    assert [skip.reason for skip in world.shards.keeper.skips("main")] == ["ours"], (
        "not hidden by mine"
    )
    assert world.log.standing(ChangeKind.SKIP) == {}


async def test_a_skip_that_is_only_tried_changes_nothing(open_world: OpenWorld) -> None:
    world = await open_world("db-b", "db-c")
    fleet = InFleet(world)
    for reach in (None, HERE):
        made = await world.shards.keeper.skip(
            "main", "db-c", for_s=60, reason="x", reach=reach, who="ops", dry_run=True
        )
        assert made.dry_run and len(made.changes) == 1
    await world.shards.keeper.skip("main", "db-c", for_s=60, reason="x", who="ops")
    assert (await world.shards.keeper.unskip("main", "db-c", who="ops", dry_run=True)).dry_run
    assert len(world.shards.keeper.skips("main")) == 1
    assert await fleet.store.count(ITEMS) == 1
    with pytest.raises(InvalidRequest, match=r"for its shard, .* or for this agent alone"):
        await world.shards.keeper.skip(
            "main", "db-c", for_s=60, reason="x", reach=EVERYWHERE, who="ops", dry_run=True
        )


async def test_an_agent_is_no_peer_of_its_own(open_world: OpenWorld) -> None:
    """Added at the primary's agent, it is told to the one that it names, too."""
    world = await open_world(databases={"db-c": replica()})
    items = [
        Change(ChangeKind.PEER, f"{SHARD} {member}", OF_SHARD, _peer(at), 9, 0.0, "ops")
        for member, at in (("db-c", "db-c"), ("db-x", "db-a"), ("db-d", "db-d"))
    ]
    await world.shards.keeper.follow(items, (), own=True)
    assert {view.member.name for view in world.view("db-c").members} == {"db-c", "db-d"}


async def test_a_fleets_log_may_name_members_of_our_shards_alone(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    reaches = {"db-c": OF_SHARD, "db-d": HERE, "db-e": Reach(Level.SHARD, "other")}
    items = [
        Change(ChangeKind.PEER, f"{SHARD} {member}", reach, _peer(member), 1, 0.0, "ops")
        for member, reach in reaches.items()
    ]
    await world.shards.keeper.follow(items, (), whole=True)
    assert {view.member.name for view in world.view().members} == {"db-a", "db-b", "db-c"}
    await world.shards.keeper.follow([], (), whole=True)
    assert {view.member.name for view in world.view().members} == {"db-a", "db-b"}


def _peer(at: str) -> dict[str, object]:
    return {"url": url(at), "database": "main"}


async def _copy(one: ShardWorld, other: ShardWorld) -> None:
    """As the exchange does."""
    keys = one.log.book.inventory(SHARD).between("", "")
    await other.log.book.merge(SHARD, await one.log.book.entries(keys), by="db-a")


# --- forgotten -----------------------------------------------------------------------------------


async def test_what_was_over_a_day_ago_is_forgotten(open_world: OpenWorld) -> None:
    world = await open_world("db-b", "db-c", "db-d")
    for member, for_s in (("db-b", 3600), ("db-c", 3600), ("db-d", MAX_SKIP_S)):
        await world.shards.keeper.skip("main", member, for_s=for_s, reason="x", who="ops")
    await world.shards.keeper.unskip("main", "db-b", who="ops")
    await world.shards.keeper.add_peer(
        "main", "db-e", url=url("e"), peer_database="main", who="ops"
    )
    await world.shards.keeper.remove_peer("main", "db-e", who="ops")
    forgetter = Forgetter(world.log.book.forget, world.clock, world.shards.keeper.kept)
    await forgetter.tick()
    assert len(world.log.book.held.items) == 4
    world.clock.set_wall(90_001)
    await forgetter.tick()
    assert [name for _, name in world.log.book.held.items] == [f"{SHARD} db-d"]
    assert [skip.member for skip in world.shards.keeper.skips("main")] == ["db-d"]


async def test_what_was_set_again_meanwhile_is_not_forgotten(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    await world.shards.keeper.skip("main", "db-b", for_s=60, reason="x", who="ops")
    world.clock.set_wall(90_000)
    await world.shards.keeper.skip("main", "db-b", for_s=60, reason="again", who="ops")
    await world.log.book.forget(ChangeKind.SKIP, [f"{SHARD} db-b"])
    assert [skip.reason for skip in world.shards.keeper.skips("main")] == ["again"]
    assert world.log.standing(ChangeKind.SKIP)


async def test_a_tombstone_of_this_agent_beside_a_change_of_its_shard_is_forgotten(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b")
    await world.shards.keeper.skip("main", "db-b", for_s=60, reason="mine", who="ops")
    world.reach = OF_SHARD
    await world.shards.keeper.skip("main", "db-b", for_s=MAX_SKIP_S, reason="ours", who="ops")
    world.clock.set_wall(90_000)
    await Forgetter(world.log.book.forget, world.clock, world.shards.keeper.kept).tick()
    assert [item.reach for item in world.log.book.held.items.values()] == [OF_SHARD]
    assert [skip.reason for skip in world.shards.keeper.skips("main")] == ["ours"]


# --- reload ------------------------------------------------------------------------------------


async def test_a_reload_leaves_an_unchanged_shard_undisturbed(open_world: OpenWorld) -> None:
    world = await open_world("db-b", "db-c")
    await world.pass_s(1)
    opened = len(world.links)
    await world.shards.adopt(world.plans())
    assert world.ask().admitted, "no warming up"
    assert len(world.links) == opened and world.role_probes_opened == 1
    assert not any(link.closed for link in world.links)


async def test_a_reload_that_changes_a_shard_opens_it_again_and_never_admits_in_between(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b", "db-c")
    await world.pass_s(1)
    world.agents["db-c"].hangs = True
    await world.shards.adopt(world.plans(labels={"region": "eu"}))
    assert not world.ask().admitted
    assert sum(link.closed for link in world.links) == 2 and world.role.closed == 1
    answers = await world.pass_s(0.75, "shard/lag")
    assert not any(answer.admitted for answer in answers)


async def test_a_reload_that_moves_a_database_to_another_shard(open_world: OpenWorld) -> None:
    """R39"""
    world = await open_world("db-b")
    await world.pass_s(1)
    await world.shards.adopt(world.plans(shard="other"))
    world.agents["db-b"].pulls.clear()
    await world.pass_s(1)
    assert {pull.shard for _, pull in world.agents["db-b"].pulls} == {"other"}
    assert [view.shard for view in world.shards.views()] == ["other"]
    with pytest.raises(WrongShard):
        await world.answer("db-b", primary())


async def test_a_reload_that_takes_a_database_out_of_its_shard(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    await world.pass_s(1)
    await world.shards.adopt([])
    before = world.pulls()
    await world.pass_s(1)
    assert world.pulls() == before and world.shards.views() == []
    assert world.ask("lag").admitted, "the host's again"
    decision = world.ask("shard/lag")
    assert not decision.admitted and "belongs to no shard" in decision.failing[0].detail


async def test_a_reload_keeps_what_operators_set(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    await world.shards.keeper.add_peer(
        "main", "db-c", url=url("db-c"), peer_database="main", who="ops"
    )
    await world.shards.keeper.skip("main", "db-c", for_s=60, reason="x", who="ops")
    await world.shards.adopt(world.plans(labels={"region": "eu"}))
    assert {view.member.name for view in world.view().members} == {"db-a", "db-b", "db-c"}
    assert world.member("db-c").skip is not None


async def test_reloads_leave_no_old_shard_behind(open_world: OpenWorld) -> None:
    """Nothing unbounded: an agent lives through thousands of reloads."""
    world = await open_world("db-b")
    gc.collect()
    before = sum(type(thing) is Shard for thing in gc.get_objects())
    for i in range(5):
        await world.shards.adopt(world.plans(labels={"round": str(i)}))
        await settle()
    gc.collect()
    after = sum(type(thing) is Shard for thing in gc.get_objects())
    assert after - before <= 1


# --- for the heartbeat -------------------------------------------------------------------------


async def test_a_replica_is_known_as_one_and_a_primary_is_not(open_world: OpenWorld) -> None:
    """R21"""
    world = await open_world("db-b")
    assert not world.shards.is_replica("main") and not world.shards.is_replica("elsewhere")
    world.role.says = replica(term=2)
    await world.pass_s(0.5)
    assert world.shards.is_replica("main")


async def test_a_primary_that_nobody_checks_is_not_taken_for_a_replica(
    open_world: OpenWorld,
) -> None:
    """R60: a lease of 0 beats forever, although roles are no longer read when it hibernates."""
    idleness = Idleness(idle_after_s=2, hibernate_after_s=5)
    world = await open_world("db-b", idleness=idleness)
    await world.pass_s(30, every_s=1)
    assert world.state() is Activity.HIBERNATING
    assert not world.shards.is_replica("main")


async def test_a_heartbeat_is_attached_to_its_database(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    world.agents["db-b"].checked_s_ago = 0.0
    heart = Heartbeat("main", FakeWriter(), world.clock, world.demand, interval_s=1, lease_s=1)
    world.shards.attach_heartbeats([heart])
    await world.pass_s(3)
    assert heart.leased, "a client of db-b asked"


# --- metrics ------------------------------------------------------------------------------------


async def test_a_metric_added_while_leading_is_rolled_up_with_the_next_report_of_each_member(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b")
    await world.pass_s(1)
    world.board.place("main", metric("threads_running"), at=world.clock.now().mono_s)
    assert not world.ask("shard/threads_running").admitted
    world.agents["db-b"].values["threads_running"] = 1.0
    await world.pass_s(0.5)
    decision = world.ask("shard/threads_running")
    assert decision.failing[0].cause is Cause.NEVER_READ, "our own is not read yet"
    assert isinstance(world.view().standpoint, Leading)


async def test_a_skip_of_this_agent_that_ended_hides_none_of_its_shard(
    open_world: OpenWorld,
) -> None:
    """What was set for this agent alone is forgotten a day after its end."""
    leader = await open_world("db-b", "db-c", reach=OF_SHARD)
    other = await open_world("db-b", "db-c")
    await other.shards.keeper.skip("main", "db-c", for_s=10, reason="restoring", who="ops")
    await other.pass_s(11)
    await leader.shards.keeper.skip("main", "db-c", for_s=3600, reason="rebuilt", who="ops")
    await _copy(leader, other)
    assert [one.reason for one in other.shards.keeper.skips("main")] == ["rebuilt"]
