"""What a proxy is told to do, as values: its settings file and its parts share these words.

proxysettings ──reads──► GateTerms, ReleaseTerms, … ──► proxy/gates, proxy/release, proxy/targets
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Act(Enum):
    """What happens to a statement. The numbers are HR_ACT_* of relay/relay.h."""

    PASS = "pass"  # noqa: S105 -- a deed, no password
    WARN = "warn"
    DELAY = "delay"
    REFUSE = "refuse"
    CLOSE = "close"


class GateMode(Enum):
    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class Judged(Enum):
    """Which statements the health gate looks at."""

    WRITES = "writes"
    ALL = "all"


class Route(Enum):
    """Where a listener's sessions go."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"


class ReleaseKind(Enum):
    OFF = "off"
    STEPS = "steps"
    """R99: plus max_increase below the target, minus emergency_decrease above max."""
    PI = "pi"
    """R142: the controller of the agent's pacer (core/pacing)."""


@dataclass(frozen=True, slots=True)
class Band:
    """From this utilisation of the worst metric on (1 is its threshold), this share is acted
    upon (R100)."""

    at: float
    ratio: float


@dataclass(frozen=True, slots=True)
class GateTerms:
    """The health gate of the proxy: whom it is for, and what it does to them."""

    clients: tuple[str, ...] = ()
    """Client names or their levels, as in rules; "*" is everybody. None: the gate is for nobody,
    and only rules act."""
    mode: GateMode = GateMode.WARN
    action: Act = Act.DELAY
    max_delay_s: float = 5.0
    max_delayed: int = 100
    statements: Judged = Judged.WRITES
    bands: tuple[Band, ...] = (Band(1.0, 1.0),)
    hard_limit: float | None = None
    """Utilisation above which the priority of a statement counts for nothing."""
    on_loss: Act = Act.PASS
    stale_after_s: float = 5.0
    """How old what is known of health may be; then `on_loss`."""
    metrics: tuple[str, ...] = ()
    """Of the database; none: its default metrics."""
    rule_action: Act = Act.REFUSE
    """What a rule's dice pick, whomever the gate is for; DELAY makes a ratio rule a ratio of
    delayed statements (R95)."""
    rule_delay_s: float = 0.25
    """With DELAY: how long those wait that a ratio picked. A hold keeps them until it ends."""


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """How much is released (R99), in statements a second of those that the gate is for."""

    kind: ReleaseKind = ReleaseKind.OFF
    target: float = 0.7
    """Of the worst metric's threshold; likewise `most`."""
    most: float = 1.0
    max_increase: float = 0.1
    emergency_decrease: float = 0.5
    min_between_s: float = 1.0
    initial_per_s: float = 100.0
    action: Act = Act.DELAY
    max_delay_s: float = 5.0


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """EXPLAIN on a side connection, once a pattern."""

    dsn: str
    password: str | None = None
    timeout_s: float = 1.0
    per_s: float = 20.0
    """EXPLAINs a second at most."""
    max_known: int = 4096


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """How the proxy speaks to a server. `mode` as libpq's sslmode."""

    mode: str = "off"
    ca: str = ""
    cert: str = ""
    key: str = ""
    name: str = ""
    """That the server's certificate must have; empty: its host's."""


PLAIN = TlsTerms()


@dataclass(frozen=True, slots=True)
class ServerTerms:
    """A server that the settings name."""

    name: str
    host: str
    """A name, an address, or the path of a Unix socket."""
    port: int
    replica: bool = False
    weight: int = 1
    tls: TlsTerms = PLAIN


@dataclass(frozen=True, slots=True)
class FollowTerms:
    """Servers as the agents of a shard see them."""

    database: str
    shard: str | None = None
    port: int | None = None
    """Of every server; None: as the members say."""
    servers: tuple[ServerTerms, ...] = ()
    """Addresses of members by their names, where they are reached otherwise than agents say."""
    tls: TlsTerms = PLAIN
    grace_s: float = 10.0
    replicas_or_primary: bool = True
    interval_s: float = 0.25


# --- the data path itself -------------------------------------------------------------------


class Protocol(Enum):
    POSTGRES = "postgres"
    MYSQL = "mysql"


class Loop(Enum):
    AUTO = "auto"
    EPOLL = "epoll"
    URING = "io_uring"


class ListenTls(Enum):
    OFF = "off"
    ALLOW = "allow"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class ListenTerms:
    """An address that clients connect to."""

    host: str
    """A name, an address, or the path of a Unix socket."""
    port: int
    route: Route = Route.READ_WRITE
    tls: ListenTls = ListenTls.OFF
    cert: str = ""
    key: str = ""
    ca: str = ""
    """Whose client certificates are taken; empty: none is asked for."""

    @property
    def shown(self) -> str:
        if self.host.startswith("/"):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SourceKind(Enum):
    """Where the name of a client may come from (R96). In the order of HR_FROM_*, from 1 on."""

    TAG = "tag"
    ATTRIBUTE = "attribute"
    APPLICATION = "application_name"
    VARIABLE = "variable"
    USER = "user"
    DATABASE = "database"
    PATTERN = "pattern"


@dataclass(frozen=True, slots=True)
class Source:
    kind: SourceKind
    name: str = ""
    """Of the tag, attribute or variable."""

    @property
    def shown(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value


@dataclass(frozen=True, slots=True)
class Trust:
    """A tag that counts only from these users, or signed (R149)."""

    tag: str
    """`*`: every tag."""
    users: tuple[str, ...] = ()
    signed: bool = False


@dataclass(frozen=True, slots=True)
class IdentityTerms:
    sources: tuple[Source, ...] = ()
    trusts: tuple[Trust, ...] = ()
    priority_tag: str = ""
    default_priority: int = 100
    secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """Sizes of what is shared by the threads, and with a process that takes over."""

    budgets: int = 1024
    buckets: int = 16384
    patterns: int = 8192
    policy_bytes: int = 4 << 20
    traces: int = 1024
    clients: int = 1024
    statements: int = 4096
    plans: int = 4096
    cpus_milli: int = 1000
    workers: int = 100


@dataclass(frozen=True, slots=True)
class RelayTerms:
    """What is fixed while the relay runs."""

    protocol: Protocol = Protocol.POSTGRES
    threads: int = 1
    loop: Loop = Loop.AUTO
    max_sessions: int = 10_000
    max_sessions_per_user: int = 0
    max_logins_per_address: int = 0
    startup_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 0.0
    tcp_keepalive_s: int = 60
    max_buffer_bytes: int = 256 << 20
    dry_run: bool = False
