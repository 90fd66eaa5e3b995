"""What a policy would have changed, added up by budget, client and time.

counterfactual ──Fate of each statement──► Tallies ──► ReplayRow ──► ReplayOutcome
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headgate.budgets.policy import QUERY, REMOTE_ADDRESS, TAG_PREFIX
from headgate.budgets.traces import Trace

NO_VALUE = "(none)"
BY_KEYS = ("username", "database", "application_name", REMOTE_ADDRESS, QUERY)
"""By which statements may be grouped, besides tags."""


class Fate(Enum):
    """What would have become of a statement; each has one."""

    RAN = "ran"
    WARNED = "warned"
    """It ran, and would have been warned of."""
    DELAYED = "delayed"
    """It ran after a wait."""
    BLOCKED = "blocked"
    ELSEWHERE = "elsewhere"
    """In a budget that another budget's block kept it from."""


class ReplayKey(NamedTuple):
    budget: str
    """Empty: no budget applies."""
    client: str
    step_ms: int
    """Unix time at which the minute or hour began."""


@dataclass(slots=True)
class ReplayTally:
    """Statements and CPU, as they were and as they would have been. Of sampled traces each
    represents several statements, so these are no whole numbers."""

    statements: float = 0.0
    blocked_before: float = 0.0
    cpu_before_ns: float = 0.0
    """Of those that ran."""
    after: dict[Fate, float] = field(default_factory=lambda: dict.fromkeys(Fate, 0.0))
    cpu_after_ns: float = 0.0
    waited_ns: float = 0.0
    newly_blocked: float = 0.0
    newly_admitted: float = 0.0
    variance: float = 0.0
    """Of what changed, by the luck of the draw."""

    def add(self, trace: Trace, fate: Fate, cost_ns: int, waited_ns: int = 0) -> None:
        weight, runs = trace.weight, fate not in (Fate.BLOCKED, Fate.ELSEWHERE)
        self.statements += weight
        self.after[fate] += weight
        self.blocked_before += weight if trace.blocked else 0.0
        self.cpu_before_ns += weight * trace.actual_ns
        self.cpu_after_ns += weight * cost_ns if runs else 0.0
        self.waited_ns += weight * waited_ns
        if runs is trace.blocked:
            self.newly_admitted += weight if runs else 0.0
            self.newly_blocked += 0.0 if runs else weight
            self.variance += weight * (weight - 1)

    @property
    def changed(self) -> float:
        return self.newly_blocked + self.newly_admitted

    @property
    def changed_error(self) -> float:
        """One standard deviation of it; 0 where every statement was traced."""
        return math.sqrt(self.variance)

    @property
    def ran_before(self) -> float:
        return self.statements - self.blocked_before


@dataclass(frozen=True, slots=True)
class ReplayRow:
    key: ReplayKey
    tally: ReplayTally


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    rows: tuple[ReplayRow, ...]
    """In order of time, budget and client."""
    total: ReplayTally
    """Each statement once, under however many budgets it falls."""
    traces: int
    since_ms: int
    until_ms: int
    """Of the first and the last trace; both 0 where there is none."""
    notes: tuple[str, ...] = ()
    """What this cannot know."""


def client_of(trace: Trace, by: tuple[str, ...]) -> str:
    """`etl`, or by several keys `etl controller=export`."""
    first, *others = ((key, _value(trace, key)) for key in by)
    return " ".join([first[1], *(f"{_plain(key)}={value}" for key, value in others)])


def _plain(key: str) -> str:
    return key.removeprefix(TAG_PREFIX)


def _value(trace: Trace, key: str) -> str:
    if key.startswith(TAG_PREFIX):
        wanted = _plain(key).encode()
        found = next((value for name, value in trace.tags if name == wanted), b"")
        return found.decode(errors="replace") or NO_VALUE
    if key == QUERY:
        signed = (trace.query_id + 2**63) % 2**64 - 2**63
        return str(signed) if signed else NO_VALUE
    if key == REMOTE_ADDRESS:
        return str(trace.who.address or NO_VALUE)
    return getattr(trace.who, key) or NO_VALUE


def together(tallies: Iterable[ReplayTally]) -> ReplayTally:
    """Their sums."""
    whole = ReplayTally()
    for tally in tallies:
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        for fate, count in tally.after.items():
            whole.after[fate] += count
    return whole


_SUMMED = tuple(name for name in ReplayTally.__slots__ if name != "after")
