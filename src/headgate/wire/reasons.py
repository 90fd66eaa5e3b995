"""A decision as a sentence that a person can act on at 3 a.m."""

from __future__ import annotations

from headgate.core.decision import Decision, Finding, State, Verdict
from headgate.core.health import ShardHealth
from headgate.core.metrics import Comparison
from headgate.core.names import Scope
from headgate.core.samples import Cause

# Of the shard, not of one metric: told once, however many metrics are refused by it.
_SHARD_CAUSES = (Cause.ELSEWHERE, Cause.NO_PRIMARY, Cause.SPLIT_BRAIN)


def reason_of(decision: Decision) -> str:
    """Every obstacle, most telling first; empty for an admission without a note."""
    if decision.note:
        return f"{decision.check.database}: {decision.note}" if decision.health else decision.note
    if decision.failing:
        return f"{decision.check.database}: {'; '.join(_obstacles(decision))}"
    if decision.verdict is Verdict.OK or decision.rule is None:
        return ""
    rule = decision.rule
    share = "every check" if rule.ratio >= 1 else f"{rule.ratio:.0%} of the checks"
    left = max(0.0, rule.expires_at - decision.at.wall_s)
    return f"rule {rule.id} refuses {share} of {rule.target} for another {duration(left)}"


def _obstacles(decision: Decision) -> list[str]:
    shard = decision.health.shard if decision.health else None
    if shard is None:
        return [describe(finding) for finding in ordered(decision.failing)]
    unspoken = {f.cause: f for f in decision.failing if f.cause in _SHARD_CAUSES}
    others = tuple(f for f in decision.failing if f.cause not in _SHARD_CAUSES)
    told = [_nobody_speaks(finding, shard) for finding in unspoken.values()]
    return told + [describe(finding) for finding in ordered(others)]


def _nobody_speaks(finding: Finding, shard: ShardHealth) -> str:
    if finding.cause is Cause.ELSEWHERE:
        whose = f"{shard.primary}'s agent" if shard.primary else "another agent"
        where = shard.ask or "its address is not known here, give it an advertise setting"
        return f"{shard.shard} is rolled up by {whose}: {'ask ' if shard.ask else ''}{where}"
    return f"no agent may speak for {shard.shard} ({_words(finding.cause, finding.detail)})"


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
    return (
        f"{_name(finding)} is {quantity(finding.value, spec.unit)}, {side} its threshold of "
        f"{quantity(finding.threshold, spec.unit)} ({_behind_it(finding)})"
    )


def _behind_it(finding: Finding) -> str:
    """Whose value it is, what stands behind it where that is known, and how old it is."""
    age = f"measured {duration(finding.age_s or 0.0)} ago"
    words = _words(finding.cause, finding.detail)
    if not words:
        return age
    if finding.absent_for_s is not None:  # The last value, held: there is no newer one.
        return f"{age}; since then {words}"
    return f"{words}{'; ' if ';' in words else ', '}{age}"


def _absence(finding: Finding) -> str:
    if finding.spec is None or finding.cause is None:
        return f"{finding.ref}: {finding.detail}"
    since = f" for {duration(finding.absent_for_s)}" if finding.absent_for_s is not None else ""
    return f"{_name(finding)} has no value{since} ({_words(finding.cause, finding.detail)})"


def _name(finding: Finding) -> str:
    """With its scope, where that is not the host's own."""
    return str(finding.ref) if finding.ref.scope is Scope.SHARD else finding.ref.metric


def _words(cause: Cause | None, detail: str) -> str:
    told = cause.value.replace("_", " ") if cause else ""
    return f"{told}: {detail}" if told and detail else told or detail


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
