"""Sections of an agent's file, one struct each: type, default, bounds, unit and meaning of a key
stand here and nowhere else. How they go together as a file: agent.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeAlias

from headgate.base.declared import Key, names, seconds, share, size, text, whole
from headgate.base.names import parse_database
from headgate.budgets.identity import IdentityTerms
from headgate.errors import InvalidName
from headgate.metrics.model import Builtin, Engine, MetricSpec
from headgate.settings.readers import (
    address,
    agent_template,
    agent_url,
    database_name,
    exposure_faults,
    file_path,
    pair_faults,
    place_name,
    socket_mode,
    split_url,
    unless_empty,
)
from headgate.shard.settings import labels

MAX_ELECT_AMONG = 16
MAX_HOSTS = 50
DAY_S = 86_400.0
USUAL_BEAT_S = 1.0
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")


class Anonymous(Enum):
    """What happens to a check that carries no client name."""

    DENY = "deny"
    ALLOW = "allow"


class StateLoss(Enum):
    """What happens where what operators had set is lost, until an operator acknowledges it."""

    REJECT = "reject"
    FILE = "file"


class LogFormat(Enum):
    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class GrantedRole(Enum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    PEER = "peer"
    """Another agent of the shard."""


# --- readers of these sections alone -----------------------------------------------------------


def _webhook(value: object) -> str:
    """What it reads like is not repeated: paths and queries of webhooks are secrets."""
    url = text(2048)(value)
    parts = split_url(url)
    if (
        parts is None
        or parts.scheme not in ("http", "https")
        or parts.username
        or parts.fragment
        or re.search(r"[^!-~]", url)
    ):
        raise ValueError("must read like https://host/path, without user, password or #")
    return url


def _agent_urls(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_ELECT_AMONG:
        raise ValueError(f"must be a list of 1 to {MAX_ELECT_AMONG} addresses of agents")
    return tuple(
        agent_template(one) if isinstance(one, str) and "{" in one else agent_url(one)
        for one in value
    )


def member_name(value: object) -> str:
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
    if wrong := [name for name in found if not _HOST_NAME.fullmatch(name)]:
        raise ValueError(f"has {wrong[0]!r}, must hold names such as headgate.example.com")
    return found


def _tour(value: object) -> str:
    url = text(128)(value).rstrip("/")
    parts = split_url(url)
    if parts is None or not parts.port or url != f"http://127.0.0.1:{parts.port}":
        raise ValueError(f"is {url!r}, must read like http://127.0.0.1:9000")
    return url


# --- the agent itself --------------------------------------------------------------------------

ListenTo: TypeAlias = tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class AgentSettings:
    name: Annotated[str, Key("Name of this agent in answers and logs.", text(63))] = "headgate"
    listen: Annotated[
        ListenTo,
        Key(
            "TCP address to serve; an empty string serves the socket only.",
            unless_empty(address),
            "127.0.0.1:8087",
        ),
    ] = ("127.0.0.1", 8087)
    socket: Annotated[
        Path | None,
        Key(
            "Unix socket to serve as well. Changes need no token here: file permissions decide.",
            file_path,
        ),
    ] = None
    socket_mode: Annotated[str, Key("Permissions of the Unix socket.", socket_mode)] = "0660"
    state: Annotated[
        Path | None,
        Key(
            "SQLite file that keeps runtime settings, audit and history, with a copy of what is in "
            "force beside it; without one they end with the agent.",
            file_path,
        ),
    ] = None
    state_lost: Annotated[
        StateLoss,
        Key(
            "If neither the state file nor its copy can be read, until an operator acknowledges "
            "it: `reject` rejects every check, `file` goes by the settings file alone."
        ),
    ] = StateLoss.REJECT
    anonymous: Annotated[
        Anonymous,
        Key("`deny` rejects checks without a client name, `allow` counts them as `anonymous`."),
    ] = Anonymous.DENY
    log: Annotated[
        LogFormat,
        Key("`console` for people, `json` for programs, `auto` by whether there is a terminal."),
    ] = LogFormat.AUTO
    history_days: Annotated[
        int,
        Key("Days that decisions in aggregate, and audit entries, are kept.", whole(1, 3650)),
    ] = 14
    rule_default_s: Annotated[
        float, Key("How long a rule lasts if it does not say.", seconds(1, 30 * DAY_S))
    ] = 3600.0
    rule_max_s: Annotated[
        float, Key("How long a rule may last at most.", seconds(60, 3650 * DAY_S))
    ] = 30 * DAY_S
    rule_max_ratio: Annotated[
        float, Key("Highest ratio of a rule; only a `hold` rejects more.", share(0, 1))
    ] = 1.0
    fairness_max_wait_s: Annotated[
        float,
        Key(
            "How long dice alone may keep a client from the metrics; then one check of it is "
            "decided without dice, never without metrics. 0: dice have no memory.",
            seconds(0, DAY_S),
        ),
    ] = 0.0
    max_clients: Annotated[
        int,
        Key(
            "Distinct client names counted one by one; more by their level: `other:etl`.",
            whole(10, 100_000),
        ),
    ] = 1000
    max_connections: Annotated[
        int, Key("Connections served at once; more are closed.", whole(1, 65536))
    ] = 1024
    max_body_bytes: Annotated[
        int, Key("Largest request body.", size(1024, 16 << 20), "65536 (64 KiB)")
    ] = 65536
    request_timeout_s: Annotated[
        float, Key("How long a request may take to arrive whole.", seconds(0.1, 300))
    ] = 10.0
    idle_timeout_s: Annotated[
        float, Key("Time after which an idle connection is closed.", seconds(1, 3600))
    ] = 75.0
    tls_cert: Annotated[Path | None, Key("Certificate chain (PEM) for `listen`.", file_path)] = None
    tls_key: Annotated[Path | None, Key("Private key (PEM) for `listen`.", file_path)] = None
    tls_client_ca: Annotated[
        Path | None,
        Key(
            "Authority (PEM) whose client certificates are trusted: agents that show one are "
            "peers.",
            file_path,
        ),
    ] = None
    advertise: Annotated[
        str | None,
        Key(
            "Address at which other agents and clients reach this agent.",
            agent_url,
            "`listen`, with the scheme that it speaks",
        ),
    ] = None
    hosts: Annotated[
        tuple[str, ...],
        Key(
            "Names that the agent may be reached by over plain HTTP, besides addresses, "
            "`localhost`, this host's own name, `name`, and those of `listen` and `advertise`. "
            "Requests under another name are rejected (421) unless they carry a token: a web site "
            "could have its own name mean this address, and read along in a browser.",
            _hosts,
        ),
    ] = ()
    forward: Annotated[
        bool,
        Key(
            "true forwards checks of a shard to its primary's agent, instead of answering where "
            "to send them."
        ),
    ] = False
    standby_for: Annotated[
        str | None,
        Key(
            "Address of the agent that this one is the standby of: it answers only while that one "
            "does not.",
            agent_url,
        ),
    ] = None
    elect: Annotated[
        str | None,
        Key(
            "Name of a pair (or more) of agents of the same host, the same in each: the fleet's "
            "store elects the one that answers. Instead of standby_for; needs [fleet].",
            database_name,
        ),
    ] = None
    elect_ttl_s: Annotated[
        float,
        Key("With elect: time after which a leader that is gone is replaced.", seconds(5, 300)),
    ] = 10.0
    elect_among: Annotated[
        tuple[str, ...],
        Key(
            "With elect: addresses of the others of the pair, perhaps with {host} in them. Checks "
            "are sent to no other, whatever the store says.",
            _agent_urls,
            "those on the host of advertise, and those that fit a discover",
        ),
    ] = ()
    takeover_after_s: Annotated[
        float,
        Key(
            "With standby_for or elect: how long the other may be silent before this agent "
            "answers itself.",
            seconds(0.5, 300),
        ),
    ] = 2.0
    warm_standby: Annotated[
        bool,
        Key(
            "With standby_for: true goes on measuring while passive, so that taking over needs "
            "no warming up."
        ),
    ] = True
    allow_plaintext: Annotated[bool, Key("true allows other hosts without TLS.")] = False
    allow_runtime_commands: Annotated[
        bool,
        Key("true lets operators add `command` metrics at run time: they run as the agent's user."),
    ] = False
    allow_runtime_urls: Annotated[
        bool,
        Key(
            "true lets operators add `url` metrics at run time: the agent then sends requests to "
            "any address that it can reach."
        ),
    ] = False
    allow_runtime_sql: Annotated[
        bool,
        Key(
            "true lets operators add `sql` metrics at run time: they can then read whatever the "
            "agent's database user may read."
        ),
    ] = False

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from pair_faults(self.tls_cert, self.tls_key, "tls_cert", "tls_key")
        if self.tls_client_ca is not None and self.tls_cert is None:
            yield "tls_client_ca", "needs tls_cert and tls_key: certificates are TLS"
        if self.listen is None and self.socket is None:
            yield "listen", "is empty and no socket is given: nothing could reach the agent"
        host = None if self.listen is None else self.listen[0]
        yield from exposure_faults(host, "listen", allowed=self.tls_cert or self.allow_plaintext)
        if self.elect is not None and self.standby_for is not None:
            yield "elect", "and standby_for exclude each other: give one"

    @property
    def runtime_sources(self) -> frozenset[str]:
        """Of metrics: those that operators may set while the agent runs."""
        allowed = {
            "command": self.allow_runtime_commands,
            "url": self.allow_runtime_urls,
            "sql": self.allow_runtime_sql,
        }
        return frozenset(source for source, may in allowed.items() if may)

    @property
    def is_anywhere(self) -> bool:
        """It listens on an address that others cannot use."""
        return self.listen is not None and self.listen[0] in ("", "0.0.0.0", "::")  # noqa: S104


@dataclass(frozen=True, slots=True)
class Token:
    name: Annotated[str, Key("Who holds the token, as the audit shows it.", text(63))]
    role: Annotated[
        GrantedRole,
        Key("`viewer`, `operator` (may change things) or `peer` (another agent of the shard)."),
    ]
    sha256: Annotated[str, Key("SHA-256 of the token; see `headgate token`.", _sha256)]


@dataclass(frozen=True, slots=True)
class PeersSettings:
    """How agents know each other."""

    token_file: Annotated[
        Path | None,
        Key(
            "File whose first line is the token that the agents of a shard share: sent to the "
            "others, and accepted from them.",
            file_path,
        ),
    ] = None
    ca: Annotated[
        Path | None, Key("Authority (PEM) that signed the others' certificates.", file_path)
    ] = None
    cert: Annotated[
        Path | None, Key("Client certificate (PEM) shown to the others.", file_path)
    ] = None
    key: Annotated[Path | None, Key("Private key (PEM) of `cert`.", file_path)] = None

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from pair_faults(self.cert, self.key, "cert", "key")


@dataclass(frozen=True, slots=True)
class AlertsSettings:
    webhook_url: Annotated[
        str | None,
        Key(
            "Address that alerts are posted to, as JSON. It is never shown: only its host is.",
            _webhook,
        ),
    ] = field(default=None, repr=False)
    webhook_token_file: Annotated[
        Path | None, Key("File whose first line is sent along as a bearer token.", file_path)
    ] = None

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.webhook_token_file is not None and self.webhook_url is None:
            yield "webhook_url", "is missing: the token has nowhere to go"


@dataclass(frozen=True, slots=True)
class StarvationSettings:
    window_s: Annotated[
        float,
        Key(
            "How long metrics must reject a client without a break before it is starved.",
            seconds(1, DAY_S),
        ),
    ] = 600.0
    waterline: Annotated[
        float,
        Key(
            "Share of a client's runtime, starved, above which it is reported: in status, in "
            "`headgate top`, to the webhook.",
            share(0, 1),
        ),
    ] = 0.05
    exemption_budget_s: Annotated[
        float,
        Key(
            "How long an exemption may starve others, in all, before it is suspended; 0: not at "
            "all.",
            seconds(0, 7 * DAY_S),
        ),
    ] = 1200.0


@dataclass(frozen=True, slots=True)
class PageSettings:
    enabled: Annotated[bool, Key("Serve the page for people, at `/`.")] = True
    session_s: Annotated[
        float,
        Key(
            "How long a sign-in lasts. A restart of the agent ends it, too.",
            seconds(60, 7 * DAY_S),
        ),
    ] = 12 * 3600.0
    tour: Annotated[
        str | None,
        Key("A guide on this machine that the page shows; `headgate demo` sets it.", _tour),
    ] = None


# --- databases ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Another member of a shard, and where its agent is."""

    name: str
    url: Annotated[
        str, Key("Address of the agent beside that member, such as https://db2:8087.", agent_url)
    ]
    database: Annotated[
        str, Key("Name of its database at that agent.", database_name, "the same as here")
    ] = ""


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """Traffic control of a database: budgets, and the server that they are for."""

    policy: Annotated[
        Path | None,
        Key(
            "File with the budgets (TOML, or JSON if its name ends so); runtime changes lie on top "
            "of it. Without one they begin empty.",
            file_path,
        ),
    ] = None
    directory: Annotated[
        Path | None,
        Key(
            "The server's directory that the extension reads policies from: `pg_headgate` under "
            "its data directory, unless `pg_headgate.directory` says otherwise. Or that of a proxy "
            "on this host, for MySQL and MariaDB as well. Without one the policy is kept, and no "
            "server gets it.",
            file_path,
        ),
    ] = None
    enabled: Annotated[
        bool,
        Key(
            "false: as if there were no such table. The server keeps the policy that it has; "
            "`headgate pg disable` ends that."
        ),
    ] = True
    identity: IdentityTerms = field(default_factory=IdentityTerms)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    name: str
    engine: Annotated[Engine, Key("`postgres` or `mysql` (MySQL and MariaDB).")]
    dsn: Annotated[
        str,
        Key(
            "Where the database is: a libpq connection string, or mysql://user@host:port/schema. "
            "`?socket=` and `?ssl_ca=` are understood for MySQL.",
            text(2048),
        ),
    ]
    password_file: Annotated[
        Path | None,
        Key("File whose first line is the password, to keep it out of this file.", file_path),
    ] = None
    default_metrics: Annotated[
        tuple[str, ...] | None,
        Key("Metrics that decide a check that names none.", names(64), "all of them"),
    ] = None
    shard: Annotated[
        str | None,
        Key("The shard (one primary and its replicas) that this database belongs to.", place_name),
    ] = None
    member: Annotated[
        str,
        Key(
            "Name of this database in its shard, unlike any other member's.",
            member_name,
            "the agent's name; NAME of the database if an agent has several (with [fleet]: "
            "several of that shard)",
        ),
    ] = ""
    patroni: Annotated[
        str | None,
        Key(
            "Patroni's `scope` of its cluster: members and leader are read from Patroni's keys in "
            "etcd, at the endpoints of [patroni] or [fleet].",
            text(127),
        ),
    ] = None
    labels: Annotated[
        Mapping[str, str],
        Key("Labels of this member, such as region, that rollups can choose by.", labels, ""),
    ] = field(default_factory=lambda: MappingProxyType({}))
    discover: Annotated[
        str | None,
        Key(
            "How the agents of replicas and upstreams found in the database are reached: an "
            "address with {host} or {name} in it.",
            agent_template,
        ),
    ] = None
    collect_interval_s: Annotated[
        float,
        Key(
            "Time between two readings of the other members, and of the server's role.",
            seconds(0.05, 5),
        ),
    ] = 0.25
    idle_after_s: Annotated[
        float,
        Key("Time without a check after which less is measured; 0 for never.", seconds(0, DAY_S)),
    ] = 60.0
    hibernate_after_s: Annotated[
        float,
        Key(
            "Time without a check after which nothing is measured, until the next; 0 for never.",
            seconds(0, 30 * DAY_S),
        ),
    ] = 600.0
    heartbeat_interval_s: Annotated[
        float | None,
        Key(
            "Writes a heartbeat row this often while the server is a primary; 0 writes none. "
            "Default: 1 s where lag is measured, unless its method is `native` or it reads "
            "another table.",
            seconds(0, 60),
        ),
    ] = None
    heartbeat_lease_s: Annotated[
        float,
        Key(
            "How long heartbeats go on after the last check; 0 for always.",
            seconds(0, DAY_S),
        ),
    ] = 30.0
    heartbeat_table: Annotated[str, Key("Table of the heartbeat, with its schema.", text(128))] = (
        "headgate.heartbeat"
    )
    connections: Annotated[
        int,
        Key(
            "Most connections that the probes of this database may hold. The heartbeat has one "
            "more, and so has the role in a shard.",
            whole(1, 16),
        ),
    ] = 3
    metrics: Mapping[str, MetricSpec] = field(default_factory=lambda: MappingProxyType({}))
    raw_metrics: Mapping[str, Mapping[str, object]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """As written: what a runtime change is merged into."""
    peers: tuple[PeerSettings, ...] = ()
    traffic: TrafficSettings | None = None
    """None: none, or switched off."""

    @property
    def beats_every_s(self) -> float:
        """How often a heartbeat is written; 0 for never."""
        if self.heartbeat_interval_s is not None:
            return self.heartbeat_interval_s
        lag = self.metrics.get("lag")
        if lag is None or lag.source != Builtin("lag"):
            return 0.0
        reads = lag.options.get("heartbeat_table", self.heartbeat_table) == self.heartbeat_table
        return USUAL_BEAT_S if reads and lag.options.get("method") != "native" else 0.0
