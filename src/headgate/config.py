"""Settings: one TOML file and a few environment names, read once, into frozen values.

headgate.toml  ──load_settings──►  Settings  ──►  main.py hands values (never this) to objects

Every fault is reported with its line; nothing is half-applied. The environment may
override what is in [agent]: HEADGATE_LISTEN for `listen`, and so on.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from headgate.core.lint import Advice, Severity, lint_metric
from headgate.core.metric_settings import METRIC_SETTINGS, parse_metric_settings
from headgate.core.metrics import Engine, MetricSpec
from headgate.core.names import parse_database, parse_metric
from headgate.core.places import with_lines
from headgate.core.rollup_settings import labels
from headgate.core.settings import (
    Setting,
    flag,
    names,
    number,
    one_of,
    read_table,
    table,
    text,
    unknown,
    whole,
)
from headgate.core.shard import MAX_MEMBERS
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.fleetsettings import FleetSettings, PatroniSettings, read_fleet, read_patroni
from headgate.pagesettings import PageSettings, read_page
from headgate.paths import expanded
from headgate.tracingsettings import TracingSettings, read_tracing
from headgate.traffic.parse import parse_policy
from headgate.traffic.policy import Policy

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_POLICY_FILE_BYTES = 16 * 1024 * 1024
ENVIRONMENT_PREFIX = "HEADGATE_"
SECTIONS = frozenset(
    {"agent", "alerts", "databases", "fleet", "page", "patroni", "peers", "starvation", "tokens"}
    | {"tracing"}
)
DATABASE_SECTIONS = frozenset({"metrics", "peers", "traffic"})


class Anonymous(Enum):
    """What happens to a check that carries no client name (R63)."""

    DENY = "deny"
    ALLOW = "allow"


class StateLoss(Enum):
    """What happens where what operators had set is lost, until somebody acknowledges it."""

    REJECT = "reject"
    FILE = "file"


class LogFormat(Enum):
    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class Role(Enum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    PEER = "peer"
    """Another agent of the shard."""


def _address(value: object) -> tuple[str, int]:
    raw = text(255)(value)
    host, colon, port = raw.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"is {raw!r}, must be host:port, such as 127.0.0.1:8087")
    return host.strip("[]"), int(port)


def _path(value: object) -> Path:
    raw = text(4096)(value)
    if not raw:
        raise ValueError("is empty, must be a path")
    return expanded(raw)


def parse_database_text(value: object) -> str:
    return parse_database(text(63)(value))


def _agent_url(value: object) -> str:
    url = text(512)(value).rstrip("/")
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port beyond 65535, a bracket that is not closed.
        usable = False
    if not usable or not _AGENT_URL.fullmatch(url):
        raise ValueError("must read like https://db1:8087, without path, user or password")
    return url


def _webhook(value: object) -> str:
    """What it reads like is not repeated: paths and queries of webhooks are secrets."""
    url = text(2048)(value)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port beyond 65535, a bracket that is not closed.
        usable = False
    if not usable or re.search(r"[^!-~]", url) or parts.username or parts.fragment:
        raise ValueError("must read like https://host/path, without user, password or #")
    return url


def _template(value: object) -> str:
    raw = text(512)(value)
    if not ("{host}" in raw or "{name}" in raw):
        raise ValueError("must hold {host} or {name}, such as https://{host}:8087")
    _agent_url(raw.replace("{host}", "db1").replace("{name}", "db1"))
    return raw.rstrip("/")


def _agent_urls(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_ELECT_AMONG:
        raise ValueError(f"must be a list of 1 to {MAX_ELECT_AMONG} addresses of agents")
    return tuple(
        _template(one) if isinstance(one, str) and "{" in one else _agent_url(one) for one in value
    )


def _member(value: object) -> str:
    try:
        return parse_database(text(63)(value))
    except InvalidName as error:
        raise ValueError(str(error).replace("database name", "member name")) from None


def _sha256(value: object) -> str:
    raw = text(64)(value).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", raw):
        raise ValueError("must be 64 hexadecimal digits: the SHA-256 of the token, not the token")
    return raw


def _hosts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_HOSTS:
        raise ValueError(f"must be a list of at most {MAX_HOSTS} names")
    found = tuple(text(253)(one).lower() for one in value)
    if wrong := [name for name in found if not _NAME.fullmatch(name)]:
        raise ValueError(f"has {wrong[0]!r}, must hold names such as headgate.example.com")
    return found


MAX_ELECT_AMONG = 16
MAX_HOSTS = 50
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
_AGENT_URL = re.compile(r"https?://[^\s/@?#]+")
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,126}")


def _shard(value: object) -> str:
    name = text(127)(value)
    if not _SHARD.fullmatch(name):
        raise ValueError(f"is {name!r}, must be 1–127 of A–Z, a–z, 0–9, _ . : / and -")
    return name


AGENT_SETTINGS = table(
    (
        Setting("name", "Name of this agent in answers and logs.", text(63), default="headgate"),
        Setting(
            "listen",
            "Address that answers over TCP; an empty string listens on the socket only.",
            lambda value: None if value == "" else _address(value),
            default=("127.0.0.1", 8087),
            shown_default="127.0.0.1:8087",
        ),
        Setting(
            "socket",
            "Unix socket that answers, too. Changes need no token here: file permissions decide.",
            _path,
        ),
        Setting("socket_mode", "Permissions of the Unix socket.", text(4), default="0660"),
        Setting(
            "state",
            "SQLite file that keeps runtime settings, audit and history, with a copy of what is in "
            "force beside it; without one they end with the agent.",
            _path,
        ),
        Setting(
            "state_lost",
            "Where neither the state file nor its copy can be read, until an operator acknowledges "
            "it: `reject` rejects every check, `file` judges by the settings file alone.",
            one_of(StateLoss),
            default=StateLoss.REJECT,
        ),
        Setting(
            "anonymous",
            "`deny` refuses checks without a client name, `allow` files them under `anonymous`.",
            one_of(Anonymous),
            default=Anonymous.DENY,
        ),
        Setting(
            "log",
            "`console` for people, `json` for programs, `auto` by whether a terminal is there.",
            one_of(LogFormat),
            default=LogFormat.AUTO,
        ),
        Setting(
            "history_days",
            "Days that decisions in aggregate, and audit entries, are kept.",
            whole(1, 3650),
            default=14,
        ),
        Setting(
            "rule_default_s",
            "Seconds that a rule lasts where it does not say.",
            number(1, 30 * 86400),
            default=3600.0,
        ),
        Setting(
            "rule_max_s",
            "Seconds that a rule may last at most.",
            number(60, 3650 * 86400),
            default=30 * 86400.0,
        ),
        Setting(
            "rule_max_ratio",
            "Highest ratio of a rule; above it only a `hold`, said outright, refuses.",
            number(0, 1),
            default=1.0,
        ),
        Setting(
            "fairness_max_wait_s",
            "Seconds that dice alone may keep a client from the metrics; then one check of it is "
            "judged without dice, never without metrics. 0: dice have no memory.",
            number(0, 86400),
            default=0.0,
        ),
        Setting(
            "max_clients",
            "Distinct client names counted one by one; further ones by their level: `other:etl`.",
            whole(10, 100_000),
            default=1000,
        ),
        Setting(
            "max_connections",
            "Connections served at once; further ones are closed.",
            whole(1, 65536),
            default=1024,
        ),
        Setting(
            "max_body_bytes",
            "Largest request body.",
            whole(1024, 16 * 1024 * 1024),
            default=65536,
        ),
        Setting(
            "request_timeout_s",
            "Seconds that a request may take to arrive whole.",
            number(0.1, 300),
            default=10.0,
        ),
        Setting(
            "idle_timeout_s",
            "Seconds after which a connection that asks nothing is closed.",
            number(1, 3600),
            default=75.0,
        ),
        Setting("tls_cert", "Certificate chain (PEM) for `listen`.", _path),
        Setting("tls_key", "Private key (PEM) for `listen`.", _path),
        Setting(
            "tls_client_ca",
            "Authority (PEM) whose client certificates are believed: agents that show one are "
            "peers.",
            _path,
        ),
        Setting(
            "advertise",
            "Address of this agent as other agents and clients reach it, told to them.",
            _agent_url,
            shown_default="`listen`, with the scheme that it speaks",
        ),
        Setting(
            "hosts",
            "Names that the agent may be reached by over plain HTTP, besides addresses, "
            "`localhost`, this host's own name, `name`, and those of `listen` and `advertise`. "
            "Requests under another name are rejected (421) unless they carry a token: a web site "
            "could have its own name mean this address, and read along in somebody's browser.",
            _hosts,
            default=(),
        ),
        Setting(
            "forward",
            "true forwards questions about a shard to its primary's agent, instead of saying "
            "where to ask.",
            flag,
            default=False,
        ),
        Setting(
            "standby_for",
            "Address of the agent that this one stands by for: it answers only while that one "
            "does not.",
            _agent_url,
        ),
        Setting(
            "elect",
            "Name of a pair (or more) of agents of the same host, alike in each: the fleet's store "
            "elects the one that answers. Instead of standby_for; needs [fleet].",
            parse_database_text,
        ),
        Setting(
            "elect_ttl_s",
            "With elect: seconds after which a leader that is gone is replaced.",
            number(5, 300),
            default=10.0,
        ),
        Setting(
            "elect_among",
            "With elect: addresses of the others of the pair, perhaps with {host} in them. Checks "
            "are sent to no other, whatever the store says.",
            _agent_urls,
            default=(),
            shown_default="those on the host of advertise, and those that fit a discover",
        ),
        Setting(
            "takeover_after_s",
            "With standby_for or elect: seconds without an answer of the other after which this "
            "agent answers by itself.",
            number(0.5, 300),
            default=2.0,
        ),
        Setting(
            "warm_standby",
            "With standby_for: true goes on measuring while passive, so that taking over needs "
            "no warming up.",
            flag,
            default=True,
        ),
        Setting(
            "allow_plaintext",
            "true lets `listen` leave loopback without TLS.",
            flag,
            default=False,
        ),
        Setting(
            "allow_runtime_commands",
            "true lets operators add `command` metrics at run time: they run as the agent's user.",
            flag,
            default=False,
        ),
        Setting(
            "allow_runtime_urls",
            "true lets operators add `url` metrics at run time: the agent then sends requests to "
            "any address that it can reach.",
            flag,
            default=False,
        ),
        Setting(
            "allow_runtime_sql",
            "true lets operators add `sql` metrics at run time: they can then learn whatever the "
            "agent's database user may read.",
            flag,
            default=False,
        ),
    )
)

DATABASE_SETTINGS = table(
    (
        Setting("engine", "`postgres` or `mysql` (MySQL and MariaDB).", one_of(Engine)),
        Setting(
            "dsn",
            "Where the database is: a libpq connection string, or mysql://user@host:port/schema. "
            "`?socket=` and `?ssl_ca=` are understood for MySQL.",
            text(2048),
        ),
        Setting(
            "password_file",
            "File whose first line is the password, so that it stands in no settings file.",
            _path,
        ),
        Setting(
            "default_metrics",
            "Metrics that a check is judged by when it names none.",
            names(64),
            shown_default="all of them",
        ),
        Setting(
            "shard",
            "The shard (one primary and its replicas) that this database belongs to.",
            _shard,
        ),
        Setting(
            "member",
            "Name of this database in its shard, unlike any other member's.",
            _member,
            shown_default="the agent's name; NAME of the database where an agent has several "
            "(with [fleet]: several of that shard)",
        ),
        Setting(
            "patroni",
            "Patroni's `scope` of its cluster: members and leader are read from Patroni's keys in "
            "etcd, where [patroni] or [fleet] says.",
            text(127),
        ),
        Setting(
            "labels",
            "Labels of this member, such as region, that roll-ups can choose by.",
            labels,
            default=MappingProxyType({}),
        ),
        Setting(
            "discover",
            "How the agents of replicas and upstreams found in the database are reached: an "
            "address with {host} or {name} in it.",
            _template,
        ),
        Setting(
            "collect_interval_s",
            "Seconds between two readings of the other members, and of the server's role.",
            number(0.05, 5),
            default=0.25,
        ),
        Setting(
            "slow_after_s",
            "Seconds without a question after which less is measured; 0 for never.",
            number(0, 86400),
            default=60.0,
        ),
        Setting(
            "hibernate_after_s",
            "Seconds without a question after which nothing is measured, until the next; 0 for "
            "never.",
            number(0, 30 * 86400),
            default=600.0,
        ),
        Setting(
            "heartbeat_interval_s",
            "Writes a heartbeat row this often while the server is a primary; 0 writes none.",
            number(0, 60),
            default=0.0,
        ),
        Setting(
            "heartbeat_lease_s",
            "Seconds that heartbeats go on after the last question; 0 for always.",
            number(0, 86400),
            default=30.0,
        ),
        Setting(
            "heartbeat_table",
            "Table of the heartbeat, with its schema.",
            text(128),
            default="headgate.heartbeat",
        ),
        Setting(
            "connections",
            "Most connections that the probes of this database may hold.",
            whole(1, 16),
            default=3,
        ),
    )
)

PEER_SETTINGS = table(
    (
        Setting(
            "url", "Address of the agent beside that member, such as https://db2:8087.", _agent_url
        ),
        Setting(
            "database",
            "What that agent calls its database.",
            parse_database_text,
            shown_default="the same as here",
        ),
    )
)

TRAFFIC_SETTINGS = table(
    (
        Setting(
            "policy",
            "File with the budgets (TOML, or JSON if its name ends so), on top of which runtime "
            "changes lie. Without one they begin empty.",
            _path,
        ),
        Setting(
            "directory",
            "The server's directory that the extension reads policies from: `pg_headgate` under "
            "its data directory, unless `pg_headgate.directory` says otherwise. Or that of a proxy "
            "on this host, for MySQL and MariaDB as well. Without one the policy is kept, and no "
            "server is told.",
            _path,
        ),
        Setting(
            "enabled",
            "false: as if there were no such table. The server keeps the policy that it has; "
            "`headgate pg disable` ends that.",
            flag,
            default=True,
        ),
    )
)

PEERS_SETTINGS = table(
    (
        Setting(
            "token_file",
            "File whose first line is the token that the agents of a shard share: shown to the "
            "others, and taken from them.",
            _path,
        ),
        Setting("ca", "Authority (PEM) that signed the others' certificates.", _path),
        Setting("cert", "Client certificate (PEM) shown to the others.", _path),
        Setting("key", "Private key (PEM) of `cert`.", _path),
    )
)

ALERTS_SETTINGS = table(
    (
        Setting(
            "webhook_url",
            "Address that alerts are posted to, as JSON. It is never shown: only its host is.",
            _webhook,
        ),
        Setting(
            "webhook_token_file",
            "File whose first line is sent along as a bearer token.",
            _path,
        ),
    )
)

STARVATION_SETTINGS = table(
    (
        Setting(
            "window_s",
            "Seconds that a client must be refused by metrics without a break to be starved.",
            number(1, 86400),
            default=600.0,
        ),
        Setting(
            "waterline",
            "Share of a client's runtime, starved, above which it is told: in status, in "
            "`headgate top`, to the webhook.",
            number(0, 1),
            default=0.05,
        ),
        Setting(
            "exemption_budget_s",
            "Seconds that somebody may be starved on account of an exemption, in all, before it "
            "is suspended; 0 as soon as anybody is.",
            number(0, 7 * 86400),
            default=1200.0,
        ),
    )
)

TOKEN_SETTINGS = table(
    (
        Setting("name", "Who holds the token; stands in the audit.", text(63)),
        Setting(
            "role",
            "`viewer`, `operator` (may change things) or `peer` (another agent of the shard).",
            one_of(Role),
        ),
        Setting("sha256", "SHA-256 of the token; see `headgate token`.", _sha256),
    )
)


@dataclass(frozen=True, slots=True)
class Token:
    name: str
    role: Role
    sha256: str


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Another member of a shard, and where its agent is."""

    name: str
    url: str
    database: str


@dataclass(frozen=True, slots=True)
class PeersSettings:
    """How agents know each other."""

    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class AlertsSettings:
    webhook_url: str | None = field(default=None, repr=False)
    webhook_token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class StarvationSettings:
    window_s: float = 600.0
    waterline: float = 0.05
    exemption_budget_s: float = 1200.0


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """Traffic control of a database: budgets, and the server that they are for."""

    policy: Path | None = None
    directory: Path | None = None
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    name: str
    engine: Engine
    dsn: str
    metrics: Mapping[str, MetricSpec]
    raw_metrics: Mapping[str, Mapping[str, object]]
    """As written: what a runtime change is merged into."""
    default_metrics: tuple[str, ...] | None = None
    password_file: Path | None = None
    shard: str | None = None
    member: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    discover: str | None = None
    patroni: str | None = None
    """The scope of its cluster."""
    peers: tuple[PeerSettings, ...] = ()
    collect_interval_s: float = 0.25
    slow_after_s: float = 60.0
    hibernate_after_s: float = 600.0
    heartbeat_interval_s: float = 0.0
    heartbeat_lease_s: float = 30.0
    heartbeat_table: str = "headgate.heartbeat"
    connections: int = 3
    traffic: TrafficSettings | None = None
    """None: none, or switched off."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    name: str = "headgate"
    listen: tuple[str, int] | None = ("127.0.0.1", 8087)
    socket: Path | None = None
    socket_mode: str = "0660"
    state: Path | None = None
    state_lost: StateLoss = StateLoss.REJECT
    anonymous: Anonymous = Anonymous.DENY
    log: LogFormat = LogFormat.AUTO
    history_days: int = 14
    rule_default_s: float = 3600.0
    rule_max_s: float = 30 * 86400.0
    rule_max_ratio: float = 1.0
    fairness_max_wait_s: float = 0.0
    max_clients: int = 1000
    max_connections: int = 1024
    max_body_bytes: int = 65536
    request_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    advertise: str | None = None
    hosts: tuple[str, ...] = ()
    forward: bool = False
    standby_for: str | None = None
    elect: str | None = None
    elect_ttl_s: float = 10.0
    elect_among: tuple[str, ...] = ()
    takeover_after_s: float = 2.0
    warm_standby: bool = True
    allow_plaintext: bool = False
    allow_runtime_commands: bool = False
    allow_runtime_urls: bool = False
    allow_runtime_sql: bool = False

    @property
    def runtime_sources(self) -> frozenset[str]:
        """Of metrics: those that operators may set while the agent runs."""
        allowed = {
            "command": self.allow_runtime_commands,
            "url": self.allow_runtime_urls,
            "sql": self.allow_runtime_sql,
        }
        return frozenset(source for source, may in allowed.items() if may)


@dataclass(frozen=True, slots=True)
class Settings:
    agent: AgentSettings = AgentSettings()
    databases: Mapping[str, DatabaseSettings] = field(default_factory=lambda: MappingProxyType({}))
    tokens: tuple[Token, ...] = ()
    peers: PeersSettings = PeersSettings()
    advice: tuple[Advice, ...] = ()
    alerts: AlertsSettings = AlertsSettings()
    starvation: StarvationSettings = StarvationSettings()
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
    environment = os.environ if environment is None else environment  # noqa: TID251 -- the one place
    settings = parse_settings(content, environment, source=source)
    if not settings.databases and not (settings.fleet and settings.fleet.view):
        what = "the file has no database" if content.strip() else "the file is empty"
        message = (
            f"{what}: add [databases.NAME] with engine and dsn. Only an agent that shows a fleet "
            "([fleet] with view = true) needs none"
        )
        raise InvalidSettings([Fault("databases", message)], source)
    return settings


def settings_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """What a settings file says, or InvalidSettings."""
    source = str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings([Fault("", f"cannot be read: {error.strerror}")], source) from None
    if len(content) > most_bytes:
        fault = Fault("", f"has {len(content)} bytes, at most {most_bytes}")
        raise InvalidSettings([fault], source)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidSettings([Fault("", "is not UTF-8 here", line)], source) from None


def settings_document(content: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings([Fault("", f"is not TOML: {error}")], source) from None
    except RecursionError:
        raise InvalidSettings([Fault("", "is nested too deeply")], source) from None


def parse_settings(
    content: str, environment: Mapping[str, str] = MappingProxyType({}), *, source: str = ""
) -> Settings:
    document = settings_document(content, source)
    try:
        settings = _read_document(document, environment)
    except InvalidSettings as error:
        raise InvalidSettings(with_lines(error.faults, content), source) from None
    return replace(settings, source=source)


def _read_document(document: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    faults: list[Fault] = []
    for key in document.keys() - SECTIONS:
        faults.append(Fault(key, unknown(key, sorted(SECTIONS))))
    agent = _agent(document.get("agent", {}), environment, faults)
    databases: dict[str, DatabaseSettings] = {}
    advice: list[Advice] = []
    raw_databases = document.get("databases", {})
    if not isinstance(raw_databases, Mapping):
        faults.append(Fault("databases", "must hold one table per database: [databases.NAME]"))
        raw_databases = {}
    for name, raw in raw_databases.items():
        database = _database(name, raw, faults, advice)
        if database is not None:
            databases[name] = database
    tokens = _tokens(document.get("tokens", []), faults)
    peers = _peers(document.get("peers", {}), faults)
    alerts = _alerts(document.get("alerts", {}), faults)
    starvation = _starvation(document.get("starvation", {}), faults)
    fleet = read_fleet(document.get("fleet"), faults)
    patroni = read_patroni(document.get("patroni", {}), faults)
    page = read_page(document.get("page", {}), faults)
    tracing = read_tracing(document.get("tracing"), faults)
    databases = _with_member_names(databases, agent.name, fleet=fleet is not None)
    faults.extend(_shard_faults(databases, peers, agent))
    faults.extend(_fleet_faults(agent, databases, fleet, patroni))
    faults.extend(_traffic_faults(databases))
    advice.extend(_plain_peers(databases, peers))
    advice.extend(_plain_webhook(alerts))
    advice.extend(_elected_nearby(agent))
    faults.extend(Fault(a.place, a.message) for a in advice if a.severity is Severity.ERROR)
    if faults:
        raise InvalidSettings(faults)
    return Settings(
        agent,
        MappingProxyType(databases),
        tokens,
        peers,
        tuple(advice),
        alerts=alerts,
        starvation=starvation,
        fleet=fleet,
        patroni=patroni,
        page=page,
        tracing=tracing,
    )


def load_policy(path: Path) -> Policy:
    """The policy of a file (TOML, or JSON if its name ends so), or InvalidSettings with every
    fault, and in TOML its line."""
    source = str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings([Fault("", f"cannot be read: {error.strerror}")], source) from None
    if len(content) > MAX_POLICY_FILE_BYTES:
        fault = Fault("", f"has {len(content)} bytes, at most {MAX_POLICY_FILE_BYTES}")
        raise InvalidSettings([fault], source)
    try:
        decoded = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidSettings([Fault("", "is not UTF-8 here", line)], source) from None
    return read_policy(decoded, is_json=path.suffix == ".json", source=source)


def read_policy(content: str, *, is_json: bool, source: str = "") -> Policy:
    try:
        document = json.loads(content) if is_json else tomllib.loads(content)
    except ValueError as error:  # Of either kind.
        kind = "JSON" if is_json else "TOML"
        raise InvalidSettings([Fault("", f"is not {kind}: {error}")], source) from None
    except RecursionError:
        raise InvalidSettings([Fault("", "is nested too deeply")], source) from None
    try:
        return parse_policy(document)
    except InvalidSettings as error:
        faults = error.faults if is_json else with_lines(error.faults, content)
        raise InvalidSettings(faults, source) from None


def _agent(raw: object, environment: Mapping[str, str], faults: list[Fault]) -> AgentSettings:
    if isinstance(raw, Mapping):
        raw = {**raw, **_from_environment(environment)}
    values, found = read_table(raw, AGENT_SETTINGS, place="agent")
    faults.extend(found)
    if found:
        return AgentSettings()
    agent = AgentSettings(**values)
    faults.extend(_exposure_faults(agent))
    return agent


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """HEADGATE_LISTEN=… for `listen`. Numbers and booleans are read as TOML would."""
    found: dict[str, object] = {}
    for name in AGENT_SETTINGS:
        raw = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if raw is not None:
            found[name] = _toml_value(raw)
    return found


def _toml_value(raw: str) -> object:
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw
    return value if isinstance(value, bool | int | float) else raw


def _exposure_faults(agent: AgentSettings) -> list[Fault]:
    if (agent.tls_cert is None) != (agent.tls_key is None):
        return [Fault("agent.tls_cert", "and tls_key go together: give both or neither")]
    if agent.tls_client_ca is not None and agent.tls_cert is None:
        return [Fault("agent.tls_client_ca", "needs tls_cert and tls_key: certificates are TLS")]
    if not re.fullmatch(r"0?[0-7]{3}", agent.socket_mode):
        return [Fault("agent.socket_mode", "must be an octal mode such as 0660")]
    if agent.listen is None and agent.socket is None:
        return [Fault("agent.listen", "is empty and no socket is given: nobody could ask")]
    host = agent.listen[0] if agent.listen else "127.0.0.1"
    if is_loopback(host) or agent.tls_cert is not None or agent.allow_plaintext:
        return []
    message = (
        f"{host} is not loopback: give tls_cert and tls_key, or say allow_plaintext = true "
        "if something else protects the way"
    )
    return [Fault("agent.listen", message)]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _database(
    name: str, raw: Any, faults: list[Fault], advice: list[Advice]
) -> DatabaseSettings | None:
    place = f"databases.{name}"
    values, found = read_table(raw, DATABASE_SETTINGS, place=place, sections=DATABASE_SECTIONS)
    faults.extend(found)
    try:
        parse_database(name)
    except InvalidName as error:
        faults.append(Fault(place, str(error)))
        return None
    missing = [key for key in ("engine", "dsn") if not found and values.get(key) is None]
    faults.extend(Fault(f"{place}.{key}", "is missing") for key in missing)
    if found or missing:
        return None
    raw_metrics = raw.get("metrics", {})
    if not isinstance(raw_metrics, Mapping):
        message = "must hold one table per metric: [databases.NAME.metrics.METRIC]"
        faults.append(Fault(f"{place}.metrics", message))
        return None
    metrics = _metrics(raw_metrics, values["engine"], f"{place}.metrics", faults, advice)
    for metric in values["default_metrics"] or ():
        if metric not in metrics:
            faults.append(Fault(f"{place}.default_metrics", f"names {metric!r}, which is not here"))
    return DatabaseSettings(
        name=name,
        metrics=MappingProxyType(metrics),
        raw_metrics=MappingProxyType({parse_metric(k): v for k, v in raw_metrics.items()})
        if not faults
        else MappingProxyType({}),
        peers=_members(raw.get("peers", {}), name, f"{place}.peers", faults),
        traffic=_traffic(raw.get("traffic"), f"{place}.traffic", faults),
        **{**values, "member": values["member"] or ""},
    )


def _traffic(raw: object, place: str, faults: list[Fault]) -> TrafficSettings | None:
    if raw is None:
        return None
    values, found = read_table(raw, TRAFFIC_SETTINGS, place=place)
    faults.extend(found)
    traffic = None if found else TrafficSettings(**values)
    return traffic if traffic is not None and traffic.enabled else None


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
                f"its databases. Leave it with {other} alone, and let `match` of its rules tell "
                'them apart, such as { database = "…" }'
            )
            yield Fault(f"databases.{name}.traffic.directory", message)


def _members(
    raw: object, database: str, place: str, faults: list[Fault]
) -> tuple[PeerSettings, ...]:
    if not isinstance(raw, Mapping) or not all(isinstance(row, Mapping) for row in raw.values()):
        message = "must hold one table per member: [databases.NAME.peers.MEMBER]"
        faults.append(Fault(place, message))
        return ()
    if len(raw) > MAX_MEMBERS:
        faults.append(Fault(place, f"has {len(raw)} members, at most {MAX_MEMBERS}"))
        return ()
    return tuple(
        peer
        for name, row in raw.items()
        if (peer := _peer(name, row, database, f"{place}.{name}", faults)) is not None
    )


def _peer(
    name: str, raw: object, database: str, place: str, faults: list[Fault]
) -> PeerSettings | None:
    values, found = read_table(raw, PEER_SETTINGS, place=place)
    try:
        _member(name)
    except ValueError as error:
        found.append(Fault(place, str(error)))
    if not found and values["url"] is None:
        found.append(Fault(f"{place}.url", "is missing"))
    faults.extend(found)
    return None if found else PeerSettings(name, values["url"], values["database"] or database)


def _peers(raw: object, faults: list[Fault]) -> PeersSettings:
    values, found = read_table(raw, PEERS_SETTINGS, place="peers")
    faults.extend(found)
    if found:
        return PeersSettings()
    peers = PeersSettings(**values)
    if (peers.cert is None) != (peers.key is None):
        faults.append(Fault("peers.cert", "and key go together: give both or neither"))
    return peers


def _alerts(raw: object, faults: list[Fault]) -> AlertsSettings:
    values, found = read_table(raw, ALERTS_SETTINGS, place="alerts")
    faults.extend(found)
    if found:
        return AlertsSettings()
    alerts = AlertsSettings(**values)
    if alerts.webhook_token_file is not None and alerts.webhook_url is None:
        faults.append(Fault("alerts.webhook_url", "is missing: the token has nowhere to go"))
    return alerts


def _starvation(raw: object, faults: list[Fault]) -> StarvationSettings:
    values, found = read_table(raw, STARVATION_SETTINGS, place="starvation")
    faults.extend(found)
    return StarvationSettings() if found else StarvationSettings(**values)


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


def _shard_faults(
    databases: Mapping[str, DatabaseSettings], peers: PeersSettings, agent: AgentSettings
) -> list[Fault]:
    faults = []
    for name, database in databases.items():
        place = f"databases.{name}"
        if database.shard is None and (database.peers or database.discover):
            message = "has peers, so give it the name of the shard they make up"
            faults.append(Fault(f"{place}.shard", message))
        names = [peer.name for peer in database.peers]
        names += [d.member for d in databases.values() if d.shard and d.shard == database.shard]
        for member in sorted({n for n in names if names.count(n) > 1}):
            message = f"the shard has two members called {member!r}; give one another name"
            faults.append(Fault(f"{place}.member", message))
        if database.shard and agent.advertise is None and _is_anywhere(agent):
            message = "is needed: others cannot be told to ask at an address that means any"
            faults.append(Fault("agent.advertise", message))
        known = peers.token_file is not None or peers.cert is not None
        if (database.peers or database.discover) and not known:
            message = (
                "agents of a shard authenticate to each other: give token_file, or cert and key"
            )
            faults.append(Fault("peers.token_file", message))
    return _once(faults)


def _fleet_faults(
    agent: AgentSettings,
    databases: Mapping[str, DatabaseSettings],
    fleet: FleetSettings | None,
    patroni: PatroniSettings,
) -> Iterator[Fault]:
    if agent.elect is not None and fleet is None:
        yield Fault("agent.elect", "needs [fleet]: its store elects")
    if agent.elect is not None and agent.standby_for is not None:
        yield Fault("agent.elect", "and standby_for exclude each other: give one")
    nowhere = agent.listen is None or _is_anywhere(agent)
    if agent.elect is not None and agent.advertise is None and nowhere:
        message = "is needed: the others of the pair cannot be sent to an address that means any"
        yield Fault("agent.advertise", message)
    if patroni.etcd is None and fleet is None:
        for name in (n for n, database in databases.items() if database.patroni):
            message = "needs etcd: say where Patroni's is, in [patroni] or [fleet]"
            yield Fault(f"databases.{name}.patroni", message)
    for name in (n for n, d in databases.items() if d.patroni and not d.discover):
        message = "needs discover: Patroni tells where servers are, not where their agents are"
        yield Fault(f"databases.{name}.patroni", message)


def _plain_peers(
    databases: Mapping[str, DatabaseSettings], peers: PeersSettings
) -> Iterator[Advice]:
    if peers.token_file is None:
        return
    for name, database in databases.items():
        for peer in database.peers:
            host = urlsplit(peer.url).hostname or ""
            if peer.url.startswith("http://") and not is_loopback(host):
                place = f"databases.{name}.peers.{peer.name}.url"
                message = "sends the shared token in plain text over a network; use https"
                yield Advice(Severity.WARNING, "plain-peer", place, message)


def _plain_webhook(alerts: AlertsSettings) -> Iterator[Advice]:
    parts = urlsplit(alerts.webhook_url or "")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        message = "sends alerts, and what the address gives away, in plain text; use https"
        yield Advice(Severity.WARNING, "plain-webhook", "alerts.webhook_url", message)


def _elected_nearby(agent: AgentSettings) -> Iterator[Advice]:
    """Two hosts by the defaults would have one address: each takes the other for itself."""
    listens = agent.listen[0] if agent.listen is not None else ""
    host = urlsplit(agent.advertise).hostname or "" if agent.advertise else listens
    if agent.elect is not None and is_loopback(host):
        message = (
            f"is {host}: of a pair on two hosts each would take the other's address for its own, "
            "and answer by itself; say where the others find this agent"
        )
        yield Advice(Severity.WARNING, "elect-loopback", "agent.advertise", message)


def _is_anywhere(agent: AgentSettings) -> bool:
    return agent.listen is not None and agent.listen[0] in ("", "0.0.0.0", "::")  # noqa: S104


def _once(faults: list[Fault]) -> list[Fault]:
    return list(dict.fromkeys(faults))


def _metrics(
    raw_metrics: Mapping[str, Any],
    engine: Engine,
    place: str,
    faults: list[Fault],
    advice: list[Advice],
) -> dict[str, MetricSpec]:
    specs: dict[str, MetricSpec] = {}
    for name, raw in raw_metrics.items():
        where = f"{place}.{name}"
        try:
            spec = parse_metric_settings(name, raw, engine, place=where)
        except InvalidSettings as error:
            faults.extend(error.faults)
            continue
        advice.extend(lint_metric(spec, raw, engine, place=where))
        if raw.get("enabled", True):
            specs[spec.name] = spec
    return specs


def _tokens(raw: object, faults: list[Fault]) -> tuple[Token, ...]:
    if not isinstance(raw, list):
        faults.append(Fault("tokens", "must be a list of tables: [[tokens]]"))
        return ()
    tokens = []
    for index, entry in enumerate(raw):
        place = f"tokens.{index}"
        values, found = read_table(entry, TOKEN_SETTINGS, place=place)
        missing = [key for key, value in values.items() if value is None and not found]
        faults.extend([*found, *(Fault(f"{place}.{key}", "is missing") for key in missing)])
        if not found and not missing:
            tokens.append(Token(**values))
    return tuple(tokens)


__all__ = [
    "AGENT_SETTINGS",
    "ALERTS_SETTINGS",
    "DATABASE_SETTINGS",
    "METRIC_SETTINGS",
    "PEERS_SETTINGS",
    "PEER_SETTINGS",
    "STARVATION_SETTINGS",
    "TOKEN_SETTINGS",
    "TRAFFIC_SETTINGS",
    "AgentSettings",
    "AlertsSettings",
    "Anonymous",
    "DatabaseSettings",
    "LogFormat",
    "Role",
    "Settings",
    "StarvationSettings",
    "StateLoss",
    "Token",
    "TrafficSettings",
    "load_policy",
    "load_settings",
    "parse_settings",
    "read_policy",
    "read_settings",
    "settings_text",
]
