"""The budgets of one agent, put together.   [databases.*.traffic] ──► policy ──► Budgets"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headgate.base.advice import Severity
from headgate.base.assemble import AgentContext, faults_of
from headgate.base.ports import Clock, PolicySink, Tracer
from headgate.budgets.advice import advise
from headgate.budgets.layers import EMPTY, Document
from headgate.budgets.parse import written
from headgate.budgets.pgext.debits import RegionLedger
from headgate.budgets.pgext.meter import RegionMeter, TraceReader
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.service import Budgets, Gear, TrafficPlan
from headgate.budgets.statements import Statements
from headgate.check.assemble import CheckParts
from headgate.errors import Fault, InvalidSettings
from headgate.metrics.assemble import MetricParts
from headgate.metrics.model import Engine
from headgate.settings.agent import Settings
from headgate.settings.document import load_policy
from headgate.settings.sections import DatabaseSettings, TrafficSettings
from headgate.tracing.traced import traced_sink


@dataclass(frozen=True, slots=True)
class BudgetParts:
    budgets: Budgets
    statements: Statements


def assemble(
    context: AgentContext,
    check: CheckParts,
    metrics: MetricParts,
    stands_aside: Callable[[], bool],
) -> BudgetParts:
    """`stands_aside`: whether the active agent of a pair tells the servers."""
    budgets = Budgets(
        context.store,
        check.board,
        check.demands,
        context.clock,
        stands_aside=stands_aside,
        time=context.time,
        rules=lambda: check.checker.rules,
        count=partial(check.recorder.merge, checks=False),
    )
    check.checker.debits = budgets.debits
    statements = Statements(budgets.watched, check.demands, context.clock, metrics.statements)
    return BudgetParts(budgets, statements)


def traffic_plans(
    settings: Settings, clock: Clock, tracer: Tracer | None = None
) -> list[TrafficPlan]:
    """Reads the policy files; InvalidSettings for one that cannot be taken."""
    return [
        _traffic_plan(database, database.traffic, clock, tracer)
        for database in settings.databases.values()
        if database.traffic is not None
    ]


def _own_role(database: DatabaseSettings) -> str:
    """The database user of the probes; empty where it is not known."""
    if database.engine is not Engine.POSTGRES:
        return ""
    try:
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
        from psycopg.pq import Conninfo
    except ImportError:
        return ""  # It is said where the probes are built.
    with suppress(Error):
        # What it does not name, the library takes from PGUSER or the process's own user.
        usual = {option.keyword: option.val or b"" for option in Conninfo.get_defaults()}
        said = conninfo_to_dict(database.dsn).get("user")
        return str(said or usual.get(b"user", b"").decode())
    return ""


def _traffic_plan(
    database: DatabaseSettings, traffic: TrafficSettings, clock: Clock, tracer: Tracer | None
) -> TrafficPlan:
    directory = traffic.directory

    def open_gear() -> Gear:
        if directory is None:
            return Gear()
        sink: PolicySink = FilePolicySink(directory, clock)
        return Gear(
            sinks=(sink if tracer is None else traced_sink(sink, database.name, tracer),),
            meter=RegionMeter(directory),
            traces=TraceReader(directory),
            ledger=RegionLedger(directory),
        )

    base = EMPTY if traffic.policy is None else _base_of(traffic.policy)
    return TrafficPlan(
        database=database.name,
        base=base,
        source=str(traffic.policy or ""),
        directory=str(directory or ""),
        open_gear=open_gear,
        cpus_milli=1000 * (os.cpu_count() or 1),
        own_role=_own_role(database),
        identity=traffic.identity if database.engine is Engine.POSTGRES else None,
    )


def _base_of(path: Path) -> Document:
    policy = load_policy(path)
    rejected = [Fault(a.place, a.message) for a in advise(policy) if a.severity is Severity.ERROR]
    if rejected:
        raise InvalidSettings(rejected, str(path))
    return written(policy)


def traffic_faults(database: DatabaseSettings, clock: Clock) -> Iterator[Fault]:
    """Of a policy file: where in that file."""
    traffic = database.traffic
    if traffic is None:
        return
    place = f"databases.{database.name}.traffic.policy"
    for fault in faults_of(lambda: _traffic_plan(database, traffic, clock, None)):
        yield Fault(place, f"{traffic.policy}: {fault}")
