"""Settings in, parts out: what main.py puts together, each built from its own settings.

Reads files that settings name (passwords, tokens, certificates); connects to nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from headgate.base.clock import SystemClock
from headgate.base.ports import Clock, PolicySink, Store, Tracer
from headgate.budgets.layers import EMPTY, Document
from headgate.budgets.lint import advise
from headgate.budgets.parse import written
from headgate.budgets.pgext.debits import RegionLedger
from headgate.budgets.pgext.meter import RegionMeter, TraceReader
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.service import Gear, TrafficPlan
from headgate.changes.reach import Place
from headgate.check.model import Idleness
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.history.alerts import Webhook
from headgate.history.courses import StarvationTerms
from headgate.http.auth import Credential
from headgate.metrics.lint import Severity
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.service import DatabasePlan, MetricKeeper
from headgate.settings.agent import Settings
from headgate.settings.document import first_line, load_policy
from headgate.settings.readers import is_loopback
from headgate.settings.sections import AgentSettings, DatabaseSettings, TrafficSettings
from headgate.shard.model import LOCAL, ServedDatabase
from headgate.shard.peers import PeerAccess, load_access
from headgate.shard.peers_api import parse_peer_url
from headgate.shard.rollup import AGGREGATES, Aggregate
from headgate.shard.service import PeerPlan, ShardPlan, Stand
from headgate.shard.settings import plugin_faults
from headgate.store.sqlite import SqliteStore, TemporaryStore
from headgate.tracing.traced import traced_sink

ROLLUP_GROUP = "headgate.rollups"
_HEADER_VALUE = re.compile(r"[!-~]{1,4096}")


def part_faults(settings: Settings) -> Iterator[Fault]:
    """What only building the parts can tell: a driver or plug-in that is missing, a password
    that cannot be read, an odd address. Connects to nothing."""
    yield from faults_of(lambda: peer_access(settings))
    yield from faults_of(lambda: webhook_of(settings))
    yield from _url_faults(settings)
    aggregates, clock = rollup_plugins(), SystemClock()
    for database in settings.databases.values():
        yield from _traffic_faults(database, clock)
        yield from _probe_faults(database)
        for spec in database.metrics.values():
            place = f"databases.{database.name}.metrics.{spec.name}"
            yield from plugin_faults(spec.rollup, aggregates, place)


def start_faults(agent: AgentSettings) -> Iterator[Fault]:
    """What only a start would run into, and not a reload."""
    try:
        tls_of(agent)
    except OSError as error:
        yield Fault("agent.tls_cert", str(error))
    if agent.socket is None:
        return
    folder = agent.socket.parent
    # What is missing in /run, a service manager makes at the start.
    if not folder.is_dir() and Path("/run") not in folder.parents:
        yield Fault("agent.socket", f"cannot be made: {folder} does not exist. mkdir -p {folder}")
    elif agent.socket.exists() and not agent.socket.is_socket():
        yield Fault("agent.socket", f"{agent.socket} exists already, and is not a socket")


def faults_of(build: Callable[[], object]) -> list[Fault]:
    try:
        build()
    except InvalidSettings as error:
        return error.faults
    return []


def _traffic_faults(database: DatabaseSettings, clock: Clock) -> Iterator[Fault]:
    """Of a policy file: where in that file."""
    traffic = database.traffic
    if traffic is None:
        return
    place = f"databases.{database.name}.traffic.policy"
    for fault in faults_of(lambda: _traffic_plan(database, traffic, clock, None)):
        yield Fault(place, f"{traffic.policy}: {fault}")


def _probe_faults(database: DatabaseSettings) -> Iterator[Fault]:
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
    if database.heartbeat_interval_s:
        for fault in faults_of(partial(probes.heartbeat_writer, database.heartbeat_table)):
            yield fault._replace(place=f"{place}.heartbeat_table")


def _url_faults(settings: Settings) -> Iterator[Fault]:
    """By the links' own parser, so that a URL which they reject is found before the start."""
    urls = {
        f"databases.{database.name}.peers.{peer.name}.url": peer.url
        for database in settings.databases.values()
        for peer in database.peers
    }
    agent = settings.agent
    urls |= {"agent.standby_for": agent.standby_for or "", "agent.advertise": agent.advertise or ""}
    for place, url in urls.items():
        try:
            parse_peer_url(url or "http://localhost")
        except InvalidName as error:
            yield Fault(place, str(error))


def store_of(agent: AgentSettings) -> Store:
    return TemporaryStore() if agent.state is None else SqliteStore(agent.state)


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
        connection=_connection(database),
        place=place,
    )


def answers_of(
    settings: Settings, stands: Iterable[Stand], machine: str
) -> dict[str, ServedDatabase]:
    """What this agent answers for. Of a shard, its server reports which member it is, or will."""
    servers = {stand.database: stand.server for stand in stands}
    return {
        name: ServedDatabase(
            member=f"{database.shard}/{database.member}" if database.shard else "",
            server=servers.get(name, ""),
            target=_target(database, machine),
        )
        for name, database in settings.databases.items()
    }


def _target(database: DatabaseSettings, machine: str) -> str:
    """host:port/database, without the user; empty where it is not known."""
    try:
        postgres = database.engine is Engine.POSTGRES
        host, port, name = (_postgres_target if postgres else _mysql_target)(database.dsn)
    except ValueError:
        return ""
    near = not host or host.startswith(("/", "@")) or is_loopback(host)
    return f"{f'{LOCAL}{machine}' if near else host}:{port}/{name}"


def _postgres_target(dsn: str) -> tuple[str, str, str]:
    try:
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise ValueError(str(error)) from None  # It is said where the probes are built.
    try:
        said = conninfo_to_dict(dsn)
    except Error as error:
        raise ValueError(type(error).__name__) from None
    host = str(said.get("host") or said.get("hostaddr") or "")
    return host, str(said.get("port") or 5432), str(said.get("dbname") or said.get("user") or "")


def _mysql_target(dsn: str) -> tuple[str, str, str]:
    parts = urlsplit(dsn)
    host = "" if "socket=" in parts.query else parts.hostname or ""
    return host, str(parts.port or 3306), parts.path.lstrip("/")


def idleness_of(database: DatabaseSettings) -> Idleness:
    return Idleness(database.idle_after_s, database.hibernate_after_s)


def policy_of(settings: Settings) -> StarvationTerms:
    told = settings.starvation
    return StarvationTerms(
        window_s=told.window_s,
        waterline=told.waterline,
        exemption_budget_s=told.exemption_budget_s,
    )


def webhook_of(settings: Settings) -> Webhook | None:
    alerts = settings.alerts
    if alerts.webhook_url is None:
        return None
    path, token = alerts.webhook_token_file, None
    if path is not None:
        token = first_line(path, "alerts.webhook_token_file", "token")
        if not _HEADER_VALUE.fullmatch(token):
            message = f"the first line of {path} is no token: visible ASCII without blanks"
            raise InvalidSettings([Fault("alerts.webhook_token_file", message)])
    return Webhook(alerts.webhook_url, token)


# --- traffic control -------------------------------------------------------------------------


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
    )


def _base_of(path: Path) -> Document:
    policy = load_policy(path)
    refused = [Fault(a.place, a.message) for a in advise(policy) if a.severity is Severity.ERROR]
    if refused:
        raise InvalidSettings(refused, str(path))
    return written(policy)


# --- the shard -------------------------------------------------------------------------------


def shard_plans(settings: Settings, book: MetricKeeper) -> list[ShardPlan]:
    return [
        shard_plan_of(database, database.shard, book)
        for database in settings.databases.values()
        if database.shard is not None
    ]


def shard_plan_of(database: DatabaseSettings, shard: str, book: MetricKeeper) -> ShardPlan:
    def correct_clock(ahead_s: float, error_s: float) -> None:
        source = book.source(database.name)
        if isinstance(source, DatabaseProbes):
            source.skew.ahead_s, source.skew.error_s = ahead_s, error_s

    return ShardPlan(
        database=database.name,
        shard=shard,
        member=database.member,
        labels=database.labels,
        peers=tuple(PeerPlan(p.name, p.url, p.database) for p in database.peers),
        discover=database.discover,
        collect_interval_s=database.collect_interval_s,
        open_role_probe=lambda: probes_of(database).role_probe(),
        open_fence_probe=lambda: probes_of(database).fence_probe(),
        correct_clock=correct_clock,
        connection=_connection(database),
        patroni=database.patroni or "",
    )


def peer_access(settings: Settings) -> PeerAccess:
    peers = settings.peers
    return load_access(token_file=peers.token_file, ca=peers.ca, cert=peers.cert, key=peers.key)


def advertised(agent: AgentSettings) -> str:
    """Where this agent is, as far as it can tell others."""
    if agent.advertise is not None:
        return agent.advertise
    if agent.listen is None:
        return ""
    host, port = agent.listen
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if agent.tls_cert else 'http'}://{shown}:{port}"


def own_names(agent: AgentSettings) -> frozenset[str]:
    """What the agent may be called in an address, besides numbers and localhost."""
    listens = agent.listen[0] if agent.listen else ""
    advertises = urlsplit(agent.advertise).hostname if agent.advertise else None
    found = {socket.gethostname(), agent.name, listens, advertises or "", *agent.hosts}
    return frozenset(name.lower() for name in found if name)


def rollup_plugins() -> Mapping[str, Aggregate]:
    """The built-in ones, and those that packages bring; a built-in cannot be replaced."""
    found = {point.name: point.load() for point in entry_points(group=ROLLUP_GROUP)}
    return {**found, **AGGREGATES}


# --- who may come in -------------------------------------------------------------------------


def credentials_of(settings: Settings, access: PeerAccess) -> Iterator[Credential]:
    for token in settings.tokens:
        yield Credential(token.name, token.role.value, token.sha256)
    if access.token is not None:
        digest = hashlib.sha256(access.token.encode()).hexdigest()
        yield Credential("peers", "peer", digest)


def tls_of(agent: AgentSettings) -> ssl.SSLContext | None:
    if agent.tls_cert is None or agent.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(agent.tls_cert, agent.tls_key)
    except OSError as error:
        files = f"tls_cert {agent.tls_cert} and tls_key {agent.tls_key}"
        raise OSError(f"{files} cannot be used: {error}") from None
    if agent.tls_client_ca is not None:
        _believe_clients(context, agent.tls_client_ca)
    return context


def _believe_clients(context: ssl.SSLContext, path: Path) -> None:
    """Clients need not show a certificate; one that is shown must be good."""
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise OSError(f"tls_client_ca {path} cannot be used: {error}") from None
    context.verify_mode = ssl.CERT_OPTIONAL


def _connection(database: DatabaseSettings) -> object:
    return (database.engine, database.dsn, _password(database), database.connections)


def _password(database: DatabaseSettings) -> str | None:
    path = database.password_file
    if path is None:
        return None
    return first_line(path, f"databases.{database.name}.password_file", "password")


def places_of(settings: Settings) -> list[Place]:
    """The place of each database of this agent in the fleet."""
    fleet, host = settings.fleet, settings.agent.name
    region, cluster = ("", "") if fleet is None else (fleet.region, fleet.cluster)
    return [
        Place(region, cluster, database.shard or "", host, database.name)
        for database in settings.databases.values()
    ]
