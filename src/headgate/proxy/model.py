"""What a proxy's settings tell it to do, as values that the settings file and the proxy share.

settings/proxy ──reads──► GateTerms, ReleaseTerms, … ──► proxy/gates, proxy/release, proxy/targets
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from headgate.base.declared import (
    Key,
    names,
    number,
    one_of,
    read_struct,
    seconds,
    share,
    size,
    text,
    whole,
)
from headgate.base.names import parse_identity

MAX_BANDS = 16
DEFAULT_THREADS = 4


class Act(Enum):
    """What happens to a statement. The numbers are HR_ACT_* of relay/relay.h."""

    PASS = "pass"  # noqa: S105 -- a deed, no password
    WARN = "warn"
    DELAY = "delay"
    BLOCK = "block"
    CLOSE = "close"


class GateMode(Enum):
    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class GatedStatements(Enum):
    """Which statements the health gate looks at."""

    WRITES = "writes"
    ALL = "all"


class SessionRoute(Enum):
    """Where a listener's sessions go."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"


class ReleaseKind(Enum):
    OFF = "off"
    STEPS = "steps"
    """Up by max_increase below the target, down by emergency_decrease above max."""
    PI = "pi"
    """The controller of the agent's pacer (pacing/model)."""


@dataclass(frozen=True, slots=True)
class Band:
    """From this utilization of the worst metric on, the gate acts on this share of statements."""

    at: Annotated[float, Key("Utilization of the worst metric; 1 is its threshold.", share(0, 100))]
    ratio: Annotated[float, Key("Share of the statements that the gate acts on.", share(0, 1))]


def _bands(value: object) -> tuple[Band, ...]:
    if not isinstance(value, list) or len(value) > MAX_BANDS:
        raise ValueError(f"must be a list of at most {MAX_BANDS} tables {{at = …, ratio = …}}")
    bands = []
    for raw in value:
        band, faults = read_struct(raw, Band, place="band")
        if faults or band is None:
            raise ValueError("; ".join(f"{f.place.partition('.')[2]} {f.message}" for f in faults))
        bands.append(band)
    if [band.at for band in bands] != sorted({band.at for band in bands}):
        raise ValueError("must have bands in ascending order of `at`, each once")
    return tuple(bands)


def _clients(value: object) -> tuple[str, ...]:
    found = names(256)(value)
    for name in found:
        if name != "*":
            parse_identity(name)
    return found


@dataclass(frozen=True, slots=True)
class GateTerms:
    """The health gate of the proxy: which clients it applies to, and what it does to them."""

    clients: Annotated[
        tuple[str, ...],
        Key(
            "Clients that the health gate applies to, by name or level; `*` is all of them. The "
            "agent's rules apply to all clients in any case.",
            _clients,
            "none",
        ),
    ] = ()
    mode: Annotated[GateMode, Key("`off`, `warn` or `enforce`.")] = GateMode.WARN
    action: Annotated[
        Act,
        Key(
            "`delay` until the gate opens, `block` at once, or `close` to block and end "
            "the session.",
            one_of(Act, Act.DELAY, Act.BLOCK, Act.CLOSE),
        ),
    ] = Act.DELAY
    max_delay_s: Annotated[
        float, Key("Longest delay; then the statement is blocked.", seconds(0, 3600))
    ] = 5.0
    max_delayed: Annotated[
        int,
        Key("Statements of one client that wait at once; more are blocked.", whole(0, 1_000_000)),
    ] = 100
    statements: Annotated[GatedStatements, Key("`writes`, or `all`.")] = GatedStatements.WRITES
    bands: Annotated[
        tuple[Band, ...],
        Key(
            "Graded response: `[{at = 0.8, ratio = 0.25}, {at = 1, ratio = 1}]`.",
            _bands,
            "all at 1",
        ),
    ] = (Band(1.0, 1.0),)
    hard_limit: Annotated[
        float | None,
        Key("Utilization above which the gate ignores a statement's priority.", share(0, 100)),
    ] = None
    on_loss: Annotated[
        Act,
        Key(
            "`pass`, `delay` or `block` while the database's health is unknown.",
            one_of(Act, Act.PASS, Act.DELAY, Act.BLOCK),
        ),
    ] = Act.PASS
    stale_after_s: Annotated[
        float,
        Key("Age limit of the database's health; then `on_loss` applies.", seconds(0.5, 3600)),
    ] = 5.0
    rule_action: Annotated[
        Act,
        Key(
            "What an agent's ratio rule does to the statements that it picks: `block`, "
            "`delay`, or `close` (block and end the session).",
            one_of(Act, Act.DELAY, Act.BLOCK, Act.CLOSE),
        ),
    ] = Act.BLOCK
    """For every client that the gate applies to. With DELAY a ratio rule delays statements."""
    rule_delay_s: Annotated[
        float,
        Key("With `delay`: how long they wait. A `hold` delays until it ends.", seconds(0, 60)),
    ] = 0.25
    metrics: Annotated[
        tuple[str, ...],
        Key("Metrics of the database that the gate uses.", names(64), "its default metrics"),
    ] = ()


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """How many statements a second are released, of those that the gate applies to."""

    kind: Annotated[
        ReleaseKind,
        Key(
            "`off`; `steps`: up by max_increase below the target, down by emergency_decrease above "
            "max; `pi`: the controller of paced metrics."
        ),
    ] = ReleaseKind.OFF
    target: Annotated[float, Key("Share of the worst metric's threshold.", share(0.01, 1))] = 0.7
    most: Annotated[
        float, Key("Share of the threshold; the rate is cut above it.", share(0.01, 10), name="max")
    ] = 1.0
    max_increase: Annotated[
        float, Key("Share by which the rate may rise in one step.", share(0.001, 10))
    ] = 0.1
    emergency_decrease: Annotated[
        float, Key("Share of the rate that is cut above `max`.", share(0.01, 1))
    ] = 0.5
    min_between_s: Annotated[float, Key("Least time between two steps.", seconds(0.05, 3600))] = 1.0
    initial_per_s: Annotated[
        float, Key("Statements a second to begin with.", number(0.1, 10_000_000))
    ] = 100.0
    action: Annotated[
        Act,
        Key(
            "`delay` or `block` statements beyond the rate.",
            one_of(Act, Act.DELAY, Act.BLOCK),
        ),
    ] = Act.DELAY
    max_delay_s: Annotated[float, Key("Longest delay by the rate.", seconds(0, 3600))] = 5.0


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """EXPLAIN on a side connection, once a pattern."""

    dsn: Annotated[
        str,
        Key(
            "Postgres: a side connection for EXPLAIN, once per pattern, so that budgets know the "
            "cost of a statement before it has run. Without one, only wall time is learned.",
            text(2048),
        ),
    ] = field(repr=False)
    password: str | None = field(default=None, repr=False)
    timeout_s: Annotated[float, Key("Timeout of one EXPLAIN.", seconds(0.05, 60))] = 1.0
    per_s: Annotated[float, Key("Most EXPLAINs a second.", number(0.1, 1000))] = 20.0
    max_known: int = 4096


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """How the proxy speaks to a server. `mode` as libpq's sslmode."""

    mode: str = "off"
    ca: str = ""
    cert: str = ""
    key: str = ""
    name: str = ""
    """Name that the server's certificate must have; empty: its host name."""


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

    database: str = ""
    shard: Annotated[
        str | None,
        Key("Shard whose primary and replicas get the sessions.", text(127), "the database's own"),
    ] = None
    port: Annotated[
        int | None,
        Key("Port of every server, at the host of its agent.", whole(1, 65535), "5432, or 3306"),
    ] = None
    servers: tuple[ServerTerms, ...] = ()
    """Addresses of members by name, where they differ from what agents report."""
    tls: TlsTerms = PLAIN
    grace_s: Annotated[
        float,
        Key(
            "How long a session on a server that is no longer primary may continue until the end "
            "of its transaction.",
            seconds(0, 3600),
        ),
    ] = 10.0
    replicas_or_primary: Annotated[
        bool,
        Key("true: the read-only route goes to the primary while no replica is healthy."),
    ] = True
    interval_s: Annotated[
        float, Key("How often to query agents for the current primary.", seconds(0.05, 60))
    ] = 0.25


# --- the data path itself -------------------------------------------------------------------


class Protocol(Enum):
    POSTGRES = "postgres"
    MYSQL = "mysql"


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
    route: SessionRoute = SessionRoute.READ_WRITE
    tls: ListenTls = ListenTls.OFF
    cert: str = ""
    key: str = ""
    ca: str = ""
    """CA of client certificates that are accepted; empty: none is requested."""

    @property
    def shown(self) -> str:
        if self.host.startswith("/"):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """Sizes of what is shared by the threads, and with a process that takes over."""

    budgets: Annotated[int, Key("Budgets whose counts are kept.", whole(16, 65536))] = 1024
    buckets: Annotated[int, Key("Buckets, those for each value included.", whole(16, 1 << 22))] = (
        16384
    )
    patterns: Annotated[int, Key("Patterns whose cost is learned.", whole(16, 1 << 22))] = 8192
    policy_bytes: Annotated[
        int,
        Key(
            'Largest compiled policy: KiB, or a text such as `"4 MiB"`.',
            size(64, 1 << 20, 1024),
            "4096",
            name="policy_kb",
        ),
    ] = 4 << 20
    traces: Annotated[
        int, Key("Statements kept for `headgate budget replay`.", whole(0, 1 << 20))
    ] = 1024
    clients: Annotated[
        int, Key("Clients that are counted singly; the rest as `others`.", whole(16, 65536))
    ] = 1024
    statements: Annotated[int, Key("Statements that run at once.", whole(64, 1 << 20))] = 4096
    plans: Annotated[int, Key("Patterns whose plan is known.", whole(16, 1 << 20))] = 4096
    cpus_milli: int = 1000
    workers: int = 100


def _whole_seconds(low: int, high: int) -> Callable[[object], int]:
    within = seconds(low, high)

    def read(value: object) -> int:
        given = within(value)
        if given != int(given):
            raise ValueError(f"is {given:g} s, must be whole seconds")
        return int(given)

    return read


@dataclass(frozen=True, slots=True)
class RelayTerms:
    """What is fixed while the relay runs."""

    protocol: Protocol = Protocol.POSTGRES
    threads: Annotated[
        int,
        Key(
            "Threads that relay; 0: one for every two CPUs of the host, at most "
            f"{DEFAULT_THREADS}. A change of this table takes effect at a restart, except "
            "`drain_timeout_s`.",
            whole(0, 64),
        ),
    ] = 0
    max_sessions: Annotated[
        int,
        Key("Sessions at once; more are rejected (53300, 1040).", whole(1, 1_000_000)),
    ] = 10_000
    max_sessions_per_user: Annotated[
        int,
        Key(
            "Sessions of one user that has logged in; 0: no limit of its own.",
            whole(0, 1_000_000),
        ),
    ] = 0
    max_logins_per_address: Annotated[
        int,
        Key(
            "Sessions from one address (IPv6: one /64) that are still logging in; more are "
            "rejected. 0: all but a 64th of `max_sessions`, so that one address never takes all.",
            whole(0, 1_000_000),
        ),
    ] = 0
    startup_timeout_s: Annotated[
        float,
        Key(
            "Longest time from the connection until the session is established, login included.",
            seconds(1, 600),
        ),
    ] = 30.0
    connect_timeout_s: Annotated[
        float, Key("How long the server may take to accept a connection.", seconds(0.1, 600))
    ] = 5.0
    idle_timeout_s: Annotated[
        float,
        Key(
            "End sessions that are idle for this long outside a transaction; 0: never.",
            seconds(0, 30 * 86400),
        ),
    ] = 0.0
    tcp_keepalive_s: Annotated[
        int,
        Key("Detects that the other end is gone; 0: the system default.", _whole_seconds(0, 7200)),
    ] = 60
    max_buffer_bytes: Annotated[
        int,
        Key(
            "Memory limit for the buffers of all sessions and the texts of their prepared "
            'statements: MiB, or a text such as `"1 GiB"`. Above half of it, the proxy buffers '
            "less for clients that do not read, reads their servers more slowly, and treats new "
            "prepared statements as unknown writes.",
            size(4, 65536, 1 << 20),
            "256",
            name="max_buffer_mb",
        ),
    ] = 256 << 20
    dry_run: Annotated[bool, Key("true decides, counts and warns, and blocks nothing.")] = False
