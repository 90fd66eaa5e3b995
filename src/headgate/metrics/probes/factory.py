"""Metric specs in, probes out.   main ──► DatabaseProbes ──probe_for(spec)──► Sampler

One per database. What cannot be built is said when it is asked for, before anything is
connected; what cannot be read is said by the probe, each time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from headgate.errors import Fault, InvalidSettings
from headgate.metrics.model import Builtin, Command, DsnParts, Engine, Http, MetricSpec, Plugin, Sql
from headgate.metrics.probes.command import CommandProbe, found_program
from headgate.metrics.probes.connections import Lane, SessionProbe
from headgate.metrics.probes.heartbeats import ClockSkew, Writer
from headgate.metrics.probes.host import (
    HERE,
    HOST_METRICS,
    CounterProbe,
    DiskProbe,
    HostFiles,
    HostProbe,
    RunQueueProbe,
    disk_time,
    refaults,
)
from headgate.metrics.probes.plugin import load_plugin
from headgate.metrics.probes.server import (
    Kit,
    ServerFacts,
    SqlFenceProbe,
    SqlRoleProbe,
    SqlSessionsProbe,
    SqlStatementsProbe,
    split_table,
)
from headgate.metrics.samples import Number

HEARTBEAT_TIMEOUT_S = 1.0
ROLE_TIMEOUT_S = 0.5
SESSIONS_TIMEOUT_S = 2.0

# Imported when used: nobody needs the driver of an engine that is not there.
KITS = {
    Engine.POSTGRES: ("headgate.metrics.probes.postgres", "headgate[postgres]"),
    Engine.MYSQL: ("headgate.metrics.probes.mysql", "headgate[mysql]"),
}


class MetricProbe(Protocol):
    async def read(self) -> Number: ...

    async def close(self) -> None: ...


class DatabaseProbes:
    """The probes of one database share at most `max_connections` connections.

    A heartbeat writer has one more to itself, and so have a role probe and a fence probe.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        dsn: str,
        password: str | None = None,
        *,
        max_connections: int = 3,
        host_files: HostFiles = HERE,
    ) -> None:
        self._engine = engine
        self.skew = ClockSkew()
        """Set by the code that compares this database's clock with its primary's."""
        self._kit = _kit(name, engine, dsn, password, self.skew)
        self._lane = Lane(self._kit.connector, max_connections)
        self._host_files = host_files

    def probe_for(self, spec: MetricSpec) -> MetricProbe:
        """The probe of `spec`, not connected yet; raises InvalidSettings if there is none."""
        match spec.source:
            case Builtin(name=name):
                return self._builtin(name, spec)
            case Sql(query=query):
                return SessionProbe(self._lane, self._kit.custom(query), spec.timeout_s)
            case Http() as source:
                return _http(spec, source)
            case Command(argv=argv):
                return CommandProbe(found_program(argv))
            case Plugin(name=name):
                return load_plugin(spec.name, name, spec.options)

    def heartbeat_writer(
        self,
        table: str,
        *,
        interval_s: float = 1.0,
        required: bool = True,
        timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> Writer[Any]:
        """`interval_s` is how often it is going to be called; it is written into the row. One that
        nobody asked for (`required`) makes do with less where the role may not write the row."""
        parts = split_table(table, place="heartbeat_table")
        beat = self._kit.beat(parts, interval_s, required)
        return Writer(self._lane_of_one(), beat, timeout_s, self._kit.enders)

    def role_probe(self, *, timeout_s: float = ROLE_TIMEOUT_S) -> SqlRoleProbe[Any]:
        return SqlRoleProbe(self._lane_of_one(), self._kit.role(), timeout_s)

    def fence_probe(self, *, timeout_s: float = ROLE_TIMEOUT_S) -> SqlFenceProbe[Any] | None:
        """None where the engine needs none."""
        reader = self._kit.fence
        return None if reader is None else SqlFenceProbe(self._lane_of_one(), reader, timeout_s)

    def _lane_of_one(self) -> Lane[Any]:
        return Lane(self._kit.connector, 1)

    def sessions(self, *, timeout_s: float = SESSIONS_TIMEOUT_S) -> SqlSessionsProbe[Any]:
        """On the connections that the metrics' probes share: it comes seldom."""
        return SqlSessionsProbe(self._lane, self._kit.sessions, timeout_s)

    def statements(
        self, *, timeout_s: float = SESSIONS_TIMEOUT_S
    ) -> SqlStatementsProbe[Any] | None:
        """None where the engine numbers no statements."""
        reader = self._kit.statements
        return None if reader is None else SqlStatementsProbe(self._lane, reader, timeout_s)

    def server_facts(self, *, timeout_s: float = SESSIONS_TIMEOUT_S) -> ServerFacts:
        return ServerFacts(self._lane, self._engine, timeout_s)

    async def close(self) -> None:
        await self._lane.close()
        await self._kit.enders.close()

    def _builtin(self, name: str, spec: MetricSpec) -> MetricProbe:
        if name in HOST_METRICS:
            return HostProbe(HOST_METRICS[name], self._host_files)
        if name == "run_queue":
            return RunQueueProbe(self._host_files)
        if name == "disk_busy":
            device = str(spec.options.get("device", ""))
            return CounterProbe(disk_time(device), self._host_files)
        if name == "page_refaults":
            return CounterProbe(refaults, self._host_files)
        if name == "disk_used":
            return self._disk(spec)
        if name in self._kit.metrics:
            reader = self._kit.metrics[name](spec.options)
            return SessionProbe(self._lane, reader, spec.timeout_s)
        message = f"{name} cannot be measured on {self._engine.value}"
        raise InvalidSettings([Fault(f"metrics.{spec.name}", message)])

    def _disk(self, spec: MetricSpec) -> DiskProbe:
        path = spec.options.get("path")

        async def directory() -> str:
            if path:
                return str(path)
            async with self._lane.session(spec.timeout_s) as session:
                return await self._kit.data_directory(session)

        return DiskProbe(self._lane.label, directory)


def parts_of(name: str, engine: Engine, dsn: str) -> DsnParts:
    """A connection string of `databases.NAME`, taken apart; connects to nothing."""
    parts: DsnParts = _module(name, engine, "_session").parts_of(name, dsn)
    return parts


def _kit(name: str, engine: Engine, dsn: str, password: str | None, skew: ClockSkew) -> Kit[Any]:
    kit: Kit[Any] = _module(name, engine).kit(name, dsn, password, skew)
    return kit


def _module(name: str, engine: Engine, part: str = "") -> Any:
    module_name, extra = KITS[engine]
    try:
        return import_module(module_name + part)
    except ImportError as error:
        message = (
            f"{engine.value} needs {error.name}, which is not installed: pip install '{extra}'"
        )
        raise InvalidSettings([Fault(f"databases.{name}.engine", message)]) from None


def _http(spec: MetricSpec, source: Http) -> MetricProbe:
    from headgate.metrics.probes.http import HttpProbe  # with its own third-party parser

    return HttpProbe(spec.name, source, spec.timeout_s)
