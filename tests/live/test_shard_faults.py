"""A shard of real Postgres servers through promotions: whose word holds, and from when on.

The servers and agents are shared; who is the primary changes from test to test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.demo import postgres
from headgate.demo.postgres import PostgresServer
from tests.fixtures.eventually import eventually
from tests.fixtures.failovers import Promotions, Watch, watching
from tests.fixtures.shard_agents import (
    ShardAgents,
    agents_for,
    because,
    execute,
    frozen,
    paused_replay,
)
from tests.fixtures.shards import Shard, start_postgres_shard

OLDEST_ANSWER_S = 1.5
"""Twice the intervals of reading and of collecting, and what either may take."""
NOT_LEADING = {"elsewhere", "no_primary", "split_brain"}
HANDING_OVER = {"elsewhere", "no_primary", "warming_up", "handing_over"}


@dataclass(frozen=True, slots=True)
class Deployment:
    shard: Shard[PostgresServer]
    agents: ShardAgents

    @property
    def primary(self) -> str:
        return self.shard.primary.name

    @property
    def ports(self) -> dict[str, int]:
        return {name: agent.port for name, agent in self.agents.agents.items()}


@pytest.fixture(scope="module")
def deployment(servers_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with (
        start_postgres_shard(servers_dir) as shard,
        agents_for(
            shard,
            tmp_path_factory.mktemp("agents"),
            metrics='lag: threshold="0.5s", timeout_s=5, options={method="native"}',
            database="heartbeat_interval_s = 0.2",
        ) as agents,
    ):
        yield Deployment(shard, agents)


@pytest.fixture
def shared(deployment: Deployment) -> Iterator[Deployment]:
    _await_whole(deployment)
    yield deployment
    deployment.shard.heal()
    deployment.agents.heal()
    _await_whole(deployment)


def _await_whole(deployment: Deployment) -> None:
    """Both replicas count, a former primary among them."""
    deployment.agents.await_lead(deployment.primary)
    eventually(lambda: _both_count(deployment))


def _both_count(deployment: Deployment) -> bool:
    answer = deployment.agents.check_shard(deployment.primary)
    return answer["admitted"] and "worst of 2" in answer["metrics"][0]["detail"]


# --- promotions ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["switch_over", "announced", "fail_over"])
def test_a_promotion_under_load_gives_no_answer_from_the_wrong_view(
    shared: Deployment, how: str
) -> None:
    """R45, R53: and the new primary's agent takes over. How soon, bench/failover.py measures."""
    promotions = Promotions(shared.shard)
    change = {
        "switch_over": promotions.switch_over,
        "announced": lambda: promotions.switch_over(shared.agents.hand_over),
        "fail_over": promotions.fail_over,
    }[how]
    with watching(shared.ports) as watch:
        for _ in range(2):
            old = shared.primary
            change()
            _taken_over(shared, watch, promotions, old)
    assert not watch.wrong(promotions.reigns)
    assert watch.admitted and not watch.unanswered


def _taken_over(shared: Deployment, watch: Watch, promotions: Promotions, old: str) -> None:
    new, gone_at = shared.primary, promotions.reigns[-2].until
    shared.agents.await_lead(new)
    since = promotions.reigns[-1].since
    told = eventually(lambda: [t for t in watch.by(new, since=since) if t.verdict == "OK"])
    handing_over = watch.by(new, since=gone_at, until=told[0].asked_at)
    assert any(t.cause not in NOT_LEADING for t in [*handing_over, told[0]])
    assert "split_brain" not in {t.cause for t in handing_over}
    assert all(t.cause in HANDING_OVER for t in watch.by(old, since=gone_at))
    eventually(lambda: shared.agents.shard_of(old)["state"] == "following")


def test_the_heartbeat_is_never_written_on_the_wrong_host(shared: Deployment) -> None:
    """R21: it moves with the primary, and the old one has stopped."""
    old = shared.primary
    eventually(lambda: _beats(shared, old) > 0)
    shared.shard.switch_over()
    new = shared.primary
    before, of_old = _beats(shared, new), _beats(shared, old)
    eventually(lambda: _beats(shared, new) > before + 2)
    assert _beats(shared, old) == of_old


def _beats(shared: Deployment, name: str) -> int:
    """That this agent has written."""
    return sum(cost["beats"] for cost in shared.agents.shard_of(name)["costs"])


def test_a_new_primary_does_not_answer_from_its_own_view_alone(shared: Deployment) -> None:
    """R45: a replica that was stopped before the promotion holds up the shard after it."""
    shard, old = shared.shard, shared.shard.primary
    [new, late] = shard.replicas
    with watching({new.name: shared.agents[new.name].port}) as watch, paused_replay(late):
        shared.agents.await_rejection(old.name, because("replication_stopped", late.name))
        old.kill()
        new.promote()
        shard.primary = new
        answer = shared.agents.await_rejection(
            new.name, because("replication_broken", late.name, "does not follow")
        )
        assert "timeline" in answer["reason"]
        assert shared.agents.member_of(new.name, late.name)["problem"]
    assert watch.told and not watch.admitted
    postgres.follow(late, new)
    postgres.rejoin(old, new)
    shared.agents.await_lead(new.name)


def test_a_frozen_agent_that_wakes_up_after_the_promotion_speaks_for_nobody(
    shared: Deployment,
) -> None:
    """R53: what it knew of its shard is older than any answer may rest on."""
    old = shared.primary
    promotions = Promotions(shared.shard)
    frozen_at = time.monotonic()
    with frozen(shared.agents[old]):
        promotions.switch_over()
        eventually(lambda: time.monotonic() - frozen_at > OLDEST_ANSWER_S)
    with watching({old: shared.agents[old].port}) as watch:
        eventually(lambda: len(watch.told) >= 50)
        shared.agents.await_lead(shared.primary)
    assert not watch.wrong(promotions.reigns)


# --- split brain -----------------------------------------------------------------------------


def test_split_brain_is_visible_and_rejected_by_both(shared: Deployment) -> None:
    """R53: whoever is right; until one of them is gone."""
    shard, agents, old = shared.shard, shared.agents, shared.shard.primary
    [new, other] = shard.replicas
    new.promote()
    for name in (old.name, new.name):
        answer = agents.await_rejection(name, because("split_brain", old.name, new.name))
        assert answer["verdict"] == "METRIC_UNAVAILABLE"
        eventually(partial(_shows_split_brain, agents, name))
    with watching({name: agents[name].port for name in (old.name, new.name)}) as watch:
        eventually(lambda: len(watch.told) >= 100)
    assert not watch.admitted
    old.stop()
    shard.primary = new
    postgres.follow(other, new)
    agents.await_lead(new.name)
    postgres.rejoin(old, new)
    eventually(lambda: agents.shard_of(old.name)["state"] == "following")


def _shows_split_brain(agents: ShardAgents, name: str) -> bool:
    advice = agents[name].get("/v1/status").json["advice"]
    shown = agents.shard_of(name)["cause"] == "split_brain"
    return shown and any("split brain" in told for told in advice)


# --- cascades --------------------------------------------------------------------------------


def test_a_replica_of_a_replica_counts_and_is_drawn_below_it(shared: Deployment) -> None:
    """R38, R40."""
    shard, agents = shared.shard, shared.agents
    [middle, last] = shard.replicas
    shard.follow(last, middle)
    try:
        drawn = {middle.name: shared.primary, last.name: middle.name}
        eventually(lambda: drawn.items() <= _upstreams(shared).items())
        _await_whole(shared)
        with paused_replay(last):
            agents.await_rejection(shared.primary, because("replication_stopped", last.name))
        with paused_replay(middle):
            agents.await_rejection(shared.primary, because("replication_stopped", middle.name))
    finally:
        shard.follow(last, shard.primary)


def _upstreams(shared: Deployment) -> dict[str, Any]:
    members = shared.agents.shard_of(shared.primary)["members"]
    return {member["member"]: member["upstream_member"] for member in members}


# --- cut connections -------------------------------------------------------------------------


def test_cut_connections_to_the_primary_are_opened_again(shared: Deployment) -> None:
    """R36: a role that cannot be confirmed is void, and is confirmed as soon as it can be."""
    ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
    for server in shared.shard.servers:
        assert eventually(partial(execute, server, f"{ours}'headgate'"))
    shared.agents.await_lead(shared.primary)


# --- the SDK ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Job:
    """Asks without a pause, by a replica's agent, and never gives up."""

    gate: headgate.Client
    answers: list[tuple[float, headgate.Answer]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stop.is_set():
            asked_at = time.monotonic()
            try:
                self.answers.append((asked_at, self.gate.check()))
            except headgate.ThrottlerUnavailable:
                continue  # The agent it was sent to is gone: no leave to work.
            finally:
                self.stop.wait(0.005)

    def since(self, at: float) -> list[headgate.Answer]:
        return [answer for asked_at, answer in self.answers if asked_at >= at]


@contextmanager
def job_at(url: str) -> Iterator[Job]:
    with headgate.Client("test:job", database="main", url=url, scope="shard") as gate:
        job = Job(gate)
        thread = threading.Thread(target=job.run)
        thread.start()
        try:
            yield job
        finally:
            job.stop.set()
            thread.join()


def test_the_sdk_follows_the_primary_through_a_failover(shared: Deployment) -> None:
    """R37, R47: no permission to work between two primaries, none without the throttler."""
    shard, old = shared.shard, shared.shard.primary
    [new, asked] = shard.replicas
    with job_at(shared.agents[asked.name].url) as job:
        eventually(lambda: any(answer for answer in job.since(0.0)))
        old.kill()
        gone_at = time.monotonic()
        eventually(lambda: len(job.since(gone_at)) >= 20)
        assert not any(job.since(gone_at))
        new.promote()
        promoted_at = time.monotonic()
        shard.primary = new
        postgres.follow(asked, new)
        eventually(lambda: any(job.since(promoted_at)))
    assert not any(answer.unthrottled for answer in job.since(0.0))
    clients = {c["client"]: c for c in shared.agents[new.name].get("/v1/clients").json["clients"]}
    assert clients["test:job"]["admitted"] > 0
    postgres.rejoin(old, new)
