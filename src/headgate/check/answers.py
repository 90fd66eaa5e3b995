"""Decisions as JSON: the native answer and freno's.   decide → answer_bytes → the edge"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.base.names import Scope
from headgate.budgets.model import DebitResult
from headgate.check.answer_api import AnswerDoc, BatchDoc, DebitDoc, FrenoDoc, MetricDoc
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
