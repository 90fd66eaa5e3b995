"""A decision as a sentence that a person can act on at 3 a.m."""

from __future__ import annotations

from headgate.base.names import Scope
from headgate.base.units import share_of
from headgate.check.decide import ceiling_unknown
from headgate.check.health import ShardHealth
from headgate.check.model import Decision, Finding, State, Verdict
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Comparison
from headgate.metrics.samples import Cause
from headgate.rules.matching import DiceOrder, Kind, Rule

# About the shard, not about one metric: said once, however many metrics it rejects.
_SHARD_CAUSES = (
    Cause.ELSEWHERE,
    Cause.NO_PRIMARY,
    Cause.SPLIT_BRAIN,
    Cause.HANDING_OVER,
)


WAKES = "the next check wakes it (about 1 s)"
"""What is to know about an idle database."""


def reason_of(decision: Decision) -> str:
    """Every obstacle, most telling first; empty for an admission without a note."""
    if decision.note:
        return f"{decision.check.database}: {decision.note}" if decision.health else decision.note
    if decision.failing:
        told = [*_obstacles(decision), *filter(None, [exemption_of(decision)])]
        return f"{decision.check.database}: {'; '.join(told)}"
    if decision.verdict is Verdict.OK or decision.rule is None:
        return ""
    by_ratio = decision.verdict is Verdict.REJECTED_BY_RATIO
    turn = f"; {fairness_of(decision)}" if decision.turn is not None and by_ratio else ""
    return f"{_rejected_by(decision.rule, decision.at.wall_s)}{turn}"


# --- rules ---------------------------------------------------------------------------------


def _rejected_by(rule: Rule, wall_s: float) -> str:
    """Which client is rejected, for how long, on whose behalf and why."""
    share = "every check" if rule.rejects_all else f"{share_of(rule.ratio)} of the checks"
    left = duration(max(0.0, rule.ends_at(wall_s) - wall_s))
    by = f", set by {rule.created_by}" if rule.created_by else ""
    why = f": {rule.reason}" if rule.reason else ""
    return f"rule {rule.id} rejects {share} of {rule.target} for another {left}{by}{why}"


def fairness_of(decision: Decision) -> str:
    """How long dice have kept it from the metrics, and until when; empty where that is not
    counted."""
    turn = decision.turn
    if turn is None:
        return ""
    if turn.dice_waived:
        waited, bound = duration(turn.waited_s), duration(turn.max_wait_s)
        return f"ratio rules are skipped after {waited} of rejections by them (limit {bound})"
    left = duration(turn.left_s)
    return f"rejected by ratio for {duration(turn.waited_s)}, ratio rules are skipped in {left}"


def odds_of(decision: Decision) -> str:
    """How likely such a check comes to the metrics, where that is up to dice."""
    rule, odds = decision.applied.reject, decision.odds
    if rule is None or odds is None:
        return ""
    what = "admitted" if decision.admitted else "and even once the metrics allow it, admitted"
    left = duration(max(0.0, rule.ends_at(decision.at.wall_s) - decision.at.wall_s))
    return (
        f"{what} with a chance of {share_of(odds)} (rule {rule.id} on {rule.target}, {left} left)"
    )


def says(rule: Rule) -> str:
    """What a rule does, for lists and explanations."""
    where = f" on {rule.database}" if rule.database else ""
    return f"{_does(rule)}{where}"


def _does(rule: Rule) -> str:
    match rule.kind:
        case Kind.HOLD:
            return f"rejects every check of {rule.target}"
        case Kind.RATIO if rule.ratio == 0:
            return f"sets no ratio for {rule.target}: only the metrics decide"
        case Kind.RATIO:
            when = ", after the metrics have admitted them" if rule.order is DiceOrder.AFTER else ""
            return f"rejects {share_of(rule.ratio)} of the checks of {rule.target}{when}"
        case Kind.EXEMPT:
            what = ", ".join(rule.metrics) or "every metric and rejection"
            limit = f"up to {rule.ceiling:g} times its threshold"
            return f"EXEMPTS {rule.target} from {what}, {limit}"
        case Kind.METRICS:
            return f"decides checks of {rule.target} by {', '.join(rule.metrics)}"
        case Kind.THRESHOLDS:
            limits = ", ".join(f"{of} {limit_told(of, n)}" for of, n in rule.thresholds.items())
            return f"sets stricter thresholds for {rule.target}: {limits}"


def shadowed_by(rule: Rule, by: Rule) -> str:
    return f"{says(rule)}: does not apply, because rule {by.id} on {by.target} decides"


def exemption_of(decision: Decision) -> str:
    """What an exemption did, or why it did not; empty where there is none to speak of."""
    rule = decision.applied.exempt
    if rule is None:
        return ""
    if decision.exempted:
        names = ", ".join(name_of(finding) for finding in decision.exempted)
        return f"rule {rule.id} exempts {rule.target} from {names}"
    rests = f"rule {rule.id} exempts {rule.target}, but is suspended"
    if above := [f for f in decision.failing if _above(f, rule.ceiling)]:
        names = ", ".join(name_of(finding) for finding in above)
        return f"{rests}: {names} is above {rule.ceiling:g} times its threshold"
    if unknown := [f for f in decision.failing if ceiling_unknown(f, rule)]:
        told = " and ".join(_unreadable(finding) for finding in unknown)
        return f"{rests}: its ceiling cannot be compared while {told}"
    return ""


def _unreadable(finding: Finding) -> str:
    what = finding.cause.value.replace("_", " ") if finding.cause else "unavailable"
    since = finding.unavailable_for_s
    return f"{name_of(finding)} is {what}{f' for {duration(since)}' if since is not None else ''}"


def _above(finding: Finding, ceiling: float) -> bool:
    value, threshold = finding.value, finding.threshold
    return value is not None and threshold is not None and value > ceiling * threshold


# --- metrics -------------------------------------------------------------------------------


def _obstacles(decision: Decision) -> list[str]:
    shard = decision.health.shard if decision.health else None
    if shard is None:
        return _described(decision.failing)
    unspoken = {f.cause: f for f in decision.failing if f.cause in _SHARD_CAUSES}
    others = tuple(f for f in decision.failing if f.cause not in _SHARD_CAUSES)
    told = [_nobody_speaks(finding, shard) for finding in unspoken.values()]
    return told + _described(others)


def _described(failing: tuple[Finding, ...]) -> list[str]:
    """What has no value for one and the same reason is one obstacle: a server's message is read
    once."""
    told: dict[object, list[Finding]] = {}
    for one in ordered(failing):
        is_absent = one.state is not State.BREACHED and one.spec is not None and one.cause
        told.setdefault((one.cause, one.detail) if is_absent else one.ref, []).append(one)
    return [describe(same[0]) if len(same) == 1 else _absences(same) for same in told.values()]


def _absences(same: list[Finding]) -> str:
    longest_s = max((one.unavailable_for_s or 0.0 for one in same), default=0.0)
    since = f" for {duration(longest_s)}" if longest_s else ""
    names = ", ".join(map(name_of, same))
    return f"{names} have no value{since} ({_words(same[0].cause, same[0].detail)})"


def _nobody_speaks(finding: Finding, shard: ShardHealth) -> str:
    if finding.cause is Cause.ELSEWHERE:
        whose = f"{shard.primary}'s agent" if shard.primary else "another agent"
        unknown = "its address is unknown, set its `advertise`"
        where = f"check with {shard.check_at}" if shard.check_at else unknown
        return f"{whose} answers for {shard.shard}: {where}"
    return f"no agent can answer for {shard.shard} ({_words(finding.cause, finding.detail)})"


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
        f"{name_of(finding)} is {quantity(finding.value, spec.unit)}, {side} its threshold of "
        f"{quantity(finding.threshold, spec.unit)} ({_behind_it(finding)})"
    )


def _behind_it(finding: Finding) -> str:
    """Whose value it is, its cause where that is known, and how old it is."""
    age = f"measured {duration(finding.age_s or 0.0)} ago"
    words = _words(finding.cause, finding.detail)
    if not words:
        return age
    if finding.unavailable_for_s is not None:  # The last value, held: there is no newer one.
        return f"{age}; since then {words}"
    return f"{words}{'; ' if ';' in words else ', '}{age}"


def _absence(finding: Finding) -> str:
    if finding.spec is None or finding.cause is None:
        return f"{finding.ref}: {finding.detail}"
    since = (
        f" for {duration(finding.unavailable_for_s)}"
        if finding.unavailable_for_s is not None
        else ""
    )
    return f"{name_of(finding)} has no value{since} ({_words(finding.cause, finding.detail)})"


def name_of(finding: Finding) -> str:
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


def limit_told(metric: str, limit: float) -> str:
    """With its unit, as far as that is known without a server; also of `shard/lag`, `lag@db-b`."""
    name = metric.rpartition("/")[2].partition("@")[0]
    return quantity(limit, BUILTINS[name].unit if name in BUILTINS else "")


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
