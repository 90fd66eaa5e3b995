"""Budgets and their rules, as values.   document ──parse──► Policy ──compiled──► every server

Amounts are whole numbers in the units of native/headgate.h: thousandths of a percent (mpct) of
the server, thousandths of a percent-second (mpcts), milliseconds. None is "no limit"; 0 is a
limit that nothing fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from headgate.budgets.identity import NO_SERVER_RULES, ServerRules

SYSTEM_KEYS = (
    "username",
    "database",
    "application_name",
    "remote_address",
    "query",
    "fingerprint",
)
"""What the server knows of a statement, in the order of the compiled policy."""
REMOTE_ADDRESS, QUERY, FINGERPRINT = SYSTEM_KEYS[3:]
SESSION_KEYS = frozenset(SYSTEM_KEYS[:4])
NUMBER_KEYS = frozenset({QUERY, FINGERPRINT})
TAG_PREFIX = "tag."

MAX_BUDGETS = 65_536
MAX_RULES = 65_536
MAX_CONDITIONS = 16
MAX_EACHES = 4
MAX_EXEMPT = 64
MAX_KEY_BYTES = 65
MAX_VALUE_BYTES = 1024


class Mode(Enum):
    OFF = "off"
    """Matches nothing and counts nothing."""
    WARN = "warn"
    """Counts and warns of what it would have blocked; everything runs."""
    ENFORCE = "enforce"


class When(Enum):
    ALWAYS = "always"
    UNHEALTHY = "unhealthy"
    """It applies only while the health gate says that the database is not healthy."""


class InTransaction(Enum):
    """What a budget does to a statement inside a transaction that its client has begun."""

    CHARGE = "charge"
    """It is charged and runs: blocking it would lose the work of a client that holds locks."""
    BLOCK = "block"


class UnknownHealth(Enum):
    """What `when = "unhealthy"` takes an unknown health for."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


# --- keys and values -------------------------------------------------------------------------

_SYSTEM_INDEX = {key: index for index, key in enumerate(SYSTEM_KEYS)}


def is_tag(key: str) -> bool:
    return key.startswith(TAG_PREFIX)


def tag_name(key: str) -> str:
    return key.removeprefix(TAG_PREFIX)


def key_order(key: str) -> tuple[int, str]:
    """Sorts keys: those of the server first, then tags by name."""
    return _SYSTEM_INDEX.get(key, len(SYSTEM_KEYS)), key


class Condition(NamedTuple):
    """A key, and the very bytes that its value is compared by.

    Text as UTF-8; `query` and `fingerprint` as 8 bytes, least significant first; an address as
    its 4 or 16 bytes, masked, and one byte of bits (see address_value).
    """

    key: str
    value: bytes

    @property
    def network(self) -> IPv4Network | IPv6Network:
        """Of a condition on remote_address."""
        return ip_network((self.value[:-1], self.value[-1]))

    @property
    def shown(self) -> str:
        """The value as the document has it."""
        return shown_value(self.key, self.value)

    def __str__(self) -> str:
        return f"{self.key}={self.shown}"


def number_value(number: int) -> bytes:
    """A query id, signed or not, or a fingerprint."""
    return (number & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")


def address_value(packed: bytes, bits: int) -> bytes:
    """The prefix of `bits` that an address of 4 or 16 bytes lies in."""
    width = len(packed) * 8
    kept = int.from_bytes(packed, "big") >> (width - bits) << (width - bits)
    return kept.to_bytes(len(packed), "big") + bytes((bits,))


def address_family(value: bytes) -> int:
    return 4 if len(value) == 5 else 6


def shown_value(key: str, value: bytes) -> str:
    if key == REMOTE_ADDRESS:
        return str(ip_network((value[:-1], value[-1])))
    if key == QUERY:
        return str(int.from_bytes(value, "little", signed=True))
    if key == FINGERPRINT:
        return f"{int.from_bytes(value, 'little'):016x}"
    return value.decode()


# --- the policy ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """All conditions hold, and every each-key has a value. Without either: everything."""

    conditions: tuple[Condition, ...] = ()
    """In the order of their keys (key_order); one for a key."""
    each: tuple[str, ...] = ()
    """Keys, in the same order: a bucket for each combination of their values."""

    @property
    def prefix_bits(self) -> int | None:
        """Of its condition on remote_address."""
        for key, value in self.conditions:
            if key == REMOTE_ADDRESS:
                return value[-1]
        return None

    @property
    def keys(self) -> tuple[str, ...]:
        return (*(condition.key for condition in self.conditions), *self.each)

    def __str__(self) -> str:
        match = " and ".join(map(str, self.conditions)) or "everything"
        return f"{match}, for each {', '.join(self.each)}" if self.each else match


def budget_rule(conditions: Iterable[Condition] = (), each: Iterable[str] = ()) -> BudgetRule:
    """In the order that a BudgetRule has."""
    return BudgetRule(
        tuple(sorted(conditions, key=lambda one: key_order(one.key))),
        tuple(sorted(each, key=key_order)),
    )


@dataclass(frozen=True, slots=True)
class Budget:
    name: str
    mode: Mode = Mode.WARN
    rate_mpct: int | None = None
    """Of the server, for the long run: what drains the bucket."""
    capacity_mpcts: int | None = None
    """Of the bucket."""
    burst_mpcts: int | None = None
    """For one statement."""
    concurrency_mpct: int | None = None
    """Of the server's workers, rounded up."""
    max_workers: int | None = None
    """The same as a number; a budget has at most one of the two."""
    warning_mpct: int | None = None
    """Of capacity, burst and concurrency."""
    when: When = When.ALWAYS
    in_transaction: InTransaction = InTransaction.CHARGE
    max_delay_ms: int = 0
    penalty_ms: int = 50
    max_delayed: int = 100
    epoch: int = 0
    expires_at_ms: int | None = None
    """Unix time."""
    comment: str = ""
    rules: tuple[BudgetRule, ...] = ()

    @property
    def admits_nothing(self) -> bool:
        """An explicit 0 in any limit blocks all that it matches: a statement is switched off."""
        limits = (self.rate_mpct, self.capacity_mpcts, self.burst_mpcts)
        return 0 in (*limits, self.concurrency_mpct, self.max_workers)

    def lets_pass(self, *, in_transaction: bool) -> bool:
        """A client inside a transaction may hold locks that others wait for."""
        charges = self.in_transaction is InTransaction.CHARGE
        return in_transaction and charges and not self.admits_nothing

    def workers_allowed(self, workers: int) -> int | None:
        """Of the server's `workers`, how many may work for it at once; None: any number."""
        if self.max_workers is not None:
            return self.max_workers
        if self.concurrency_mpct is None:
            return None
        return -(-self.concurrency_mpct * workers // 100_000)

    @property
    def has_limit(self) -> bool:
        """Whether any statement could ever be too much for it. A rate alone fills no bucket."""
        limits = (self.capacity_mpcts, self.burst_mpcts, self.concurrency_mpct, self.max_workers)
        return self.rate_mpct == 0 or any(limit is not None for limit in limits)

    def expired(self, wall_ms: int) -> bool:
        return self.expires_at_ms is not None and wall_ms >= self.expires_at_ms


@dataclass(frozen=True, slots=True)
class Policy:
    budgets: tuple[Budget, ...] = ()
    """In the order of the document, by which the first to block is reported."""
    health_unknown: UnknownHealth = UnknownHealth.HEALTHY
    exempt_usernames: tuple[str, ...] = ()
    """Database users that no rule ever applies to."""
    ruling: ServerRules = NO_SERVER_RULES
    """Of operators, not of the document: added when it is published."""

    @property
    def kept(self) -> tuple[Budget, ...]:
        """Those that take part; what is off is not even compiled."""
        return tuple(budget for budget in self.budgets if budget.mode is not Mode.OFF)

    def numbered_rules(self) -> Iterator[tuple[int, int, Budget, BudgetRule]]:
        """Of kept budgets: places of budget and rule in the document, and themselves."""
        for at, budget in enumerate(self.budgets):
            if budget.mode is not Mode.OFF:
                for rule_at, rule in enumerate(budget.rules):
                    yield at, rule_at, budget, rule
