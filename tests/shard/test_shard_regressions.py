"""Ways to a wrong OK for a shard that were open once: each is closed by one of these."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headgate.check.model import Verdict
from headgate.errors import PeerFailed
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.shard.members import PeerPlan
from headgate.shard.topology import Downstream
from tests.builders import metric
from tests.fixtures.fakes import primary, replica
from tests.fixtures.worlds import OpenWorld
from tests.shard.shard_world import url

AWAY = PeerFailed(Cause.UNREACHABLE, "connection refused")


async def test_a_copied_member_name_hides_nobody(open_world: OpenWorld) -> None:
    """R42: the third's agent was set up with the second's name."""
    world = await open_world("db-b", "db-c")
    world.agents["db-c"].name = "db-b"
    world.agents["db-c"].values["lag"] = 99.0
    await world.pass_s(1, "shard/lag")
    decision = world.ask()
    assert not decision.admitted
    assert "calls itself db-b" in decision.failing[0].detail


async def test_a_copied_url_hides_nobody(open_world: OpenWorld) -> None:
    world = await open_world()
    peers = tuple(PeerPlan(name, url("db-b"), "main") for name in ("db-b", "db-c"))
    await world.shards.adopt([world.plan("main", peers=peers)])
    await world.pass_s(1, "shard/lag")
    decision = world.ask()
    assert not decision.admitted and "same url" in decision.failing[0].detail


async def test_a_former_primary_that_our_server_lists_is_a_replica_without_an_agent(
    open_world: OpenWorld,
) -> None:
    """R44, R51: its agent is down, its server follows us again and may lag."""
    world = await open_world("db-b", "db-c", role=replica(term=1))
    await world.answer("db-b", primary(term=1))
    world.agents["db-b"].fault = AWAY
    world.agents["db-c"].says = replica(term=2)
    await world.pass_s(2)
    world.role.says = primary(term=2, downstream=(Downstream("db-b", "10.0.0.2"),))
    answers = await world.pass_s(3, "shard/lag")
    assert not any(answer.admitted for answer in answers)
    assert "db-b" in answers[-1].failing[0].detail


async def test_misleading_zero_lag_behind_a_link_that_stops(open_world: OpenWorld) -> None:
    """R22: it has replayed all that it received; its primary knows what it did not receive."""
    world = await open_world("db-b")
    await world.pass_s(0.5, "shard/lag")
    assert world.ask().admitted
    world.role.says = primary(downstream=(Downstream("db-b", "10.0.0.2", lag_s=27.5),))
    await world.pass_s(0.5, "shard/lag")
    [finding] = world.ask().failing
    assert finding.value == 27.5 and "as the primary measures it" in finding.detail


async def test_the_primarys_account_never_makes_it_better(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    world.agents["db-b"].values["lag"] = 9.0
    world.role.says = primary(downstream=(Downstream("db-b", "10.0.0.2", lag_s=0.0),))
    await world.pass_s(1, "shard/lag")
    assert world.ask().failing[0].value == 9.0


async def test_a_read_threshold_is_not_compared_with_a_count_of_members(
    open_world: OpenWorld,
) -> None:
    """R34: two members are unhealthy, and 2 is below 2.5 seconds."""
    world = await open_world("db-b", "db-c", metrics=(metric("lag", rollup="unhealthy"),))
    for name in ("db-b", "db-c"):
        world.agents[name].values["lag"] = 60.0
    await world.pass_s(1, "shard/lag")
    assert world.ask().verdict is Verdict.THRESHOLD_EXCEEDED
    assert not world.ask("shard/lag", read_threshold=2.5).admitted


async def test_an_odd_name_in_the_database_stops_nobody(open_world: OpenWorld) -> None:
    """`application_name` is free text; no url can be made of some of it."""
    listed = (Downstream("db-b", "10.0.0.2"), Downstream("my standby 1", "10.0.0.3"))
    world = await open_world(role=primary(downstream=listed), discover="https://{name}:8087")
    await world.pass_s(2, "shard/lag")
    world.role.says = primary(downstream=listed[:1])
    answers = await world.pass_s(1, "shard/lag")
    assert answers and world.view().standpoint is not None
    assert all("/" not in view.member.name for view in world.view().members)


async def test_a_discovered_replica_counts_before_it_is_seen(open_world: OpenWorld) -> None:
    """No OK from the primary alone, not for a moment."""
    spec = metric("threads_running", scope="shard", threshold=100)
    world = await open_world(
        role=primary(downstream=(Downstream("db-b", "10.0.0.2"),)),
        discover="https://{name}:8087",
        metrics=(spec,),
        prepare=lambda world: None,
    )
    assert not world.ask("shard/threads_running").admitted


async def test_clients_are_sent_only_where_the_settings_say(open_world: OpenWorld) -> None:
    """A pull may name any address; nobody is sent there, and nobody connects to it."""
    world = await open_world("db-b", role=replica())
    opened = len(world.links)
    await world.answer("db-b", primary(), url="http://evil.example:80")
    await world.answer("stranger", primary(), url="http://evil.example:80")
    assert world.ask().check_at == url("db-b")
    assert len(world.links) == opened


async def test_a_sleeping_member_is_not_a_missing_one(open_world: OpenWorld) -> None:
    """R59: asleep for as long as nobody checks, which says nothing against it."""
    world = await open_world("db-b", metrics=(metric("lag", missing_for_s=2, empty="admit"),))
    now = world.clock.now().mono_s
    world.agents["db-b"].values["lag"] = Absent(Cause.HIBERNATING, "nobody asks", now)
    await world.pass_s(1, "shard/lag")
    answers = await world.pass_s(6, "shard/lag")
    assert not any(answer.admitted for answer in answers)


async def test_a_reload_is_whole_at_every_moment(open_world: OpenWorld) -> None:
    """Anyone who looks while the old shard is being closed finds the new one."""
    world = await open_world("db-b")
    await world.pass_s(1, "shard/lag")
    plan = world.plan("main", labels={"region": "eu"})
    task = asyncio.ensure_future(world.shards.adopt([plan]))
    while not task.done():
        await asyncio.sleep(0)
        assert world.shards.view("main") is not None
    await world.pass_s(1, "shard/lag")
    assert world.ask().admitted


def test_the_worse_of_two_accounts_keeps_its_age() -> None:
    from headgate.shard.rolling import _the_worse

    sample = Sample(0.0, 12.5)
    worse = _the_worse(sample, Downstream("db-b", "", lag_s=3.0))
    assert worse == replace_value(sample, 3.0, worse.detail)
    assert _the_worse(sample, replace(Downstream("db-b", ""), lag_s=None)) is sample


def replace_value(sample: Sample, value: float, detail: str) -> Sample:
    return sample._replace(value=value, detail=detail)
