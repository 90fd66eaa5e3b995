"""Who was held when and why, told by a real agent on a real Postgres, while it happens."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually
from tests.fixtures.forking import forked_agents
from tests.fixtures.servers import Pair

SECRET_PATH, SECRET_TOKEN = "hook-7f3a", "bearer-91c2"
ROGUE = "greedy-import"
REPAIR = "repair-work"
BUSY = f"select count(*) from pg_stat_activity where application_name in ('{ROGUE}', '{REPAIR}')"
SETTINGS = f"""
[starvation]
window_s = 4
exemption_budget_s = 4
[alerts]
webhook_url = "http://127.0.0.1:{{port}}/{SECRET_PATH}"
webhook_token_file = "{{token_file}}"
[databases.main]
engine = "postgres"
dsn = "{{dsn}}"
[databases.main.metrics.busy]
sql = "{BUSY}"
threshold = 0.5
interval_s = 0.1
timeout_s = 20
"""


class Webhook:
    """Takes alerts, and keeps them."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        taken = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                taken.tokens.add(self.headers["Authorization"])
                taken.alerts.append(json.loads(self.rfile.read(length)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [alert for alert in self.alerts if alert["kind"] == kind]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    thread = threading.Thread(target=webhook.server.serve_forever, args=(0.05,))
    thread.start()
    yield webhook
    webhook.server.shutdown()
    thread.join()
    webhook.server.server_close()


@contextmanager
def rogue(server: PostgresServer) -> Iterator[None]:
    """At work in the database, without a check."""
    with psycopg.connect(server.dsn(), application_name=ROGUE) as connection:
        connection.execute("select 1")  # In a transaction from here on.
        yield


class Repair:
    """The exempt client: it does what it was admitted for, now more, now less of it."""

    def __init__(self, agent: AgentProcess, server: PostgresServer) -> None:
        self._agent = agent
        self._server = server
        self._ended = threading.Event()
        self._pieces: list[threading.Thread] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        loop = threading.Thread(target=self._loop)
        with psycopg.connect(self._server.dsn(), application_name=REPAIR):
            loop.start()
            try:
                yield
            finally:
                self._ended.set()
                for thread in (loop, *self._pieces):
                    thread.join()

    def _loop(self) -> None:
        dice = random.Random(7)
        while not self._ended.wait(0.4):
            for _ in range(dice.randrange(7)):
                if self._agent.check(app="fix:repair")["admitted"]:
                    piece = threading.Thread(target=self._work)
                    self._pieces.append(piece)
                    piece.start()

    def _work(self) -> None:
        with psycopg.connect(self._server.dsn(), application_name=REPAIR) as connection:
            connection.execute("select pg_sleep(0.4)")


def headgate(agent: AgentProcess, *arguments: str) -> str:
    folder = Path(tempfile.mkdtemp(dir=agent.folder))
    ran = forked_agents().start(folder, *arguments, "--url", f"unix://{agent.socket}")
    assert ran.wait(timeout=60) == 0, ran.err
    return " ".join(ran.out.split())


def test_client_starvation_is_reported_everywhere_ends_automatically_and_stays_in_history(
    agent: AgentProcess, postgres_pair: Pair[PostgresServer], webhook: Webhook
) -> None:
    """R68, R79, R88–R91, R138, R144, R145"""
    server = postgres_pair.primary
    token_file = agent.folder / "token"
    token_file.write_text(f"{SECRET_TOKEN}\n")
    port = webhook.server.server_port
    settings = SETTINGS.format(port=port, token_file=token_file, dsn=server.dsn())
    agent.write_settings(settings)

    agent.start()
    rule = exempt_repair(agent)
    with Repair(agent, server).working():
        eventually(lambda: agent.check()["verdict"] == "THRESHOLD_EXCEEDED")
        with agent.under_load(lambda: ask(agent, "u1:etl:nightly"), threads=1) as failures:
            starved = eventually(lambda: blaming(agent, "exempt_client"))
            series = agent.get("/metrics").body.decode()
            eventually(lambda: webhook.of("exemption.suspended"))
            eventually(lambda: suspended(agent, rule))
        assert failures == []
    assert_told(webhook, starved, series, rule)
    eventually(lambda: agent.check(app="u1:etl:nightly")["verdict"] == "OK")
    eventually(lambda: webhook.of("starvation.ends"))
    assert_kept(agent, agent.folder, rule)
    assert webhook.tokens == {f"Bearer {SECRET_TOKEN}"}
    shown = agent.log() + agent.get("/v1/status").body.decode() + series
    assert SECRET_TOKEN not in shown and SECRET_PATH not in shown


def test_a_harmless_exempt_client_is_not_suspended_for_what_a_rogue_does(
    agent: AgentProcess, postgres_pair: Pair[PostgresServer], webhook: Webhook
) -> None:
    """R79, R90, R138, R154: the metric counts nothing that the exempt client does."""
    server = postgres_pair.primary
    token_file = agent.folder / "token"
    token_file.write_text(f"{SECRET_TOKEN}\n")
    port = webhook.server.server_port
    agent.write_settings(SETTINGS.format(port=port, token_file=token_file, dsn=server.dsn()))
    with rogue(server):
        agent.start()
        eventually(lambda: agent.check()["verdict"] == "THRESHOLD_EXCEEDED")
        rule = exempt_repair(agent)
        clients = ("u1:etl:nightly", "fix:repair")
        with agent.under_load(lambda: ask(agent, *clients), threads=1) as failures:
            eventually(lambda: longest_s(agent) > 2 * 4, within_s=120)
            eventually(lambda: rogues(agent) == [ROGUE])
        assert failures == []
    causes = {alert["cause"] for alert in webhook.of("starvation.begins")}
    assert causes == {"unexplained_load"} and not webhook.of("exemption.suspended")
    assert not suspended(agent, rule)


def ask(agent: AgentProcess, *clients: str) -> None:
    for client in clients:
        agent.check(app=client)
    time.sleep(0.02)


def exempt_repair(agent: AgentProcess) -> str:
    exempt = {"target": "repair", "kind": "exempt", "justification": "incident", "reason": "INC-7"}
    return str(agent.request("POST", "/v1/rules", exempt, unix=True).json["id"])


def blaming(agent: AgentProcess, cause: str) -> list[Any]:
    found = agent.get("/v1/starvation").json["starved"]
    return [one for one in found if one["cause"] == cause]


def longest_s(agent: AgentProcess) -> float:
    found = agent.get("/v1/starvation").json["starved"]
    return max((float(one["starved_s"]) for one in found), default=0.0)


def suspended(agent: AgentProcess, rule: str) -> bool:
    """Whether status says so, after who is starved."""
    advice: list[str] = agent.get("/v1/status").json["advice"]
    told = any(line.startswith(f"suspended: rule {rule}") for line in advice)
    return told and advice[0].startswith("starved: ")


def rogues(agent: AgentProcess) -> list[str]:
    return [s["application"] for s in agent.get("/v1/rogues").json["suspects"]]


def assert_told(webhook: Webhook, starved: list[Any], series: str, rule: str) -> None:
    # Until the effect of the exempt client is clear, the same starvation is unexplained.
    begun = webhook.of("starvation.begins")[0]
    assert (begun["client"], begun["metric"]) in {
        (c, "busy") for c in ("etl", "nightly", "u1:etl:nightly")
    }
    [told] = webhook.of("exemption.suspended")
    assert (told["cause"], told["rule"], told["database"]) == ("exempt_client", rule, "main")
    for one in (told, *starved):
        assert one["blamed"] == ["fix:repair"] and one["effect"] > one["effect_error"] > 0
    assert 'headgate_starved_seconds{cause="exempt_client",' in series


def assert_kept(agent: AgentProcess, folder: Path, rule: str) -> None:
    told = headgate(agent, "history", "etl", "--since", "1h")
    assert "mostly throttled between" in told and "by busy" in told and "u1:etl:nightly" in told
    assert agent.get("/v1/history/timeline?app=repair").json["total"]["exempted"] > 0
    proposed = folder / "rule.toml"
    proposed.write_text('target = "repair"\nkind = "hold"\nreason = "INC-8"\n')
    assert "0 with the rule" in headgate(agent, "replay", "--with", str(proposed), "--since", "1h")
    then = agent.get("/v1/explain?app=fix:repair&database=main&at=1s").json
    assert rule in [match["rule"] for match in then["matched"]] and then["unknown"]
