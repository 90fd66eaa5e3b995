"""The proxy's knowledge of the world against a real agent. A failover: live/test_health.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.base.clock import SystemClock
from headgate.errors import PeerFailed
from headgate.proxy.agents import AgentLink, Agents
from headgate.proxy.dialling import AgentDialling
from headgate.proxy.gates import Gates
from headgate.proxy.model import Act, GateMode, GateTerms
from headgate.proxy.policylink import PolicyLink
from headgate.proxy.ports import ActCause
from headgate.proxy.reports import Reports
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import aeventually
from tests.proxy.fakes import FakeRelay, FakeTaker, client, counts

SETTINGS = """
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
[databases.main.traffic]
[databases.main.metrics.queue]
command = ["cat", "{file}"]
threshold = 5
interval_s = 0.1
timeout_s = 30
max_age_s = 60
"""
ETL = {"rate": 20, "capacity": 200, "rules": [{"match": {"username": "etl"}}]}
JOB = client(2, "nightly:etl")


@pytest.fixture
def started(agent: AgentProcess) -> Iterator[AgentProcess]:
    (agent.folder / "queue").write_text("1")
    agent.write_settings(SETTINGS.format(file=agent.folder / "queue"))
    agent.start()
    yield agent


class Proxy:
    """Its mind, without a relay."""

    def __init__(self, url: str, folder: Path) -> None:
        clock = SystemClock()
        terms = GateTerms(("etl",), GateMode.ENFORCE, Act.DELAY, stale_after_s=1.0)
        self.relay, self.taker = FakeRelay(table=[counts(JOB)]), FakeTaker()
        self.agents = Agents(AgentDialling((url,)), (url,), "main")
        self.gates = Gates(self.relay, "main", clock, self.agents.now_s, terms)
        self.link = AgentLink(self.agents, self.relay, clock, [self.gates])
        self.policy = PolicyLink(self.agents, self.taker, clock, folder)
        self.reports = Reports(self.relay, self.agents, clock, self.gates.explained, self.gates.met)

    async def gate_is(self, fits: Callable[[Any], bool]) -> None:
        await aeventually(
            lambda: JOB.index in self.relay.gates and fits(self.relay.gates[JOB.index])
        )


@asynccontextmanager
async def proxied(url: str, folder: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(url, folder)
    parts = (proxy.link, proxy.gates, proxy.policy, proxy.reports)
    tasks = [asyncio.ensure_future(part.run()) for part in parts]
    try:
        yield proxy
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await proxy.link.close()


async def test_health_rules_policy_and_reports_of_a_real_agent(
    started: AgentProcess, tmp_path: Path
) -> None:
    """R95, R98: what an operator does at the agent happens in the query path, and is in history."""
    async with proxied(started.url, tmp_path) as proxy:
        proxy.gates.client_seen(JOB)
        await proxy.gate_is(lambda gate: gate.until_ms is not None and gate.act is Act.PASS)
        (started.folder / "queue").write_text("9")
        await proxy.gate_is(lambda gate: gate.act is Act.DELAY and gate.cause is ActCause.HEALTH)
        assert "queue is 9, above its threshold of 5" in proxy.relay.gates[JOB.index].reason
        await aeventually(lambda: proxy.relay.healths[-1][0] is False)

        (started.folder / "queue").write_text("1")
        held = {"target": "etl", "kind": "hold", "reason": "INC-1", "for": "1h"}
        await asyncio.to_thread(started.request, "POST", "/v1/rules", held, unix=True)
        await proxy.gate_is(lambda gate: gate.cause is ActCause.RULE and gate.ratio == 1.0)

        put = await asyncio.to_thread(
            started.request, "PUT", "/v1/budgets/main/etl", ETL, unix=True
        )
        assert put.status == 201
        await aeventually(lambda: [b.name for p, _, _ in proxy.taker.taken for b in p.budgets])

        blocked = tuple(3 if cause is ActCause.RULE else 0 for cause in ActCause)
        proxy.relay.table = [counts(JOB, statements=8, admitted=5, blocked=blocked)]
        await aeventually(lambda: _history(started))
        assert _history(started) == {
            ("nightly:etl", "OK", ""): 5,
            ("nightly:etl", "ON_HOLD", _rule_of(proxy)): 3,
        }
        await _outlives(started, proxy, tmp_path)


async def _outlives(agent: AgentProcess, proxy: Proxy, folder: Path) -> None:
    """An agent that is killed leaves policy and rules, and is found again."""
    agent.kill()
    await aeventually(lambda: not proxy.link.state().healthy)
    await proxy.gate_is(lambda gate: gate.cause is ActCause.RULE and gate.until_ms is not None)
    assert proxy.relay.gates[JOB.index].ratio == 1.0
    await aeventually(lambda: not proxy.policy.state().healthy)
    assert proxy.policy.revision is not None
    assert json.loads((folder / "policy-kept.json").read_text())["document"]["budgets"]
    await asyncio.to_thread(agent.start)
    await aeventually(lambda: proxy.link.state().healthy)


def _rule_of(proxy: Proxy) -> str:
    return proxy.gates.explained(JOB).rule.by


def _history(agent: AgentProcess) -> dict[tuple[str, str, str], int]:
    tallies = agent.get("/v1/history?since=1h").json["tallies"]
    found: dict[tuple[str, str, str], int] = {}
    for tally in tallies:
        key = (tally["client"], tally["verdict"], tally["metric"])
        found[key] = found.get(key, 0) + tally["count"]
    return found if len(found) == 2 else {}


async def test_an_agent_that_is_not_there_is_reported_with_its_address() -> None:
    line = AgentDialling(("http://127.0.0.1:1",)).line("http://127.0.0.1:1")
    with pytest.raises(PeerFailed, match=r"127\.0\.0\.1:1: connection refused"):
        await line.ask("GET", "/healthz")
