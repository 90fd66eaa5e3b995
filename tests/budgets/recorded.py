"""A server that traces every statement: the reference's rules and ledger, wound by hand."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headgate.budgets.counterfactual import ReplayServer
from headgate.budgets.ledger import Holding, Ledger
from headgate.budgets.matching import Now, RuleSet
from headgate.budgets.model import (
    Statement,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
    StatementVerdict,
    budget_key,
)
from headgate.budgets.policy import Policy
from headgate.budgets.traces import Trace
from tests.budgets.worlds import MS

START_MS = 1_800_000_000_000
STAGE = ReplayServer(cpus_milli=2000, workers=10, by=("query",), step_s=3600)


class Arrival(NamedTuple):
    after_ms: int
    """The one before."""
    username: str
    tenant: str
    pattern: int
    plan_cost: float
    actual_ns: int
    wall_ns: int
    workers: int = 1
    in_transaction: bool = False


@dataclass(frozen=True)
class Running:
    at_ns: int
    order: int
    arrival: Arrival
    holding: Holding

    def __lt__(self, other: Running) -> bool:
        return (self.at_ns, self.order) < (other.at_ns, other.order)


def recorded(policy: Policy, arrivals: Iterable[Arrival]) -> list[Trace]:
    """What it decides of them, each with a query id of its own (1, 2, …)."""
    rules, traces = RuleSet(policy), list[Trace]()
    ledger = Ledger(cpus_milli=STAGE.cpus_milli, workers=STAGE.workers)
    running: list[Running] = []
    wall_ms = START_MS
    for number, arrival in enumerate(arrivals):
        wall_ms += arrival.after_ms
        now_ns = wall_ms * MS
        while running and running[0].at_ns <= now_ns:
            ended = heapq.heappop(running)
            ledger.settle(ended.holding, ended.arrival.actual_ns, ended.at_ns)
        traces.append(_decided(rules, ledger, arrival, number, wall_ms, running))
    return traces


def _decided(
    rules: RuleSet,
    ledger: Ledger,
    arrival: Arrival,
    number: int,
    wall_ms: int,
    running: list[Running],
) -> Trace:
    who = StatementIdentity(username=arrival.username)
    statement = Statement(f"/*tenant='{arrival.tenant}'*/".encode(), query_id=number + 1)
    flags = StatementFlags.IN_TRANSACTION if arrival.in_transaction else StatementFlags.PLANNED
    ask = StatementCheck(
        wall_ms * MS,
        wall_ms,
        plan_cost=arrival.plan_cost,
        pattern=arrival.pattern,
        workers=arrival.workers,
        flags=flags,
    )
    matched = rules.match(who, statement, Now(wall_ms))
    answer, holding = ledger.take(rules.budgets, matched.at, ask)
    if holding is not None:
        heapq.heappush(running, Running(ask.now_ns + arrival.wall_ns, number, arrival, holding))
    rejected = answer.verdict is StatementVerdict.BLOCK
    decider = rules.budgets[matched.at[answer.match].budget].name if rejected else ""
    return Trace(
        sequence=number,
        wall_ms=wall_ms,
        who=who,
        tags=((b"tenant", arrival.tenant.encode()),),
        query_id=number + 1,
        plan_cost=arrival.plan_cost,
        estimate_ns=answer.estimate_ns,
        p90_ns=answer.p90_ns,
        actual_ns=0 if rejected else arrival.actual_ns,
        wall_ns=0 if rejected else arrival.wall_ns,
        workers=arrival.workers,
        verdict=answer.verdict,
        limit=answer.decided_by,
        budget=budget_key(decider) & 0xFFFF_FFFF if rejected else 0,
        flags=int(flags),
    )
