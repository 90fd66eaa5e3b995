"""The answer to a check: a closed type that each edge translates once.

Also how much an agent works (Activity), and how long ratio rules may reject a client (Turn).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headgate.base.names import Identity, MetricRef, Scope
from headgate.budgets.model import DebitResult
from headgate.check.health import Health
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Cause, Instant
from headgate.rules.matching import UNRULED, Applied, Rule


class Verdict(Enum):
    """Work may proceed only on OK."""

    OK = "OK"
    THRESHOLD_EXCEEDED = "THRESHOLD_EXCEEDED"
    REJECTED_BY_RATIO = "REJECTED_BY_RATIO"
    ON_HOLD = "ON_HOLD"
    PACED = "PACED"
    OVER_BUDGET = "OVER_BUDGET"
    METRIC_UNAVAILABLE = "METRIC_UNAVAILABLE"
    UNKNOWN_METRIC = "UNKNOWN_METRIC"
    WRONG_AGENT = "WRONG_AGENT"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    """A bug of the agent. `decide` never returns it: the listener answers 500 with it."""

    __hash__ = object.__hash__  # Enum's own is a call, in each count of a rejection.


VERDICT_MEANINGS: dict[Verdict, str] = {
    Verdict.OK: "every selected metric is healthy: one piece of work may start",
    Verdict.THRESHOLD_EXCEEDED: "at least one selected metric breaches its threshold",
    Verdict.REJECTED_BY_RATIO: "a ratio rule rejects a share of this client's checks, "
    "and this was one of them",
    Verdict.ON_HOLD: "the agent admits no check of this client for now; the reason says why: "
    "a hold rule, a check without a client name, or an agent that lost its state",
    Verdict.PACED: "every selected metric is healthy, but the current allowance is used up: "
    "retry after the time in the answer",
    Verdict.OVER_BUDGET: "every selected metric is healthy, but the budget that the check names "
    "has no room for its cost: retry after the time in the answer",
    Verdict.METRIC_UNAVAILABLE: "a selected metric has no usable value; the reason says why: "
    "a failed, late or invalid reading, a stale value, an idle database, or a shard "
    "without a primary",
    Verdict.UNKNOWN_METRIC: "a selected metric, database or budget is not configured here, "
    "or the metric has no first value yet",
    Verdict.WRONG_AGENT: "another agent answers this check: the shard's primary's agent, or the "
    "active agent of a pair; the answer has its address",
    Verdict.INTERNAL_ERROR: "the agent has a bug: its log has the details; please report it",
}


class State(Enum):
    """What a check makes of one metric."""

    HEALTHY = "healthy"
    LAST_VALUE = "last_value"
    """Healthy by its last value: there is no newer one, and the metric's `absence` is `hold`."""
    IGNORED = "ignored"
    """Unavailable, and the metric's `absence` is `ignore`."""
    EXEMPTED = "exempted"
    """Would reject the check, but a rule exempts the client from it."""
    BREACHED = "breached"
    UNAVAILABLE = "unavailable"
    """Without a usable value: the cause says why."""


# Tuples, not sets: an enum's hash is a call, `is` is not.
PASSING = (State.HEALTHY, State.LAST_VALUE, State.IGNORED, State.EXEMPTED)


class Finding(NamedTuple):
    """One metric as this check saw it."""

    ref: MetricRef
    state: State
    spec: MetricSpec | None = None
    value: float | None = None
    age_s: float | None = None
    threshold: float | None = None
    cause: Cause | None = None
    detail: str = ""
    unavailable_for_s: float | None = None


class Check(NamedTuple):
    """The question, parsed."""

    identity: Identity
    database: str
    metrics: tuple[MetricRef, ...] = ()
    """Empty: the database's default set."""
    scope: Scope | None = None
    """Without a metric: use the default metrics all in this scope, not each in its own."""
    read_threshold: float | None = None
    """Set: compare the named metrics with the caller's own threshold. Such a check only reads; it
    is never a permission to write."""
    ok_if_unknown: bool = False
    cost: float = 1.0
    """How much work is about to start, in the client's own units (rows, chunks); for pacing."""
    budget: str = ""
    """Set: the budget of the database that `cpu_s` is charged to."""
    cpu_s: float = 0.0
    """CPU seconds that the work will take on the server, as the client declares."""


class Decision(NamedTuple):
    verdict: Verdict
    check: Check
    at: Instant
    health: Health | None
    failing: tuple[Finding, ...] = ()
    """Every metric that rejects the check, not only the first."""
    rule: Rule | None = None
    """The rule that decided, or that could have rejected the check by chance."""
    applied: Applied = UNRULED
    """Every rule that applied."""
    exempted: tuple[Finding, ...] = ()
    """Metrics that would have rejected an exempt client: shown and counted."""
    retry_after_s: float | None = None
    note: str = ""
    check_at: str = ""
    """With WRONG_AGENT: the address of the agent to check with, if known."""
    check_at_database: str = ""
    """With WRONG_AGENT: the name of the database at that agent."""
    turn: Turn | None = None
    """How long ratio rules have rejected this client in a row. None if fairness is off."""
    debit: DebitResult | None = None
    """What the budget was charged, if the check names one and no metric rejected it."""

    @property
    def admitted(self) -> bool:
        return self.verdict is Verdict.OK

    @property
    def odds(self) -> float | None:
        """How likely dice let such a check through to the metrics; None where none are thrown."""
        rule = self.applied.reject
        if rule is None or rule.rejects_all or not rule.ratio or self.dice_waived:
            return None
        return 1 - rule.ratio

    @property
    def dice_waived(self) -> bool:
        return self.turn is not None and self.turn.dice_waived


# --- activity ------------------------------------------------------------------------------------

# How much an agent works for a database that no client checks.
#
# AWAKE ──idle_after_s──► IDLE ──hibernate_after_s──► HIBERNATING ──a check──► AWAKE


class Activity(Enum):
    AWAKE = "awake"
    IDLE = "idle"
    HIBERNATING = "hibernating"


@dataclass(frozen=True, slots=True)
class Idleness:
    """When to do less. 0 for `never`."""

    idle_after_s: float = 60.0
    hibernate_after_s: float = 600.0
    idle_factor: float = 10.0
    """In IDLE, intervals are this many times longer."""


def activity_after(idle_s: float, idleness: Idleness) -> Activity:
    if idleness.hibernate_after_s and idle_s >= idleness.hibernate_after_s:
        return Activity.HIBERNATING
    if idleness.idle_after_s and idle_s >= idleness.idle_after_s:
        return Activity.IDLE
    return Activity.AWAKE


_ORDER = (Activity.AWAKE, Activity.IDLE, Activity.HIBERNATING)


def most_awake(*states: Activity) -> Activity:
    return min(states, key=_ORDER.index)


# --- turns ---------------------------------------------------------------------------------------

# How long ratio rules may reject a client by chance. Off unless a limit is set.
#
# a rejection by ratio ──turn_of──► Turn: for how long already, and whether to skip the dice now
#
# Only the dice are skipped: the client's metrics still apply to it, as to every client, and can
# still reject it.


class Turn(NamedTuple):
    """How long a client has waited that ratio rules reject."""

    waited_s: float
    """Seconds since the first rejection by ratio after the client's last check of metrics."""
    max_wait_s: float

    @property
    def dice_waived(self) -> bool:
        return self.waited_s >= self.max_wait_s

    @property
    def left_s(self) -> float:
        """Until the dice are waived."""
        return max(0.0, self.max_wait_s - self.waited_s)


def turn_of(diced_since: float | None, now_s: float, max_wait_s: float) -> Turn:
    """`diced_since` is None at the first rejection. A clock that stops or goes back makes no
    client wait longer than that."""
    waited_s = 0.0 if diced_since is None else max(0.0, now_s - diced_since)
    return Turn(waited_s, max_wait_s)
