"""An agent's file, read once, into frozen values.

headgate.toml  ──load_settings──►  Settings  ──►  assemble.py hands values to objects

The environment may override what is in [agent]: HEADGATE_LISTEN for `listen`, and so on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from headgate.base.advice import Advice, Severity
from headgate.base.declared import read_struct, table_of
from headgate.base.names import parse_database, parse_metric
from headgate.budgets.identity import TagTrust
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.metrics.advice import lint_metric
from headgate.metrics.model import Engine, MetricSpec
from headgate.metrics.settings import METRIC_SETTINGS, parse_metric_settings
from headgate.settings.document import (
    Document,
    from_environment,
    placed,
    settings_text,
    toml_tables,
    without,
)
from headgate.settings.fleet import FleetSettings, PatroniSettings
from headgate.settings.identity import IdentitySection, read_server_identity
from headgate.settings.readers import has_password, is_exposed, is_loopback, is_open
from headgate.settings.sections import (
    AgentSettings,
    AlertsSettings,
    DatabaseSettings,
    PageSettings,
    PeerSettings,
    PeersSettings,
    StarvationSettings,
    Token,
    TrafficSettings,
    member_name,
)
from headgate.settings.tracing import TracingSettings
from headgate.shard.model import MAX_MEMBERS

ENVIRONMENT_PREFIX = "HEADGATE_"
MAX_TOKENS = 10_000
DATABASE_SECTIONS = frozenset({"metrics", "peers", "traffic"})
STRUCTS: Mapping[str, type] = MappingProxyType(
    {
        "[agent]": AgentSettings,
        "[databases.NAME]": DatabaseSettings,
        "[databases.NAME.peers.MEMBER]": PeerSettings,
        "[databases.NAME.traffic]": TrafficSettings,
        "[databases.NAME.traffic.identity]": IdentitySection,
        "[[databases.NAME.traffic.identity.trust]]": TagTrust,
        "[peers]": PeersSettings,
        "[fleet]": FleetSettings,
        "[patroni]": PatroniSettings,
        "[page]": PageSettings,
        "[tracing]": TracingSettings,
        "[starvation]": StarvationSettings,
        "[alerts]": AlertsSettings,
        "[[tokens]]": Token,
    }
)
"""By heading, for the reference page."""
METRICS = "[databases.NAME.metrics.METRIC]"
SECTIONS = frozenset(heading.strip("[]").partition(".")[0] for heading in STRUCTS)


@dataclass(frozen=True, slots=True)
class Settings:
    agent: AgentSettings = field(default_factory=AgentSettings)
    databases: Mapping[str, DatabaseSettings] = field(default_factory=lambda: MappingProxyType({}))
    tokens: tuple[Token, ...] = ()
    peers: PeersSettings = field(default_factory=PeersSettings)
    advice: tuple[Advice, ...] = ()
    alerts: AlertsSettings = field(default_factory=AlertsSettings)
    starvation: StarvationSettings = field(default_factory=StarvationSettings)
    source: str = ""
    fleet: FleetSettings | None = None
    patroni: PatroniSettings = field(default_factory=PatroniSettings)
    page: PageSettings = field(default_factory=PageSettings)
    tracing: TracingSettings | None = None


def load_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of `path`, or InvalidSettings with every fault and its line."""
    return read_settings(settings_text(path), environment, source=str(path))


def read_settings(
    content: str, environment: Mapping[str, str] | None = None, *, source: str
) -> Settings:
    """What a file says, as an agent is run by it: with a database."""
    settings, faults = examine_settings(content, environment, source=source)
    if faults:
        raise placed(InvalidSettings(faults), content, source)
    return settings


def examine_settings(
    content: str, environment: Mapping[str, str] | None = None, *, source: str
) -> tuple[Settings, list[Fault]]:
    """As much of a file as can be read, and everything that is wrong with it: so that what only
    building the parts can tell is reported at the same time."""
    environment = os.environ if environment is None else environment  # noqa: TID251 -- the one place
    document = Document(toml_tables(content, source), SECTIONS)
    settings = replace(_read(document, environment), source=source)
    if not document.tables.get("databases") and not (settings.fleet and settings.fleet.view):
        what = "the file has no database" if content.strip() else "the file is empty"
        message = (
            f"{what}: add [databases.NAME] with engine and dsn. Only an agent that shows a fleet "
            "([fleet] with view = true) needs none"
        )
        document.fault("databases", message)
    return settings, list(dict.fromkeys(document.faults))


def _with_home(fault: Fault) -> Fault:
    """Of a key in the wrong section, and not misspelled: where it belongs."""
    key = fault.place.rpartition(".")[2]
    homes = [heading for heading, struct in STRUCTS.items() if key in table_of(struct)]
    homes += [METRICS] * (key in METRIC_SETTINGS or key == "metrics")
    if not homes or not fault.message.startswith(f"unknown setting {key!r}; known"):
        return fault
    return fault._replace(message=f"is not known here; it belongs in {' or '.join(homes)}")


def parse_settings(
    content: str, environment: Mapping[str, str] = MappingProxyType({}), *, source: str = ""
) -> Settings:
    document = Document(toml_tables(content, source), SECTIONS)
    settings = _read(document, environment)
    try:
        document.reject_faults()
    except InvalidSettings as error:
        raise placed(error, content, source) from None
    return replace(settings, source=source)


def _read(document: Document, environment: Mapping[str, str]) -> Settings:
    """As much as can be; the faults are the document's."""
    overrides = from_environment(AgentSettings, ENVIRONMENT_PREFIX, environment)
    agent = document.section("agent", AgentSettings, overrides) or AgentSettings()
    advice: list[Advice] = []
    databases = _databases(document, advice)
    fleet = document.section("fleet", FleetSettings) if "fleet" in document.tables else None
    tracing = document.section("tracing", TracingSettings)
    settings = Settings(
        agent=agent,
        databases=_with_member_names(databases, agent.name, fleet="fleet" in document.tables),
        tokens=tuple(token for _, token in document.each("tokens", Token, MAX_TOKENS)),
        peers=document.section("peers", PeersSettings) or PeersSettings(),
        alerts=document.section("alerts", AlertsSettings) or AlertsSettings(),
        starvation=document.section("starvation", StarvationSettings) or StarvationSettings(),
        fleet=fleet,
        patroni=document.section("patroni", PatroniSettings) or PatroniSettings(),
        page=document.section("page", PageSettings) or PageSettings(),
        tracing=tracing if tracing is not None and tracing.endpoint else None,
    )
    # Of a section that has faults, only these are reported: the values are not known.
    whole = [*_shard_faults(settings), *_traffic_faults(settings.databases)]
    whole += _fleet_faults(settings, has_fleet="fleet" in document.tables)
    broken = [name for name in ("agent", "peers", "patroni") if document.is_broken(name)]
    wrong = {fault.place for fault in document.faults}
    document.faults += [
        fault
        for fault in whole
        if fault.place not in wrong and not any(name in fault.place.split(".") for name in broken)
    ]
    advice += [*_plain_peers(settings), *_plain_webhook(settings.alerts), *_elected_nearby(agent)]
    document.faults += [Fault(a.place, a.message) for a in advice if a.severity is Severity.ERROR]
    document.faults = [_with_home(fault) for fault in document.faults]
    return replace(settings, advice=tuple(advice))


# --- databases -------------------------------------------------------------------------------


def _databases(document: Document, advice: list[Advice]) -> dict[str, DatabaseSettings]:
    raw = document.tables.get("databases", {})
    if not isinstance(raw, Mapping):
        document.fault("databases", "must hold one table per database: [databases.NAME]")
        return {}
    read = {name: _database(name, one, document, advice) for name, one in raw.items()}
    return {name: database for name, database in read.items() if database is not None}


def _database(
    name: str, raw: Any, document: Document, advice: list[Advice]
) -> DatabaseSettings | None:
    place = f"databases.{name}"
    how: Any = {"place": place, "sections": DATABASE_SECTIONS, "name": name}
    database, faults = read_struct(raw, DatabaseSettings, **how)
    document.faults += faults
    if database is None:
        database, _ = read_struct(without(raw, faults, place), DatabaseSettings, **how)
    try:
        parse_database(name)
    except InvalidName as error:
        document.fault(place, str(error))
        return None
    if database is None:
        _metrics_of_any(raw, place, document)
        return None
    raw_metrics = raw.get("metrics", {})
    if not isinstance(raw_metrics, Mapping):
        message = "must hold one table per metric: [databases.NAME.metrics.METRIC]"
        document.fault(f"{place}.metrics", message)
        return None
    metrics = _metrics(raw_metrics, database.engine, f"{place}.metrics", document, advice)
    for metric in database.default_metrics or ():
        if metric not in metrics and not _is_enabled(raw_metrics.get(metric)):
            document.fault(f"{place}.default_metrics", f"names {metric!r}, which is not here")
    traffic = None
    if "traffic" in raw:
        traffic = _traffic(raw["traffic"], f"{place}.traffic", document)
    known = {} if document.faults else {parse_metric(k): v for k, v in raw_metrics.items()}
    return replace(
        database,
        metrics=MappingProxyType(metrics),
        raw_metrics=MappingProxyType(known),
        peers=tuple(_peers(raw.get("peers", {}), name, f"{place}.peers", document)),
        traffic=traffic if traffic is not None and traffic.enabled else None,
    )


def _traffic(raw: Any, place: str, document: Document) -> TrafficSettings | None:
    traffic = document.read(raw, TrafficSettings, place, frozenset({"identity"}))
    identity = raw.get("identity", {}) if isinstance(raw, Mapping) else {}
    terms = read_server_identity(document, identity, f"{place}.identity")
    return None if traffic is None else replace(traffic, identity=terms)


def _is_enabled(raw: object) -> bool:
    """Of a metric that is in the file; one with faults is, too."""
    return isinstance(raw, Mapping) and bool(raw.get("enabled", True))


def _metrics_of_any(raw: Any, place: str, document: Document) -> None:
    """Of a database with other faults: what is wrong with its metrics, whatever its engine is."""
    given = raw.get("metrics") if isinstance(raw, Mapping) else None
    if not isinstance(given, Mapping):
        return
    engines = [one for one in Engine if one.value == raw.get("engine")] or [*Engine]
    for name, settings in given.items():
        found: list[list[Fault]] = []
        for engine in engines:
            try:
                parse_metric_settings(name, settings, engine, place=f"{place}.metrics.{name}")
            except InvalidSettings as error:
                found.append(error.faults)
        if len(found) == len(engines):
            document.faults += [one for one in found[0] if all(one in others for others in found)]


def _metrics(
    raw_metrics: Mapping[str, Any],
    engine: Engine,
    place: str,
    document: Document,
    advice: list[Advice],
) -> dict[str, MetricSpec]:
    specs: dict[str, MetricSpec] = {}
    for name, raw in raw_metrics.items():
        where = f"{place}.{name}"
        try:
            spec = parse_metric_settings(name, raw, engine, place=where)
        except InvalidSettings as error:
            document.faults += error.faults
            with suppress(InvalidSettings):
                sound = without(raw, error.faults, where)
                spec = parse_metric_settings(name, sound, engine, place=where)
                specs[spec.name] = spec
            continue
        advice.extend(lint_metric(spec, raw, engine, place=where))
        if raw.get("enabled", True):
            specs[spec.name] = spec
    return specs


def _peers(raw: object, database: str, place: str, document: Document) -> Iterator[PeerSettings]:
    if not isinstance(raw, Mapping) or not all(isinstance(row, Mapping) for row in raw.values()):
        document.fault(place, "must hold one table per member: [databases.NAME.peers.MEMBER]")
        return
    if len(raw) > MAX_MEMBERS:
        document.fault(place, f"has {len(raw)} members, at most {MAX_MEMBERS}")
        return
    for name, row in raw.items():
        try:
            member_name(name)
        except ValueError as error:
            document.fault(f"{place}.{name}", str(error))
        peer = document.read(row, PeerSettings, f"{place}.{name}", name=name, database=database)
        if peer is not None:
            yield peer


def _with_member_names(
    databases: Mapping[str, DatabaseSettings], agent_name: str, *, fleet: bool
) -> dict[str, DatabaseSettings]:
    """Agents are named after hosts, so one database of an agent is called by its agent. In a
    fleet, one of a shard: agents of several shards find each other there by name, and with the
    same settings on each host all of them would be called `main`."""
    shards = Counter(d.shard for d in databases.values() if d.shard is not None)

    def is_alone(database: DatabaseSettings) -> bool:
        return (shards[database.shard or ""] if fleet else shards.total()) <= 1

    return {
        name: replace(d, member=d.member or (agent_name if is_alone(d) else name))
        for name, d in databases.items()
    }


# --- what only several sections together tell --------------------------------------------------


def _shard_faults(settings: Settings) -> Iterator[Fault]:
    agent, peers, databases = settings.agent, settings.peers, settings.databases
    for name, database in databases.items():
        place = f"databases.{name}"
        if database.shard is None and (database.peers or database.discover):
            message = "has peers, so give it the name of the shard they make up"
            yield Fault(f"{place}.shard", message)
        names = [peer.name for peer in database.peers]
        names += [d.member for d in databases.values() if d.shard and d.shard == database.shard]
        for member in sorted({n for n in names if names.count(n) > 1}):
            message = f"the shard has two members called {member!r}; give one another name"
            yield Fault(f"{place}.member", message)
        if database.shard and agent.advertise is None and agent.is_anywhere:
            message = "is required because listen is a wildcard address; peers need a concrete URL"
            yield Fault("agent.advertise", message)
        known = peers.token_file is not None or peers.cert is not None
        if (database.peers or database.discover) and not known:
            message = (
                "agents of a shard authenticate to each other: give token_file, or cert and key"
            )
            yield Fault("peers.token_file", message)


def _traffic_faults(databases: Mapping[str, DatabaseSettings]) -> Iterator[Fault]:
    """Two that publish to one directory would put their policies in each other's place."""
    first: dict[str, str] = {}
    for name, database in databases.items():
        directory = database.traffic and database.traffic.directory
        if not directory:
            continue
        other = first.setdefault(os.path.normpath(directory), name)
        if other != name:
            message = (
                f"is that of databases.{other}.traffic, too: a server has one policy, for all of "
                f"its databases. Give it to {other} alone, and separate them by `match` in its "
                'rules, such as { database = "…" }'
            )
            yield Fault(f"databases.{name}.traffic.directory", message)


def _fleet_faults(settings: Settings, *, has_fleet: bool) -> Iterator[Fault]:
    agent, databases = settings.agent, settings.databases
    if agent.elect is not None and not has_fleet:
        yield Fault("agent.elect", "needs [fleet]: its store elects")
    nowhere = agent.listen is None or agent.is_anywhere
    if agent.elect is not None and agent.advertise is None and nowhere:
        message = "is required because listen is a wildcard address or empty; the others of the "
        yield Fault("agent.advertise", f"{message}pair need a concrete URL")
    for name, database in databases.items():
        place = f"databases.{name}.patroni"
        if database.patroni and not (settings.patroni.etcd.endpoints or has_fleet):
            yield Fault(place, "needs etcd: say where Patroni's is, in [patroni] or [fleet]")
        if database.patroni and not database.discover:
            message = "needs discover: Patroni knows where servers are, not where their agents are"
            yield Fault(place, message)


# --- advice ------------------------------------------------------------------------------------


def _plain_peers(settings: Settings) -> Iterator[Advice]:
    if settings.peers.token_file is None:
        return
    for name, database in settings.databases.items():
        for peer in database.peers:
            if is_exposed(peer.url):
                place = f"databases.{name}.peers.{peer.name}.url"
                message = "sends the shared token in plain text over a network; use https"
                yield Advice(Severity.WARNING, "plain-peer", place, message)


def _plain_webhook(alerts: AlertsSettings) -> Iterator[Advice]:
    if is_exposed(alerts.webhook_url or ""):
        message = "sends alerts, and what the address gives away, in plain text; use https"
        yield Advice(Severity.WARNING, "plain-webhook", "alerts.webhook_url", message)


def _elected_nearby(agent: AgentSettings) -> Iterator[Advice]:
    """Two hosts by the defaults would have one address: each takes the other for itself."""
    listens = agent.listen[0] if agent.listen is not None else ""
    host = urlsplit(agent.advertise).hostname or "" if agent.advertise else listens
    if agent.elect is not None and is_loopback(host):
        message = (
            f"is {host}: of a pair on two hosts each would take the other's address for its own, "
            "and answer itself; say where the others find this agent"
        )
        yield Advice(Severity.WARNING, "elect-loopback", "agent.advertise", message)


def advice_on(settings: Settings) -> Iterator[Advice]:
    """What the file alone does not tell, but its host does."""
    for name, database in settings.databases.items():
        place = f"databases.{name}"
        if not database.metrics:
            message = (
                "has no metric, so nothing shows that it is healthy and every check is rejected: "
                f"add [databases.{name}.metrics.lag], or another one"
            )
            yield Advice(Severity.WARNING, "no-metric", place, message)
        if has_password(database.dsn):
            message = "has a password in it, for everybody who reads this file: use password_file"
            yield Advice(Severity.WARNING, "password-in-dsn", f"{place}.dsn", message)
    for place, path in _secrets(settings):
        if path is not None and is_open(path):
            message = f"{path} can be read by everybody on this host: chmod 0600 {path}"
            yield Advice(Severity.WARNING, "open-secret", place, message)


def _secrets(settings: Settings) -> Iterator[tuple[str, Path | None]]:
    for name, database in settings.databases.items():
        yield f"databases.{name}.password_file", database.password_file
    yield "agent.tls_key", settings.agent.tls_key
    yield "peers.token_file", settings.peers.token_file
    yield "peers.key", settings.peers.key
    yield "alerts.webhook_token_file", settings.alerts.webhook_token_file
    yield "patroni.password_file", settings.patroni.etcd.password_file
    if settings.fleet is not None:
        yield "fleet.password_file", settings.fleet.etcd.password_file
    if settings.tracing is not None:
        yield "tracing.headers_file", settings.tracing.headers_file
