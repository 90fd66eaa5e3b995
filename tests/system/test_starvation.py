"""Who was held when and why, told by a real agent on a real Postgres, while it happens."""

from __future__ import annotations

import json
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
BUSY = "select count(*) from pg_stat_activity where application_name = 'greedy-import'"
SETTINGS = f"""
[starvation]
window_s = 1
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

    def ask() -> None:
        agent.check(app="u1:etl:nightly")
        agent.check(app="fix:repair")
        time.sleep(0.02)

    with rogue(server):
        agent.start()
        eventually(lambda: agent.check()["verdict"] == "THRESHOLD_EXCEEDED")
        exempt = {"target": "repair", "kind": "exempt", "justification": "incident"}
        rule = agent.request("POST", "/v1/rules", {**exempt, "reason": "INC-7"}, unix=True).json
        with agent.under_load(ask, threads=1) as failures:
            starved = eventually(lambda: agent.get("/v1/starvation").json["starved"])
            series = agent.get("/metrics").body.decode()
            eventually(lambda: webhook.of("exemption.suspended"))
            eventually(lambda: suspended(agent, rule["id"]))
            eventually(lambda: rogues(agent) == [ROGUE])
        assert failures == []
    assert_told(webhook, starved, series, rule["id"])
    eventually(lambda: agent.check(app="u1:etl:nightly")["verdict"] == "OK")
    eventually(lambda: webhook.of("starvation.ends"))
    assert_kept(agent, agent.folder, rule["id"])
    assert webhook.tokens == {f"Bearer {SECRET_TOKEN}"}
    shown = agent.log() + agent.get("/v1/status").body.decode() + series
    assert SECRET_TOKEN not in shown and SECRET_PATH not in shown


def suspended(agent: AgentProcess, rule: str) -> bool:
    """Whether status says so, after who is starved."""
    advice: list[str] = agent.get("/v1/status").json["advice"]
    told = any(line.startswith(f"suspended: rule {rule}") for line in advice)
    return told and advice[0].startswith("starved: ")


def rogues(agent: AgentProcess) -> list[str]:
    return [s["application"] for s in agent.get("/v1/rogues").json["suspects"]]


def assert_told(webhook: Webhook, starved: list[Any], series: str, rule: str) -> None:
    begun = webhook.of("starvation.begins")[0]
    assert (begun["client"], begun["metric"]) in {
        (c, "busy") for c in ("etl", "nightly", "u1:etl:nightly")
    }
    assert (begun["cause"], begun["rule"], begun["database"]) == ("exempt_client", rule, "main")
    assert [one["cause"] for one in starved] == ["exempt_client"] * len(starved) and starved
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
