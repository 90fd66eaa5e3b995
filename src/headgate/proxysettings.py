"""Settings of a proxy: one TOML file, read once, into frozen values.

proxy.toml  ──load_proxy_settings──►  ProxySettings  ──►  proxymain.py hands values to objects

As config.py does it: every fault is reported with its line, an unknown key names the nearest known
one, nothing is half-applied. The environment may override what is in [proxy]:
HEADGATE_PROXY_THREADS for `threads`, and so on. Times are seconds, or texts such as "500ms".
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headgate.config import (
    TOKEN_SETTINGS,
    LogFormat,
    Role,
    Token,
    is_loopback,
    settings_document,
    settings_text,
)
from headgate.core.lint import Advice, Severity
from headgate.core.names import parse_database, parse_identity
from headgate.core.places import with_lines
from headgate.core.proxying import (
    Act,
    Band,
    FollowTerms,
    GateMode,
    GateTerms,
    IdentityTerms,
    Judged,
    ListenTerms,
    ListenTls,
    Loop,
    MemoryTerms,
    Protocol,
    RelayTerms,
    ReleaseKind,
    ReleaseTerms,
    Route,
    ServerTerms,
    Source,
    SourceKind,
    TlsTerms,
    Trust,
)
from headgate.core.settings import (
    Setting,
    Table,
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
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.paths import expanded

MAX_FILE_BYTES = 1024 * 1024

ENVIRONMENT_PREFIX = "HEADGATE_PROXY_"
MAX_LISTENERS = 16
MAX_SERVERS = 32
MAX_SOURCES = 16
MAX_TRUSTS = 16
MAX_TRUSTED_USERS = 8
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 16, 64
MAX_BANDS = 16
DEFAULT_THREADS = 4
MAX_SOCKET_BYTES = 107 - len(".4194304")
"""Of a Unix socket's path, which ends in the process's id until it is in its place."""
LONGEST_SOCKET = "handover.sock"
PORTS = {Protocol.POSTGRES: 5432, Protocol.MYSQL: 3306}
TLS_MODES = ("off", "prefer", "require", "verify-ca", "verify-full")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PASSWORD = re.compile(r"\bpassword\s*=|://[^/@:]*:[^/@]+@", re.IGNORECASE)
_T = TypeVar("_T")


# --- readers -------------------------------------------------------------------------------


def seconds(low: float, high: float) -> Callable[[object], float]:
    within = number(low, high)

    def read(value: object) -> float:
        if not isinstance(value, str):
            return within(value)
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"is {value!r}, must be seconds, or read like 500ms, 30s, 5m or 1h")
        return within(float(match[1]) * _UNITS_S[match[2]])

    return read


def file_path(value: object) -> Path:
    raw = text(1023)(value)
    if not raw:
        raise ValueError("is empty, must be a path")
    return expanded(raw)


def place(default_port: int | None = None) -> Callable[[object], tuple[str, int]]:
    """host:port, or the absolute path of a Unix socket (port 0)."""

    def read(value: object) -> tuple[str, int]:
        raw = text(255)(value)
        if raw.startswith("/"):
            return raw, 0
        host, colon, port = raw.rpartition(":")
        if not colon or (raw.endswith("]") and default_port):
            host, port = raw, str(default_port or "")
        if not port.isdecimal() or not 0 <= int(port) <= 65535 or not host.strip("[]"):
            raise ValueError(f"is {raw!r}, must be host:port, such as db1:5432, or a path")
        return host.strip("[]"), int(port)

    return read


def agent_urls(value: object) -> tuple[str, ...]:
    urls = (value,) if isinstance(value, str) else names(8)(value)
    if not urls:
        raise ValueError("is empty: name at least one agent")
    return tuple(_agent_url(url) for url in urls)


def _agent_url(url: str) -> str:
    url = url.rstrip("/")
    if url.startswith("/"):
        return f"unix://{url}"
    parts = urlsplit(url)
    sound = parts.path if parts.scheme == "unix" else parts.hostname and not parts.path
    if parts.scheme not in ("http", "https", "unix") or not sound or parts.username:
        raise ValueError(f"is {url!r}, must read like https://db1:8087 or /run/headgate/agent.sock")
    return url


def tls_mode(value: object) -> str:
    raw = text(16)(value)
    if raw not in TLS_MODES:
        raise ValueError(f"is {raw!r}, must be one of {', '.join(map(repr, TLS_MODES))}")
    return raw


def source_order(value: object) -> tuple[Source, ...]:
    return tuple(_source(entry) for entry in names(MAX_SOURCES)(value))


def _source(raw: str) -> Source:
    kind_text, _, name = raw.partition(":")
    try:
        kind = SourceKind(kind_text)
    except ValueError:
        raise ValueError(
            f"names {raw!r}: {unknown(kind_text, [k.value for k in SourceKind])}"
        ) from None
    named = kind in (SourceKind.TAG, SourceKind.ATTRIBUTE, SourceKind.VARIABLE)
    if named is not bool(name) or len(name.encode()) > 63:
        how = f"{kind.value}:NAME with a name of at most 63 bytes" if named else kind.value
        raise ValueError(f"names {raw!r}, must be {how}")
    return Source(kind, name)


def band_list(value: object) -> tuple[Band, ...]:
    if not isinstance(value, list) or len(value) > MAX_BANDS:
        raise ValueError(f"must be a list of at most {MAX_BANDS} tables {{at = …, ratio = …}}")
    bands = []
    for raw in value:
        values, faults = read_table(raw, BAND_SETTINGS, place="band")
        if faults:
            raise ValueError("; ".join(fault.message for fault in faults))
        if values["at"] is None or values["ratio"] is None:
            raise ValueError("needs `at` and `ratio` in each band")
        bands.append(Band(values["at"], values["ratio"]))
    if [band.at for band in bands] != sorted({band.at for band in bands}):
        raise ValueError("must have bands in ascending order of `at`, each once")
    return tuple(bands)


def acts(*allowed: Act) -> Callable[[object], Act]:
    choices = {act.value: act for act in allowed}

    def read(value: object) -> Act:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError(f"is {value!r}, must be one of {', '.join(map(repr, choices))}")

    return read


def client_names(value: object) -> tuple[str, ...]:
    found = names(256)(value)
    for name in found:
        if name != "*":
            parse_identity(name)
    return found


def _secret_of(path: Path) -> bytes:
    """Its bytes without the line's end: never shown, never logged."""
    try:
        secret = path.read_bytes()[: MAX_SECRET_BYTES + 2].strip(b"\r\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ValueError(
            f"{path} holds {len(secret)} bytes, must hold {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}"
        )
    return secret


# --- tables --------------------------------------------------------------------------------

PROXY_SETTINGS = table(
    (
        Setting("name", "Name of this proxy in logs and metrics.", text(63), default="proxy"),
        Setting("protocol", "`postgres` or `mysql` (MySQL and MariaDB).", one_of(Protocol)),
        Setting(
            "directory",
            "State directory, for this proxy's user alone: policy, shared memory's whereabouts, "
            "and the socket by which a new process takes over. An agent on this host publishes "
            "policy here (`[databases.NAME.traffic] directory`).",
            file_path,
        ),
        Setting(
            "threads",
            "Threads that relay; 0: one for every two CPUs of the host, at most "
            f"{DEFAULT_THREADS}. Waits for a restart, as all of this table but "
            "`drain_timeout_s` does.",
            whole(0, 64),
            default=0,
        ),
        Setting(
            "loop",
            "`io_uring`, `epoll`, or `auto`: io_uring where the kernel lets it.",
            one_of(Loop),
            default=Loop.AUTO,
        ),
        Setting(
            "cpus",
            "CPUs of the database server, by which percentages in budgets are reckoned. 0: those "
            "of this host, which is right only where both are one.",
            number(0, 4096),
            default=0.0,
        ),
        Setting(
            "max_connections",
            "Connections that the server has: 100 % of `concurrency` in budgets.",
            whole(1, 1_000_000),
            default=100,
        ),
        Setting(
            "max_sessions",
            "Sessions at once; further ones are rejected (53300, 1040).",
            whole(1, 1_000_000),
            default=10_000,
        ),
        Setting(
            "max_sessions_per_user",
            "Of them, of one user that has logged in; 0: no bound of its own.",
            whole(0, 1_000_000),
            default=0,
        ),
        Setting(
            "max_logins_per_address",
            "Of them, from one address (IPv6: one /64) and still logging in; further ones are "
            "rejected. 0: all but a 64th of `max_sessions`, so that one address never takes all of "
            "them.",
            whole(0, 1_000_000),
            default=0,
        ),
        Setting(
            "startup_timeout_s",
            "From the connection until the session is established, logging in included.",
            seconds(1, 600),
            default=30.0,
        ),
        Setting(
            "connect_timeout_s",
            "How long the server may take to accept a connection.",
            seconds(0.1, 600),
            default=5.0,
        ),
        Setting(
            "idle_timeout_s",
            "Ends sessions outside a transaction that say nothing for so long; 0: never.",
            seconds(0, 30 * 86400),
            default=0.0,
        ),
        Setting(
            "tcp_keepalive_s",
            "Finds out that the other end is gone; 0: as the system does.",
            whole(0, 7200),
            default=60,
        ),
        Setting(
            "max_buffer_mb",
            "Bound over the buffers of all sessions and the texts of their prepared statements, in "
            "MiB. From half of it on, less is kept for a client that does not read, its server is "
            "read more slowly, and statements that are prepared are judged as unknown writes.",
            whole(4, 65536),
            default=256,
        ),
        Setting(
            "drain_timeout_s",
            "How long sessions may take to end by themselves at a stop or restart; then they are "
            "closed. At a restart, half of it in peace; then they end between transactions.",
            seconds(0, 86400),
            default=30.0,
        ),
        Setting(
            "dry_run",
            "true decides and counts, warns, and lets everything pass.",
            flag,
            default=False,
        ),
        Setting(
            "log",
            "`console` for people, `json` for programs, `auto` by whether a terminal is there.",
            one_of(LogFormat),
            default=LogFormat.AUTO,
        ),
    )
)

LISTEN_SETTINGS = table(
    (
        Setting("address", "host:port, or the path of a Unix socket.", place()),
        Setting(
            "route",
            "`read-write`: sessions go to the primary. `read-only`: to a healthy replica.",
            one_of(Route),
            default=Route.READ_WRITE,
        ),
        Setting(
            "tls",
            "`off`; `allow`: who asks for TLS gets it; `require`: nobody comes in without.",
            one_of(ListenTls),
            shown_default="`allow` with tls_cert, else `off`",
        ),
        Setting("tls_cert", "Certificate chain (PEM). A reload reads it again.", file_path),
        Setting("tls_key", "Private key (PEM).", file_path),
        Setting(
            "tls_client_ca",
            "Authority (PEM): clients must show a certificate that it has signed.",
            file_path,
        ),
        Setting(
            "allow_plaintext",
            "true lets this address leave loopback without TLS.",
            flag,
            default=False,
        ),
    )
)

_SERVER_TLS = (
    Setting(
        "tls",
        "As libpq's sslmode: `off`, `prefer`, `require`, `verify-ca`, `verify-full`.",
        tls_mode,
        default="off",
    ),
    Setting("tls_ca", "Authority (PEM) that signed the server's certificate.", file_path),
    Setting(
        "tls_name", "Name that its certificate must have.", text(255), shown_default="the host's"
    ),
    Setting("tls_cert", "Client certificate (PEM) shown to the server.", file_path),
    Setting("tls_key", "Private key (PEM) of `tls_cert`.", file_path),
)

SERVER_SETTINGS = table(
    (
        Setting("name", "For people.", text(63), shown_default="the address"),
        Setting(
            "address",
            "host:port, or the path of a Unix socket. With [follow]: where the member of that "
            "name is reached.",
            text(255),
        ),
        Setting(
            "role",
            "`primary` or `replica`; with [follow], agents tell.",
            text(16),
            default="primary",
        ),
        Setting("weight", "Share of read-only sessions among replicas.", whole(1, 1000), default=1),
        *_SERVER_TLS,
    )
)

AGENT_SETTINGS = table(
    (
        Setting(
            "url",
            "The agent, or several: https://db1:8087, or the path of its Unix socket.",
            agent_urls,
        ),
        Setting(
            "database", "What the agent calls the database.", lambda v: parse_database(text(63)(v))
        ),
        Setting("token_file", "File whose first line is the token that is shown to it.", file_path),
        Setting("ca", "Authority (PEM) that signed the agents' certificates.", file_path),
        Setting("cert", "Client certificate (PEM) shown to them.", file_path),
        Setting("key", "Private key (PEM) of `cert`.", file_path),
        Setting(
            "report",
            "true tells the agent what was decided here, for its history and `headgate top`.",
            flag,
            default=True,
        ),
    )
)

FOLLOW_SETTINGS = table(
    (
        Setting(
            "shard",
            "The shard whose primary and replicas sessions go to.",
            text(127),
            shown_default="the database's own",
        ),
        Setting(
            "port",
            "Port of every server, at the host of its agent.",
            whole(1, 65535),
            shown_default="5432, or 3306",
        ),
        Setting(
            "grace_s",
            "How long a session to a server that is not primary any more may go on to the end of "
            "its transaction.",
            seconds(0, 3600),
            default=10.0,
        ),
        Setting(
            "replicas_or_primary",
            "true: the read-only route goes to the primary while no replica is healthy.",
            flag,
            default=True,
        ),
        Setting(
            "interval_s",
            "How often it is asked who is who.",
            seconds(0.05, 60),
            default=0.25,
        ),
        *_SERVER_TLS,
    )
)

IDENTITY_SETTINGS = table(
    (
        Setting(
            "order",
            "Where a client's name comes from, the first that has one: `tag:KEY`, "
            "`attribute:NAME`, `variable:NAME`, `application_name`, `user`, `database`, `pattern`.",
            source_order,
            default=(
                Source(SourceKind.TAG, "headgate_client"),
                Source(SourceKind.APPLICATION),
                Source(SourceKind.USER),
            ),
            shown_default="tag:headgate_client, application_name, user",
        ),
        Setting(
            "priority_tag",
            "Tag whose value, 0–100, is a statement's priority: 0 is never held up by the health "
            "gate. Empty: there is none.",
            text(65),
            default="",
        ),
        Setting("default_priority", "Of statements without that tag.", whole(0, 100), default=100),
        Setting(
            "secret_file",
            f"File with the key ({MIN_SECRET_BYTES}–{MAX_SECRET_BYTES} bytes) that signs tags: "
            "HMAC-SHA256 in the tag headgate_sig.",
            file_path,
        ),
    )
)

TRUST_SETTINGS = table(
    (
        Setting("tag", "Key of the tag; `*`: every tag.", text(65)),
        Setting(
            "users",
            "Database users from whom it counts.",
            names(MAX_TRUSTED_USERS),
            default=(),
        ),
        Setting(
            "signed",
            "true: it counts from anybody, if headgate_sig vouches for it.",
            flag,
            default=False,
        ),
    )
)

BAND_SETTINGS = table(
    (
        Setting("at", "Utilisation of the worst metric; 1 is its threshold.", number(0, 100)),
        Setting("ratio", "Share of the statements that is acted upon.", number(0, 1)),
    )
)

GATE_SETTINGS = table(
    (
        Setting(
            "clients",
            "Clients that the health gate is for, by name or level; `*` is everybody. Rules of the "
            "agent apply to all in any case.",
            client_names,
            default=(),
            shown_default="none",
        ),
        Setting(
            "mode",
            "`off`, `warn` or `enforce`.",
            one_of(GateMode),
            default=GateMode.WARN,
        ),
        Setting(
            "action",
            "`delay` until the gate opens, `refuse` at once, or `close`: refuse, end the session.",
            acts(Act.DELAY, Act.REFUSE, Act.CLOSE),
            default=Act.DELAY,
            shown_default="delay",
        ),
        Setting("max_delay_s", "Longest delay; then it is refused.", seconds(0, 3600), default=5.0),
        Setting(
            "max_delayed",
            "Statements of one client that wait at once; further ones are refused.",
            whole(0, 1_000_000),
            default=100,
        ),
        Setting(
            "statements",
            "`writes`, or `all`.",
            one_of(Judged),
            default=Judged.WRITES,
        ),
        Setting(
            "bands",
            "Graded response: `[{at = 0.8, ratio = 0.25}, {at = 1, ratio = 1}]`.",
            band_list,
            default=(Band(1.0, 1.0),),
            shown_default="all at 1",
        ),
        Setting(
            "hard_limit",
            "Utilisation above which a statement's priority counts for nothing.",
            number(0, 100),
        ),
        Setting(
            "on_loss",
            "`pass`, `delay` or `refuse` while nothing is known of the database's health.",
            acts(Act.PASS, Act.DELAY, Act.REFUSE),
            default=Act.PASS,
            shown_default="pass",
        ),
        Setting(
            "stale_after_s",
            "How old what is known of health may be.",
            seconds(0.5, 3600),
            default=5.0,
        ),
        Setting(
            "rule_action",
            "What a rule of the agent does to the statements that its dice pick: `refuse`, "
            "`delay`, or `close` (refuse and end the session).",
            acts(Act.DELAY, Act.REFUSE, Act.CLOSE),
            default=Act.REFUSE,
            shown_default="refuse",
        ),
        Setting(
            "rule_delay_s",
            "With `delay`: how long those wait; a `hold` keeps them until it ends.",
            seconds(0, 60),
            default=0.25,
        ),
        Setting(
            "metrics",
            "Metrics of the database to judge by.",
            names(64),
            default=(),
            shown_default="its default metrics",
        ),
    )
)

RELEASE_SETTINGS = table(
    (
        Setting(
            "kind",
            "`off`; `steps`: up by max_increase below the target, down by emergency_decrease above "
            "max; `pi`: the controller of paced metrics.",
            one_of(ReleaseKind),
            default=ReleaseKind.OFF,
        ),
        Setting("target", "Of the worst metric's threshold.", number(0.01, 1), default=0.7),
        Setting("max", "Likewise; above it the rate is cut.", number(0.01, 10), default=1.0),
        Setting(
            "max_increase",
            "Share by which the rate may rise in one step.",
            number(0.001, 10),
            default=0.1,
        ),
        Setting(
            "emergency_decrease",
            "Share of the rate that is taken off above `max`.",
            number(0.01, 1),
            default=0.5,
        ),
        Setting("min_between_s", "Least time between two steps.", seconds(0.05, 3600), default=1.0),
        Setting(
            "initial_per_s",
            "Statements a second to begin with.",
            number(0.1, 10_000_000),
            default=100.0,
        ),
        Setting(
            "action",
            "`delay` or `refuse` what is beyond the pace.",
            acts(Act.DELAY, Act.REFUSE),
            default=Act.DELAY,
            shown_default="delay",
        ),
        Setting("max_delay_s", "Longest delay for the pace.", seconds(0, 3600), default=5.0),
    )
)

POLICY_SETTINGS = table(
    (
        Setting(
            "file",
            "File with the budgets (TOML, or JSON if its name ends so); followed as it changes.",
            file_path,
        ),
        Setting(
            "from_agent",
            "true takes the policy over that [agent] serves for its database. With neither, it "
            "is what lies in `directory`: an agent on this host, or `headgate pg publish "
            "--directory`, puts it there.",
            flag,
            default=False,
        ),
    )
)

PLANS_SETTINGS = table(
    (
        Setting(
            "dsn",
            "Postgres: a side connection for EXPLAIN, once a pattern, so that budgets know what a "
            "statement costs before it has run. Without one, wall time alone is learnt.",
            text(2048),
        ),
        Setting("password_file", "File whose first line is its password.", file_path),
        Setting("timeout_s", "Of one EXPLAIN.", seconds(0.05, 60), default=1.0),
        Setting("per_s", "EXPLAINs a second, at most.", number(0.1, 1000), default=20.0),
    )
)

CONTROL_SETTINGS = table(
    (
        Setting(
            "address",
            "host:port of the control API and of /metrics; an empty string: the socket alone. Each "
            "proxy of a host needs its own.",
            lambda value: None if value == "" else place()(value),
            default=("127.0.0.1", 8088),
            shown_default="127.0.0.1:8088",
        ),
        Setting(
            "socket",
            "Unix socket of it. Changes need no token here: file permissions decide.",
            file_path,
            shown_default="`control.sock` in `directory`",
        ),
        Setting("socket_mode", "Permissions of the Unix socket.", text(4), default="0600"),
        Setting("tls_cert", "Certificate chain (PEM) for `address`.", file_path),
        Setting("tls_key", "Private key (PEM) for `address`.", file_path),
        Setting(
            "allow_plaintext",
            "true lets `address` leave loopback without TLS.",
            flag,
            default=False,
        ),
    )
)

SLOWLOG_SETTINGS = table(
    (
        Setting(
            "path",
            "File that refused and delayed statements go to, a line of JSON each, with their "
            "values taken out; empty: into the log. A reload opens it again.",
            lambda value: None if value == "" else file_path(value),
        ),
        Setting("min_delay_s", "Shorter delays are counted only.", seconds(0, 3600), default=0.1),
        Setting("warnings", "true: statements that were warned of, too.", flag, default=False),
        Setting(
            "per_s",
            "Lines a second; further ones are counted. 0: no slow-log.",
            number(0, 10_000),
            default=10.0,
        ),
    )
)

MEMORY_SETTINGS = table(
    (
        Setting("budgets", "Budgets whose counts are kept.", whole(16, 65536), default=1024),
        Setting(
            "buckets", "Buckets, those for each value included.", whole(16, 1 << 22), default=16384
        ),
        Setting("patterns", "Patterns whose cost is learnt.", whole(16, 1 << 22), default=8192),
        Setting("policy_kb", "Largest compiled policy, in KiB.", whole(64, 1 << 20), default=4096),
        Setting(
            "traces",
            "Statements kept for `headgate budget replay`.",
            whole(0, 1 << 20),
            default=1024,
        ),
        Setting(
            "clients",
            "Clients that are counted one by one; further ones as `others`.",
            whole(16, 65536),
            default=1024,
        ),
        Setting("statements", "Statements that run at once.", whole(64, 1 << 20), default=4096),
        Setting("plans", "Patterns whose plan is known.", whole(16, 1 << 20), default=4096),
    )
)

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "[proxy]": PROXY_SETTINGS,
        "[[listen]]": LISTEN_SETTINGS,
        "[[server]]": SERVER_SETTINGS,
        "[agent]": AGENT_SETTINGS,
        "[follow]": FOLLOW_SETTINGS,
        "[identity]": IDENTITY_SETTINGS,
        "[[identity.trust]]": TRUST_SETTINGS,
        "[gate]": GATE_SETTINGS,
        "[release]": RELEASE_SETTINGS,
        "[policy]": POLICY_SETTINGS,
        "[plans]": PLANS_SETTINGS,
        "[control]": CONTROL_SETTINGS,
        "[slowlog]": SLOWLOG_SETTINGS,
        "[memory]": MEMORY_SETTINGS,
        "[[tokens]]": TOKEN_SETTINGS,
    }
)
"""By heading, for the reference page."""
SECTIONS = frozenset(heading.strip("[]").partition(".")[0] for heading in TABLES)


# --- values --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentLinkSettings:
    urls: tuple[str, ...]
    database: str
    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    report: bool = True


@dataclass(frozen=True, slots=True)
class PolicySettings:
    file: Path | None = None
    from_agent: bool = False


@dataclass(frozen=True, slots=True)
class PlansSettings:
    dsn: str = field(repr=False)
    password_file: Path | None = None
    timeout_s: float = 1.0
    per_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ControlSettings:
    address: tuple[str, int] | None = ("127.0.0.1", 8088)
    socket: Path | None = None
    socket_mode: str = "0600"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_plaintext: bool = False


@dataclass(frozen=True, slots=True)
class SlowlogSettings:
    path: Path | None = None
    min_delay_s: float = 0.1
    warnings: bool = False
    per_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ProxySettings:
    name: str
    directory: Path
    relay: RelayTerms
    memory: MemoryTerms
    listen: tuple[ListenTerms, ...]
    servers: tuple[ServerTerms, ...]
    follow: FollowTerms | None
    agent: AgentLinkSettings | None
    identity: IdentityTerms
    gate: GateTerms
    release: ReleaseTerms
    policy: PolicySettings
    plans: PlansSettings | None
    control: ControlSettings
    slowlog: SlowlogSettings
    tokens: tuple[Token, ...] = ()
    drain_timeout_s: float = 30.0
    log: LogFormat = LogFormat.AUTO
    identity_file: Path | None = None
    """Where the key of `identity` was read."""
    advice: tuple[Advice, ...] = ()
    source: str = ""

    @property
    def control_socket(self) -> Path:
        return self.control.socket or self.directory / "control.sock"


def load_proxy_settings(path: Path, environment: Mapping[str, str] | None = None) -> ProxySettings:
    """The settings of `path`, or InvalidSettings with every fault and its line."""
    environment = os.environ if environment is None else environment  # noqa: TID251 -- as config.py
    return parse_proxy_settings(settings_text(path, MAX_FILE_BYTES), environment, source=str(path))


def parse_proxy_settings(
    content: str, environment: Mapping[str, str] = MappingProxyType({}), *, source: str = ""
) -> ProxySettings:
    document = settings_document(content, source)
    try:
        settings = _Reading(document, environment).settings()
    except InvalidSettings as error:
        faults = with_lines(error.faults, content)
        raise InvalidSettings(faults, source) from None
    return replace(settings, source=source)


class _Reading:
    """One document, and everything that is wrong with it."""

    def __init__(self, document: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._document = document
        self._environment = environment
        self._secret_file: Path | None = None
        self.faults: list[Fault] = [
            Fault(key, unknown(key, sorted(SECTIONS))) for key in document.keys() - SECTIONS
        ]

    def settings(self) -> ProxySettings:
        proxy = self._proxy()
        protocol = proxy["protocol"] or Protocol.POSTGRES
        agent = self._agent()
        servers = self._servers(protocol)
        settings = ProxySettings(
            name=proxy["name"],
            directory=proxy["directory"] or Path(),
            relay=_relay_terms(proxy, protocol),
            memory=self._memory(proxy),
            listen=self._listeners(),
            servers=servers,
            follow=self._follow(agent, servers, protocol),
            agent=agent,
            identity=self._identity(),
            gate=GateTerms(**self._table("gate", GATE_SETTINGS)),
            release=self._release(),
            policy=PolicySettings(**self._table("policy", POLICY_SETTINGS)),
            plans=self._plans(protocol),
            control=self._control(),
            slowlog=SlowlogSettings(**self._table("slowlog", SLOWLOG_SETTINGS)),
            tokens=self._tokens(),
            drain_timeout_s=proxy["drain_timeout_s"],
            log=proxy["log"],
            identity_file=self._secret_file,
        )
        # Of a table that has faults, only these are told: what it would have come to is not known.
        whole = [fault for fault in _whole_faults(settings) if not self._is_broken(fault.place)]
        self.faults.extend(whole)
        if self.faults:
            raise InvalidSettings(list(dict.fromkeys(self.faults)))
        return replace(settings, advice=tuple(_advise(settings, bool(proxy["cpus"]))))

    def _is_broken(self, place: str) -> bool:
        table = place.partition(".")[0]
        return any(fault.place.partition(".")[0] == table for fault in self.faults)

    # --- tables ----------------------------------------------------------------------------

    def _table(
        self, name: str, rows: Table, sections: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Of a table with faults, its defaults: the whole is refused anyway."""
        raw = self._document.get(name, {})
        values, found = read_table(raw, rows, place=name, sections=sections)
        self.faults.extend(found)
        return {row: setting.default for row, setting in rows.items()} if found else values

    def _list(
        self, name: str, rows: Table, most: int, *, raw: object = None
    ) -> list[tuple[int, dict[str, Any]]]:
        """Those that are sound, with their numbers."""
        entries = self._document.get(name.rpartition(".")[2], []) if raw is None else raw
        if not isinstance(entries, list):
            self._fault(name, f"must be a list of tables: [[{name}]]")
            return []
        if len(entries) > most:
            self._fault(name, f"has {len(entries)} entries, at most {most}")
            return []
        found: list[tuple[int, dict[str, Any]]] = []
        for index, entry in enumerate(entries):
            values, faults = read_table(entry, rows, place=f"{name}.{index}")
            self.faults.extend(faults)
            if not faults:
                found.append((index, values))
        return found

    def _fault(self, where: str, message: str) -> None:
        self.faults.append(Fault(where, message))

    def _need(self, name: str, *keys: str) -> None:
        """What the file does not say; what it says wrongly is told already."""
        raw = self._document.get(name)
        for key in keys:
            if isinstance(raw, Mapping) and key not in raw:
                self._fault(f"{name}.{key}", "is missing")

    def _read(self, where: str, read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except (ValueError, InvalidName) as error:
            self._fault(where, str(error))
            return otherwise

    # --- parts -----------------------------------------------------------------------------

    def _proxy(self) -> dict[str, Any]:
        raw = self._document.get("proxy", {})
        if isinstance(raw, Mapping):
            raw = {**raw, **_from_environment(self._environment)}
        values, found = read_table(raw, PROXY_SETTINGS, place="proxy")
        self.faults.extend(found)
        if found:
            return {row: setting.default for row, setting in PROXY_SETTINGS.items()}
        for key in ("protocol", "directory"):
            if values[key] is None:
                self._fault(f"proxy.{key}", "is missing")
        return values

    def _memory(self, proxy: Mapping[str, Any]) -> MemoryTerms:
        values = self._table("memory", MEMORY_SETTINGS)
        policy_kb = values.pop("policy_kb")
        return MemoryTerms(
            **values,
            policy_bytes=policy_kb * 1024,
            cpus_milli=round(1000 * (proxy["cpus"] or os.cpu_count() or 1)),
            workers=proxy["max_connections"],
        )

    def _listeners(self) -> tuple[ListenTerms, ...]:
        rows = self._list("listen", LISTEN_SETTINGS, MAX_LISTENERS)
        if not self._document.get("listen"):
            self._fault("listen", "is missing: clients need an address, [[listen]] address = …")
        found = [self._listener(index, row) for index, row in rows]
        places = [(one.host, one.port) for one in found]
        for again in {p for p in places if places.count(p) > 1 and p[1]}:
            self._fault("listen", f"has {again[0]}:{again[1]} twice")
        return tuple(found)

    def _listener(self, index: int, row: Mapping[str, Any]) -> ListenTerms:
        where = f"listen.{index}"
        if row["address"] is None:
            self._fault(f"{where}.address", "is missing")
        host, port = row["address"] or ("", 0)
        cert, key = row["tls_cert"], row["tls_key"]
        tls = row["tls"] or (ListenTls.ALLOW if cert else ListenTls.OFF)
        if (cert is None) is not (key is None):
            self._fault(f"{where}.tls_cert", "and tls_key go together: give both or neither")
        if tls is not ListenTls.OFF and cert is None:
            self._fault(f"{where}.tls", f"is {tls.value!r}, which needs tls_cert and tls_key")
        exposed = not (host.startswith("/") or is_loopback(host))
        if exposed and host and tls is ListenTls.OFF and not row["allow_plaintext"]:
            message = (
                f"{host} is not loopback: give tls_cert and tls_key, or say allow_plaintext = true "
                "if something else protects the way"
            )
            self._fault(f"{where}.address", message)
        ca = row["tls_client_ca"]
        return ListenTerms(
            host, port, row["route"], tls, str(cert or ""), str(key or ""), str(ca or "")
        )

    def _servers(self, protocol: Protocol) -> tuple[ServerTerms, ...]:
        rows = self._list("server", SERVER_SETTINGS, MAX_SERVERS)
        return tuple(self._server(index, row, protocol) for index, row in rows)

    def _server(self, index: int, row: Mapping[str, Any], protocol: Protocol) -> ServerTerms:
        where = f"server.{index}"
        if row["address"] is None:
            self._fault(f"{where}.address", "is missing")
        if row["role"] not in ("primary", "replica"):
            self._fault(f"{where}.role", f"is {row['role']!r}, must be 'primary' or 'replica'")
        read = lambda: place(PORTS[protocol])(row["address"] or "localhost")  # noqa: E731
        host, port = self._read(f"{where}.address", read, ("localhost", 0))
        return ServerTerms(
            name=row["name"] or row["address"] or "",
            host=host,
            port=port,
            replica=row["role"] == "replica",
            weight=row["weight"],
            tls=self._server_tls(where, row),
        )

    def _server_tls(self, where: str, row: Mapping[str, Any]) -> TlsTerms:
        if (row["tls_cert"] is None) is not (row["tls_key"] is None):
            self._fault(f"{where}.tls_cert", "and tls_key go together: give both or neither")
        mode, ca = row["tls"], row["tls_ca"]
        if mode == "off" and (ca or row["tls_cert"] or row["tls_name"]):
            self._fault(f"{where}.tls", "is 'off', so the other tls_ settings say nothing")
        if mode.startswith("verify") and ca is None:
            self._fault(f"{where}.tls_ca", f"is missing: tls = {mode!r} needs an authority")
        paths = {name: str(row[f"tls_{name}"] or "") for name in ("ca", "cert", "key", "name")}
        return TlsTerms(mode=mode, **paths)

    def _agent(self) -> AgentLinkSettings | None:
        if "agent" not in self._document:
            return None
        values = self._table("agent", AGENT_SETTINGS)
        self._need("agent", "url", "database")
        if (values["cert"] is None) is not (values["key"] is None):
            self._fault("agent.cert", "and key go together: give both or neither")
        urls = values.pop("url") or ()
        return AgentLinkSettings(urls, **{**values, "database": values["database"] or ""})

    def _follow(
        self,
        agent: AgentLinkSettings | None,
        servers: tuple[ServerTerms, ...],
        protocol: Protocol,
    ) -> FollowTerms | None:
        if "follow" not in self._document:
            return None
        values = self._table("follow", FOLLOW_SETTINGS)
        if agent is None:
            self._fault("agent", "is missing: [follow] follows what an agent says")
        return FollowTerms(
            database=agent.database if agent else "",
            shard=values["shard"],
            port=values["port"] or PORTS[protocol],
            servers=servers,
            tls=self._server_tls("follow", values),
            grace_s=values["grace_s"],
            replicas_or_primary=values["replicas_or_primary"],
            interval_s=values["interval_s"],
        )

    def _identity(self) -> IdentityTerms:
        values = self._table("identity", IDENTITY_SETTINGS, frozenset({"trust"}))
        raw = self._document.get("identity", {})
        entries = raw.get("trust", []) if isinstance(raw, Mapping) else []
        rows = self._list("identity.trust", TRUST_SETTINGS, MAX_TRUSTS, raw=entries)
        path = self._secret_file = values["secret_file"]
        secret = b""
        if path is not None:
            secret = self._read("identity.secret_file", lambda: _secret_of(path), b"")
        trusts = tuple(self._trust(index, row, secret) for index, row in rows)
        return IdentityTerms(
            values["order"], trusts, values["priority_tag"], values["default_priority"], secret
        )

    def _trust(self, index: int, row: Mapping[str, Any], secret: bytes) -> Trust:
        where = f"identity.trust.{index}"
        if not row["tag"]:
            self._fault(f"{where}.tag", "is missing")
        if row["signed"] and not secret:
            self._fault("identity.secret_file", "is missing: signed tags need a key")
        for user in row["users"]:
            if not 1 <= len(user.encode()) <= 63:
                self._fault(f"{where}.users", f"names {user!r}, must have 1–63 bytes")
        return Trust(row["tag"] or "", row["users"], row["signed"])

    def _release(self) -> ReleaseTerms:
        values = self._table("release", RELEASE_SETTINGS)
        values["most"] = values.pop("max")
        return ReleaseTerms(**values)

    def _plans(self, protocol: Protocol) -> PlansSettings | None:
        if "plans" not in self._document:
            return None
        values = self._table("plans", PLANS_SETTINGS)
        self._need("plans", "dsn")
        if protocol is Protocol.MYSQL:
            self._fault("plans", "is for Postgres: MySQL's EXPLAIN tells no cost to go by")
        return PlansSettings(**{**values, "dsn": values["dsn"] or ""})

    def _control(self) -> ControlSettings:
        control = ControlSettings(**self._table("control", CONTROL_SETTINGS))
        if (control.tls_cert is None) is not (control.tls_key is None):
            self._fault("control.tls_cert", "and tls_key go together: give both or neither")
        if not re.fullmatch(r"0?[0-7]{3}", control.socket_mode):
            self._fault("control.socket_mode", "must be an octal mode such as 0660")
        host = control.address[0] if control.address else "localhost"
        if host.startswith("/"):
            self._fault("control.address", "is a path: that is `socket`")
        elif not (is_loopback(host) or control.tls_cert or control.allow_plaintext):
            message = (
                f"{host} is not loopback: give tls_cert and tls_key, or say allow_plaintext = true "
                "if something else protects the way"
            )
            self._fault("control.address", message)
        return control

    def _tokens(self) -> tuple[Token, ...]:
        rows = self._list("tokens", TOKEN_SETTINGS, 64)
        for index, row in rows:
            for key, value in row.items():
                if value is None:
                    self._fault(f"tokens.{index}.{key}", "is missing")
            if row["role"] is Role.PEER:
                self._fault(f"tokens.{index}.role", "is 'peer': a proxy has no peers")
        return tuple(Token(**row) for _, row in rows)


def _relay_terms(proxy: Mapping[str, Any], protocol: Protocol) -> RelayTerms:
    threads = proxy["threads"] or min(max(1, (os.cpu_count() or 1) // 2), DEFAULT_THREADS)
    same = (
        *("loop", "max_sessions", "max_sessions_per_user", "max_logins_per_address"),
        "startup_timeout_s",
        *("connect_timeout_s", "idle_timeout_s", "tcp_keepalive_s", "dry_run"),
    )
    return RelayTerms(
        protocol=protocol,
        threads=threads,
        max_buffer_bytes=proxy["max_buffer_mb"] << 20,
        **{name: proxy[name] for name in same},
    )


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in PROXY_SETTINGS:
        raw = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if raw is not None:
            found[name] = _toml_value(raw)
    return found


def _toml_value(raw: str) -> object:
    """Numbers and booleans as TOML would; anything else is a text."""
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw
    return value if isinstance(value, bool | int | float) else raw


def _whole_faults(settings: ProxySettings) -> Iterator[Fault]:
    """What only several tables together tell."""
    if settings.follow is None and not settings.servers:
        yield Fault("server", "is missing: give [[server]] address = …, or [agent] and [follow]")
    if settings.follow is None and settings.servers:
        yield from _role_faults(settings)
    if settings.agent is None:
        for where, wants, why in _wanting_an_agent(settings):
            if wants:
                yield Fault(where, f"needs [agent]: {why}")
    yield from _socket_faults(settings)
    yield from _loop_faults(settings)
    if settings.policy.file is not None and settings.policy.from_agent:
        yield Fault("policy.file", "and from_agent exclude each other: which of them counts?")


def _wanting_an_agent(settings: ProxySettings) -> Iterator[tuple[str, bool, str]]:
    health = "who else would know the database's health?"
    gated = bool(settings.gate.clients) and settings.gate.mode is not GateMode.OFF
    yield "gate.clients", gated, health
    yield "gate.on_loss", settings.gate.on_loss is not Act.PASS, health
    yield "release.kind", settings.release.kind is not ReleaseKind.OFF, health
    yield "policy.from_agent", settings.policy.from_agent, "whose policy would it be?"


def _socket_faults(settings: ProxySettings) -> Iterator[Fault]:
    own = settings.control.socket
    paths = [("control.socket", own)] if own else []
    if settings.directory != Path():
        paths.append(("proxy.directory", settings.directory / LONGEST_SOCKET))
    hosts = [(f"listen.{i}.address", one.host) for i, one in enumerate(settings.listen)]
    paths += [(where, Path(host)) for where, host in hosts if host.startswith("/")]
    for where, path in paths:
        length = len(os.fsencode(path))
        if length > MAX_SOCKET_BYTES:
            message = (
                f"is too long: a socket at {path} would have {length} bytes, and the system allows "
                f"{MAX_SOCKET_BYTES} (with room for the name that it has while it is made)"
            )
            yield Fault(where, message)


def _loop_faults(settings: ProxySettings) -> Iterator[Fault]:
    """A proxy that is its own server: one client would be all the sessions that there are."""
    for index, server in enumerate(settings.servers):
        own = next((one for one in settings.listen if _leads_to(server, one)), None)
        if own is not None:
            message = (
                f"{server.host}:{server.port} is this proxy's own [[listen]] {own.shown}: name "
                "the database server, or listen elsewhere"
            )
            yield Fault(f"server.{index}.address", message)


def _leads_to(server: ServerTerms, listen: ListenTerms) -> bool:
    if server.port != listen.port or (not server.port and not server.host.startswith("/")):
        return False
    if server.host == listen.host:
        return True
    if listen.host in ("0.0.0.0", "::"):  # noqa: S104 -- compared with, not bound to
        return is_loopback(server.host)
    here = {"localhost", "127.0.0.1", "::1"}
    return "localhost" in (server.host, listen.host) and {server.host, listen.host} <= here


def _role_faults(settings: ProxySettings) -> Iterator[Fault]:
    primaries = [server for server in settings.servers if not server.replica]
    if len(primaries) > 1:
        named = ", ".join(server.name for server in primaries)
        yield Fault(
            "server",
            f"has {len(primaries)} primaries ({named}): give replicas role = 'replica', or have "
            "agents tell who is primary ([follow])",
        )
    if not primaries and any(one.route is Route.READ_WRITE for one in settings.listen):
        yield Fault("server", "has no primary, and a listener is read-write")


# --- advice --------------------------------------------------------------------------------


def _advise(settings: ProxySettings, cpus_said: bool) -> Iterator[Advice]:
    for code, where, message in _odd(settings, cpus_said):
        yield Advice(Severity.WARNING, code, where, message)


def _odd(settings: ProxySettings, cpus_said: bool) -> Iterator[tuple[str, str, str]]:
    yield from _odd_servers(settings, cpus_said)
    yield from _odd_identity(settings)
    yield from _odd_gate(settings)
    yield from _odd_secrets(settings)
    if settings.relay.dry_run:
        yield "dry-run", "proxy.dry_run", "is true: nothing is delayed or refused"
    if any(listen.ca and listen.tls is not ListenTls.REQUIRE for listen in settings.listen):
        message = 'asks for certificates, but who comes without TLS shows none: tls = "require"'
        yield "optional-tls", "listen.tls_client_ca", message


def _odd_servers(settings: ProxySettings, cpus_said: bool) -> Iterator[tuple[str, str, str]]:
    hosts = [server.host for server in settings.servers]
    remote = settings.follow is not None or not all(
        host.startswith("/") or is_loopback(host) for host in hosts
    )
    if remote and not cpus_said:
        message = (
            "is not given, and the server is on another host: percentages in budgets would be of "
            "this host's CPUs"
        )
        yield "cpus", "proxy.cpus", message
    for index, server in enumerate(settings.servers):
        local = server.host.startswith("/") or is_loopback(server.host)
        if server.tls.mode == "off" and not local:
            message = (
                f'{server.name} is spoken to in plain text over a network: tls = "verify-full"'
            )
            yield "plain-server", f"server.{index}.tls", message
        if server.tls.mode in ("prefer", "require"):
            message = f'{server.tls.mode!r} does not check who the server is: "verify-full" does'
            yield "unverified-server", f"server.{index}.tls", message
    routes = {listen.route for listen in settings.listen}
    has_replica = any(server.replica for server in settings.servers)
    if settings.follow is None and has_replica and Route.READ_ONLY not in routes:
        yield "unused-replica", "server", "has replicas, and no listener is read-only"


def _odd_identity(settings: ProxySettings) -> Iterator[tuple[str, str, str]]:
    identity = settings.identity
    trusted = {trust.tag for trust in identity.trusts}
    tags = [s.name for s in identity.sources if s.kind is SourceKind.TAG]
    if identity.priority_tag:
        tags.append(identity.priority_tag)
    for tag in dict.fromkeys(tags):
        if settings.gate.mode is GateMode.ENFORCE and not trusted & {tag, "*"}:
            message = (
                f"tag {tag!r} is believed from anybody: a client can name itself as it likes. "
                "[[identity.trust]] binds it to users, or to a signature"
            )
            yield "untrusted-tag", "identity", message
    for index, trust in enumerate(identity.trusts):
        if not trust.users and not trust.signed:
            message = (
                f"tag {trust.tag!r} counts from nobody, so it is dropped everywhere: name `users`, "
                "or say signed = true"
            )
            yield "trusts-nobody", f"identity.trust.{index}", message
    if not identity.sources:
        yield "nobody", "identity.order", "is empty: every statement is unidentified"


def _odd_gate(settings: ProxySettings) -> Iterator[tuple[str, str, str]]:
    gate = settings.gate
    if settings.agent is not None and gate.mode is GateMode.ENFORCE and not gate.clients:
        yield "gate-for-nobody", "gate.clients", "is empty: the health gate is for nobody"
    if gate.action is Act.DELAY and gate.max_delayed == 0:
        yield "no-queue", "gate.max_delayed", "is 0: nothing can wait, so `delay` refuses"
    if gate.on_loss is Act.REFUSE:
        message = "is 'refuse': with the agent gone, what the gate is for stands still"
        yield "fail-closed", "gate.on_loss", message
    if settings.release.target >= settings.release.most:
        message = "is not below max: the rate would rise until it is cut"
        yield "release-target", "release.target", message


def _odd_secrets(settings: ProxySettings) -> Iterator[tuple[str, str, str]]:
    agent, plans = settings.agent, settings.plans
    files = [("agent.token_file", agent.token_file)] if agent else []
    files += [("plans.password_file", plans.password_file)] if plans else []
    for where, path in [*files, ("identity.secret_file", settings.identity_file)]:
        if path is not None and _is_open(path):
            message = f"{path} can be read by everybody on this host: chmod 0600 {path}"
            yield "open-secret", where, message
    urls = agent.urls if agent is not None and agent.token_file is not None else ()
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            message = f"sends the token to {parts.hostname} in plain text over a network; use https"
            yield "plain-token", "agent.url", message
    if plans is not None and _PASSWORD.search(plans.dsn):
        message = "has a password in it, for whoever reads this file: use password_file"
        yield "password-in-dsn", "plans.dsn", message


def _is_open(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o004)
    except OSError:  # Told by whoever reads it.
        return False
