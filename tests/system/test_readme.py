"""A new user's way, by the README: from settings to a refused check, and why."""

from __future__ import annotations

import subprocess
import sys

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.servers import Pair

METRICS = (
    "lag: interval_s=0.2; threads_running: interval_s=0.2; pool_usage: interval_s=0.2;"
    " commit_delay: threshold=5, timeout_s=5"
)


def headgate(agent: AgentProcess, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headgate", *words, "--url", f"unix://{agent.socket}"],
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_from_settings_to_a_refused_check_and_back(
    agent: AgentProcess, postgres_pair: Pair[PostgresServer]
) -> None:
    agent.write_settings(postgres_database(postgres_pair.primary.dsn(), METRICS))
    linted = subprocess.run(
        [sys.executable, "-m", "headgate", "lint", str(agent.settings)],
        capture_output=True,
        text=True,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    agent.start()
    eventually(agent.admitted, within_s=10)
    ask = ("check", "--app", "etl:nightly", "--database", "main")

    assert headgate(agent, *ask).returncode == 0
    changed = headgate(agent, "metrics", "set", "main", "commit_delay", "--threshold", "0.000001")
    assert changed.returncode == 0, changed.stderr
    refused = headgate(agent, *ask)
    assert refused.returncode == 10
    assert "commit_delay is" in refused.stdout and "above its threshold" in refused.stdout
    explained = headgate(agent, "explain", "--app", "etl:nightly", "--database", "main")
    assert "commit_delay must fall" in explained.stdout

    assert (
        headgate(agent, "metrics", "set", "main", "commit_delay", "--threshold", "5").returncode
        == 0
    )
    eventually(lambda: headgate(agent, *ask).returncode == 0, within_s=5)
    assert "main/commit_delay" in headgate(agent, "audit").stdout
    assert "etl:nightly" in headgate(agent, "history", "--app", "nightly").stdout
    for command in (("status",), ("top", "--once"), ("clients",), ("metrics", "list")):
        assert headgate(agent, *command).returncode == 0


def test_calibration_proposes_a_threshold(
    agent: AgentProcess, postgres_pair: Pair[PostgresServer]
) -> None:
    """R15"""
    agent.write_settings(postgres_database(postgres_pair.primary.dsn(), METRICS))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headgate", "metrics", "calibrate", "main"),
            *("--config", str(agent.settings), "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "suggested_threshold_s" in done.stdout
