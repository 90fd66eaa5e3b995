"""What is set for this host alone stays in its own log: no store has to answer for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.agents import AgentProcess, reserve_port
from tests.fixtures.fleets import LONE

AWAY = "http://127.0.0.1:1"
SHARD = "/v1/databases/main/shard"
LAG = "/v1/databases/main/metrics/queue"
RULE = {"target": "etl", "ratio": 0.5, "for": "1h"}
BUDGET = {"rate": 20, "rules": [{"match": {"username": "etl"}}]}
PEER = {"url": AWAY, "database": "main"}
SAID = {"for": "10m", "reason": "rebuilt"}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """Of a fleet whose etcd does not answer, and of a shard."""
    token = tmp_path / "peers.token"
    token.write_text("0123456789abcdef")
    fleet = f'[fleet]\nendpoints = ["{AWAY}"]\ntimeout_s = 1.0\n'
    peers = f'[peers]\ntoken_file = "{token}"\n[databases.main.peers.db-b]\nurl = "{AWAY}"\n'
    agent = AgentProcess(tmp_path, reserve_port())
    agent.write_settings(f"{fleet}{LONE}{peers}[databases.main.traffic]\n", 'name = "a"')
    agent.start()
    yield agent
    agent.end()


def test_what_is_for_this_host_needs_no_etcd_whatever_its_kind(agent: AgentProcess) -> None:
    def changed(method: str, path: str, body: Any) -> int:
        return agent.request(method, path, body, unix=True).status

    for reach in ("", "?reach=host:a"):
        said = {"reach": "host:a"} if reach else {}
        assert changed("POST", "/v1/rules", {**RULE, **said}) == 201
        assert changed("PATCH", f"{LAG}{reach}", {"threshold": 4 if reach else 3}) == 200
        assert changed("PUT", f"/v1/budgets/main/cap{len(said)}", {**BUDGET, **said}) == 201
        assert changed("PATCH", f"/v1/budgets/main{reach}", {"mode_cap": "warn"}) == 200
    assert changed("PUT", f"{SHARD}/skips/db-b?reach=host:a", SAID) == 200
    assert changed("PUT", f"{SHARD}/peers/db-c", PEER) == 200
    assert changed("POST", f"{SHARD}/handover", {"for": "60s"}) == 200
    listed = agent.request("GET", "/v1/changes", unix=True).json["changes"]
    kinds = {"rule", "budget", "policy", "metric", "skip", "peer", "handover"}
    assert {(one["kind"], one["reach"]) for one in listed} == {(kind, "host") for kind in kinds}
    assert changed("POST", "/v1/rules", {**RULE, "reach": "fleet"}) == 503
    assert changed("POST", "/v1/changes/rollback", {"n": 1}) == 200
    left = agent.request("GET", "/v1/changes", unix=True).json["changes"]
    # Going back neither lifts the switch for all budgets nor announces a switchover again.
    assert {one["kind"] for one in left} == {"rule", "policy"}
