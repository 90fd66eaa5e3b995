"""A primary's agent tells the fleet how its shard is: on change, in its turn, in nobody's way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.base.keyvalue import Compare, Put
from headgate.changes.model import shard_key
from headgate.changes.reach import Place
from headgate.check.model import Idleness, Verdict
from headgate.errors import OutcomeUnknown, StoreUnavailable
from headgate.fleet.members import FleetMember, ShardTold, read_told, told_bytes
from headgate.fleet.shardstatus import (
    HANDED_OVER_S,
    REFRESH_S,
    SHORTEST_S,
    FleetStatus,
    StatusSources,
)
from headgate.history.recorder import Key, Recorder
from headgate.metrics.samples import Absent, Cause
from headgate.shard.speech import Footing, RejectedShare
from tests.builders import metric
from tests.fixtures.fakes import UNREACHABLE, primary, replica
from tests.fixtures.fleet_sights import registered
from tests.fixtures.memory_log import KeptInMemory, MemoryLog
from tests.shard.shard_world import OURS, SHARD, ShardWorld

KEY = shard_key(SHARD)


class Store(MemoryLog):
    """Counts what is written; says what it is told to when it is away."""

    def __init__(self, kept: KeptInMemory) -> None:
        super().__init__(kept)
        self.fault: StoreUnavailable | None = None
        self.commits: list[Sequence[Put]] = []
        self.tries = 0

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put], **more: Any) -> int:
        self.tries += 1
        if self.fault is not None:
            raise self.fault
        self.commits.append(puts)
        return await super().commit(compares, puts)


@dataclass
class Telling:
    world: ShardWorld
    store: Store
    status: FleetStatus
    recorder: Recorder
    lease: list[int]
    spread: list[float]
    rolls: list[float] = field(default_factory=list)
    members: list[FleetMember] = field(default_factory=list)

    async def pass_s(self, seconds: int) -> None:
        """Looked at once a second, as its loop does."""
        for _ in range(seconds):
            await self.world.pass_s(1.0, "lag", every_s=1.0)
            await self.status.look_once()

    async def told(self) -> ShardTold | None:
        listing = await self.store.list([KEY])
        return read_told(listing.entries[0].value) if listing.entries else None

    async def said(self) -> ShardTold:
        told = await self.told()
        assert told is not None
        return told


@asynccontextmanager
async def telling(world: ShardWorld, *, roll: float = 0.0) -> AsyncIterator[Telling]:
    await world.start()
    kept = KeptInMemory(mono_s=lambda: world.clock.now().mono_s)
    store, recorder = Store(kept), Recorder(max_clients=10)
    lease, spread = [kept.grant(1e6).id], [0.5]
    members: list[FleetMember] = []
    sources = StatusSources(
        place=lambda database: Place("eu-west", "commerce", SHARD, "host-a", database),
        url=lambda: OURS,
        footing=lambda: Footing(7, "etcd", None),
        members=lambda shard: members,
        rules_in_force=lambda: 3,
        lease_id=lambda: lease[0],
        spread_s=lambda: spread[0],
    )
    status = FleetStatus(
        store, world.clock, lambda: roll, shards=world.shards, board=world.board,
        recorder=recorder, sources=sources,
    )  # fmt: skip
    try:
        yield Telling(world, store, status, recorder, lease, spread, members=members)
    finally:
        await world.close()


def _calm() -> ShardWorld:
    """Measured seldom: for tests that let minutes pass."""
    return ShardWorld("db-b", metrics=(metric("lag", interval_s=2.0),), collect_interval_s=2.0)


# --- what is reported --------------------------------------------------------------------------


async def test_the_primarys_agent_reports_how_its_shard_is() -> None:
    async with telling(ShardWorld("db-b")) as t:
        t.members.append(registered(SHARD, "db-b", 6, host="host-b"))
        await t.pass_s(3)
        told = await t.said()
    assert (told.shard, told.region, told.cluster, told.agent, told.url) == (
        SHARD,
        "eu-west",
        "commerce",
        "host-a",
        OURS,
    )
    assert (told.state, told.n, told.rules, told.hosts) == ("healthy", 7, 3, ("host-a", "host-b"))
    assert [(one.metric, one.scope, one.state) for one in told.metrics] == [
        ("lag", "shard", "healthy")
    ]
    seats = {one.member: one for one in told.members}
    assert (seats["db-a"].role, seats["db-a"].n, seats["db-a"].source) == ("primary", 7, "etcd")
    assert (seats["db-b"].role, seats["db-b"].n, seats["db-b"].lag_s) == ("replica", 6, 0.5)


async def test_a_replicas_agent_says_nothing() -> None:
    """One voice for a shard: its primary's."""
    world = ShardWorld("db-b", role=replica())
    world.agents["db-b"].says = primary()
    async with telling(world) as t:
        await t.pass_s(5)
        assert await t.told() is None
        assert t.store.tries == 0


async def test_a_breach_is_reported_with_since_when() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        t.world.agents["db-b"].values["lag"] = 42.0
        began = t.world.clock.now().wall_s
        await t.pass_s(8)
        told = await t.said()
        assert told.state == "unhealthy"
        assert not told.healthy
        assert began <= told.since <= began + 2
        assert (told.metrics[0].state, told.metrics[0].value) == ("breached", 42.0)
        since = told.since
        t.world.agents["db-b"].fault = UNREACHABLE
        await t.pass_s(15)
        told = await t.said()
    assert "refused" in next(one.problem for one in told.members if one.member == "db-b")
    assert (told.state, told.since) == ("unhealthy", since), "it has been so all the while"


async def test_why_nobody_may_speak_is_reported_by_the_last_speaker() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        t.world.agents["db-b"].says = primary(term=2)
        await t.pass_s(15)
        told = await t.said()
    assert told.state == "unhealthy"
    assert "both say that they are the primary" in told.problem


async def test_a_shard_that_nobody_checks_is_idle_and_is_not_unhealthy() -> None:
    idle = Idleness(idle_after_s=2, hibernate_after_s=4)
    async with telling(ShardWorld("db-b", idleness=idle)) as t:
        await t.pass_s(3)
        assert (await t.said()).state == "healthy"
        for _ in range(60):
            await t.world.pass_s(1.0)
            await t.status.look_once()
        told = await t.said()
    assert (told.state, told.healthy) == ("idle", True)


async def test_a_server_that_does_not_answer_is_unhealthy_and_not_idle() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(3)
        at = t.world.clock.now().mono_s
        gone = Absent(Cause.REPLICATION_BROKEN, "connection refused", at)
        t.world.agents["db-b"].values["lag"] = gone
        await t.pass_s(20)
        told = await t.said()
    assert (told.state, told.metrics[0].state) == ("unhealthy", "unavailable")
    assert "connection refused" in told.metrics[0].detail


# --- when it is reported -----------------------------------------------------------------------


async def test_values_that_move_are_not_reported_each_time() -> None:
    async with telling(_calm()) as t:
        for number in range(20):
            t.world.agents["db-b"].values["lag"] = 0.1 + number / 100
            await t.pass_s(1)
        assert len(t.store.commits) == 1
        await t.world.pass_s(REFRESH_S, "lag", every_s=10.0)
        await t.status.look_once()
        assert len(t.store.commits) == 2, "but now and then, or they would be hours old"


async def test_a_shard_that_flaps_is_reported_every_few_seconds_at_most() -> None:
    async with telling(ShardWorld("db-b")) as t:
        for number in range(60):
            t.world.agents["db-b"].values["lag"] = 42.0 if number % 2 else 0.1
            await t.pass_s(1)
        assert 2 <= len(t.store.commits) <= 60 / SHORTEST_S + 1


async def test_a_fleet_of_ten_thousand_writes_200_times_a_second_at_most() -> None:
    """Each in its own turn, and not again before the others had theirs."""
    async with telling(_calm(), roll=0.5) as t:
        t.spread[0] = 50.0
        await t.pass_s(24)
        assert t.store.commits == []
        await t.pass_s(4)
        assert len(t.store.commits) == 1
        for number in range(25):
            t.world.agents["db-b"].values["lag"] = 42.0 if number % 2 else 0.1
            await t.pass_s(4)
        assert 2 <= len(t.store.commits) <= 3


async def test_a_change_that_is_undone_before_its_turn_is_not_reported() -> None:
    async with telling(_calm(), roll=0.5) as t:
        t.spread[0] = 20.0
        await t.pass_s(40)
        assert len(t.store.commits) == 1
        t.world.agents["db-b"].values["lag"] = 42.0
        await t.pass_s(3)
        t.world.agents["db-b"].values["lag"] = 0.1
        await t.pass_s(60)
        assert len(t.store.commits) == 1


# --- the store and the lease -------------------------------------------------------------------


async def test_a_new_lease_has_everything_reported_again() -> None:
    """What was put under the old one is gone, or soon will be."""
    async with telling(ShardWorld()) as t:
        await t.pass_s(8)
        t.lease[0] = 0
        await t.pass_s(8)
        assert len(t.store.commits) == 1, "without a lease nothing is told"
        old, t.lease[0] = t.lease[0], t.store.kept.grant(1e6).id
        await t.pass_s(8)
        assert len(t.store.commits) == 2
        assert t.store.commits[-1][0].lease == t.lease[0] != old


async def test_a_store_that_is_away_gets_the_report_later_and_is_not_pestered() -> None:
    async with telling(ShardWorld("db-b"), roll=0.5) as t:
        await t.pass_s(8)
        t.store.fault = OutcomeUnknown("etcd: no answer in 2 s")
        tries = t.store.tries
        t.world.agents["db-b"].values["lag"] = 42.0
        await t.pass_s(60)
        assert t.status.fault == "etcd: no answer in 2 s"
        assert 3 <= t.store.tries - tries <= 60 / SHORTEST_S
        t.store.fault = None
        await t.pass_s(15)
        assert t.status.fault == ""
        assert (await t.said()).state == "unhealthy"


async def test_a_lease_that_is_lost_meanwhile_is_waited_for() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        await t.store.revoke(t.lease[0])
        assert await t.told() is None
        t.world.agents["db-b"].values["lag"] = 42.0
        await t.pass_s(8)
        assert "lease" in t.status.fault
        t.lease[0] = t.store.kept.grant(1e6).id
        await t.pass_s(20)
        assert (await t.said()).state == "unhealthy"


async def test_after_a_failover_the_old_report_goes_if_the_new_primary_says_nothing() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        t.world.role.says = replica(term=2)
        t.world.agents["db-b"].says = primary(term=2)
        await t.pass_s(20)
        assert await t.told() is not None, "a new primary has a while to speak up"
        await t.pass_s(int(HANDED_OVER_S))
        assert await t.told() is None


async def test_after_a_failover_the_new_primarys_report_stays() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        t.world.role.says = replica(term=2)
        t.world.agents["db-b"].says = primary(term=2)
        await t.pass_s(5)
        theirs = t.store.kept.grant(1e6).id
        raw = (await t.store.list([KEY])).entries[0].value
        await t.store.commit((), [Put(KEY, raw, theirs)])
        await t.pass_s(int(HANDED_OVER_S) + 20)
        assert await t.told() is not None


async def test_a_shard_that_left_the_settings_is_taken_out_at_once() -> None:
    async with telling(ShardWorld()) as t:
        await t.pass_s(8)
        await t.world.shards.adopt([])
        await t.pass_s(2)
        assert await t.told() is None
        assert t.status.spoken() == {}


# --- how many are rejected ----------------------------------------------------------------------


def _counted(verdict: Verdict, times: int) -> list[tuple[Key, int]]:
    return [(("main", "etl", verdict, ""), times)]


def test_the_share_of_the_last_minute_is_reported() -> None:
    share = RejectedShare()
    assert share.of(["main"]) == (0, None), "nobody asked: there is no share"
    share.note(_counted(Verdict.OK, 30))
    share.note(_counted(Verdict.THRESHOLD_EXCEEDED, 10))
    share.note(_counted(Verdict.WRONG_AGENT, 99))
    assert share.of(["main"]) == (40, 0.25)
    assert share.of(["other"]) == (0, None)
    for second in range(10, 70, 10):
        share.turn(float(second))
    assert share.of(["main"]) == (0, None), "a minute later nobody asks any more"


# --- others that tell of the same shard --------------------------------------------------------


async def test_a_passive_agent_of_a_pair_leaves_telling_to_the_active_one() -> None:
    """R52: both have the same shard, and the last one to write would be the one that is read."""
    async with telling(ShardWorld("db-b")) as t:
        t.world.shards.speak_at("https://active:8087")
        await t.pass_s(20)
        assert t.store.tries == 0
        t.world.shards.speak_at(OURS)
        await t.pass_s(8)
        assert (await t.said()).url == OURS


async def test_another_agents_report_where_ours_was_is_noticed() -> None:
    """Two shards by the same name: each would hide the other's trouble, and nobody would know."""
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        other = replace(await t.said(), agent="db-x", url="https://db-x:8087")
        t.store.kept.commit([], [Put(KEY, told_bytes(other))])
        t.world.agents["db-b"].values["lag"] = 42.0
        await t.pass_s(8)
        assert t.status.rivals == {SHARD: "db-x at https://db-x:8087"}
        assert (await t.said()).state == "unhealthy", "who leads has the last word"
        t.world.agents["db-b"].values["lag"] = 0.1
        await t.pass_s(8)
        assert t.status.rivals == {}, "nobody has written over it since"


async def test_an_agent_that_leads_again_has_no_rival_in_the_one_that_led_meanwhile() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        t.world.shards.speak_at("https://active:8087")
        await t.pass_s(3)
        other = replace(await t.said(), agent="standby", url="https://active:8087")
        t.store.kept.commit([], [Put(KEY, told_bytes(other))])
        t.world.shards.speak_at(OURS)
        await t.pass_s(8)
        assert (await t.said()).url == OURS and t.status.rivals == {}


async def test_a_report_that_was_deleted_by_hand_is_no_rivals() -> None:
    async with telling(ShardWorld("db-b")) as t:
        await t.pass_s(8)
        t.store.kept.commit([], [Put(KEY, None)])
        t.world.agents["db-b"].values["lag"] = 42.0
        await t.pass_s(8)
        assert (await t.said()).state == "unhealthy" and t.status.rivals == {}
