"""The operators' rules of a real agent in the path of statements, and the loop that releases
them: each kind, before Postgres and before MariaDB (R95, R98, R99, R163)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg import errors

from headgate.demo import servers
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually
from tests.fixtures.proxies import ProxyProcess
from tests.proxy.live.limits import MYSQL_BLOCKED
from tests.proxy.live.ways import MariaDBWay, PostgresWay

Execute = Callable[[], str]
"""Runs a statement: what it was blocked with, or nothing."""
SETTINGS = """
[databases.main]
engine = "{engine}"
dsn = "{dsn}"
[databases.main.metrics.queue]
command = ["cat", "{file}"]
threshold = 10
interval_s = 0.1
timeout_s = 30
max_age_s = 60
"""
NOWHERE = {
    "postgres": "host=127.0.0.1 port=1 dbname=none",
    "mysql": "mysql://nobody@127.0.0.1:1/none",
}
"""The agent measures a file alone."""
TIMES = 200


@dataclass(frozen=True, slots=True)
class Linked:
    """A proxy before a real server, and an agent with one metric, which a test sets."""

    agent: AgentProcess
    proxy: ProxyProcess
    server_port: int

    @contextmanager
    def session(self, name: str) -> Iterator[Execute]:
        if self.proxy.protocol == "postgres":
            with PostgresWay("linked", self.proxy.port).connect(application_name=name) as session:
                yield lambda: _by_postgres(session)
        else:
            with MariaDBWay("linked", self.proxy.port).pymysql(program_name=name) as session:
                yield lambda: _by_mariadb(session)

    def queue_is(self, value: float) -> None:
        (self.agent.folder / "queue").write_text(str(value))

    @contextmanager
    def rule(self, target: str, kind: str, **settings: Any) -> Iterator[str]:
        body = {"target": target, "kind": kind, "reason": "a test", "for": "1h", **settings}
        answer = self.agent.request("POST", "/v1/rules", body, unix=True)
        assert answer.status == 201, answer.body
        try:
            yield str(answer.json["id"])
        finally:
            self.agent.request("DELETE", f"/v1/rules/{answer.json['id']}", unix=True)

    @contextmanager
    def settings(self, **tables: Any) -> Iterator[None]:
        """Others, by a reload; and back."""
        self._reload(**tables)
        try:
            yield
        finally:
            self._reload()

    def _reload(self, **tables: Any) -> None:
        self.proxy.write_settings(self.server_port, **tables)
        code, answer = self.proxy.request("POST", "/v1/proxy/reload")
        assert code == 200 and answer["changed"], answer

    def decisions(self, client: str) -> dict[tuple[str, str], int]:
        """By verdict and cause, in the agent's log."""
        found: dict[tuple[str, str], int] = {}
        for row in self.agent.get("/v1/history?since=1h").json["tallies"]:
            if row["client"] == client:
                key = (row["verdict"], row["metric"])
                found[key] = found.get(key, 0) + row["count"]
        return found

    def release(self) -> dict[str, Any]:
        parts = self.proxy.status()["parts"]
        return next(dict(part["figures"]) for part in parts if part["name"] == "release")


def _by_postgres(session: psycopg.Connection[Any]) -> str:
    try:
        session.execute("SELECT 1")
    except errors.InsufficientResources as error:
        return str(error)
    return ""


def _by_mariadb(session: Any) -> str:
    try:
        session.cursor().execute("SELECT 1")
    except pymysql.err.MySQLError as error:
        assert error.args[0] == MYSQL_BLOCKED, error
        return str(error)
    return ""


@contextmanager
def linked_before(protocol: str, server_port: int) -> Iterator[Linked]:
    agent = AgentProcess(servers.make_folder(Path("/tmp"), "hg-"), next(servers.free_ports()))
    (agent.folder / "queue").write_text("1")
    told = {"engine": protocol, "dsn": NOWHERE[protocol], "file": agent.folder / "queue"}
    agent.write_settings(SETTINGS.format(**told))
    tables = {
        "agent": {"url": str(agent.socket), "database": "main"},
        "gate": {"clients": ["paced"], "mode": "enforce", "statements": "all"},
    }
    try:
        agent.start()
        with ProxyProcess.started(protocol, server_port, tables) as proxy:
            yield Linked(agent, proxy, server_port)
    finally:
        agent.kill()
        shutil.rmtree(agent.folder, ignore_errors=True)


@pytest.fixture(scope="module", params=["postgres", "mysql"])
def linked(request: pytest.FixtureRequest) -> Iterator[Linked]:
    """Each test leaves it without rules, with the first settings, and healthy."""
    server = "postgres" if request.param == "postgres" else "mariadb_server"
    with linked_before(request.param, request.getfixturevalue(server).port) as made:
        yield made


def test_a_hold_blocks_its_clients_until_it_is_lifted(linked: Linked) -> None:
    with linked.session("etl:nightly") as etl, linked.session("web") as web:
        assert etl() == ""
        with linked.rule("etl", "hold") as rule:
            eventually(etl)
            assert rule in etl() and "a test" in etl()
            assert web() == ""
            eventually(lambda: linked.decisions("etl:nightly").get(("ON_HOLD", f"rule:{rule}")))
        eventually(lambda: etl() == "")


def test_a_ratio_blocks_its_share(linked: Linked) -> None:
    with linked.session("report") as report, linked.rule("report", "ratio", ratio=0.5):
        eventually(report)
        blocked = sum(report() != "" for _ in range(TIMES))
        assert 0.3 * TIMES < blocked < 0.7 * TIMES


def test_a_ratio_may_delay_its_share(linked: Linked) -> None:
    """R95: dice and delay together. Whatever they pick waits, and then runs."""
    gate = {"clients": ["paced"], "rule_action": "delay", "rule_delay_s": 0.005}
    with linked.settings(gate=gate), linked.session("slow") as slow:
        slow()

        def delayed() -> int:
            return int(linked.proxy.client("slow")["delayed"])

        with linked.rule("slow", "ratio", ratio=0.5):
            eventually(lambda: slow() == "" and delayed() > 0)
            before = delayed()
            assert {slow() for _ in range(TIMES)} == {""}
            assert 0.3 * TIMES < delayed() - before < 0.7 * TIMES


def test_an_exemption_of_one_client_beats_a_hold_of_its_level(linked: Linked) -> None:
    with (
        linked.session("batch:good") as good,
        linked.session("batch:bad") as bad,
        linked.rule("batch:good", "exempt", justification="system"),
        linked.rule("batch", "hold"),
    ):
        eventually(bad)
        for _ in range(5):
            assert good() == "" and bad() != ""


def test_the_rate_follows_the_metric_and_delays_what_is_beyond_it(linked: Linked) -> None:
    """R99: up by steps below the target, the same between target and maximum, down above it."""
    release = {"kind": "steps", "initial_per_s": 5, "max_increase": 1, "min_between_s": "50ms"}
    bounds = {"target": 0.3, "max": 0.8, "max_delay_s": "1h"}
    with linked.session("paced") as paced, linked.settings(release={**release, **bounds}):
        eventually(lambda: linked.release()["load"] == 0.1)

        def rises() -> bool:
            assert paced() == ""
            return bool(linked.release()["rate_per_s"] > 20)

        eventually(rises)
        linked.queue_is(5)
        eventually(lambda: paced() == "" and linked.release()["phase"] == "holding")
        stays = linked.release()["rate_per_s"]
        for _ in range(5):
            paced()
        assert linked.release()["rate_per_s"] == stays
        linked.queue_is(9)

        def falls() -> bool:
            assert paced() == ""
            return bool(linked.release()["rate_per_s"] < stays / 3)

        eventually(falls)
        told = linked.release()
        assert told["phase"] == "emergency" and told["limited_total"] > 0
        linked.queue_is(1)
        eventually(lambda: paced() == "" and linked.release()["phase"] == "increasing")
