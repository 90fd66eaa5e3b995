"""The answer to a check: a closed type that each edge translates once."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from headgate.core.debits import Debit
from headgate.core.fairness import Turn
from headgate.core.health import Health
from headgate.core.metrics import MetricSpec
from headgate.core.names import Identity, MetricRef, Scope
from headgate.core.rules import UNRULED, Applied, Rule
from headgate.core.samples import Cause, Instant


class Verdict(Enum):
    """Work may proceed only on OK."""

    OK = "OK"
    THRESHOLD_EXCEEDED = "THRESHOLD_EXCEEDED"
    REJECT_BY_RATIO = "REJECT_BY_RATIO"
    APP_DENIED = "APP_DENIED"
    UNKNOWN_METRIC = "UNKNOWN_METRIC"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    PACED = "PACED"
    OVER_BUDGET = "OVER_BUDGET"
    MISDIRECTED = "MISDIRECTED"


VERDICT_MEANINGS: dict[Verdict, str] = {
    Verdict.OK: "every selected metric is healthy: one piece of work may start",
    Verdict.THRESHOLD_EXCEEDED: "at least one selected metric breaches its threshold",
    Verdict.REJECT_BY_RATIO: "a ratio rule rejects a share of this client's checks, this one too",
    Verdict.APP_DENIED: "this client may not work now: a rule holds it, it gave no name, or the "
    "agent has lost its state",
    Verdict.UNKNOWN_METRIC: "a selected metric or database is not configured here, "
    "or was never collected; or there is no such budget",
    Verdict.INTERNAL_ERROR: "a selected metric has no usable value: failed, timed out, "
    "invalid or stale; or no agent can answer for its shard",
    Verdict.PACED: "metrics are healthy, but the current allowance is used up: "
    "retry after the time in the answer",
    Verdict.OVER_BUDGET: "metrics are healthy, but the budget that the check names "
    "has no room for its cost: retry after the time in the answer",
    Verdict.MISDIRECTED: "the check is about the shard, and another agent answers for it: "
    "check at the address in the answer",
}


class State(Enum):
    """What a check makes of one metric."""

    HEALTHY = "healthy"
    HELD = "held"
    """Healthy by its last value: the newest reading has none, and the policy is `hold`."""
    IGNORED = "ignored"
    """Without a value, and the policy is `ignore`."""
    WAIVED = "waived"
    """Would reject the check, but the client is exempt from it."""
    BREACHED = "breached"
    ABSENT = "absent"


# Tuples, not sets: an enum's hash is a call, `is` is not.
PASSING = (State.HEALTHY, State.HELD, State.IGNORED, State.WAIVED)


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
    absent_for_s: float | None = None


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
    waived: tuple[Finding, ...] = ()
    """Metrics that would have rejected an exempt client: shown and counted."""
    retry_after_s: float | None = None
    note: str = ""
    ask: str = ""
    """With MISDIRECTED: the address of the agent to check with, if known."""
    ask_database: str = ""
    """With MISDIRECTED: the name of the database at that agent."""
    turn: Turn | None = None
    """How long ratio rules have rejected this client in a row. None if fairness is off."""
    debit: Debit | None = None
    """What the budget was charged, if the check names one and no metric rejected it."""

    @property
    def admitted(self) -> bool:
        return self.verdict is Verdict.OK

    @property
    def odds(self) -> float | None:
        """How likely dice let such a check through to the metrics; None where none are thrown."""
        rule = self.applied.refuse
        if rule is None or rule.refuses_all or not rule.ratio or self.dice_waived:
            return None
        return 1 - rule.ratio

    @property
    def dice_waived(self) -> bool:
        return self.turn is not None and self.turn.dice_waived
