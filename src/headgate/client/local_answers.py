"""A decision made here, as the answer the agent would have given.   Decision ──► Answer

What check/answers.py is to the agent; tests hold the two together.
"""

from __future__ import annotations

from typing import Any

from headgate.base.names import Scope
from headgate.check.decide import findings, utilization
from headgate.check.model import Decision, Finding, State
from headgate.check.reasons import reason_of
from headgate.client.answers import Answer, MetricAnswer

RULE, OTHER = "rule:", "other"


def answer_of(decision: Decision) -> Answer:
    check, refused = decision.check, not decision.admitted
    seen = findings(decision) if refused else ()
    return Answer(
        verdict=decision.verdict.value,
        admitted=not refused,
        reason=reason_of(decision) if refused else "",
        retry_after_s=to_ms(decision.retry_after_s),
        utilization=utilization(decision),
        metrics=tuple(_metric(finding) for finding in seen),
        database=check.database,
        read_only=check.read_threshold is not None,
        ask=decision.ask or None,
        ask_database=decision.ask_database or None,
        decided="local",
        raw=_raw(decision),
    )


def decided_by(decision: Decision) -> str:
    """The metric or rule that decided, as the agent's history names it."""
    if decision.admitted:
        exempt = decision.applied.exempt
        return f"{RULE}{exempt.id}" if decision.exempted and exempt else ""
    if decision.failing:
        failing = decision.failing
        first = next((f for f in failing if f.state is State.BREACHED), failing[0])
        return _named(first) if first.spec else OTHER
    return f"{RULE}{decision.rule.id}" if decision.rule else ""


def _named(finding: Finding) -> str:
    ref = finding.ref
    return f"{Scope.SHARD.value}/{ref.metric}" if ref.scope is Scope.SHARD else ref.metric


def _raw(decision: Decision) -> dict[str, Any]:
    """What an Answer has no field of its own for."""
    return {
        "app": decision.check.identity.text,
        "rule": decision.rule.id if decision.rule else None,
        "rules": [rule.id for rule in decision.applied.rules],
        "exempted": [_metric(finding)._asdict() for finding in decision.exempted],
    }


def _metric(finding: Finding) -> MetricAnswer:
    spec = finding.spec
    return MetricAnswer(
        metric=finding.ref.metric,
        scope=(finding.ref.scope or Scope.HOST).value,
        state=finding.state.value,
        value=finding.value,
        unit=spec.unit if spec else "",
        threshold=finding.threshold,
        comparison=spec.comparison.value if spec else "",
        age_s=to_ms(finding.age_s),
        cause=finding.cause.value if finding.cause else None,
        detail=finding.detail,
        unavailable_for_s=to_ms(finding.unavailable_for_s),
    )


def to_ms(seconds: float | None) -> float | None:
    """As fine as the agent says it."""
    return None if seconds is None else round(seconds * 1000) / 1000
