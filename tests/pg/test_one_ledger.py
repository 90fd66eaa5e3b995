"""Checks that declare a cost, and statements that nobody asked for: one bucket (R146). And what
statements did, replayed (R145)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headgate.base.clock import SystemClock
from headgate.budgets.charging import LedgerOf
from headgate.budgets.counterfactual import ReplayServer, counterfactual
from headgate.budgets.model import DebitResult, DebitState
from headgate.budgets.native.ledger import core
from headgate.budgets.parse import parse_budget, parse_policy
from headgate.budgets.pgext.debits import RegionLedger
from headgate.budgets.pgext.meter import TraceReader
from headgate.budgets.traces import Trace
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import NEWEST
from tests.pg.conftest import Fresh
from tests.pg.gate import Gate, Row, block, budget, detail, learn

SLOW: dict[str, Any] = {"rate": 0.1, "capacity": 50}
"""Drains a thousandth of the server: what is owed stays, for as long as a test takes."""
BURN = "SELECT burn(400)"
NUMBERS = count()


@contextmanager
def as_owner_of(folder: Path) -> Iterator[None]:
    """Be the server's own user for a while: root charges nothing there (M5)."""
    owner, user, group = folder.stat(), os.geteuid(), os.getegid()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)


class World:
    """A server with a slow budget of its own, and the way to it from outside."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        # Each test its own: a shared server remembers what is owed.
        self.row = budget(f"slow{next(NUMBERS)}", **SLOW)
        learn(gate, BURN)
        gate.publish(self.row)
        core()  # built, where it has to be, before anything is timed
        self.shared = RegionLedger(gate.server.traffic_dir)
        with as_owner_of(gate.server.traffic_dir):
            self.shared.tend_now()
        assert not self.shared.fault

    def debit(self, cpu_s: float, *, only_look: bool = False) -> DebitResult:
        cost_ns, now = round(cpu_s * 1e9), SystemClock().now()
        return self.shared.debit(parse_budget(self.row), cost_ns, now, only_look=only_look)

    @property
    def capacity_s(self) -> float:
        capacity_s = self.debit(1e-9, only_look=True).capacity_s
        assert capacity_s is not None
        return capacity_s

    def counts(self) -> Row:
        return self.gate.budget(self.row["name"])


@pytest.fixture
def slow(gate: Gate) -> World:
    return World(gate)


def test_a_check_fills_the_bucket_that_statements_are_blocked_by(slow: World) -> None:
    charged = slow.debit(slow.capacity_s)
    assert charged.state is DebitState.CHARGED
    assert charged.ledger == f"the server's own ({slow.gate.server.pid})"
    with slow.gate.app() as session:
        blocked = block(lambda: session.execute(BURN))
    assert detail(blocked)["limit"] == "capacity"
    assert float(detail(blocked)["used_ms"]) == pytest.approx(slow.capacity_s * 1e3, rel=0.05)
    counts = slow.counts()
    assert (counts["admitted"], counts["running"]) == (1, 0)
    assert counts["charged_s"] == pytest.approx(slow.capacity_s)


def test_a_statement_fills_the_bucket_that_checks_are_blocked_by(slow: World) -> None:
    with slow.gate.app() as session:
        session.execute(BURN)
    blocked = slow.debit(slow.capacity_s)
    assert blocked.state is DebitState.OVER
    assert blocked.debt_s is not None and blocked.debt_s > 0.001
    assert blocked.retry_after_s is not None and blocked.retry_after_s > 0.1
    assert slow.counts()["blocked_capacity"] == 1


async def test_a_restarted_server_is_reached_again(fresh: Fresh) -> None:
    gate = fresh(NEWEST)
    gate.publish(budget(**SLOW))
    ledger = LedgerOf("main", RegionLedger(gate.server.traffic_dir), 1000)
    with as_owner_of(gate.server.traffic_dir):
        await ledger.tend()
    assert "the server's own" in ledger.describe()
    gate.server.stop()
    await ledger.tend()
    assert ledger.describe().startswith("the agent's own, the server's is unavailable")
    gate.server.restart()
    with as_owner_of(gate.server.traffic_dir):
        await ledger.tend()
    assert ledger.describe() == f"the server's own ({gate.server.pid})"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_root_writes_nothing_to_memory_that_the_servers_user_can_rewrite(slow: World) -> None:
    """M5."""
    ledger = RegionLedger(slow.gate.server.traffic_dir)
    ledger.tend_now()
    assert "by the server's own user alone" in ledger.fault
    debit = ledger.debit(parse_budget(slow.row), 1, SystemClock().now())
    assert debit.state is DebitState.INACTIVE


# --- traces ---------------------------------------------------------------------------------------


def traced(gate: Gate, since: int, started_ms: int) -> list[Trace]:
    batch = TraceReader(gate.server.traffic_dir).read_now(since, started_ms)
    return [trace for trace in batch.traces if trace.who.username == "app"]


def test_what_statements_did_is_replayed_against_another_policy(gate: Gate) -> None:
    """R145: dear statements are all traced, so that the replay is to the statement."""
    gate.publish(budget("watched", mode="warn"))
    began = TraceReader(gate.server.traffic_dir).read_now(0, 0)
    where = (began.next_sequence, began.started_ms)
    with gate.app() as session:
        for _ in range(4):
            session.execute(f"{BURN} /*tenant='acme'*/")
    eventually(lambda: len(traced(gate, *where)) >= 4)
    found = traced(gate, *where)
    assert {trace.tags for trace in found} == {((b"tenant", b"acme"),)}
    assert all(trace.who.database == "postgres" for trace in found)
    assert all(trace.actual_ns <= trace.wall_ns * 1.2 for trace in found)
    status = gate.status()
    stage = ReplayServer(int(status["server_cpus"] * 1000), 100)
    none = parse_policy({"budgets": [budget(max_workers=0)]})
    all_of_it = counterfactual(found, none, stage).total
    assert all_of_it.newly_blocked == pytest.approx(all_of_it.statements)
    wide = parse_policy({"budgets": [budget(max_workers=1)]})
    assert counterfactual(found, wide, stage).total.newly_blocked == 0


def test_what_no_budget_concerns_is_replayed_as_well(gate: Gate) -> None:
    """R145: a budget that is only proposed would concern statements that nothing holds today."""
    gate.publish(budget("others", rules=[{"match": {"username": "other"}}]))
    began = TraceReader(gate.server.traffic_dir).read_now(0, 0)
    where = (began.next_sequence, began.started_ms)
    with gate.app(application_name="report") as session:
        session.execute(f"{BURN} /*tenant='acme'*/")
    eventually(lambda: len(traced(gate, *where)) >= 1)
    found = traced(gate, *where)[-1]
    assert (found.tags, found.who.application_name) == (((b"tenant", b"acme"),), "report")
    assert 0 < found.actual_ns <= found.wall_ns * 1.2
    assert found.plan_cost > 0
