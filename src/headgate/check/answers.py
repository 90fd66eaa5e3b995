"""Decisions as JSON: the native answer and freno's.   decide → answer_bytes → the edge"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.base.names import Scope
from headgate.budgets.model import DebitResult
from headgate.check.decide import finding_of, findings, is_idle, utilization
from headgate.check.model import Activity, Decision, Finding, State, Verdict
from headgate.check.reasons import reason_of

LAG = "lag"
STATUS: dict[Verdict, int] = {
    Verdict.OK: 200,
    Verdict.THRESHOLD_EXCEEDED: 429,
    Verdict.REJECTED_BY_RATIO: 429,
    Verdict.ON_HOLD: 417,
    Verdict.PACED: 429,
    Verdict.OVER_BUDGET: 429,
    Verdict.METRIC_UNAVAILABLE: 424,
    Verdict.UNKNOWN_METRIC: 404,
    Verdict.WRONG_AGENT: 421,
    Verdict.INTERNAL_ERROR: 500,
}

# freno has no ratio: a check that a rule rejects is an app denied there. Nor has it shards.
FRENO_STATUS: dict[Verdict, int] = {
    **STATUS,
    Verdict.REJECTED_BY_RATIO: 417,
    Verdict.METRIC_UNAVAILABLE: 500,
    Verdict.WRONG_AGENT: 404,
}

FRENO_MESSAGES: dict[Verdict, str] = {
    Verdict.OK: "",
    Verdict.THRESHOLD_EXCEEDED: "Threshold exceeded",
    Verdict.REJECTED_BY_RATIO: "App denied",
    Verdict.ON_HOLD: "App denied",
    Verdict.PACED: "Threshold exceeded",
    Verdict.OVER_BUDGET: "Threshold exceeded",
    Verdict.METRIC_UNAVAILABLE: "Internal error",
    Verdict.UNKNOWN_METRIC: "No such metric",
    Verdict.WRONG_AGENT: "No such metric",
    Verdict.INTERNAL_ERROR: "Internal error",
}


class MetricDoc(msgspec.Struct, frozen=True):
    metric: str
    scope: str
    state: str
    value: float | None
    unit: str
    threshold: float | None
    comparison: str
    age_ms: int | None
    cause: str | None
    """Why there is no current value, or what the value is based on; null: not known."""
    detail: str
    unavailable_for_ms: int | None

    @property
    def name(self) -> str:
        """With its scope, where that is not the host's own."""
        return self.metric if self.scope == "host" else f"{self.scope}/{self.metric}"

    @property
    def share(self) -> float | None:
        """Of the threshold; None where there is no value or nothing to compare with."""
        if self.value is None or not self.threshold:
            return None
        return self.value / self.threshold

    @property
    def over(self) -> bool:
        if self.value is None or self.threshold is None:
            return False
        return self.value > self.threshold or (
            self.comparison == ">=" and self.value == self.threshold
        )


class DebitDoc(msgspec.Struct, frozen=True):
    budget: str
    state: str
    """`charged`; `warned`, if the budget is in warn mode or nearly full; `over`; `inactive`, if the
    budget does not apply now; `unknown`."""
    cost_s: float
    debt_s: float | None
    """The budget's debt before, in CPU seconds; null: it has no bucket."""
    capacity_s: float | None
    note: str
    ledger: str
    """Where the debt is counted: with the server's own statements, or by the agent alone."""


class AnswerDoc(msgspec.Struct, frozen=True, omit_defaults=False):
    verdict: str
    admitted: bool
    app: str
    database: str
    reason: str
    retry_after_ms: int | None
    utilization: float
    rule: str | None
    """The rule that rejected the check, or could have rejected it by chance."""
    rules: Sequence[str]
    """Every rule that applied."""
    exempted: Sequence[MetricDoc]
    """Metrics that would have rejected an exempt client."""
    dice_waived: bool
    """Ratio rules had rejected the client for the maximum time: this time the metrics alone
    decided."""
    read_only: bool
    check_at: str | None
    """With WRONG_AGENT: the address to check at instead; null if unknown."""
    check_at_database: str | None
    """That agent's name for the database."""
    budget: DebitDoc | None
    """What a check that names a budget was charged; null: it names none, or was rejected before."""
    metrics: Sequence[MetricDoc]


class BatchDoc(msgspec.Struct, frozen=True):
    verdict: str
    admitted: bool
    """Whether all checks were admitted."""
    reason: str
    retry_after_ms: int | None
    checks: Sequence[AnswerDoc]
    """One answer for each check, in their order."""


class FrenoDoc(msgspec.Struct, frozen=True):
    StatusCode: int
    Value: float | None
    """Null where there is none: to a client of freno's that is no number, never a lag of 0."""
    Threshold: float | None
    Message: str


encode = msgspec.json.Encoder().encode

# Readers of JSON know no integers beyond 53 bits.
MAX_MS = 2**53


def answer_doc(decision: Decision, *, detail: bool = False) -> AnswerDoc:
    """`detail` lists the metrics of an admission as well; a rejection always lists all."""
    check, rejected = decision.check, decision.verdict is not Verdict.OK
    return AnswerDoc(
        verdict=decision.verdict.value,
        admitted=not rejected,
        app=check.identity.text,
        database=check.database,
        reason=reason_of(decision) if rejected else "",
        retry_after_ms=_ms(decision.retry_after_s),
        utilization=utilization(decision),
        rule=decision.rule.id if decision.rule else None,
        rules=[rule.id for rule in decision.applied.rules],
        exempted=[metric_doc(finding) for finding in decision.exempted],
        dice_waived=decision.dice_waived,
        read_only=check.read_threshold is not None,
        check_at=decision.check_at or None,
        check_at_database=decision.check_at_database or None,
        budget=None if decision.debit is None else debit_doc(decision.debit),
        metrics=[metric_doc(f) for f in findings(decision)] if rejected or detail else (),
    )


def debit_doc(debit: DebitResult) -> DebitDoc:
    return DebitDoc(
        budget=debit.budget,
        state=debit.state.value,
        cost_s=debit.cost_s,
        debt_s=debit.debt_s,
        capacity_s=debit.capacity_s,
        note=debit.note,
        ledger=debit.ledger,
    )


def batch_doc(decisions: Sequence[Decision], *, detail: bool = False) -> BatchDoc:
    """All must admit; the first that does not speaks for the whole."""
    first = next((d for d in decisions if not d.admitted), decisions[0])
    waits = [in_ms(d.retry_after_s) for d in decisions if d.retry_after_s is not None]
    return BatchDoc(
        verdict=first.verdict.value,
        admitted=first.admitted,
        reason=reason_of(first),
        retry_after_ms=max(waits, default=None),
        checks=[answer_doc(d, detail=detail) for d in decisions],
    )


def freno_doc(decision: Decision) -> FrenoDoc:
    verdict = decision.verdict
    value, threshold = _one_number(decision)
    message = "" if verdict is Verdict.OK else f"{FRENO_MESSAGES[verdict]}: {reason_of(decision)}"
    return FrenoDoc(FRENO_STATUS[verdict], value, threshold, message)


def _one_number(decision: Decision) -> tuple[float | None, float | None]:
    """freno answers with one metric, which its clients take for the replication lag in seconds.
    Ours: the one that rejects, lag first; else lag. Without lag, the nearest to its threshold.
    """
    for finding in sorted(decision.failing, key=lambda finding: finding.ref.metric != LAG):
        if finding.value is not None and finding.state is not State.UNAVAILABLE:
            return finding.value, finding.threshold
    lag = finding_of(decision, LAG)
    if lag is not None:
        return None if lag.state is State.UNAVAILABLE else lag.value, lag.threshold
    worst = decision.health.default.worst if decision.health else None
    if worst is None or worst.sample is None or worst.absent is not None:
        return None, worst.spec.threshold if worst else None
    return worst.sample.value, worst.spec.threshold


IDLE = "idle"
"""In status and metrics alone: the state of a metric without a value because nobody checks."""


def metric_doc(finding: Finding, activity: Activity | None = None) -> MetricDoc:
    """`activity` of the database, for people: the answer to a check says `unavailable`."""
    spec = finding.spec
    idle = activity is not None and is_idle(finding, activity)
    return MetricDoc(
        metric=finding.ref.metric,
        scope=(finding.ref.scope or Scope.HOST).value,
        state=IDLE if idle else finding.state.value,
        value=finding.value,
        unit=spec.unit if spec else "",
        threshold=finding.threshold,
        comparison=spec.comparison.value if spec else "",
        age_ms=_ms(finding.age_s),
        cause=finding.cause.value if finding.cause else None,
        detail=finding.detail,
        unavailable_for_ms=_ms(finding.unavailable_for_s),
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else in_ms(seconds)


def in_ms(seconds: float) -> int:
    return round(min(seconds * 1000, MAX_MS))
