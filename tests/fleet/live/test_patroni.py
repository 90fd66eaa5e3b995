"""Patroni 4 for real: its keys are read as it writes them, through a switchover."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from headgate.base.clock import Dice, SystemClock
from headgate.demo.guard import children_of, signal_each
from headgate.errors import ProbeFailed
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.samples import Cause
from headgate.shard.patroni import PatroniFollower, PatroniRoleProbe
from headgate.shard.topology import Role, RoleSeen
from tests.fixtures.etcd import etcd_store
from tests.fixtures.eventually import aeventually, eventually
from tests.fixtures.patroni import SCOPE, PatroniCluster, PatroniHost
from tests.fixtures.shard_agents import hosted_agents, running

CLOCK = SystemClock()
HOSTS = ("127.0.3.1", "127.0.3.2")


@pytest.fixture(scope="module")
def patroni(etcd_endpoints: list[str]) -> Iterator[PatroniCluster]:
    with PatroniCluster.started(etcd_endpoints, HOSTS) as cluster:
        yield cluster


@asynccontextmanager
async def following(cluster: PatroniCluster) -> AsyncIterator[PatroniFollower]:
    store = etcd_store(cluster.endpoints, cluster.namespace)
    follower = PatroniFollower(store, SCOPE, CLOCK, Dice().roll)
    running = asyncio.create_task(follower.run())
    try:
        await aeventually(lambda: follower.cluster is not None)
        yield follower
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()


def leader_of(follower: PatroniFollower) -> str:
    return follower.cluster.leader if follower.cluster else ""


def timeline_of(follower: PatroniFollower, name: str) -> int:
    """As the member's own key has it, which Patroni writes after its lock; 0: not yet."""
    member = follower.cluster.member(name) if follower.cluster else None
    return (member.timeline if member else None) or 0


@contextmanager
def frozen(host: PatroniHost) -> Iterator[None]:
    """Its Postgres alone: Patroni goes on, and keeps its lock."""
    postmaster = int((host.home / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGSTOP)
    workers = children_of(postmaster)
    signal_each(workers, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_each(workers, signal.SIGCONT)
        os.kill(postmaster, signal.SIGCONT)


async def test_members_leader_and_a_switchover_are_read_from_its_own_keys(
    patroni: PatroniCluster,
) -> None:
    first = patroni.leader().name
    [other] = set(HOSTS) - {first}
    async with following(patroni) as follower:
        await aeventually(lambda: leader_of(follower) == first and timeline_of(follower, first) > 0)
        cluster = follower.cluster
        assert cluster is not None and cluster.unreadable == ()
        assert {m.name: m.host for m in cluster.members} == {
            host.name: host.name for host in patroni.hosts
        }
        leading = cluster.member(first)
        assert leading is not None and leading.state == "running" and leading.timeline is not None
        assert cluster.role_of(other) is Role.REPLICA
        assert cluster.system_id.isdecimal()

        await asyncio.to_thread(patroni.switch_over, other)
        await aeventually(lambda: leader_of(follower) == other)
        await aeventually(lambda: "timeline" in follower.words() and not follower.fault)
        before = leading.timeline
        await aeventually(lambda: timeline_of(follower, other) > before)


async def test_a_primary_whose_server_hangs_is_known_by_patronis_lock(
    patroni: PatroniCluster,
) -> None:
    leader = patroni.leader()
    probes = DatabaseProbes("main", Engine.POSTGRES, leader.dsn)
    async with following(patroni) as follower:
        await aeventually(lambda: leader_of(follower) == leader.name)
        own = probes.role_probe()
        probe = PatroniRoleProbe(own, follower, leader.name, CLOCK)
        try:
            said = await answered(probe)
            assert said.role is Role.PRIMARY and said.clock_ahead_s is not None, "its own word"
            with frozen(leader):
                with pytest.raises(ProbeFailed) as alone:
                    await own.read()
                assert alone.value.cause is Cause.TIMED_OUT
                told = await answered(probe)
                assert (told.role, told.term) == (Role.PRIMARY, said.term)
                assert told.cluster == said.cluster, "one system identifier, by both"
                confirmed = partial(_is_confirmed, probe, told.taken_at)
                await aeventually(confirmed)  # type: ignore[arg-type]
        finally:
            await probe.close()
            await probes.close()


async def answered(probe: PatroniRoleProbe) -> RoleSeen:
    """Its first word; on a busy machine a question may have been in vain before."""

    words: list[RoleSeen] = []

    async def is_answered() -> bool:
        with suppress(ProbeFailed):
            words.append(await probe.read())
        return bool(words)

    await aeventually(is_answered)  # type: ignore[arg-type]
    return words[0]


async def _is_confirmed(probe: PatroniRoleProbe, after: float) -> bool:
    """By the store, within the age that a role may have."""
    taken_at = (await probe.read()).taken_at
    return taken_at > after and CLOCK.now().mono_s - taken_at <= 1.0


def test_agents_find_each_other_through_patroni_and_follow_its_switchover(
    patroni: PatroniCluster, tmp_path: Path
) -> None:
    """R44: nobody is named in their settings, and the database lists no address that leads on."""
    agents = hosted_agents(HOSTS, tmp_path, peers=dict.fromkeys(HOSTS, ()))
    port = agents[HOSTS[0]].port
    agents.database = f'patroni = "{SCOPE}"\ndiscover = "http://{{host}}:{port}"'
    endpoints = json.dumps(list(patroni.endpoints))
    agents.tail = f'[patroni]\nendpoints = {endpoints}\nnamespace = "{patroni.namespace}"\n'
    agents.write_settings({host.name: ("postgres", host.dsn) for host in patroni.hosts})
    first = patroni.leader().name
    [other] = set(HOSTS) - {first}
    with running(agents):
        agents.await_lead(first)
        assert set(HOSTS) == {m["member"] for m in agents.shard_of(first)["members"]}
        [told] = agents.shard_of(other)["notes"]
        assert told.startswith(f"Patroni ({SCOPE}): {first} leads, timeline ")
        patroni.switch_over(other)
        eventually(lambda: agents.shard_of(other)["state"] == "leading")
        eventually(lambda: agents.check_shard(first).get("check_at") == agents[other].url)
