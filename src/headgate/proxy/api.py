"""What a proxy, and a Postgres server with `pg_headgate`, report to the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

# --- a proxy --------------------------------------------------------------------------------


class ListenDoc(msgspec.Struct, frozen=True):
    address: str
    route: str
    tls: str


class ProxyDoc(msgspec.Struct, frozen=True):
    name: str
    version: str
    protocol: str
    pid: int
    state: str
    """`starting`, `serving`, `draining` or `handed over`."""
    uptime_s: float
    threads: int
    dry_run: bool
    listen: Sequence[ListenDoc]
    predecessor: int | None
    """The process that drains; null: there is none."""
    waits_for_restart: Sequence[str]
    """Sections of the settings."""


class ProxySessionsDoc(msgspec.Struct, frozen=True):
    now: int
    idle: int
    max: int
    established: int
    rejected_sessions: int
    failed_startups: int
    failed_connects: int


class ProxyStatementsDoc(msgspec.Struct, frozen=True):
    total: int
    compared: int
    unidentified_share: float | None
    held_now: int
    running_now: int


class ProxyClientDoc(msgspec.Struct, frozen=True):
    client: str
    statements: int
    warned: int
    delayed: int
    delayed_s: float
    blocked: Mapping[str, int]
    """By cause."""
    blocked_total: int
    waiting: int


class ProxyBudgetDoc(msgspec.Struct, frozen=True):
    budget: str
    admitted: int
    warned: int
    blocked: int
    blocked_by: Mapping[str, int]
    """By limit."""
    delayed: int
    waiting: int
    charged_s: float
    fill: float | None


class ProxyPolicyDoc(msgspec.Struct, frozen=True):
    version: int | None
    """Null: not known, see `fault`."""
    fault: str = ""
    checksum: str = ""
    off: bool = False
    enabled: bool = True
    health: str = ""


class WorstPatternDoc(msgspec.Struct, frozen=True):
    pattern: str
    error: float


class CalibrationDoc(msgspec.Struct, frozen=True):
    measured: int
    error_median: float | None
    error_p90: float | None
    worst: Sequence[WorstPatternDoc]


class ProxyTargetDoc(msgspec.Struct, frozen=True):
    name: str
    address: str
    primary: bool
    replica: bool
    tls: str


class ProxyPartDoc(msgspec.Struct, frozen=True):
    name: str
    healthy: bool
    summary: str


class ProxyStatusDoc(msgspec.Struct, frozen=True):
    proxy: ProxyDoc
    sessions: ProxySessionsDoc
    statements: ProxyStatementsDoc
    clients: Sequence[ProxyClientDoc]
    budgets: Sequence[ProxyBudgetDoc]
    policy: ProxyPolicyDoc
    patterns: CalibrationDoc
    targets: Sequence[ProxyTargetDoc]
    parts: Sequence[ProxyPartDoc]
    advice: Sequence[str]
    problems: Sequence[str]


class ProxySessionDoc(msgspec.Struct, frozen=True):
    id: int
    client: str
    username: str
    database: str
    peer: str
    server: str
    server_process: int
    age_s: float
    phase: str
    in_transaction: bool
    statement_s: float | None


class ProxySessionListDoc(msgspec.Struct, frozen=True):
    sessions: Sequence[ProxySessionDoc]
    next: int | None
    """There are more, after this one."""


class ProxyReloadedDoc(msgspec.Struct, frozen=True):
    changed: Sequence[str]
    waits_for_restart: Sequence[str]
    advice: Sequence[str]


# --- a Postgres server ----------------------------------------------------------------------


class InstalledDoc(msgspec.Struct, frozen=True):
    postgres: str
    library: str
    control: str
    settings: Sequence[str]


class PolicyAdviceDoc(msgspec.Struct, frozen=True):
    place: str
    message: str
    code: str


class PolicyPutDoc(msgspec.Struct, frozen=True):
    state: str
    """`in force`, or why not yet, see `detail`."""
    version: int
    checksum: str
    took_ms: float | None
    """Until it was in force; null: it is not yet."""
    detail: str = ""
    off: bool = False
    advice: Sequence[PolicyAdviceDoc] = ()
    removed: Sequence[str] = ()


class PgServerDoc(msgspec.Struct, frozen=True):
    version_num: int
    pid: int | None
    extension: str
    cpus: float
    max_connections: int


class PgInForceDoc(msgspec.Struct, frozen=True):
    version: int
    checksum: str
    off: bool | None
    """Null: not known over SQL."""
    enabled: bool
    rejected: int
    rejection: str


class PgPublishedDoc(msgspec.Struct, frozen=True):
    version: int = 0
    checksum: str = ""
    budgets: int = 0
    enforced: int = 0
    rules: int = 0
    fault: str | None = None


class PgHealthDoc(msgspec.Struct, frozen=True):
    state: str
    until_s: float | None


class PgBackendDoc(msgspec.Struct, frozen=True):
    pid: int
    version: int | None
    """Null: it has run no statement yet."""


class PgBudgetDoc(msgspec.Struct, frozen=True):
    budget: str
    bucket: str
    fill: float | None
    running: int
    sleeping: int
    blocked: int
    warned: int
    delayed: int
    last_violation_s_ago: float | None
    trouble: Sequence[str]


class PgStatusDoc(msgspec.Struct, frozen=True):
    server: PgServerDoc
    in_force: PgInForceDoc
    health: PgHealthDoc
    backends: Sequence[PgBackendDoc]
    budgets: Sequence[PgBudgetDoc]
    problems: Sequence[str]
    published: PgPublishedDoc | None = None
    from_outside: str = ""
    """Why this is over SQL and not from the server's memory; empty: it is not."""
