"""What a server says of its budgets, as values.   pgext/ ──BudgetReadings──► budgets/meter

Counters are as the server keeps them: since it started. To know what happened in a minute, compare
two readings (meter.py); nothing here is reset by being read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

CONCURRENCY, BURST, CAPACITY = "concurrency", "burst", "capacity"
LIMITS = (CONCURRENCY, BURST, CAPACITY)
"""What may block a statement, in the order in which it is decided."""
THRESHOLD = "threshold"
"""Of warnings alone: crossed `warning_threshold`, and no limit."""


def _no_counts() -> Mapping[str, int]:
    return MappingProxyType({})


class ServerHealth(Enum):
    """The health that was reported to the server, while it is valid."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Published(NamedTuple):
    """A policy, where a sink put it."""

    version: int
    checksum: int
    """CRC-32 of the compiled policy."""
    at_ms: int
    """Unix time."""
    off: bool = False
    """Switched off (`headgate pg disable`): it lies there, and nobody decides by it."""
    content: int = 0
    """Checksum of what it says: the same under another version, switched off or on."""


class Lying(NamedTuple):
    """A policy that lies where a sink puts its own, of any author."""

    version: int
    checksum: int
    content: int
    off: bool


@dataclass(frozen=True, slots=True)
class Seat:
    """One process that decides, and the policy it last decided by."""

    pid: int
    version: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class BudgetCounts:
    admitted: int = 0
    estimated_ns: int = 0
    """Of CPU, of what was admitted."""
    charged_ns: int = 0
    """What it came to."""
    wall_ns: int = 0
    """How long that ran, by the clock: with waits for locks and disks."""
    passed: int = 0
    """Over a limit, but inside a transaction."""
    sleeping: int = 0
    """Held now, by a delay or a penalty: no counter."""
    forgiven_ns: int = 0
    evicted: int = 0
    unpinned: int = 0
    """Ran uncounted: every bucket of its set was in use."""
    warned: Mapping[str, int] = field(default_factory=_no_counts)
    """By limit, or `threshold`."""
    blocked: Mapping[str, int] = field(default_factory=_no_counts)
    """By limit."""
    early: int = 0
    """Of the blocked, before planning."""
    delayed: int = 0
    delayed_ns: int = 0
    last_violation_ms: int = 0
    """Unix time; 0: none yet."""


NOTHING_COUNTED = BudgetCounts()


@dataclass(frozen=True, slots=True)
class BucketReading:
    budget: str
    label: str
    """Of a bucket per distinct value, `tenant=acme`; empty for the budget's own."""
    debt_ns: int
    """Of CPU."""
    capacity_ns: int | None
    """None: the budget has no capacity."""
    fill: float | None
    """debt / capacity, 0 to 1 and, inside transactions, beyond; None without a capacity."""
    running: int
    """Workers at work under it now."""
    max_workers: int | None = None
    """None: no limit."""


@dataclass(frozen=True, slots=True)
class PatternReading:
    query_id: int
    database: int
    """As the server numbers it."""
    calls: int
    k: float | None
    """CPU ns per unit of plan cost; None before there is one."""
    cpu_mean_ns: float
    """Of a typical execution, the recent ones weighted more."""
    cpu_p90_ns: float
    """Nine of ten executions stay below it."""
    error: float
    """Mean of |estimate - actual| / actual."""
    cpu_total_ns: int
    wall_total_ns: int = 0


class ClientTally(NamedTuple):
    """Decisions about one client's statements, since the server's start."""

    admitted: int = 0
    by_budget: int = 0
    by_rule: int = 0
    last_budget: str = ""

    def since(self, before: ClientTally) -> ClientTally:
        return ClientTally(
            self.admitted - before.admitted,
            self.by_budget - before.by_budget,
            self.by_rule - before.by_rule,
            self.last_budget,
        )


@dataclass(frozen=True, slots=True)
class BudgetReadings:
    version: int
    """Of the policy in force; 0: none."""
    checksum: int
    started_ms: int
    """Unix time of the server's start: another one means that every counter started again."""
    enabled: bool = True
    off: bool = False
    """The policy in force is switched off: no budget applies."""
    published_ms: int = 0
    rejected: int = 0
    """Policies that the server did not take since it started."""
    rejection: str = ""
    """Why the last of them was not."""
    health: ServerHealth = ServerHealth.UNKNOWN
    health_until_ms: int = 0
    cpus_milli: int = 0
    workers: int = 0
    """100 % of `concurrency`."""
    seats: tuple[Seat, ...] = ()
    budgets: Mapping[str, BudgetCounts] = field(default_factory=lambda: MappingProxyType({}))
    buckets: tuple[BucketReading, ...] = ()
    patterns: tuple[PatternReading, ...] = ()
    clients: Mapping[str, ClientTally] = field(default_factory=lambda: MappingProxyType({}))
    """By name; those beyond the server's table are `others` together."""
