"""The metrics of one agent, put together.   [databases.*] ──► probes ──► MetricKeeper"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from headgate.base.assemble import AgentContext, faults_of
from headgate.budgets.statements import StatementsProbe
from headgate.changes.assemble import OwnLog
from headgate.changes.reach import Place
from headgate.check.assemble import CheckParts
from headgate.errors import Fault, ProbeFailed
from headgate.history.rogues import SessionsProbe
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.samples import Cause
from headgate.metrics.service import DatabasePlan, MetricKeeper, metrics_known_to
from headgate.rules.settings import KnownMetrics
from headgate.settings.document import first_line
from headgate.settings.sections import DatabaseSettings


@dataclass(frozen=True, slots=True)
class MetricParts:
    keeper: MetricKeeper
    known: KnownMetrics

    def probes(self, database: str) -> DatabaseProbes | None:
        """None: the database has no server to connect to."""
        source = self.keeper.database(database).probes
        return source if isinstance(source, DatabaseProbes) else None

    def sessions(self, database: str) -> SessionsProbe | None:
        probes = self.probes(database)
        return None if probes is None else probes.sessions()

    def statements(self, database: str) -> StatementsProbe | None:
        probes = self.probes(database)
        return None if probes is None else probes.statements()

    async def ask_server(self, database: str) -> Mapping[str, str]:
        probes = self.probes(database)
        if probes is None:
            raise ProbeFailed(Cause.FAILED, "it has no server to connect to")
        return await probes.server_facts().read()


def assemble(
    context: AgentContext, own: OwnLog, check: CheckParts, rollups: Collection[str]
) -> MetricParts:
    keeper = MetricKeeper(
        check.board,
        check.sampler,
        context.clock,
        make=own.make,
        runtime_sources=context.agent.runtime_sources,
        rollups=rollups,
        time=context.time,
    )
    return MetricParts(keeper, metrics_known_to(keeper, check.board))


def probes_of(database: DatabaseSettings) -> DatabaseProbes:
    return DatabaseProbes(
        database.name,
        database.engine,
        database.dsn,
        password=_password(database),
        max_connections=database.connections,
    )


def plan_of(database: DatabaseSettings, place: Place) -> DatabasePlan:
    return DatabasePlan(
        name=database.name,
        engine=database.engine,
        raw_metrics=database.raw_metrics,
        open_probes=lambda: probes_of(database),
        default_metrics=database.default_metrics,
        connection=connection_of(database),
        place=place,
        beats_every_s=database.beats_every_s,
    )


def connection_of(database: DatabaseSettings) -> object:
    return (database.engine, database.dsn, _password(database), database.connections)


def _password(database: DatabaseSettings) -> str | None:
    path = database.password_file
    if path is None:
        return None
    return first_line(path, f"databases.{database.name}.password_file", "password")


def probe_faults(database: DatabaseSettings) -> Iterator[Fault]:
    place, faults = f"databases.{database.name}", dict[Fault, None]()
    # A password that cannot be read hides nothing else.
    for one in (database, replace(database, password_file=None)):
        found = faults_of(partial(probes_of, one))
        faults |= dict.fromkeys(found)
    yield from faults
    if found:
        return
    probes = probes_of(one)
    for spec in database.metrics.values():
        for fault in faults_of(partial(probes.probe_for, spec)):
            own = fault.place.removeprefix("metrics.").removeprefix(spec.name).lstrip(".")
            where = f"{place}.metrics.{spec.name}.{own}".rstrip(".")
            yield fault._replace(place=where)
    if database.beats_every_s:
        for fault in faults_of(partial(probes.heartbeat_writer, database.heartbeat_table)):
            yield fault._replace(place=f"{place}.heartbeat_table")
