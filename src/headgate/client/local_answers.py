"""A client that decides here.   Question ──► Check ──► … ──► Decision ──► Answer

What check/answers.py is to the agent; tests hold the two together.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from headgate.base.names import (
    MetricRef,
    Scope,
    parse_database,
    parse_identity,
    parse_metric_ref,
    parse_scope,
)
from headgate.check.decide import findings, utilization
from headgate.check.model import Check, Decision, Finding, State
from headgate.check.reasons import reason_of
from headgate.client.answers import Answer, MetricAnswer
from headgate.client.question import Question
from headgate.errors import InvalidName

# --- a question as the agent would understand it -------------------------------------------
# The bytes that would be sent are what is read: whatever else a question may come to say, what
# is not known here is left to the agent.

_WRITES = frozenset({"app", "database", "metrics", "scope", "cost"})
_READS = frozenset({"app", "database", "metric", "threshold"})


def check_of(question: Question, database: str = "") -> Check | None:
    """About one database, named `database` where that is given; None: check at the agent."""
    method, _, rest = question.request.partition(b" ")
    path, _, query = rest.partition(b" ")[0].decode("ascii").partition("?")
    if method != b"GET":
        return None
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True))
        check = _check(path, given)
    except (InvalidName, ValueError):
        return None
    return check if check is None or not database else check._replace(database=database)


def _check(path: str, given: dict[str, str]) -> Check | None:
    if path == "/v1/check" and given.keys() <= _WRITES:
        return _write_check(given)
    if path == "/v1/check-read" and given.keys() <= _READS:
        return _asked(given, [given["metric"]])._replace(read_threshold=float(given["threshold"]))
    return None


def _write_check(given: dict[str, str]) -> Check:
    # What it costs is for pacing, and so for the agent; without it, alike questions are one.
    check = _asked(given, [name for name in given.get("metrics", "").split(",") if name])
    if "scope" not in given:
        return check
    scope = parse_scope(given["scope"])
    refs = dict.fromkeys(MetricRef(ref.metric, scope) for ref in check.metrics)
    return check._replace(metrics=tuple(refs), scope=scope)


def _asked(given: dict[str, str], metrics: list[str]) -> Check:
    refs = tuple(dict.fromkeys(parse_metric_ref(name) for name in metrics))
    return Check(parse_identity(given.get("app", "")), parse_database(given["database"]), refs)


# --- a decision as the answer that the agent would give ------------------------------------


RULE, OTHER = "rule:", "other"


def answer_of(decision: Decision) -> Answer:
    check, rejected = decision.check, not decision.admitted
    seen = findings(decision) if rejected else ()
    return Answer(
        verdict=decision.verdict.value,
        admitted=not rejected,
        reason=reason_of(decision) if rejected else "",
        retry_after_s=to_ms(decision.retry_after_s),
        utilization=utilization(decision),
        metrics=tuple(_metric(finding) for finding in seen),
        database=check.database,
        read_only=check.read_threshold is not None,
        check_at=decision.check_at or None,
        check_at_database=decision.check_at_database or None,
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
        if not first.spec:
            return OTHER
        ref = first.ref
        return f"{Scope.SHARD.value}/{ref.metric}" if ref.scope is Scope.SHARD else ref.metric
    return f"{RULE}{decision.rule.id}" if decision.rule else ""


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
