"""The agent's budgets on a real server: warn, enforce, forgive, stop; counted and explained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest

from headgate.base.clock import SystemClock
from headgate.budgets.api import ExplainStatementBody
from headgate.budgets.identity import IdentityTerms
from headgate.budgets.keeper import BudgetRoom
from headgate.budgets.pgext.meter import RegionMeter, TraceReader
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.policy import Mode, Policy
from headgate.budgets.service import Budgets, Controlled, Gear, TrafficPlan
from headgate.budgets.traces import Trace
from headgate.budgets.views import explained, explained_then
from headgate.changes.model import ChangeKind
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Verdict
from headgate.history.recorder import Recorder
from headgate.rules.matching import Kind, Rule, RuleBook
from tests.changes.own_world import OwnLog
from tests.fixtures.eventually import eventually
from tests.fixtures.memory_store import MemoryStore
from tests.pg.gate import Gate, block

T = TypeVar("T")
ONE_AT_A_TIME = {"max_workers": 0, "penalty_s": 0, "rules": [{"match": {"username": "app"}}]}


class Agent:
    """As much of one as budgets need; the loop runs while a test waits for it."""

    def __init__(self, gate: Gate) -> None:
        clock = SystemClock()
        self.store = MemoryStore()
        self.runner = asyncio.Runner()
        self.rules = RuleBook()
        self.recorder = Recorder(max_clients=100)
        self.budgets = Budgets(
            self.store,
            Board(),
            Demands(clock),
            clock,
            rules=lambda: self.rules,
            count=self.recorder.merge,
        )
        self.log = OwnLog(self.store, clock)
        self.log.attach(self.budgets)
        self.budgets.own = self.log.book
        room = BudgetRoom(self.budgets.by_database)
        self.budgets.own.rooms |= {ChangeKind.BUDGET: room, ChangeKind.POLICY: room}
        folder = gate.server.traffic_dir
        gear = Gear((gate.sink,), RegionMeter(folder), TraceReader(folder))
        self.plan = TrafficPlan(
            "main",
            directory="dir",
            open_gear=lambda: gear,
            own_role="other",
            identity=IdentityTerms(),
        )

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def awaited() -> T:
            return await work()

        return self.runner.run(awaited())

    def start(self) -> None:
        self.run(self.store.open)
        self.run(lambda: self.budgets.adopt([self.plan]))
        self.run(self.log.load)
        self.tick()

    def tick(self) -> None:
        self.run(self.budgets.tick)

    @property
    def main(self) -> Controlled:
        return self.budgets.of("main")

    def violations(self) -> dict[tuple[str, str], int]:
        self.tick()
        found = self.run(
            lambda: self.store.history.budget_minutes(since_minute=0, until_minute=10**9)
        )
        sums: dict[tuple[str, str], int] = {}
        for one in found:
            key = (one.what, one.limit)
            sums[key] = sums.get(key, 0) + one.count
        return sums


@pytest.fixture
def agent(gate: Gate) -> Iterator[Agent]:
    made = Agent(gate)
    made.start()
    yield made
    made.runner.close()


def test_from_warn_to_enforce_to_off(gate: Gate, agent: Agent) -> None:
    """R122, R129, R137, R144: each takes effect with the session's next statement."""
    book = agent.main.book

    def change(work: Callable[[], Awaitable[Any]]) -> None:
        agent.run(work)
        (outlet,) = agent.main.publisher.outlets
        assert outlet.fault == "" and outlet.published is not None
        version = outlet.published.version
        eventually(lambda: gate.status()["policy_version"] == version)

    with gate.app() as session:
        change(lambda: book.set_budget("jobs", ONE_AT_A_TIME, who="ann"))
        session.execute("SELECT 1")
        assert agent.violations() == {("warned", "concurrency"): 1}
        change(lambda: book.patch_budget("jobs", {"mode": "enforce"}, who="ann"))
        for _ in range(3):
            block(lambda: session.execute("SELECT 1"))
        session.rollback()
        seen = agent.violations()
        assert seen["blocked", "concurrency"] == 3
        readings = agent.main.watch.readings if agent.main.watch else None
        assert readings is not None and readings.cpus_milli > 0 and readings.workers > 0
        assert readings.version == gate.status()["policy_version"]
        body = ExplainStatementBody("SELECT 1", username="app", cost_ms=1)
        told = explained(agent.main, body, None, 0)
        assert (told.verdict, told.decided_by, told.limit) == ("block", "jobs", "concurrency")
        change(lambda: book.cap(Mode.OFF, who="ann"))
        session.execute("SELECT 1")
        assert agent.violations() == seen
        change(lambda: book.cap(Mode.ENFORCE, who="ann"))
        block(lambda: session.execute("SELECT 1"))


def test_a_statement_is_explained_by_what_the_server_traced(gate: Gate, agent: Agent) -> None:
    """R144: before a dear statement and after it, by the debt of then. Eight seconds of CPU fit."""
    rules = [{"match": {"application_name": "then"}}]
    budget = {"mode": "enforce", "rate": 1, "capacity": 400, "rules": rules}
    agent.run(lambda: agent.main.book.set_budget("jobs", budget, who="ann"))
    with gate.app(application_name="then") as session:
        session.execute("SELECT burn(400)")

    def traced() -> list[Trace]:
        agent.tick()
        memory = agent.main.traces
        assert memory is not None
        return [one for one in memory.since(0) if one.who.application_name == "then"]

    eventually(traced)
    dear = traced()[-1]
    # Without its id: what is like it is expected to cost what it did.
    alike = ExplainStatementBody("SELECT burn(7)", application_name="then")

    def estimate_ms() -> float | None:
        agent.tick()
        return explained(agent.main, alike, None, 0).estimate_ms

    assert eventually(estimate_ms)
    asked = ExplainStatementBody("SELECT 1", application_name="then", cost_ms=7999)
    ended_ms = dear.wall_ms + dear.wall_ns // 1_000_000
    before, after = (
        explained_then(agent.main, asked, at_ms) for at_ms in (dear.wall_ms - 1, ended_ms)
    )
    assert (before.verdict, before.budgets[0].fails) == ("run", "")
    assert (after.verdict, after.decided_by, after.limit) == ("block", "jobs", "capacity")


def test_a_rule_acts_inside_the_server_and_is_in_the_log(gate: Gate, agent: Agent) -> None:
    """R98, R163: set at the agent; counted by client; lifted."""

    def statement() -> bool:
        agent.tick()
        with gate.app(application_name="nightly:etl") as session:
            try:
                session.execute("SELECT 1")
            except psycopg.errors.InsufficientResources:
                return False
        return True

    agent.run(lambda: agent.main.book.set_budget("jobs", ONE_AT_A_TIME, who="ann"))
    agent.rules = RuleBook([Rule("h1", "etl", kind=Kind.HOLD)])
    eventually(lambda: not statement())
    agent.tick()
    (record,) = [one for _, name, one in agent.recorder.clients() if name == "nightly:etl"]
    assert (record.last_verdict, record.rejected_by) == (Verdict.ON_HOLD, "rule:h1")
    assert record.rejected >= 1
    agent.rules = RuleBook()
    eventually(statement)


def test_what_is_owed_shows_and_is_forgiven(gate: Gate, agent: Agent) -> None:
    book = agent.main.book
    rules = [{"match": {"username": "app"}, "each": ["tag.tenant"]}]
    owing = {"rate": 0.001, "capacity": 100, "mode": "enforce", "penalty_s": 0, "rules": rules}
    agent.run(lambda: book.set_budget("tenants", owing, who="ann"))
    with gate.app(autocommit=True) as session:
        session.execute("SELECT burn(100) /*tenant='acme'*/")

        def owed() -> dict[str, float]:
            agent.tick()
            readings = agent.main.watch.readings if agent.main.watch else None
            assert readings is not None
            return {b.label: b.fill or 0.0 for b in readings.buckets if b.budget == "tenants"}

        fill = owed()["tenant=acme"]
        assert fill > 0
        body = ExplainStatementBody("SELECT 1 /*tenant='acme'*/", username="app", cost_ms=1)
        (applies,) = explained(agent.main, body, None, 0).budgets
        assert applies.bucket is not None and applies.label == "tenant=acme"
        assert applies.bucket.fill == pytest.approx(fill, rel=0.1)
        agent.run(lambda: book.forgive("tenants", who="ann"))
        session.execute("SELECT 1 /*tenant='acme'*/")
        assert owed().get("tenant=acme", 0.0) < 0.5


def test_no_budget_ever_blocks_the_agents_own_probes(gate: Gate, agent: Agent) -> None:
    """R147: nor does one that bites when unhealthy hold on to what it has brought about."""
    gate.publish(exempt_usernames=["postgres"])
    rules = [{"match": {"database": "postgres"}}]
    for when in ("always", "unhealthy"):
        budget = {"max_workers": 0, "mode": "enforce", "when": when, "penalty_s": 0}
        exempt = {"exempt_usernames": ["postgres", "replicator"]}
        file = {
            "policies": [{"database": "main", **exempt}],
            "budgets": [{"database": "main", "name": "all", "rules": rules, **budget}],
        }
        agent.run(partial(agent.budgets.own.apply, file, who="ann"))
        until_ms = agent.main.wall_ms + 3_600_000
        gate.sink.tell_health_now(healthy=False, until_ms=until_ms)
        with gate.app(dbname="postgres", autocommit=True) as session:
            eventually(partial(_is_blocked, session))
        with gate.app("other", dbname="postgres", autocommit=True) as probe:
            for _ in range(3):
                probe.execute("SELECT 1")


def _is_blocked(session: Any) -> bool:
    try:
        session.execute("SELECT 1")
    except psycopg.Error as error:
        return error.sqlstate == "53000"
    return False


def test_what_is_done_beside_the_agent_is_put_back_but_for_the_switch(
    gate: Gate, agent: Agent
) -> None:
    """R132: a file that is gone or restored, and `headgate pg disable`."""
    book, beside = agent.main.book, FilePolicySink(gate.server.traffic_dir, SystemClock())
    agent.run(lambda: book.set_budget("jobs", {**ONE_AT_A_TIME, "mode": "enforce"}, who="ann"))
    agent.run(lambda: book.patch_budget("jobs", {"max_workers": 1}, who="ann"))
    agent.run(lambda: book.patch_budget("jobs", {"max_workers": 0}, who="ann"))
    (outlet,) = agent.main.publisher.outlets
    with gate.app(autocommit=True) as session:
        gate.policy_file.unlink()
        agent.tick()
        assert "missing" in outlet.displaced.found and gate.policy_file.exists()
        beside.publish_now(Policy())
        eventually(lambda: not _is_blocked(session))

        def put_back() -> bool:
            agent.tick()
            return _is_blocked(session)

        eventually(put_back)
        assert "another program's" in outlet.displaced.found
        beside.switch_off()
        eventually(lambda: not _is_blocked(session))
        total = outlet.displaced.total
        agent.tick()
        assert agent.main.is_off and outlet.displaced.total == total
        agent.run(lambda: book.patch_budget("jobs", {"comment": "INC-7"}, who="ann"))
        assert outlet.published is not None and outlet.published.off
        assert not _is_blocked(session)
        beside.switch_on(None)
        eventually(lambda: _is_blocked(session))
        agent.tick()
        agent.tick()
        assert not agent.main.is_off
