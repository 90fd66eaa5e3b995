"""What a rule of each kind would have done to a minute's checks.   replay ──► outcome

History keeps, per minute, how many checks each metric or rule rejected, and each metric's lowest
and highest value. So an outcome is a lower and an upper bound. It is exact only if both bounds are
equal however the minute went. A check is assumed to use its database's default metrics, as a check
does that names no metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from headgate.base.names import Scope
from headgate.check.decide import PLAIN
from headgate.check.health import Health, MetricStatus
from headgate.check.model import Verdict
from headgate.history.records import MetricMinute, Tally
from headgate.history.starvation_courses import NOTHING
from headgate.metrics.model import AbsencePolicy, Comparison
from headgate.rules.matching import Applied, DiceOrder, Kind, Rule

TOLERANCE = 1e-9


class How(Enum):
    """How much is known of an outcome."""

    EXACT = "exact"
    EXPECTED = "expected"
    """The average share of a ratio rule."""
    BOUNDED = "bounded"
    """Between two numbers: history keeps one row of each metric per minute."""
    UNKNOWN = "unknown"
    """History cannot answer it."""


HOW_MEANINGS: dict[How, str] = {
    How.EXACT: "exactly this number",
    How.EXPECTED: "on average, because a ratio rejects by chance",
    How.BOUNDED: "between two numbers: metrics are kept by the minute",
    How.UNKNOWN: "unknown: history does not keep what this depends on",
}
_ORDER = tuple(How)


class After(NamedTuple):
    """Admissions under the proposed rule."""

    low: float
    high: float
    how: How

    def plus(self, other: After) -> After:
        worst = max(self.how, other.how, key=_ORDER.index)
        return After(self.low + other.low, self.high + other.high, worst)


NONE_LEFT = After(0.0, 0.0, How.EXACT)

Minutes = Mapping[tuple[int, str, str], MetricMinute]
"""(minute, database, metric)"""


class MinuteCounts(NamedTuple):
    """One client's checks of a minute."""

    admitted: int = 0
    exempted: int = 0
    """Those that were admitted because an exemption waived a metric."""
    metric: Mapping[str, int] = NOTHING
    """By the metric that rejected them."""
    absent: Mapping[str, int] = NOTHING
    """By the metric that had no value."""
    diced: int = 0
    held: int = 0
    paced: int = 0
    fixed: int = 0
    """Rejected for a reason that no rule changes: the wrong agent, or a check without a name."""

    @property
    def checks(self) -> int:
        return self.admitted + self.judged_away + self.diced + self.held + self.paced + self.fixed

    @property
    def judged_away(self) -> int:
        return sum(self.metric.values()) + sum(self.absent.values())


def counts_of(tallies: Iterable[Tally]) -> MinuteCounts:
    plain = dict.fromkeys(_PLAIN, 0)
    metric: dict[str, int] = {}
    absent: dict[str, int] = {}
    admitted = exempted = fixed = 0
    for t in tallies:
        if t.verdict == _OK:
            admitted += t.count
            exempted += t.count if t.metric else 0
        elif t.verdict == _BREACHED:
            metric[t.metric] = metric.get(t.metric, 0) + t.count
        elif t.verdict in _ABSENT:
            absent[t.metric] = absent.get(t.metric, 0) + t.count
        elif t.verdict in plain and (t.metric or t.verdict != _DENIED):
            plain[t.verdict] += t.count
        else:
            fixed += t.count
    diced, held, paced = plain.values()
    return MinuteCounts(admitted, exempted, metric, absent, diced, held, paced, fixed)


_OK, _BREACHED = Verdict.OK.value, Verdict.THRESHOLD_EXCEEDED.value
_ABSENT = (Verdict.METRIC_UNAVAILABLE.value, Verdict.UNKNOWN_METRIC.value)
_DENIED = Verdict.ON_HOLD.value
_PLAIN = (Verdict.REJECTED_BY_RATIO.value, _DENIED, Verdict.PACED.value)


class DecidingMetric(NamedTuple):
    """A metric that applies to checks."""

    metric: str
    name: str
    """Its name in history: `shard/lag` where the shard's value decides."""
    limitable: bool = True
    """Whether a rule's own threshold can apply: not if the rollup counts members."""
    at_least: bool = False
    """Whether it rejects at exactly its threshold."""
    holds: bool = False
    """Whether its last value still counts while there is no new one."""


class DatabaseGate(NamedTuple):
    """The metrics that apply to the checks of a database."""

    default: tuple[DecidingMetric, ...]
    by_metric: Mapping[str, DecidingMetric]
    """All metrics measured there."""
    paced: bool = False

    def selected(self, applied: Applied) -> list[DecidingMetric] | None:
        """The metrics that apply under these rules; None if one of them is not measured here."""
        if not applied.metrics:
            return list(self.default)
        found = [self.by_metric.get(name) for name in applied.judged_by]
        return [one for one in found if one is not None] if None not in found else None


def gate_of(health: Health) -> DatabaseGate:
    by_metric = {}
    for name, standing in health.standings.items():
        shard = health.shard.standings.get(name) if health.shard is not None else None
        of_shard = shard is not None and standing.spec.scope is Scope.SHARD
        by_metric[name] = _judged(shard if of_shard and shard is not None else standing)
    default = tuple(_judged(standing) for standing in health.default.standings)
    return DatabaseGate(default, by_metric, any(s.spec.pace for s in health.standings.values()))


def _judged(standing: MetricStatus) -> DecidingMetric:
    spec, of_shard = standing.spec, standing.ref.scope is Scope.SHARD
    return DecidingMetric(
        spec.name,
        f"{Scope.SHARD.value}/{spec.name}" if of_shard else spec.name,
        limitable=not of_shard or spec.rollup.by in PLAIN,
        at_least=spec.comparison is Comparison.AT_LEAST,
        holds=spec.absence is AbsencePolicy.HOLD,
    )


class Happened(NamedTuple):
    """A client's minute, and the rules with the proposed one among them and without it."""

    counts: MinuteCounts
    rule: Rule
    before: Applied
    applied: Applied
    gate: DatabaseGate | None
    kept: tuple[Minutes, int, str]
    fair: bool = False

    def measured(self, one: DecidingMetric) -> MetricMinute | None:
        """None where it had no value, or none was kept."""
        minutes, minute, database = self.kept
        found = minutes.get((minute, database, one.name))
        return None if found is None or found.low is None or found.high is None else found

    def limit(self, one: DecidingMetric, found: MetricMinute, applied: Applied) -> float:
        by = applied.thresholds.get(one.metric) if one.limitable else None
        return found.threshold if by is None else min(by.thresholds[one.metric], found.threshold)


def unchanged(counts: MinuteCounts) -> After:
    return After(counts.admitted, counts.admitted, How.EXACT)


def displaced(counts: MinuteCounts, before: Applied, applied: Applied) -> After:
    """The rule itself changes nothing here, but it may displace another rule: an exemption from
    everything that a ratio overrides takes the place of an exemption from one metric."""
    if before.rules == applied.rules:
        return unchanged(counts)
    if applied.rules == before._replace(exempt=None).rules:
        return _bounded(counts.admitted - counts.exempted, counts.admitted)
    return After(0, counts.checks - counts.fixed, How.BOUNDED)


def outcome(minute: Happened) -> After:
    """Of a minute in which the proposed rule applies."""
    counts, applied, before = minute.counts, minute.applied, minute.before
    if applied.reject is not None and applied.reject.rejects_all:
        return NONE_LEFT if applied.reject is minute.rule else _bounded(0, counts.admitted)
    if not any(applied.reject is rule for rule in (None, before.reject, minute.rule)):
        # What an exemption kept at bay comes back, and its dice fall on everything.
        return _bounded(0, counts.checks - counts.fixed)
    match minute.rule.kind:
        case Kind.HOLD:
            return NONE_LEFT
        case Kind.RATIO:
            return _by_ratio(minute)
        case Kind.EXEMPT:
            return _by_exemption(minute)
        case Kind.THRESHOLDS:
            return _perhaps_not(minute, _by_thresholds(minute))
        case Kind.METRICS:
            return _perhaps_not(minute, _by_metrics(minute))


def _perhaps_not(minute: Happened, after: After) -> After:
    """A client that names metrics itself: the rule would not have applied to some checks."""
    if not _names_its_own(minute) or after.how is How.UNKNOWN:
        return after
    admitted = minute.counts.admitted
    return _bounded(min(after.low, admitted), max(after.high, admitted))


def _names_its_own(minute: Happened) -> bool:
    """A metric rejected it that is not among those that would apply otherwise."""
    counts, gate = minute.counts, minute.gate
    selected = gate.selected(minute.before) if gate is not None else None
    if selected is None:
        return True
    names = {one.name for one in selected}
    return not (names.issuperset(counts.metric) and names.issuperset(counts.absent))


def _bounded(low: float, high: float) -> After:
    return After(low, high, How.EXACT if high - low <= TOLERANCE else How.BOUNDED)


# --- ratio ---------------------------------------------------------------------------------


def _by_ratio(minute: Happened) -> After:
    """A ratio rejects its share, before the metrics or after them. What it leaves of the checks
    that the metrics admit is admitted; pacing only admits another client instead."""
    counts, left = minute.counts, 1 - minute.rule.ratio
    through = counts.admitted + counts.paced + counts.diced + counts.held
    if minute.before.exempt is not None and minute.applied.exempt is None:
        return _bounded(0, through if minute.fair else through * left)
    if minute.fair and minute.rule.ratio:
        return _bounded(counts.admitted * left, through)
    if counts.held or (counts.diced and counts.paced):
        return _bounded(counts.admitted * left, through * left)
    if counts.diced:
        return _by_other_dice(minute, left)
    high = min(counts.admitted, through * left)
    if high - counts.admitted * left > TOLERANCE:
        return _bounded(counts.admitted * left, high)
    certain = counts.admitted == 0 or left == 1
    return After(high, high, How.EXACT if certain else How.EXPECTED)


def _by_other_dice(minute: Happened, left: float) -> After:
    """Another ratio rejected before: what became of the admitted shows what became of the rest."""
    counts, reject = minute.counts, minute.before.reject
    if reject is None:
        return _bounded(counts.admitted * left, (counts.admitted + counts.diced) * left)
    if reject.order is DiceOrder.AFTER:
        admitted = (counts.admitted + counts.diced) * left
        return After(admitted, admitted, How.EXACT if left == 1 else How.EXPECTED)
    judged = counts.admitted + counts.judged_away + counts.fixed
    if judged == 0:
        return After(0.0, counts.diced * left, How.UNKNOWN)
    admitted = (judged + counts.diced) * left * counts.admitted / judged
    return After(admitted, admitted, How.EXPECTED)


# --- exemption -----------------------------------------------------------------------------


class _Course(Enum):
    """What an exemption does to a check that a breach would reject."""

    WAIVED = "waived"
    """Whatever happened in the minute."""
    PERHAPS = "perhaps"
    REJECTED = "rejected"


def _by_exemption(minute: Happened) -> After:
    """A metric without a value is never waived, and above the ceiling nothing is."""
    counts, rule = minute.counts, minute.rule
    selected = minute.gate.selected(minute.applied) if minute.gate is not None else None
    names = {one.name for one in selected or ()}
    told = selected is not None and not _names_its_own(minute)
    course = _course(minute, selected or ()) if told else _Course.PERHAPS
    low, high = float(counts.admitted), float(counts.admitted)
    if minute.before.exempt is not None and course is not _Course.WAIVED:
        low -= counts.exempted  # Another exemption let them pass; this one may not.
    for metric, rejected in counts.metric.items():
        if rule.metrics and metric.rpartition("/")[2] not in rule.metrics:
            continue
        mine = course if metric in names else _Course.PERHAPS
        high += 0 if mine is _Course.REJECTED else rejected
        low += rejected if mine is _Course.WAIVED else 0
    if rule.metrics:
        return _bounded(low, high + counts.paced)
    return _from_everything(minute, course, low, high)


def _from_everything(minute: Happened, course: _Course, low: float, high: float) -> After:
    """From ratio, hold and pacing as well. Paced checks had passed the metrics; checks rejected by
    a hold or a ratio had not reached them."""
    counts, reject = minute.counts, minute.before.reject
    passed = counts.paced
    unjudged = counts.held + counts.diced
    if reject is not None and reject.order is DiceOrder.AFTER:
        passed, unjudged = passed + counts.diced, counts.held
    high += 0 if course is _Course.REJECTED else unjudged
    low += unjudged if course is _Course.WAIVED else 0
    return _bounded(low + passed, high + passed)


def _course(minute: Happened, selected: Iterable[DecidingMetric]) -> _Course:
    rule, applied = minute.rule, minute.applied
    course = _Course.WAIVED
    if rule.metrics and (_after_dice(applied) or (minute.gate is not None and minute.gate.paced)):
        course = _Course.PERHAPS
    for one in selected:
        found = minute.measured(one)
        if found is None or found.low is None or found.high is None:
            course = _Course.PERHAPS
            continue
        ceiling = rule.ceiling * minute.limit(one, found, applied)
        if found.absent == 0 and found.breached == found.looks and found.low > ceiling:
            return _Course.REJECTED
        waives = not rule.metrics or one.metric in rule.metrics
        calm = waives or (found.breached == 0 and not _over(one, found.high, minute, found))
        if found.absent or one.holds or found.high > ceiling or not calm:
            course = _Course.PERHAPS
    return course


def _over(one: DecidingMetric, value: float, minute: Happened, found: MetricMinute) -> bool:
    limit = minute.limit(one, found, minute.applied)
    return value > limit or (one.at_least and value == limit)


def _after_dice(applied: Applied) -> bool:
    return applied.reject is not None and applied.reject.order is DiceOrder.AFTER


# --- thresholds ----------------------------------------------------------------------------


def _by_thresholds(minute: Happened) -> After:
    counts = minute.counts
    selected = minute.gate.selected(minute.applied) if minute.gate is not None else None
    if selected is None:
        return _untold(counts.admitted)
    low, high, freed = float(counts.admitted), float(counts.admitted), 0
    limited = [s for s in selected if minute.applied.thresholds.get(s.metric) is minute.rule]
    for one in (s for s in limited if s.limitable):
        found = minute.measured(one)
        if found is None or found.low is None or found.high is None:
            return _untold(counts.admitted + counts.metric.get(one.name, 0))
        was, now = (minute.limit(one, found, a) for a in (minute.before, minute.applied))
        if now > was and not _over(one, found.low, minute, found):
            freed += counts.metric.get(one.name, 0)
        if now < was and _over(one, found.high, minute, found):
            low = 0.0
            always = _over(one, found.low, minute, found) and found.absent == 0
            high = 0.0 if always and minute.applied.exempt is None else high
    return _bounded(low, high + freed)


def _untold(admitted: float) -> After:
    return After(0.0, admitted, How.UNKNOWN if admitted else How.EXACT)


# --- metrics -------------------------------------------------------------------------------


def _by_metrics(minute: Happened) -> After:
    """Rejected by one of them: still rejected. By another: admitted while all of them pass."""
    counts, gate = minute.counts, minute.gate
    selected = gate.selected(minute.applied) if gate is not None else None
    earlier = gate.selected(minute.before) if gate is not None else None
    away = counts.judged_away
    if gate is None or selected is None or earlier is None:
        return _untold(counts.admitted + away + counts.paced)
    names, were = {s.name for s in selected}, {s.name for s in earlier}
    still = _rejected_by(counts, names)
    freed = _rejected_by(counts, were - names)
    calm = all(_is_calm(one, minute) for one in selected)
    spared = names <= were or (calm and not gate.paced)
    low = float(counts.admitted) if spared else 0.0
    if calm and not gate.paced and not _after_dice(minute.applied):
        low += freed
    if minute.applied.exempt is not None:
        still = 0
    elif any(_is_breached(one, minute) for one in selected):
        return _bounded(0, counts.admitted if names <= were else 0)
    high = counts.admitted + away - still + counts.paced
    if any(minute.measured(one) is None for one in selected) and high - low > TOLERANCE:
        return After(low, high, How.UNKNOWN)
    return _bounded(low, high)


def _rejected_by(counts: MinuteCounts, names: Iterable[str]) -> int:
    return sum(counts.metric.get(name, 0) + counts.absent.get(name, 0) for name in names)


def _is_calm(one: DecidingMetric, minute: Happened) -> bool:
    found = minute.measured(one)
    if found is None or found.high is None or found.absent or found.breached:
        return False
    return not _over(one, found.high, minute, found)


def _is_breached(one: DecidingMetric, minute: Happened) -> bool:
    """In every look of the minute."""
    found = minute.measured(one)
    return found is not None and found.absent == 0 and found.breached == found.looks
