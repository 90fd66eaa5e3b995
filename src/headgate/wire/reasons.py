"""A decision as a sentence that a person can act on at 3 a.m."""

from __future__ import annotations

from headgate.core.decision import Decision, Finding, State, Verdict
from headgate.core.metrics import Comparison


def reason_of(decision: Decision) -> str:
    """Every obstacle, most telling first; empty for an admission without a note."""
    if decision.note:
        return f"{decision.check.database}: {decision.note}" if decision.health else decision.note
    if decision.failing:
        told = "; ".join(describe(finding) for finding in ordered(decision.failing))
        return f"{decision.check.database}: {told}"
    if decision.verdict is Verdict.OK or decision.rule is None:
        return ""
    rule = decision.rule
    share = "every check" if rule.ratio >= 1 else f"{rule.ratio:.0%} of the checks"
    left = max(0.0, rule.expires_at - decision.at.wall_s)
    return f"rule {rule.id} refuses {share} of {rule.target} for another {duration(left)}"


def ordered(failing: tuple[Finding, ...]) -> list[Finding]:
    return sorted(failing, key=lambda finding: finding.state is not State.BREACHED)


def describe(finding: Finding) -> str:
    if finding.state is State.BREACHED:
        return _breach(finding)
    return _absence(finding)


def _breach(finding: Finding) -> str:
    spec = finding.spec
    assert spec is not None and finding.value is not None and finding.threshold is not None
    side = "at or above" if spec.comparison is Comparison.AT_LEAST else "above"
    age = f"measured {duration(finding.age_s or 0.0)} ago"
    return (
        f"{finding.ref.metric} is {quantity(finding.value, spec.unit)}, {side} its threshold of "
        f"{quantity(finding.threshold, spec.unit)} ({age})"
    )


def _absence(finding: Finding) -> str:
    if finding.spec is None or finding.cause is None:
        return f"{finding.ref}: {finding.detail}"
    words = finding.cause.value.replace("_", " ")
    since = f" for {duration(finding.absent_for_s)}" if finding.absent_for_s is not None else ""
    detail = f": {finding.detail}" if finding.detail else ""
    return f"{finding.ref.metric} has no value{since} ({words}{detail})"


def quantity(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if 10_000 <= value < 1e15 else f"{value:.4g}"
    if unit == "ratio" and value < 10_000:
        return f"{value:.0%}" if value >= 0.1 or value == 0 else f"{value:.1%}"
    if unit == "s" and 0 < value < 0.1:
        return f"{value * 1000:.3g} ms"
    return f"{number} {unit}".rstrip()


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
