"""Registering in the fleet's store: who is here, for as long as we are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headgate.base.keyvalue import Lease, Put
from headgate.errors import StoreUnavailable
from headgate.fleet.members import FleetMember, member_bytes, read_members
from headgate.fleet.registrar import (
    LOST_AFTER_S,
    RETRY_S,
    SETTLED_AFTER_S,
    Registrar,
    Whereabouts,
    own_members,
)
from tests.fixtures.fakes import HandClock, replica, settle
from tests.fixtures.memory_log import KeptInMemory, MemoryLog
from tests.fixtures.worlds import OpenWorld
from tests.fleet.test_members import MEMBER
from tests.shard.shard_world import SHARD

WHERE = Whereabouts("https://db-a:8087", "agent-a", "eu-1", "shop", "0.8.0")


class CountingStore(MemoryLog):
    """Away while `away` says why; counts what it is asked."""

    def __init__(self, kept: KeptInMemory) -> None:
        super().__init__(kept)
        self.away = ""
        self.asked: list[str] = []

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.away:
            raise StoreUnavailable(self.away)

    async def grant(self, ttl_s: float) -> Lease:
        self._ask("grant")
        return await super().grant(ttl_s)

    async def renew(self, lease_id: int) -> Lease:
        self._ask("renew")
        return await super().renew(lease_id)

    async def commit(self, compares: object, puts: object, **more: object) -> int:
        self._ask("commit")
        return await super().commit(compares, puts)  # type: ignore[arg-type]


class World:
    def __init__(self, *, spread_s: float = 0.5, is_size_known: bool = True) -> None:
        self.clock = HandClock()
        self.kept = KeptInMemory(mono_s=lambda: self.clock.now().mono_s)
        self.store = CountingStore(self.kept)
        self.members: list[FleetMember] = [MEMBER]
        self.registrar = Registrar(
            self.store,
            self.clock,
            lambda: 0.5,
            members=lambda: self.members,
            spread_s=lambda: self.spread_s,
            is_size_known=lambda: self.is_size_known,
        )
        self.spread_s, self.is_size_known = spread_s, is_size_known
        self.task = asyncio.create_task(self.registrar.run())

    def change(self, **changed: object) -> None:
        self.members = [replace(member, **changed) for member in self.members]  # type: ignore[arg-type]
        self.registrar.look_again()

    def stored(self) -> list[FleetMember]:
        return read_members(self.kept.listing(["members/"]).entries)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def test_it_registers_and_stays_registered(world: World) -> None:
    await world.clock.advance(1)
    [stored] = world.stored()
    assert replace(stored, at=0.0) == replace(MEMBER, at=0.0)
    await world.clock.advance(3600)
    assert len(world.stored()) == 1
    assert world.store.asked.count("commit") == 1, "nothing changed, so nothing is written"
    assert 180 <= world.store.asked.count("renew") <= 230, "a third of the TTL, jittered"
    assert world.registrar.state().registered == 1 and world.registrar.state().fault == ""


async def test_a_new_role_is_written_at_once(world: World) -> None:
    await world.clock.advance(5)
    world.change(role="replica")
    await world.clock.advance(0.01)
    assert [member.role for member in world.stored()] == ["replica"]


async def test_a_new_n_is_written_in_its_own_time() -> None:
    """30,000 agents must not write within the second in which all of them got a rule."""
    world = World(spread_s=4.0)
    await world.clock.advance(10)
    world.change(n=13)
    await world.clock.advance(5.9)
    assert [member.n for member in world.stored()] == [12], "half of three spreads"
    world.change(n=14)
    await world.clock.advance(0.2)
    assert [member.n for member in world.stored()] == [14], "the newest, once"
    assert world.store.asked.count("commit") == 2
    await world.close()


async def test_a_new_n_is_reported_along_with_a_new_role(world: World) -> None:
    await world.clock.advance(5)
    world.change(n=13)
    world.change(role="replica")
    await world.clock.advance(0.01)
    assert [(member.role, member.n) for member in world.stored()] == [("replica", 13)]
    await world.clock.advance(10)
    assert world.store.asked.count("commit") == 2


async def test_a_large_fleet_renews_seldom() -> None:
    """10,000 shards of three agents: together they stay below 200 renewals a second."""
    world = World(spread_s=50.0)
    await world.clock.advance(75)
    world.store.asked.clear()
    await world.clock.advance(3600)
    assert world.store.asked.count("renew") * 30_000 / 3600 < 200
    assert len(world.stored()) == 1
    await world.close()


async def test_a_store_that_is_away_is_calmly_tried_again(world: World) -> None:
    await world.clock.advance(5)
    world.store.away = "etcd: no quorum"
    world.store.asked.clear()
    await world.clock.advance(600)
    assert world.registrar.state().fault == "etcd: no quorum"
    assert len(world.store.asked) <= 600 / RETRY_S
    world.store.away = ""
    world.change(role="replica")
    await world.clock.advance(10)
    assert [member.role for member in world.stored()] == ["replica"]
    assert world.registrar.state().fault == ""


async def test_roles_that_flap_while_the_store_is_away_are_no_storm(world: World) -> None:
    await world.clock.advance(5)
    world.store.away = "etcd: no quorum"
    world.store.asked.clear()
    for at in range(200):
        world.change(role=("primary", "replica")[at % 2])
        await world.clock.advance(0.05)
    assert len(world.store.asked) <= 30


async def test_a_role_that_is_lost_for_a_moment_is_no_news(world: World) -> None:
    """One slow answer of a server: 30,000 agents would say so within the same second, and again."""
    world.change(system="7001")
    await world.clock.advance(5)
    world.change(role="unknown", system="")
    await world.clock.advance(2)
    world.change(role=MEMBER.role, system="7001")
    await world.clock.advance(60)
    assert world.store.asked.count("commit") == 1
    assert [member.role for member in world.stored()] == [MEMBER.role]


async def test_a_role_that_stays_lost_is_reported_in_its_own_time() -> None:
    world = World(spread_s=4.0)
    await world.clock.advance(10)
    world.change(role="unknown", n=13)
    await world.clock.advance(6.1)
    assert [(m.role, m.n) for m in world.stored()] == [(MEMBER.role, 13)], "n alone"
    await world.clock.advance(LOST_AFTER_S)
    assert [member.role for member in world.stored()] == ["unknown"]
    world.change(role=MEMBER.role)
    await world.clock.advance(5.9)
    assert [member.role for member in world.stored()] == ["unknown"], "all are back at once, too"
    await world.clock.advance(0.2)
    assert [member.role for member in world.stored()] == [MEMBER.role]
    await world.close()


@pytest.mark.parametrize("other", ["unknown", "replica"])
async def test_a_role_that_flaps_is_reported_seldom(other: str) -> None:
    world = World(spread_s=50.0)
    await world.clock.advance(200)
    world.store.asked.clear()
    for at in range(240):
        world.change(role=("primary", other)[at % 2])
        await world.clock.advance(0.5)
    assert world.store.asked.count("commit") <= 3
    await world.close()


async def test_a_lease_of_when_the_fleet_was_small_is_replaced_in_its_own_time() -> None:
    """Granted before the first beat told how many there are: 1,670 renewals a second forever."""
    world = World()
    await world.clock.advance(10)
    other = Put("shards/x", b"told", world.registrar.lease_id)
    world.kept.commit([], [other])
    world.spread_s = 50.0
    await world.clock.advance(30)
    assert world.store.asked.count("grant") == 1, "not all at their next renewal"
    while world.store.asked.count("grant") == 1:
        await world.clock.advance(1)
    assert world.registrar.state().ttl_s == 600
    for _ in range(100):
        await world.clock.advance(1)
        assert len(world.stored()) == 1
        assert world.kept.listing(["shards/"]).entries, "until who wrote it has written it anew"
    await world.clock.advance(600)
    assert not world.kept.listing(["shards/"]).entries, "the former one is let go"
    world.store.asked.clear()
    await world.clock.advance(3600)
    assert world.store.asked.count("renew") * 30_000 / 3600 < 200
    assert len(world.stored()) == 1 and world.store.asked.count("grant") == 0
    await world.close()


async def test_nobody_registers_before_the_size_of_the_fleet_is_known() -> None:
    """All start at once with empty disks: spread as a fleet of one, that would be a stampede."""
    world = World(is_size_known=False)
    await world.clock.advance(60)
    assert world.store.asked == []
    world.is_size_known, world.spread_s = True, 50.0
    await world.clock.advance(74)
    assert world.store.asked == []
    await world.clock.advance(2)
    assert len(world.stored()) == 1 and world.registrar.state().ttl_s == 600
    await world.close()


async def test_a_recreated_store_is_no_reason_to_hurry() -> None:
    """Everybody's lease is lost at once, and everybody learns of it at once."""
    world = World(spread_s=50.0)
    await world.clock.advance(200)
    world.kept.revoke(1)
    world.store.asked.clear()
    while "renew" not in world.store.asked:
        await world.clock.advance(1)
    world.change(n=13)
    await world.clock.advance(70)
    assert "grant" not in world.store.asked
    await world.clock.advance(80)
    assert len(world.stored()) == 1
    await world.close()


async def test_a_lease_that_was_lost_is_granted_again(world: World) -> None:
    """A store that was restarted with an empty disk."""
    await world.clock.advance(5)
    world.kept.revoke(1)
    assert world.stored() == []
    await world.clock.advance(30)
    assert len(world.stored()) == 1 and world.registrar.state().registered == 1


async def test_leaving_takes_it_out_at_once(world: World) -> None:
    await world.clock.advance(5)
    await world.close()
    await world.registrar.leave()
    assert world.stored() == []
    await world.registrar.leave()


async def test_leaving_a_store_that_is_away_ends_soon(world: World) -> None:
    await world.clock.advance(5)
    await world.close()
    await world.store.close()
    await world.registrar.leave()


async def test_a_database_that_is_gone_is_taken_out(world: World) -> None:
    world.members = [MEMBER, replace(MEMBER, member="db-b")]
    await world.clock.advance(5)
    world.members = [MEMBER]
    world.registrar.look_again()
    await world.clock.advance(1)
    assert [member.member for member in world.stored()] == ["db-a"]


async def test_one_that_another_agent_took_over_is_left_to_it(world: World) -> None:
    world.members = [MEMBER, replace(MEMBER, member="db-b")]
    await world.clock.advance(5)
    theirs = replace(MEMBER, member="db-b", url="https://elsewhere:8087")
    other = Registrar(
        MemoryLog(world.kept),
        world.clock,
        lambda: 0.0,
        members=lambda: [theirs],
        spread_s=lambda: 0.5,
    )
    running = asyncio.create_task(other.run())
    await world.clock.advance(1)
    world.members = [MEMBER]
    world.registrar.look_again()
    await world.clock.advance(1)
    assert {m.member: m.url for m in world.stored()}["db-b"] == "https://elsewhere:8087"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_many_databases_go_in_several_commits(world: World) -> None:
    world.members = [replace(MEMBER, member=f"db-{at}") for at in range(250)]
    await world.clock.advance(5)
    assert len(world.stored()) == 250 and world.store.asked.count("commit") == 3


async def test_what_was_taken_out_by_hand_is_put_back(world: World) -> None:
    await world.clock.advance(5)
    world.kept.commit([], [Put(MEMBER.key, None)])
    world.registrar.seen(world.stored())
    await world.clock.advance(0.1)
    assert world.stored() == [], "it may be on its way"
    await world.clock.advance(SETTLED_AFTER_S)
    world.registrar.seen(world.stored())
    await world.clock.advance(1)
    assert len(world.stored()) == 1


async def test_another_agent_of_the_same_name_is_reported_and_not_fought(world: World) -> None:
    await world.clock.advance(5 + SETTLED_AFTER_S)
    world.store.asked.clear()
    world.registrar.seen([replace(MEMBER, url="https://copy:8087")])
    await world.clock.advance(5)
    assert world.registrar.state().doubles == {"db-a": "https://copy:8087"}
    assert "commit" not in world.store.asked


async def test_another_host_that_calls_its_member_alike_is_reported(world: World) -> None:
    """Each has a key of its own, so nobody is written over; but they do not find each other."""
    theirs = replace(MEMBER, host="agent-c", url="https://db-c:8087")
    await world.clock.advance(5 + SETTLED_AFTER_S)
    world.kept.commit([], [Put(theirs.key, member_bytes(theirs))])
    assert len(world.stored()) == 2
    world.registrar.seen(world.stored())
    assert world.registrar.state().doubles == {"db-a": "https://db-c:8087"}
    world.registrar.seen([MEMBER, replace(theirs, shard="commerce/80-")])
    assert world.registrar.state().doubles == {}, "another shard's name is another"


async def test_a_passive_agent_leaves_registering_to_the_active_one(open_world: OpenWorld) -> None:
    """Both have the same members; anyone who looks for one must find the agent that answers."""
    world = await open_world()
    told: list[int] = []
    world.shards.on_roles = lambda: told.append(
        len(own_members(["main"], world.shards, WHERE, n=7, wall_s=5.0))
    )
    world.shards.speak_at("https://active:8087")
    world.shards.speak_at("https://db-a:8087")
    assert told == [0, 1]


async def test_own_members_are_databases_with_and_without_a_shard(open_world: OpenWorld) -> None:
    world = await open_world(role=replica())
    await world.pass_s(0.5)
    found = own_members(["main", "side"], world.shards, WHERE, n=7, wall_s=5.0)
    await settle()
    assert [(m.shard, m.member, m.role, m.n) for m in found] == [
        (SHARD, "db-a", "replica", 7),
        ("", "agent-a.side", "unknown", 7),
    ]
