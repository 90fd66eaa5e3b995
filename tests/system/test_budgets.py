"""Budgets through a real agent: a change reaches the server's directory and outlives everything."""

from __future__ import annotations

import signal
from pathlib import Path

from headgate.budgets.compiled import read_compiled
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually

SETTINGS = """
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
[databases.main.traffic]
policy = "{policy}"
directory = "{directory}"
"""
POLICY = """
[[budgets]]
name = "web"
burst = {burst}
[[budgets.rules]]
match = {{ username = "web" }}
"""
ETL = {"rate": 20, "capacity": 200, "rules": [{"match": {"username": "etl"}}]}


def modes(directory: Path) -> dict[str, str]:
    """Of the compiled policy in the server's directory."""
    found = read_compiled((directory / "policy.hgp").read_bytes())
    return {budget.name: budget.mode.value for budget in found.policy.budgets}


def test_a_policy_reaches_the_server_and_outlives_kills_reloads_and_faults(
    agent: AgentProcess,
) -> None:
    """R129, R131, R132, R139, R141"""
    directory, policy = agent.folder / "pg_headgate", agent.folder / "policy.toml"
    directory.mkdir(mode=0o700)
    policy.write_text(POLICY.format(burst=50))
    agent.write_settings(SETTINGS.format(policy=policy, directory=directory))
    agent.start()
    eventually((directory / "policy.hgp").exists)
    made = agent.request("PUT", "/v1/budgets/main/etl", ETL, unix=True)
    assert made.status == 201, made.body
    assert modes(directory) == {"web": "warn", "etl": "warn"}, "before the answer"
    agent.request("PATCH", "/v1/budgets/main/etl", {"mode": "enforce"}, unix=True)

    agent.kill()
    (directory / "policy.hgp").unlink()
    agent.start()
    eventually((directory / "policy.hgp").exists)
    assert modes(directory) == {"web": "warn", "etl": "enforce"}

    policy.write_text(POLICY.format(burst=60))
    agent.process.send_signal(signal.SIGHUP)
    eventually(lambda: burst(agent) == 60)
    policy.write_text(POLICY.format(burst=-1))
    agent.process.send_signal(signal.SIGHUP)
    fault = eventually(lambda: agent.get("/v1/status").json["settings_fault"])
    assert "budgets[0].burst: -1 is less than 0" in fault
    assert burst(agent) == 60, "the last good one stays"

    stopped = agent.request("PATCH", "/v1/budgets/main", {"mode_cap": "off"}, unix=True)
    assert stopped.status == 200 and modes(directory) == {}
    directory.chmod(0o755)
    told = agent.request("PATCH", "/v1/budgets/main", {"mode_cap": "enforce"}, unix=True).json
    assert told["published"][0]["is_current"] is False
    assert "chmod 0700" in told["published"][0]["fault"] and modes(directory) == {}
    directory.chmod(0o700)
    eventually(lambda: modes(directory) == {"web": "warn", "etl": "enforce"})


def burst(agent: AgentProcess) -> float:
    raws = agent.get("/v1/budgets/main").json["document"]["budgets"]
    found: float = next(raw["burst"] for raw in raws if raw["name"] == "web")
    return found
