"""A shard of real Postgres servers, one agent each: what its replicas' faults do to it.

The servers and agents are shared: each test leaves them as it found them.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from headgate.demo import postgres
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually
from tests.fixtures.shard_agents import (
    SHARD,
    ShardAgents,
    agents_for,
    because,
    dsns_of,
    execute,
    frozen,
    paused_replay,
    running,
    shard_agents,
)
from tests.fixtures.shards import Shard, start_postgres_shard

VIEWER = "the-viewers-token"
METRICS = (
    "lag: threshold='0.5s', timeout_s=5, missing_for_s=600;"
    'queue: sql="SELECT 1", threshold=10, interval_s=0.2, timeout_s=20;'
    'brief: sql="SELECT 1", threshold=10, interval_s=0.2, timeout_s=1;'
    "sleepers: threshold=5, interval_s=0.2, timeout_s=20,"
    "sql=\"SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'\""
)
"""Of a replica that answers late, `brief` is the first to be missed."""
SLEEPING = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'"
TAIL = f"""
[[tokens]]
name = "eve"
role = "viewer"
sha256 = "{hashlib.sha256(VIEWER.encode()).hexdigest()}"
"""


@dataclass(frozen=True, slots=True)
class Deployment:
    shard: Shard[PostgresServer]
    agents: ShardAgents
    primary: str = "db-a"
    replica: str = "db-b"
    forwarding: str = "db-c"
    """Another replica, whose agent forwards."""

    @property
    def lead(self) -> AgentProcess:
        return self.agents[self.primary]

    def ok(self) -> None:
        self.agents.await_lead(self.primary)


@pytest.fixture(scope="module")
def deployment(servers_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with (
        start_postgres_shard(servers_dir) as shard,
        agents_for(
            shard,
            tmp_path_factory.mktemp("agents"),
            metrics=METRICS,
            agent="allow_runtime_sql = true",
            more_agent={"db-c": "forward = true"},
            tail=TAIL,
        ) as agents,
    ):
        yield Deployment(shard, agents)


@pytest.fixture
def shared(deployment: Deployment) -> Iterator[Deployment]:
    deployment.ok()
    yield deployment
    deployment.shard.heal()
    deployment.agents.heal()
    deployment.ok()


@contextmanager
def ended(agent: AgentProcess) -> Iterator[None]:
    """By SIGKILL; started again afterwards."""
    agent.kill()
    try:
        yield
    finally:
        agent.start()


# --- lag -------------------------------------------------------------------------------------


def test_a_paused_replica_rejects_the_shard_and_itself_but_not_the_primarys_host(
    shared: Deployment,
) -> None:
    """R22, R37, R38: Vitess's TestLag."""
    agents = shared.agents
    with paused_replay(shared.shard.server(shared.replica)):
        answer = agents.await_rejection(shared.primary, because("replication_stopped", "db-b"))
        assert answer["verdict"] == "THRESHOLD_EXCEEDED"
        assert "db-b" in answer["reason"] and "paused" in answer["reason"]
        assert shared.lead.admitted(metrics="host/queue")
        itself = agents[shared.replica].check(metrics="host/lag")
        assert itself["verdict"] == "THRESHOLD_EXCEEDED"
        assert itself["metrics"][0]["cause"] == "replication_stopped"
        eventually(lambda: agents[shared.forwarding].admitted(metrics="host/lag"))
    agents.await_lead(shared.primary)
    eventually(lambda: agents[shared.replica].admitted(metrics="host/lag"))


def test_a_hopeless_replica_is_skipped_loudly_and_counts_again_when_it_is_back(
    shared: Deployment,
) -> None:
    """B9: its replay is stopped, and nothing that the gate does can help it."""
    agents, lead = shared.agents, shared.primary
    agents.change(lead, "PATCH", "metrics/lag", {"hopeless_for_s": 3, "hopeless_factor": 2})
    try:
        with paused_replay(shared.shard.server(shared.replica)):
            agents.await_rejection(lead, because("replication_stopped", "db-b"))
            agents.await_lead(lead)
            detail = agents.check_shard(lead)["metrics"][0]["detail"]
            assert "db-b (hopeless, skipped" in detail
            assert agents.member_of(lead, "db-b")["hopeless"] == ["lag"]
            advice = shared.lead.get("/v1/status").json["advice"]
            assert any(line.startswith("HOPELESS: main: db-b") for line in advice)
            metrics = shared.lead.get("/metrics").body.decode()
            assert (
                'headgate_member_hopeless{database="main",member="db-b",metric="lag"} 1' in metrics
            )
            assert "member.hopeless" in shared.lead.log()
        eventually(lambda: agents.member_of(lead, "db-b")["hopeless"] == [])
        eventually(lambda: "worst of 2" in agents.check_shard(lead)["metrics"][0]["detail"])
        assert "member.counts_again" in shared.lead.log()
    finally:
        agents.change(lead, "POST", "metrics/lag/revert")


def test_work_on_the_primary_is_throttled_by_the_slowest_replica(shared: Deployment) -> None:
    """R38: what is written while one replica does not replay is its lag, in seconds."""
    primary, replica = shared.shard.primary, shared.shard.server(shared.replica)
    execute(primary, "CREATE TABLE IF NOT EXISTS work (n int)")
    with paused_replay(replica):
        execute(primary, "INSERT INTO work SELECT generate_series(1, 1000)")
        found = shared.agents.await_rejection(shared.primary, lambda m: m["state"] == "breached")
        assert found["metrics"][0]["value"] > 0.5
        eventually(lambda: shared.agents.member_of(shared.primary, "db-b")["bytes_behind"])


def test_self_and_shard_are_understood_as_vitess_writes_them(shared: Deployment) -> None:
    """R41: lag looks at the shard by default, other metrics at the host."""
    metrics = shared.lead.check(metrics="lag,queue,self/lag,shard/queue")["metrics"]
    assert [(m["metric"], m["scope"]) for m in metrics] == [
        ("lag", "shard"), ("queue", "host"), ("lag", "host"), ("queue", "shard")
    ]  # fmt: skip


def test_a_pile_of_reads_on_one_replica_rejects_its_host_and_no_other(shared: Deployment) -> None:
    """R38: Vitess's TestCustomQuery, with six sleeping queries and room for five."""
    with ExitStack() as sessions:
        for _ in range(6):
            connection = psycopg.connect(shared.shard.server(shared.replica).dsn())
            sessions.enter_context(closing(connection))
            connection.pgconn.send_query(b"SELECT pg_sleep(600)")
        eventually(lambda: not shared.agents["db-b"].admitted(metrics="host/sleepers"))
        shared.agents.await_rejection("db-a", lambda m: "db-b" in m["detail"], "sleepers")
        eventually(lambda: shared.lead.admitted(metrics="sleepers,lag"))
        eventually(lambda: shared.agents["db-c"].admitted(metrics="sleepers"))
        for [pid] in execute(shared.shard.server(shared.replica), SLEEPING):
            execute(shared.shard.server(shared.replica), f"SELECT pg_terminate_backend({pid})")
    eventually(lambda: shared.agents["db-b"].admitted(metrics="host/sleepers"))


# --- hung, failing, stale and missing metrics ---------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "settings", "cause", "words"),
    [
        ("brief", {"sql": "SELECT 1 FROM pg_sleep(600)"}, "timed_out", ""),
        ("queue", {"sql": "SELECT 1 / 0"}, "failed", "division by zero"),
        ("queue", {"sql": "SELECT 1 WHERE false"}, "invalid", ""),
        ("brief", {"sql": "SELECT 1", "interval_s": 600}, "stale", ""),
        ("queue", {"enabled": False}, "unknown", "not configured"),
    ],
    ids=["hangs", "fails", "answers nothing", "stale", "switched off"],
)
def test_a_metric_that_a_replica_cannot_read_rejects_the_shard(
    shared: Deployment, metric: str, settings: dict[str, Any], cause: str, words: str
) -> None:
    """R43, R151: no failure of a member becomes health, and the cause comes through."""
    agents, path = shared.agents, f"metrics/{metric}"
    agents.change(shared.replica, "PATCH", path, settings)
    try:
        answer = agents.await_rejection(shared.primary, because(cause, "db-b", words), metric)
        assert answer["metrics"][0]["state"] == "unavailable"
        eventually(lambda: shared.lead.admitted(metrics=f"host/{metric}"))
        eventually(lambda: shared.lead.admitted(metrics="shard/lag"))
    finally:
        agents.change(shared.replica, "POST", f"{path}/revert")
    eventually(lambda: agents.check_shard(shared.primary, metric)["admitted"])


def test_a_metric_that_is_removed_on_a_replica_rejects_the_shard(shared: Deployment) -> None:
    """R43."""
    agents = shared.agents
    agents.change(shared.replica, "DELETE", "metrics/queue")
    try:
        agents.await_rejection(
            shared.primary, because("unknown", "db-b", "not configured there"), "queue"
        )
    finally:
        agents.change(shared.replica, "POST", "metrics/queue/revert")
    eventually(lambda: agents.check_shard(shared.primary, "queue")["admitted"])


# --- agents that go away -----------------------------------------------------------------------


def test_a_replicas_dead_agent_rejects_its_shard_until_an_operator_skips_it(
    shared: Deployment,
) -> None:
    """R42, R150: visibly, for a limited time, audited, and through a restart."""
    agents, lead, skip = shared.agents, shared.primary, "shard/skips/db-b"
    with ended(agents[shared.replica]):
        answer = agents.await_rejection(lead, because("unreachable", "db-b"))
        first = answer["metrics"][0]
        assert "db-b" in answer["reason"] and " for " in answer["reason"]
        later = agents.await_rejection(
            lead, lambda m: m["unavailable_for_ms"] > first["unavailable_for_ms"]
        )
        assert later["verdict"] == "METRIC_UNAVAILABLE"
        eventually(lambda: agents.member_of(lead, "db-b")["unreachable_for_s"])
        assert agents[shared.primary].admitted(metrics="host/queue")

        agents.change(lead, "PUT", skip, {"for": "1h", "reason": "its host is being replaced"})
        _shown_aside(shared)
        newest = shared.lead.get("/v1/audit").json["audit"][0]
        assert (newest["action"], newest["target"]) == ("skip.set", f"{SHARD} db-b")
        assert newest["after"]["reason"] == "its host is being replaced"

        shared.lead.kill()
        shared.lead.start()
        agents.await_lead(lead)
        _shown_aside(shared)

        agents.change(lead, "PUT", skip, {"for": "1s", "reason": "nearly done"})
        agents.await_rejection(lead, because("unreachable", "db-b"))
        assert agents.member_of(lead, "db-b")["skip"] is None
    agents.await_lead(lead)


def _shown_aside(shared: Deployment) -> None:
    """In the answer, and in the view of the shard."""
    agents, primary = shared.agents, shared.primary
    answer = eventually(lambda: (told := agents.check_shard(primary))["admitted"] and told)
    assert "skipped: db-b (skipped by uid:" in answer["metrics"][0]["detail"]
    member = eventually(lambda: (m := agents.member_of(primary, "db-b"))["skipped_metrics"] and m)
    assert member["skip"]["reason"] == "its host is being replaced"
    assert 0 < member["skip"]["until_s"] <= 3600
    assert "skipped by" in member["skipped_metrics"]["lag"]
    assert any("db-b is skipped" in told for told in shared.lead.get("/v1/status").json["advice"])


def test_a_replicas_frozen_agent_rejects_its_shard(shared: Deployment) -> None:
    """R42: it accepts connections and says nothing; what it said last grows old. How soon,
    bench/notice.py measures."""
    with frozen(shared.agents[shared.replica]):
        answer = shared.agents.await_rejection(
            shared.primary, lambda m: m["state"] == "unavailable" and "db-b" in m["detail"]
        )
        assert answer["metrics"][0]["cause"] in ("stale", "timed_out", "unreachable")
    shared.agents.await_lead(shared.primary)


def test_losing_all_replicas_agents_is_no_zero_lag(shared: Deployment) -> None:
    """R43: misleading zero. Nor is it one when all of them are skipped."""
    agents, lead = shared.agents, shared.primary
    with ended(agents["db-b"]), ended(agents["db-c"]):
        answer = agents.await_rejection(lead, because("unreachable", "db-b", "db-c"))
        assert answer["metrics"][0]["state"] == "unavailable"
        for member in ("db-b", "db-c"):
            skip = {"for": "1h", "reason": "gone"}
            agents.change(lead, "PUT", f"shard/skips/{member}", skip)
        try:
            agents.await_rejection(lead, because("empty_shard", "db-b", "db-c", "skipped"))
        finally:
            for member in ("db-b", "db-c"):
                agents.change(lead, "DELETE", f"shard/skips/{member}")
        agents.await_rejection(lead, because("unreachable"))


@contextmanager
def committing(server: PostgresServer) -> Iterator[None]:
    ended = threading.Event()

    def commit() -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            while not ended.wait(0.2):
                session.execute("select pg_logical_emit_message(true, 'test', '')")

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_shard_primary_spof_costs_only_the_shard_scope(shared: Deployment) -> None:
    """R51: with its agent dead, hosts are still answered for, and the shard honestly not. What is
    committed takes the place of the heartbeats that nobody writes."""
    agents = shared.agents
    with ended(shared.lead), committing(shared.shard.primary):
        for name in (shared.replica, shared.forwarding):
            eventually(partial(agents[name].admitted, metrics="host/lag,host/queue"))
            answer = agents.check_shard(name)
            assert not answer["admitted"]
            assert answer["check_at"] == shared.lead.url or "no primary" in answer["reason"]
        # Forwarding falls back to saying where to ask.
        question = "/v1/check?app=test:job&database=main&metrics=shard/lag"
        assert agents[shared.forwarding].get(question).status in (421, 424)
        gate = headgate.Client(
            "test:job", database="main", url=agents["db-b"].url, scope="shard", metrics="lag"
        )
        with gate, suppress(headgate.ThrottlerUnavailable):
            assert not gate.check()
        eventually(lambda: agents[shared.replica].admitted(metrics="host/lag"))


# --- databases that go away --------------------------------------------------------------------


def test_a_replicas_frozen_database_rejects_its_shard(shared: Deployment) -> None:
    """R42, R151: its agent answers, and says that its server does not."""
    replica = shared.shard.server(shared.replica)
    replica.pause()
    try:
        shared.agents.await_rejection(shared.primary, because("timed_out", "db-b"), "brief")
        eventually(lambda: not shared.agents[shared.replica].admitted(metrics="host/brief"))
    finally:
        replica.resume()
    postgres.await_following(replica)
    shared.agents.await_lead(shared.primary)


def test_a_replicas_dead_database_rejects_until_missing_for_s_and_is_then_skipped(
    shared: Deployment,
) -> None:
    """R42, R150: a stated policy, and visible."""
    agents, lead, replica = shared.agents, shared.primary, shared.shard.server(shared.replica)
    replica.kill()
    try:
        agents.await_rejection(
            lead, lambda m: m["state"] == "unavailable" and "db-b" in m["detail"]
        )
        agents.change(lead, "PATCH", "metrics/lag", {"missing_for_s": 0.5})
        answer = eventually(lambda: (told := agents.check_shard(lead))["admitted"] and told)
        assert "skipped: db-b (missing for" in answer["metrics"][0]["detail"]
        member = eventually(lambda: (m := agents.member_of(lead, "db-b"))["skipped_metrics"] and m)
        assert "missing for" in member["skipped_metrics"]["lag"]
    finally:
        agents.change(lead, "POST", "metrics/lag/revert")
        replica.start()
    postgres.await_following(replica)
    agents.await_lead(lead)
    eventually(lambda: not agents.member_of(lead, "db-b")["skipped_metrics"])


# --- asked in the wrong place ------------------------------------------------------------------


def test_a_replicas_agent_says_the_right_agent(shared: Deployment) -> None:
    """R37."""
    path = "/v1/check?app=test:job&database=main&metrics=shard/lag"
    agent = shared.agents[shared.replica]
    response = eventually(lambda: told if (told := agent.get(path)).status == 421 else None)
    assert response is not None
    assert response.json["verdict"] == "WRONG_AGENT"
    assert response.json["check_at"] == shared.lead.url


def test_an_agent_that_forwards_answers_as_the_primarys_does(shared: Deployment) -> None:
    """R37: also with the primary's rejection; the primary's agent counts it."""
    agents = shared.agents
    name = shared.forwarding
    answer = eventually(lambda: (told := agents.check_shard(name))["admitted"] and told)
    assert "worst of 2" in answer["metrics"][0]["detail"]
    with paused_replay(shared.shard.server(shared.replica)):
        agents.await_rejection(shared.forwarding, because("replication_stopped", "db-b"))


def test_the_sdk_follows_to_the_primarys_agent(shared: Deployment) -> None:
    """R37: one that asks a replica's agent about the shard."""
    url = shared.agents[shared.replica].url
    with headgate.Client(
        "test:sdk", database="main", url=url, scope="shard", metrics="lag", timeout_s=60.0
    ) as gate:
        eventually(gate.check)
        assert gate.wait(deadline_s=60).verdict == "OK"
    clients = {c["client"]: c for c in shared.lead.get("/v1/clients").json["clients"]}
    assert clients["test:sdk"]["admitted"] == 2


# --- who may pull ------------------------------------------------------------------------------


def _pull(agent: AgentProcess, token: str | None) -> tuple[int, str]:
    question = {
        "version": 1, "shard": SHARD, "database": "main", "sender": "db-x",
        "activity": "awake", "wait_s": 0, "sent_wall_s": 0,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    answer = agent.request("POST", "/v1/peer/pull", question, headers)
    return answer.status, str(answer.json.get("detail", ""))


def test_pulling_without_a_peers_token_is_rejected(shared: Deployment) -> None:
    agent = shared.agents[shared.replica]
    assert _pull(agent, shared.agents.token) == (200, "")
    status, told = _pull(agent, None)
    assert status == 401 and "token_file" in told
    assert _pull(agent, "not the token")[0] == 401
    status, told = _pull(agent, VIEWER)
    assert status == 403 and "role peer" in told


def test_a_peer_of_another_shard_is_rejected_with_words(shared: Deployment) -> None:
    """R39: not even by a mistake in someone's settings."""
    body = {
        "version": 1, "shard": "commerce/80-", "database": "main", "sender": "db-x",
        "activity": "awake", "wait_s": 0, "sent_wall_s": 0,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {shared.agents.token}"}
    answer = shared.agents["db-b"].request("POST", "/v1/peer/pull", body, headers)
    assert answer.status == 409
    assert SHARD in answer.json["detail"] and "commerce/80-" in answer.json["detail"]


@pytest.mark.parametrize(("shown", "status"), [("wrong", 401), (VIEWER, 403)])
def test_an_agent_that_shows_the_wrong_token_sees_its_members_as_failed(
    shared: Deployment, tmp_path: Path, shown: str, status: int
) -> None:
    """And is told what to do; nothing is rolled up without them."""
    token = tmp_path / "token"
    token.write_text(shown)
    outsider = shard_agents(["db-a"], tmp_path, metrics="lag", tail=_peers_of(shared))
    outsider.shown = {"db-a": f'token_file = "{token}"'}
    outsider.write_settings({"db-a": dsns_of(shared.shard)["db-a"]})
    with running(outsider):
        answer = outsider.await_rejection("db-a", because("failed", "db-b", "db-c", str(status)))
        assert "token_file" in answer["reason"]
        assert not outsider.member_of("db-a", "db-b")["reachable"]


def _peers_of(shared: Deployment) -> str:
    return "".join(
        f'[databases.main.peers.{name}]\nurl = "{shared.agents[name].url}"\n'
        for name in ("db-b", "db-c")
    )


def test_nothing_but_checks_is_seen_by_who_forwards(shared: Deployment) -> None:
    """Forwarding touches questions about the shard alone: anything else is answered here."""
    port = shared.agents[shared.forwarding].port
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:

        def told(path: str) -> Any:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

        assert told("/v1/status")["agent"] == shared.forwarding
        check = "/v1/check?app=test:job&database=main&metrics=host/lag"
        eventually(lambda: told(check)["verdict"] == "OK")
