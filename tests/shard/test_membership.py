"""Members found in the fleet's store and in Patroni's keys, and what their words are good for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.base.keyvalue import Put
from headgate.check.model import Verdict
from headgate.errors import InvalidRequest
from headgate.fleet.members import FleetMember
from headgate.metrics.samples import Cause
from headgate.shard.model import MAX_MEMBERS
from headgate.shard.patroni import PatroniFollower
from headgate.shard.topology import Downstream, Following, Leading, Role
from tests.fixtures.fakes import UNREACHABLE, FakeAgent, primary, replica
from tests.fixtures.memory_log import MemoryLog
from tests.fixtures.worlds import OpenWorld
from tests.fleet.test_members import MEMBER
from tests.shard.shard_world import SHARD, ShardWorld, url
from tests.shard.test_patroni_keys import member as patroni_member

HOSTS = "https://{host}:8087"


def registered(name: str, role: str = "replica", **more: Any) -> FleetMember:
    given = {"shard": SHARD, "member": name, "url": url(name), "role": role, **more}
    return replace(MEMBER, **given)


def members(world: ShardWorld) -> dict[str, str]:
    return {view.member.name: view.member.url for view in world.view().members}


# --- the fleet's store -------------------------------------------------------------------------


async def test_agents_that_registered_are_members(open_world: OpenWorld) -> None:
    """R44: also where the database does not list them by a name that leads anywhere."""
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet(
        [registered("db-a", "primary"), registered("db-b"), registered("db-c")]
    )
    await world.pass_s(1, "shard/lag")
    assert members(world) == {"db-a": "", "db-b": url("db-b"), "db-c": url("db-c")}
    assert world.ask().admitted
    world.agents["db-c"].values["lag"] = 900.0
    await world.pass_s(1, "shard/lag")
    assert not world.ask().admitted, "its lag counts"


async def test_members_of_other_shards_are_never_contacted(open_world: OpenWorld) -> None:
    """R39"""
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-x", shard="commerce/80-")])
    await world.pass_s(1, "shard/lag")
    assert world.links == []


async def test_an_address_that_the_settings_do_not_allow_is_never_connected_to(
    open_world: OpenWorld,
) -> None:
    """Whoever may write to the store would be sent our token."""
    world = await open_world(discover="https://{host}.db.example:8087")
    world.shards.membership.found_in_fleet([registered("db-b", url="https://evil.example:8087")])
    await world.pass_s(1, "shard/lag")
    assert world.links == []
    assert "does not match discover" in world.shards.membership.unbelieved["db-b"]
    assert any("not contacted" in line for line in world.view().told)


async def test_without_discover_nobody_is_connected_to_and_it_is_said_what_to_do(
    open_world: OpenWorld,
) -> None:
    world = await open_world()
    world.shards.membership.found_in_fleet([registered("db-b"), registered("db-c", url="")])
    assert world.links == []
    assert 'set discover = "https://{host}:8087"' in world.shards.membership.unbelieved["db-b"]
    assert "reports no address" in world.shards.membership.unbelieved["db-c"]


async def test_a_peer_of_the_settings_is_taken_from_there(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    world.shards.membership.found_in_fleet([registered("db-b", url="https://elsewhere:8087")])
    assert members(world)["db-b"] == url("db-b") and not world.shards.membership.unbelieved


async def test_a_member_that_moved_is_found_at_its_new_address(open_world: OpenWorld) -> None:
    """A pod of the same name on another node."""
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-b", url="https://10.0.0.2:8087")])
    await world.pass_s(1, "shard/lag")
    world.shards.membership.found_in_fleet([registered("db-b", url="https://10.0.0.9:8087")])
    assert members(world)["db-b"] == "https://10.0.0.2:8087", "that one answers"
    world.agents["10.0.0.2"].fault = UNREACHABLE
    await world.pass_s(1, "shard/lag")
    world.shards.membership.found_in_fleet([registered("db-b", url="https://10.0.0.9:8087")])
    await world.pass_s(1, "shard/lag")
    assert members(world)["db-b"] == "https://10.0.0.9:8087"
    assert [link.closed for link in world.links] == [True, False]
    assert world.ask().admitted


async def test_another_host_by_our_own_name_is_reported(open_world: OpenWorld) -> None:
    """Both have the same settings file: neither would ask the other."""
    world = await open_world(discover=HOSTS)
    ours = registered("db-a", "primary", host="db-a")
    world.shards.membership.found_in_fleet([ours, registered("db-a", host="db-x", url=url("db-x"))])
    assert (
        "agents db-a and db-x are both registered as db-a"
        in world.shards.membership.unbelieved["db-a"]
    )
    assert any("its own `member` name" in line for line in world.view().told)
    world.shards.membership.found_in_fleet([ours])
    assert not world.shards.membership.unbelieved


async def test_of_two_with_the_same_name_one_is_contacted_and_both_are_reported(
    open_world: OpenWorld,
) -> None:
    world = await open_world(discover=HOSTS)
    both = [
        registered("m", host=host, url=url(host), at=at) for at, host in ((5.0, "x"), (9.0, "y"))
    ]
    for _ in range(3):
        world.shards.membership.found_in_fleet(both)
        await world.pass_s(1, "shard/lag")
        assert members(world) == {"db-a": "", "m": url("y")}, "the one that was written last"
    assert "agents x and y" in world.shards.membership.unbelieved["m"]


@pytest.mark.parametrize("role", ["primary", "replica"])
async def test_a_registered_member_that_was_never_seen_stops_no_shard(
    open_world: OpenWorld, role: str
) -> None:
    """R42: a mistyped `advertise`, a key put by hand, the ghost of a host that is gone."""
    world = await open_world("db-b", discover=HOSTS)
    world.role.says = primary(downstream=(Downstream("db-b", "ghost"),))  # On the same host.
    await world.pass_s(1, "shard/lag")
    world.agents["ghost"] = FakeAgent(world.clock, "ghost")
    world.agents["ghost"].fault = UNREACHABLE
    world.shards.membership.found_in_fleet([registered("db-b"), registered("ghost", role)])
    answers = await world.pass_s(15, "shard/lag")
    assert all(answer.admitted for answer in answers)
    told = world.shards.membership.unbelieved["ghost"]
    assert "it does not count" in told and told in world.view().told
    assert "does not count" in world.member("ghost").problem
    world.agents["ghost"].fault = None
    world.agents["ghost"].values["lag"] = 900.0
    await world.pass_s(1, "shard/lag")
    assert not world.ask().admitted, "once it has answered, it counts"
    assert "ghost" not in world.shards.membership.unbelieved


async def test_one_that_our_server_feeds_counts_before_its_agent_was_seen(
    open_world: OpenWorld,
) -> None:
    """R42, R43: the replica is there; that its agent is not may not read as no lag."""
    world = await open_world(discover=HOSTS)
    world.agents["db-b"] = FakeAgent(world.clock, "db-b")
    world.agents["db-b"].fault = UNREACHABLE
    world.shards.membership.found_in_fleet([registered("db-b")])
    world.role.says = primary(downstream=(Downstream("db-b", "db-b"),))
    await world.pass_s(2, "shard/lag")
    assert not world.ask().admitted


async def test_a_wrong_address_in_the_store_hides_no_replica_that_our_server_lists(
    open_world: OpenWorld,
) -> None:
    world = await open_world(discover=HOSTS)
    world.agents["typo"] = FakeAgent(world.clock, "typo")
    world.agents["typo"].fault = UNREACHABLE
    world.shards.membership.found_in_fleet([registered("db-b", url=url("typo"))])
    await world.pass_s(1, "shard/lag")
    world.role.says = primary(downstream=(Downstream("db-b", "db-b"),))
    for _ in range(8):
        await world.pass_s(1, "shard/lag")
        world.shards.membership.found_in_fleet([registered("db-b", url=url("typo"))])
    assert members(world)["db-b"] == url("db-b") and world.ask().admitted


async def test_where_a_servers_list_leads_nowhere_what_the_agents_say_counts(
    open_world: OpenWorld,
) -> None:
    """The list came first; its agent may be just starting."""
    world = await open_world(discover=HOSTS)
    world.agents["10.0.0.9"] = FakeAgent(world.clock, "10.0.0.9")
    world.agents["10.0.0.9"].fault = UNREACHABLE
    world.agents["db-b"] = FakeAgent(world.clock, "db-b")
    world.role.says = primary(downstream=(Downstream("db-b", "10.0.0.9"),))
    await world.pass_s(1, "shard/lag")
    assert members(world)["db-b"] == url("10.0.0.9")
    world.shards.membership.found_in_fleet([registered("db-b", url=url("db-b"))])
    await world.pass_s(2, "shard/lag")
    assert members(world)["db-b"] == url("db-b") and world.ask().admitted


async def test_a_primary_of_another_cluster_by_the_same_shard_name_is_no_split_brain(
    open_world: OpenWorld,
) -> None:
    """A copied settings file: the stranger is reported, and its data is not ours."""
    ours, theirs = replace(primary(), cluster="7001"), replace(primary(), cluster="7002")
    world = await open_world("db-b", role=ours, discover=HOSTS)
    world.agents["db-x"] = FakeAgent(world.clock, "db-x")
    world.agents["db-x"].says = theirs
    world.shards.membership.found_in_fleet([registered("db-x", "primary")])
    await world.pass_s(2, "shard/lag")
    assert world.leads() and world.ask().admitted
    assert "another cluster (7002)" in world.shards.membership.unbelieved["db-x"]
    await world.answer("db-y", theirs)
    await world.pass_s(1, "shard/lag")
    assert world.leads() and world.ask().admitted


async def test_a_primary_of_another_cluster_that_pulls_from_us_is_no_split_brain(
    open_world: OpenWorld,
) -> None:
    """It found us in the store, by its copied `shard`; it may even be called as one of ours is."""
    ours, theirs = replace(primary(), cluster="7001"), replace(primary(), cluster="7002")
    world = await open_world("db-b", role=ours, discover=HOSTS)
    await world.pass_s(1, "shard/lag")
    for sender in ("db-x", "db-b"):
        await world.answer(sender, theirs)
        await world.pass_s(1, "shard/lag")
        assert world.leads() and world.ask().admitted
    assert "db-x" not in members(world)


@pytest.mark.parametrize(
    ("other", "told"),
    [({"system": "7002"}, "cluster is 7002, not 7001"), ({"cluster": "x"}, "in cluster x, not in")],
)
async def test_one_that_says_to_be_of_another_cluster_is_not_even_contacted(
    open_world: OpenWorld, other: dict[str, str], told: str
) -> None:
    world = await open_world(role=replace(primary(), cluster="7001"), discover=HOSTS)
    await world.pass_s(1, "shard/lag")
    world.shards.membership.found_in_fleet(
        [registered("db-x", "primary", **other)], cluster=MEMBER.cluster
    )
    await world.pass_s(1, "shard/lag")
    assert world.links == [] and told in world.shards.membership.unbelieved["db-x"]


async def test_a_name_that_no_member_may_have_is_ignored(open_world: OpenWorld) -> None:
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet(
        [registered("a b"), registered("\x1b[31m"), registered("y" * 400)]
    )
    assert world.links == [] and len(world.shards.membership.unbelieved) == 3


async def test_a_flood_of_names_displaces_nobody_who_is_known(open_world: OpenWorld) -> None:
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-b")])
    await world.pass_s(1, "shard/lag")
    world.agents["db-b"].fault = UNREACHABLE
    await world.pass_s(1, "shard/lag")
    flood = [registered(f"aa-{at}", url="") for at in range(MAX_MEMBERS)]
    world.shards.membership.found_in_fleet([*flood, registered("db-b")])
    await world.pass_s(1, "shard/lag")
    assert "db-b" in members(world), "it is registered still"


async def test_a_key_that_vanishes_takes_nobody_out_who_answers(open_world: OpenWorld) -> None:
    """A store that was wiped, or a lease that ran out while it was away."""
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-b")])
    await world.pass_s(1, "shard/lag")
    world.shards.membership.found_in_fleet([])
    await world.pass_s(1, "shard/lag")
    assert "db-b" in members(world)


async def test_one_that_is_lost_still_counts_while_the_server_feeds_it(
    open_world: OpenWorld,
) -> None:
    """R42: its agent is away, its server is not."""
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-b")])
    await world.pass_s(1, "shard/lag")
    world.agents["db-b"].fault = UNREACHABLE
    world.role.says = primary(downstream=(Downstream("db-b", "db-b"),))
    await world.pass_s(1, "shard/lag")
    world.shards.membership.found_in_fleet([])
    await world.pass_s(1, "shard/lag")
    assert "db-b" in members(world)
    world.role.says = primary()
    await world.pass_s(1, "shard/lag")
    world.shards.membership.found_in_fleet([])
    await world.pass_s(1, "shard/lag")
    assert "db-b" not in members(world), "unregistered, unreachable and fed by nobody"


async def test_one_that_is_registered_comes_back_so_it_is_not_removed(
    open_world: OpenWorld,
) -> None:
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-b")])
    with pytest.raises(InvalidRequest, match="registers itself in the fleet's store"):
        await world.shards.keeper.remove_peer("main", "db-b", who="ops")
    assert "db-b" in members(world)


async def test_found_in_the_database_and_registered_is_one_member(open_world: OpenWorld) -> None:
    listed = (Downstream("walreceiver", "10.0.0.2"),)
    world = await open_world(role=primary(downstream=listed), discover=HOSTS)
    world.agents["10.0.0.2"].name = "db-b"
    world.shards.membership.found_in_fleet([registered("db-b")])
    await world.pass_s(2, "shard/lag")
    assert members(world) == {"db-a": "", "db-b": url("db-b")}


async def test_named_otherwise_in_the_settings_and_registered_is_one_member(
    open_world: OpenWorld,
) -> None:
    world = await open_world("b-by-address", discover=HOSTS)
    world.agents["b-by-address"].name = "db-b"
    world.shards.membership.found_in_fleet([registered("db-b")])
    await world.pass_s(2, "shard/lag")
    assert members(world) == {"db-a": "", "b-by-address": url("b-by-address")}
    assert all(not view.problem for view in world.view().members)


async def test_a_reload_keeps_what_was_found(open_world: OpenWorld) -> None:
    world = await open_world(discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-b")])
    await world.shards.adopt(world.plans(labels={"az": "1"}))
    assert "db-b" in members(world)


async def test_roles_that_change_are_reported_once(open_world: OpenWorld) -> None:
    world = await open_world()
    told = []
    world.shards.on_roles = lambda: told.append(world.shards.stands()[0].role)
    await world.pass_s(2)
    world.role.says = replica()
    await world.pass_s(2)
    assert told == [Role.REPLICA]


async def test_the_state_of_each_database(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=replica())
    world.agents["db-b"].says = primary()
    await world.pass_s(1, "shard/lag")
    [stand] = world.shards.stands()
    assert (stand.database, stand.shard, stand.member) == ("main", SHARD, "db-a")
    assert (stand.role, stand.leads) == (Role.REPLICA, False)
    assert (stand.primary, stand.primary_url) == ("db-b", url("db-b"))


async def test_the_one_registered_primary_is_contacted_while_no_member_has_been_seen(
    open_world: OpenWorld,
) -> None:
    world = await open_world(role=replica(), discover=HOSTS)
    world.shards.membership.found_in_fleet([registered("db-b", "primary"), registered("db-c")])
    await world.pass_s(0.5)
    assert world.look().verdict is Verdict.WRONG_AGENT and world.look().check_at == url("db-b")


async def test_two_registered_primaries_say_nothing(open_world: OpenWorld) -> None:
    world = await open_world(role=replica(), discover=HOSTS)
    world.shards.membership.found_in_fleet(
        [registered("db-b", "primary"), registered("db-c", "primary")]
    )
    await world.pass_s(0.5)
    assert world.unled() is Cause.NO_PRIMARY


# --- Patroni -----------------------------------------------------------------------------------


class PatroniWorld:
    """A shard world with a follower of Patroni's keys, which are put by hand."""

    def __init__(self, world: ShardWorld, names: tuple[str, ...]) -> None:
        self.world = world
        self.store = MemoryLog()
        self.follower = PatroniFollower(self.store, "batman", world.clock, lambda: 0.5)
        self.names = names

    async def says(self, leader: str, **roles: str) -> None:
        puts = [
            Put(
                f"batman/members/{name}",
                patroni_member(
                    name, roles.get(name, "primary" if name == leader else "replica")
                ).encode(),
            )
            for name in self.names
        ]
        self.store.kept.commit([], [Put("batman/leader", leader.encode()), *puts])
        await self.follower.look_once()


async def open_patroni(open_world: OpenWorld, *names: str, **more: Any) -> PatroniWorld:
    world = await open_world(**{"discover": HOSTS, **more})
    await world.shards.adopt(world.plans(patroni="batman"))
    patroni = PatroniWorld(world, names)
    world.shards.membership.follow_patroni(patroni.follower)
    return patroni


async def test_patronis_members_are_members(open_world: OpenWorld) -> None:
    patroni = await open_patroni(open_world, "db-a", "db-b", "db-c")
    await patroni.says("db-a")
    await patroni.world.pass_s(1, "shard/lag")
    assert members(patroni.world) == {"db-a": "", "db-b": url("db-b"), "db-c": url("db-c")}
    assert patroni.world.ask().admitted
    assert patroni.world.view().told == ("Patroni (batman): db-a leads, timeline 3",)


async def test_patronis_report_never_makes_us_lead(open_world: OpenWorld) -> None:
    """A lock may be taken before the server is promoted."""
    patroni = await open_patroni(open_world, "db-a", "db-b", role=replica())
    await patroni.says("db-a")
    await patroni.world.pass_s(1, "shard/lag")
    assert patroni.world.unled() is Cause.NO_PRIMARY


async def test_patronis_leader_is_contacted_while_no_member_has_been_seen(
    open_world: OpenWorld,
) -> None:
    patroni = await open_patroni(open_world, "db-a", "db-b", role=replica())
    await patroni.says("db-b")
    await patroni.world.pass_s(0.5)
    point = patroni.world.view().standpoint
    assert isinstance(point, Following) and point.url == url("db-b")


async def test_of_two_that_say_they_are_the_primary_patronis_is_contacted(
    open_world: OpenWorld,
) -> None:
    """A replica's agent: one of them was cut off, and has not noticed yet."""
    patroni = await open_patroni(open_world, "db-a", "db-b", "db-c", role=replica())
    world = patroni.world
    await patroni.says("")
    for claims in ("db-b", "db-c", "db-b"):
        await world.clock.advance(0.05)
        await world.answer(claims, primary())
    assert world.unled() is Cause.SPLIT_BRAIN, "without Patroni's word"
    await patroni.says("db-c")
    point = world.view().standpoint
    assert isinstance(point, Following) and point.primary == "db-c"


async def test_the_primary_itself_stays_silent_beside_another_whatever_patroni_says(
    open_world: OpenWorld,
) -> None:
    """The law of shard.py: no OK while another member says that it is the primary."""
    patroni = await open_patroni(open_world, "db-a", "db-b")
    world = patroni.world
    await patroni.says("db-a")
    await world.pass_s(1, "shard/lag")
    assert isinstance(world.view().standpoint, Leading)
    world.agents["db-b"].says = primary()
    await world.pass_s(1, "shard/lag")
    assert world.unled() is Cause.SPLIT_BRAIN


async def test_a_follower_that_was_replaced_is_not_listened_to(open_world: OpenWorld) -> None:
    patroni = await open_patroni(open_world, "db-a", "db-b")
    later = PatroniWorld(patroni.world, ("db-a", "db-c"))
    patroni.world.shards.membership.follow_patroni(later.follower)
    await patroni.says("db-a")
    assert list(members(patroni.world)) == ["db-a"]
    await later.says("db-a")
    assert "db-c" in members(patroni.world)
