"""Requests to the budgets, their answers and numbers, and the hash, as in headgate.h.

StatementIdentity, Statement ─matching─► Match
`StatementCheck`, Match ─admit─► StatementAnswer
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

NEVER = 2**64 - 1
"""As a time to wait: it never will fit."""
MAX_COST_NS = 10_000_000_000_000
"""10,000 s of CPU; more expensive statements are charged that."""
MAX_MATCHES = 32
"""Budgets that apply to one statement; more are counted, not applied."""


MAX_WORKERS = 65_535
"""That one statement can ask for."""
NO_PATTERN = 1
"""Keys up to here mean none."""


class Dialect(IntEnum):
    """How literals and comments read."""

    POSTGRES = 0
    MYSQL = 1


class Limit(IntEnum):
    """What a statement may fail, in the order in which it is decided."""

    NONE = 0
    CONCURRENCY = 1
    QUERY = 2
    BUCKET = 3


class StatementVerdict(IntEnum):
    RUN = 0
    WARN = 1
    DELAY = 2
    BLOCK = 3


class StatementFlags(IntFlag):
    PLANNED = 0
    EARLY = 1
    """There is no plan yet: decide by what is known without it."""
    IN_TRANSACTION = 2
    """Something has run in this transaction, which the client has begun."""
    NO_DELAY = 4
    """The caller cannot wait (any more)."""
    UTILITY = 8
    """Has no plan: its plan cost is 1, and it teaches nothing about others."""
    COST_GIVEN = 16
    """`cost_ns` is the cost: a cooperative check."""
    MUST_RUN = 32
    """It cannot be stopped any more (at COMMIT): charged, never blocked."""


@dataclass(frozen=True, slots=True)
class StatementIdentity:
    username: str | None = None
    database: str | None = None
    application_name: str | None = None
    address: IPv4Address | IPv6Address | None = None
    """None on a Unix socket."""


@dataclass(frozen=True, slots=True)
class Statement:
    text: bytes
    """This statement's own slice of the text."""
    dialect: Dialect = Dialect.POSTGRES
    query_id: int = 0
    """As the server numbers it, without a sign; 0: not known."""
    fingerprint: int | None = None
    """None: worked out when a rule needs it."""
    cut: bool = False
    """The text goes on, and what it says there is not known: rules that ask for a tag or a
    fingerprint are taken for matched, behind all those that match by what is known."""


class Match(NamedTuple):
    budget: int
    """Index among the budgets that are not off."""
    rule: int
    """Index of the first rule that brought it, counted likewise."""
    bucket: int
    label: bytes = b""
    """Of a bucket per distinct value: `tenant=acme`, cut."""


@dataclass(frozen=True, slots=True)
class StatementCheck:
    now_ns: int
    """By the monotonic clock of all that share a ledger."""
    wall_ms: int = 0
    """Unix time: for records, never for reckoning."""
    plan_cost: float = 1.0
    cost_ns: int = 0
    """If the cost is given."""
    p90_ns: int = 0
    """Likewise, if it is more than that."""
    pattern: int = 0
    """Key of the statement's pattern; 0 or 1: none."""
    workers: int = 1
    """Processes it will use."""
    flags: StatementFlags = StatementFlags.PLANNED
    shape: int = 0
    """16 bits that say which kinds of nodes its plan has; 0: not known."""

    @property
    def places(self) -> int:
        return min(max(self.workers, 1), MAX_WORKERS)


class Estimate(NamedTuple):
    """Of CPU."""

    mean_ns: int
    """What is charged."""
    p90_ns: int
    """Nine of ten executions stay below it: what the per-query limit is compared with."""


@dataclass(frozen=True, slots=True)
class StatementAnswer:
    verdict: StatementVerdict
    limits: tuple[Limit, ...]
    """Of each match: what it failed."""
    thresholds: tuple[Limit, ...]
    """Of each match: whose warning threshold it crossed."""
    estimate_ns: int
    """The mean."""
    p90_ns: int = 0
    match: int = 0
    """The one that decided (BLOCK, DELAY), or the first that warns."""
    decided_by: Limit = Limit.NONE
    passed: bool = False
    """An enforced budget was exceeded, but the statement may go on inside its transaction."""
    used: int = 0
    """In the limit's own unit: workers; ns of CPU requested, as p90; ns of CPU of debt."""
    bound: int = 0
    retry_ns: int = 0

    @property
    def admitted(self) -> bool:
        return self.verdict in (StatementVerdict.RUN, StatementVerdict.WARN)


# --- debits --------------------------------------------------------------------------------------

# What a check that names a budget is charged, and the result.
#
# A cooperative check with a declared cost and the statements in the query path debit one budget:
# see budgets/charging.py.


class DebitState(Enum):
    CHARGED = "charged"
    WARNED = "warned"
    """Admitted although it does not fit: the budget is in warn mode or nearly full."""
    OVER = "over"
    """Rejected; nothing was charged."""
    INACTIVE = "inactive"
    """The budget does not apply now: it is off, has ended, or only counts under load."""
    UNKNOWN = "unknown"
    """There is no such budget."""


class DebitResult(NamedTuple):
    budget: str
    state: DebitState
    cost_s: float
    """CPU seconds that the check declares."""
    debt_s: float | None = None
    """The budget's debt in CPU seconds before this check; None: it has no bucket."""
    capacity_s: float | None = None
    retry_after_s: float | None = None
    """With OVER: when the check would fit; None: never with these limits."""
    note: str = ""
    ledger: str = ""
    """Where the debt is counted: in the server with the statements, or by the agent alone."""

    @property
    def admitted(self) -> bool:
        return self.state not in (DebitState.OVER, DebitState.UNKNOWN)


# --- hash ----------------------------------------------------------------------------------------

# hg_hash: the one hash of names and values, the same in native/headgate.h.
#
# FNV-1a over the bytes, then mixed, since a table of slots goes by the lowest bits.

SYSTEM_KEY, TAG_KEY, BUDGET, FINGERPRINT = range(4)
"""Seeds, so that the same bytes mean another thing."""

_BASIS = 0xCBF2_9CE4_8422_2325
_SHORT_BYTES = 32


def hg_hash(seed: int, data: bytes) -> int:
    return mixed(fnv(seed ^ _BASIS, data))


# Ten thousand values are hashed for every publication, so the constants stand in the loops, and
# short values grow past 64 bits first and are cut once: a third of the time.
def fnv(state: int, data: bytes) -> int:
    """On from `state`: for a stream, begin with fnv_start(seed), and end with mixed()."""
    if len(data) <= _SHORT_BYTES:
        for byte in data:
            state = (state ^ byte) * 0x100_0000_01B3
        return state & 0xFFFF_FFFF_FFFF_FFFF
    for byte in data:
        state = (state ^ byte) * 0x100_0000_01B3 & 0xFFFF_FFFF_FFFF_FFFF
    return state


def fnv_start(seed: int) -> int:
    return seed ^ _BASIS


def mixed(state: int) -> int:
    state = (state ^ (state >> 32)) * 0xD6E8_FEB8_6659_FD93 & 0xFFFF_FFFF_FFFF_FFFF
    state = (state ^ (state >> 32)) * 0xD6E8_FEB8_6659_FD93 & 0xFFFF_FFFF_FFFF_FFFF
    return state ^ (state >> 32)


def budget_key(name: str) -> int:
    """0 and 1 mean a free place and one that is being taken, in the region."""
    key = hg_hash(BUDGET, name.encode())
    return key if key > 1 else key + 2
