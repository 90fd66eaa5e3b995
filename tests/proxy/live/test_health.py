"""The agent's word in the query path: rules, the health gate, its loss, another primary."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from headgate.demo import servers
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import PORT, ProxyProcess
from tests.fixtures.shard_agents import agents_for
from tests.fixtures.shards import Shard
from tests.proxy.live.limits import Started, repeat
from tests.proxy.live.ways import PostgresWay

Linked = tuple[AgentProcess, ProxyProcess, PostgresWay]
Rules = Callable[[str], str]
GATE = {
    "clients": ["etl"],
    "mode": "enforce",
    "action": "block",
    "statements": "all",
    "stale_after_s": 60,
    "on_loss": "block",
}
# A metric that a test can move: sleeping sessions of one name, counted by the agent itself.
METRIC = (
    "pressure: threshold=1, interval_s=0.1, "
    "sql=\"select count(*) from pg_stat_activity where application_name = 'pressure'\""
)


def hold(agent: AgentProcess, target: str) -> str:
    """A rule that blocks everything of the target; its id."""
    body = {"target": target, "kind": "hold", "reason": "a test", "for": "1h"}
    answer = agent.request("POST", "/v1/rules", body, unix=True)
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


@pytest.fixture
def rules(linked: Linked) -> Iterator[Rules]:
    """To hold a target; whatever was held is let go at the end."""
    held: list[str] = []

    def make(target: str) -> str:
        held.append(hold(linked[0], target))
        return held[-1]

    yield make
    for rule in held:
        linked[0].request("DELETE", f"/v1/rules/{rule}", unix=True)


@pytest.fixture(scope="module")
def linked(postgres: ExtendedServer) -> Iterator[Linked]:
    """One for all: each test leaves the agent running, without rules, and the database healthy."""
    agent = AgentProcess(servers.make_folder(Path("/tmp"), "hg-"), next(servers.free_ports()))
    agent.write_settings(postgres_database(postgres.dsn("parity"), METRIC))
    agent.start()
    link = {"url": str(agent.socket), "database": "main"}
    tables = {"agent": link, "gate": GATE, "identity": {"priority_tag": "priority"}}
    try:
        with ProxyProcess.started("postgres", postgres.port, tables) as proxy:
            yield agent, proxy, PostgresWay("linked", proxy.port, None)
    finally:
        agent.kill()
        shutil.rmtree(agent.folder, ignore_errors=True)


@contextmanager
def other_gate(proxy: ProxyProcess, server: ExtendedServer, **gate: Any) -> Iterator[None]:
    """Other settings of the gate, by a reload, and back."""

    def reload(**changed: Any) -> None:
        proxy.write_settings(server.port, gate={**GATE, **changed})
        code, answer = proxy.request("POST", "/v1/proxy/reload")
        assert (code, answer["changed"]) == (200, ["gate"]), answer

    reload(**gate)
    try:
        yield
    finally:
        reload()


@contextmanager
def pressure(server: ExtendedServer) -> Iterator[None]:
    """The database is not healthy."""
    with (
        server.connect(application_name="pressure"),
        server.connect(application_name="pressure"),
    ):
        yield


def block(session: psycopg.Connection[Any], text: str = "SELECT 1") -> str:
    """What is said to it; empty where it runs."""
    try:
        session.execute(text)
    except errors.InsufficientResources as error:
        return str(error)
    return ""


def blocks(session: psycopg.Connection[Any], text: str = "SELECT 1") -> bool:
    return block(session, text) != ""


def test_the_health_gate_blocks_clients_it_matches_while_the_database_is_not_healthy(
    linked: Linked, postgres: ExtendedServer
) -> None:
    """R98, R100: others pass; so does priority 0."""
    _, _, way = linked
    with way.connect(application_name="etl") as etl, way.connect(application_name="web") as web:
        eventually(lambda: not blocks(etl))
        with pressure(postgres):
            eventually(lambda: "pressure" in block(etl))
            assert not blocks(web)
            assert not blocks(etl, "SELECT 1 /*priority='0'*/")
        eventually(lambda: not blocks(etl))


def test_a_rule_of_the_agent_applies_to_statements_too(linked: Linked, rules: Rules) -> None:
    """R95, R98: whoever it names, whatever the health."""
    agent, _, way = linked
    with way.connect(application_name="report:nightly") as session:
        assert not blocks(session)
        rule = rules("report")
        eventually(lambda: blocks(session))
        with way.connect(application_name="web") as other:
            assert not blocks(other)
        agent.request("DELETE", f"/v1/rules/{rule}", unix=True)
        eventually(lambda: not blocks(session))


def test_the_health_gate_delays_until_the_database_is_well_again(
    linked: Linked, postgres: ExtendedServer
) -> None:
    """R94, R98."""
    _, proxy, way = linked

    def held() -> Started | None:
        """A statement that waits; one that came before the gate had closed does not."""
        started = Started(lambda: etl.execute("SELECT 7").fetchone())
        eventually(lambda: proxy.client("etl")["waiting"] == 1 or not started.is_running)
        return started if started.is_running else None

    with (
        way.connect(application_name="etl") as etl,
        other_gate(proxy, postgres, action="delay", max_delay_s=600, on_loss="delay"),
    ):
        eventually(lambda: not blocks(etl))
        delayed = proxy.client("etl")["delayed"]
        with pressure(postgres):
            waiting = eventually(held)
            assert waiting is not None and waiting.is_running
        assert waiting.join() == (7,)
        assert proxy.client("etl")["delayed"] == delayed + 1


def test_a_rule_may_end_the_session(linked: Linked, rules: Rules, postgres: ExtendedServer) -> None:
    """`close`: for clients that would only ask again."""
    _, proxy, way = linked
    with other_gate(proxy, postgres, rule_action="close"):
        rules("runaway")
        with way.connect(application_name="runaway") as session:
            with pytest.raises(errors.InsufficientResources, match="a test") as told:
                repeat(lambda: session.execute("SELECT 1"))
            assert told.value.diag.severity == "FATAL"
            with pytest.raises(psycopg.OperationalError, match=r"closed|lost"):
                session.execute("SELECT 1")


def test_a_rule_on_a_level_applies_to_a_name_that_was_never_seen(
    linked: Linked, rules: Rules, postgres: ExtendedServer
) -> None:
    """R64, R95: also behind more made-up names than there are places for."""
    link = {"url": str(linked[0].socket), "database": "main"}
    rules("weekly")
    with ProxyProcess.started(
        "postgres", postgres.port, {"agent": link, "memory": {"clients": 64}}
    ) as proxy:
        way = PostgresWay("small", proxy.port, None)

        def passes(name: str) -> bool:
            with way.connect(application_name=name) as session:
                return not blocks(session)

        eventually(lambda: not passes("weekly"))
        assert not any(passes(f"weekly:run-{number}") for number in range(10))
        assert not passes("x:weekly:1")
        assert passes("web:1")
        with way.connect() as session:
            for number in range(300):
                session.execute(f"SELECT 1 /*headgate_client='made-up-{number}'*/")
        assert proxy.status()["clients_beyond_table"] > 0
        assert not any(passes(f"weekly:late-{number}") for number in range(10))
        rules("monthly")
        eventually(lambda: not passes("monthly"))
        assert not passes("monthly:1")


def test_an_agent_that_is_gone_leaves_what_the_settings_say(
    linked: Linked, postgres: ExtendedServer
) -> None:
    agent, proxy, way = linked
    with (
        way.connect(application_name="etl") as etl,
        way.connect(application_name="web") as web,
        other_gate(proxy, postgres, stale_after_s=1),
    ):
        eventually(lambda: not blocks(etl))
        agent.kill()
        try:
            eventually(lambda: blocks(etl))
            assert not blocks(web)
        finally:
            agent.start()
        eventually(lambda: not blocks(etl))


# ── Failover ─────────────────────────────────────────────────────────────────


def follow_tables(shard: Shard[Any], urls: list[str]) -> dict[str, Any]:
    members = [{"name": s.name, "address": f"127.0.0.1:{s.port}"} for s in shard.servers]
    return {
        "agent": {"url": urls, "database": "main"},
        "follow": {"grace_s": 1, "interval_s": 0.1},
        "server": members,
        "listen": [
            {"address": f"127.0.0.1:{PORT}"},
            {"address": "127.0.0.1:0", "route": "read-only"},
        ],
    }


def _read_only(proxy: ProxyProcess) -> str:
    listen = proxy.status()["proxy"]["listen"]
    return next(str(one["address"]) for one in listen if one["route"] == "read-only")


def test_a_failover_needs_no_restart(postgres_shard: Shard[PostgresServer], tmp_path: Path) -> None:
    """New sessions go to the new primary; those to the dead one are told; replicas serve reads."""
    with agents_for(postgres_shard, tmp_path / "agents", agent="") as agents:
        urls = [process.url for process in agents.agents.values()]
        tables = follow_tables(postgres_shard, urls)
        with ProxyProcess.started("postgres", postgres_shard.primary.port, tables) as proxy:
            way = PostgresWay("follow", proxy.port)

            def port_of(session: psycopg.Connection[Any]) -> int:
                row = session.execute("SELECT inet_server_port()").fetchone()
                assert row is not None
                return int(row[0])

            def primary_seen() -> bool:
                try:
                    with way.connect(dbname="postgres") as session:
                        return port_of(session) == postgres_shard.primary.port
                except psycopg.OperationalError:
                    return False

            eventually(primary_seen)
            reads = PostgresWay("reads", int(_read_only(proxy).rpartition(":")[2]))

            def replica_seen() -> bool:
                with reads.connect(dbname="postgres") as session:
                    return port_of(session) in [s.port for s in postgres_shard.replicas]

            eventually(replica_seen)  # Where none is known yet, the primary reads.
            with reads.connect(dbname="postgres") as session:
                assert list(session.execute("SELECT pg_is_in_recovery()")) == [(True,)]
            with way.connect(dbname="postgres") as stays:
                postgres_shard.fail_over()
                with pytest.raises(psycopg.OperationalError):
                    repeat(lambda: stays.execute("SELECT 1"))
                eventually(primary_seen)
            pid = proxy.status()["proxy"]["pid"]
            postgres_shard.switch_over()
            eventually(primary_seen)
            assert proxy.status()["proxy"]["pid"] == pid
