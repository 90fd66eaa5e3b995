"""What a proposed rule would have changed, by client and hour (R145, R140).

sums of history by minute and client, metrics by minute, a rule ──replay──► Change, Change, …

Exact where arithmetic is: a hold refuses what it meets, dice refuse their share. Where the
outcome hung on a metric's value within a minute, it is between two bounds; where history does
not tell, it is said that it cannot be told. What the other clients would have done, had there
been more or less work, is not known either, and not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from headgate.core.courses import NOTHING, Reason
from headgate.core.names import Identity, parse_identity
from headgate.core.records import MetricMinute, Tally
from headgate.core.rules import Kind, Rule, RuleBook
from headgate.core.timeline import REASONS
from headgate.errors import InvalidName

MINUTES_AN_HOUR = 60
TOLERANCE = 1e-9


class How(Enum):
    """How much is known of an outcome."""

    EXACT = "exact"
    EXPECTED = "expected"
    """The dice's share, on average."""
    BOUNDED = "bounded"
    """Between two numbers: metrics are kept by the minute."""
    UNKNOWN = "unknown"
    """History does not tell."""


HOW_MEANINGS: dict[How, str] = {
    How.EXACT: "as many, and no other number",
    How.EXPECTED: "on average, as dice fall",
    How.BOUNDED: "between two numbers: metrics are kept by the minute",
    How.UNKNOWN: "cannot tell: what it hangs on was not kept",
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


NONE_YET = After(0.0, 0.0, How.EXACT)


@dataclass(frozen=True, slots=True)
class Change:
    """One client in one hour."""

    database: str
    client: str
    hour_minute: int
    """The hour's first minute, since 1970."""
    checks: int
    admitted_before: int
    after: After
    shadowed_by: str = ""
    """The rule that would have come first, where the proposed one says nothing."""

    @property
    def refused_before(self) -> int:
        return self.checks - self.admitted_before

    @property
    def changes(self) -> bool:
        low, high = self.after.low, self.after.high
        same = max(abs(low - self.admitted_before), abs(high - self.admitted_before))
        return self.after.how is How.UNKNOWN or same > TOLERANCE


class Counts(NamedTuple):
    """One client's checks of a minute."""

    admitted: int = 0
    exempted: int = 0
    metric: Mapping[str, int] = NOTHING
    diced: int = 0
    held: int = 0
    paced: int = 0
    other: int = 0

    @property
    def checks(self) -> int:
        return self.admitted + self.refused

    @property
    def refused(self) -> int:
        return sum(self.metric.values()) + self.diced + self.held + self.paced + self.other


Minutes = Mapping[tuple[int, str, str], MetricMinute]
"""(minute, database, metric)"""


def replay(
    tallies: Iterable[Tally],
    metrics: Iterable[MetricMinute],
    rule: Rule,
    present: RuleBook,
) -> list[Change]:
    """`tallies` by minute and client. The rule is taken as in force all the while, but for its
    own windows; `present` are the rules it would have stood among."""
    minutes = {(m.minute, m.database, m.metric): m for m in metrics}
    always = RuleBook((*(r for r in present.rules if r.id != rule.id), rule))
    found: dict[tuple[str, str, int], Change] = {}
    for (minute, database, client), counts in _by_minute(tallies).items():
        change = _minute(minute, database, client, counts, rule, always, minutes)
        hour = minute - minute % MINUTES_AN_HOUR
        key = (database, client, hour)
        found[key] = _added(found.get(key), change, hour)
    return sorted(found.values(), key=lambda c: (c.hour_minute, c.database, c.client))


def _by_minute(tallies: Iterable[Tally]) -> dict[tuple[int, str, str], Counts]:
    grouped: dict[tuple[int, str, str], list[Tally]] = {}
    for t in tallies:
        grouped.setdefault((t.minute, t.database, t.client), []).append(t)
    return {key: counts_of(mine) for key, mine in grouped.items()}


def counts_of(tallies: Iterable[Tally]) -> Counts:
    plain = dict.fromkeys(Reason, 0)
    metric: dict[str, int] = {}
    admitted = exempted = 0
    for t in tallies:
        reason = REASONS.get(t.verdict, Reason.OTHER)
        if reason is None:
            admitted += t.count
            exempted += t.count if t.metric else 0
        elif reason is Reason.METRIC:
            metric[t.metric] = metric.get(t.metric, 0) + t.count
        else:
            plain[reason] += t.count
    return Counts(
        admitted, exempted, metric, plain[Reason.DICE], plain[Reason.HELD],
        plain[Reason.PACED], plain[Reason.OTHER],
    )  # fmt: skip


def _added(before: Change | None, change: Change, hour: int) -> Change:
    after = change.after if before is None else before.after.plus(change.after)
    return Change(
        change.database,
        change.client,
        hour,
        change.checks + (before.checks if before else 0),
        change.admitted_before + (before.admitted_before if before else 0),
        after,
        change.shadowed_by or (before.shadowed_by if before else ""),
    )


def _minute(
    minute: int,
    database: str,
    client: str,
    counts: Counts,
    rule: Rule,
    book: RuleBook,
    minutes: Minutes,
) -> Change:
    unchanged = After(counts.admitted, counts.admitted, How.EXACT)
    change = Change(database, client, minute, counts.checks, counts.admitted, unchanged)
    identity = _identity(client)
    if identity is None:
        return replace(change, after=After(0, counts.checks, How.UNKNOWN))
    applied = book.applied(identity, database, minute * 60.0)
    if all(applies.id != rule.id for applies in applied.rules):
        first = [s.by.id for s in applied.shadowed if s.rule.id == rule.id]
        return replace(change, shadowed_by=first[0] if first else "")

    def measured(metric: str) -> MetricMinute | None:
        return minutes.get((minute, database, metric))

    limits = {name: rule.thresholds[name] for name, by in applied.thresholds.items() if by is rule}
    return replace(change, after=_after(counts, replace(rule, thresholds=limits), measured))


def _identity(client: str) -> Identity | None:
    """None for a name that stands for many, such as `(unknown)`."""
    try:
        return parse_identity(client)
    except InvalidName:
        return None


# --- what each kind would have done --------------------------------------------------------

Measured = Callable[[str], MetricMinute | None]


def _after(counts: Counts, rule: Rule, measured: Measured) -> After:
    match rule.kind:
        case Kind.HOLD:
            return After(0.0, 0.0, How.EXACT)
        case Kind.RATIO:
            return _by_ratio(counts, rule.ratio)
        case Kind.EXEMPT:
            return _by_exemption(counts, rule, measured)
        case Kind.THRESHOLDS:
            return _by_thresholds(counts, rule.thresholds, measured)
        case Kind.METRICS:
            return _by_metrics(counts, rule.metrics, measured)


def _by_ratio(counts: Counts, ratio: float) -> After:
    """Dice fall as often as they are told to, before the metrics or after them."""
    if not (counts.diced or counts.held or counts.paced):
        admitted = counts.admitted * (1 - ratio)
        exact = counts.admitted == 0 or ratio in (0.0, 1.0)
        return After(admitted, admitted, How.EXACT if exact else How.EXPECTED)
    judged = counts.admitted + sum(counts.metric.values()) + counts.other
    if judged == 0:
        return After(0.0, counts.checks * (1 - ratio), How.UNKNOWN)
    # Another rule refused before: who it let through tells what became of the rest.
    admitted = counts.checks * (1 - ratio) * counts.admitted / judged
    return After(admitted, admitted, How.EXPECTED)


def _by_exemption(counts: Counts, rule: Rule, measured: Measured) -> After:
    """A refusal names one metric; that no other stood in the way must be seen from the others."""
    low = high = float(counts.admitted)
    for metric, refused in counts.metric.items():
        if rule.metrics and _plain(metric) not in rule.metrics:
            continue
        high += refused
        low += refused if _surely_waived(metric, rule, measured) else 0
    if not rule.metrics:  # Exempt from everything: from dice and hold as well.
        low, high = low + counts.diced + counts.held, high + counts.diced + counts.held
    return After(low, high, How.EXACT if high - low <= TOLERANCE else How.BOUNDED)


def _surely_waived(metric: str, rule: Rule, measured: Measured) -> bool:
    minute = measured(metric)
    if minute is None or minute.high is None:
        return False
    return not rule.metrics and minute.high <= rule.ceiling * minute.threshold


def _by_thresholds(counts: Counts, limits: Mapping[str, float], measured: Measured) -> After:
    low = high = float(counts.admitted)
    for metric, limit in limits.items():
        minute = measured(metric) or measured(f"shard/{metric}")
        if minute is None or minute.low is None or minute.high is None:
            return After(0.0, counts.admitted, How.UNKNOWN if counts.admitted else How.EXACT)
        if limit >= minute.threshold or minute.high <= limit:
            continue
        low = 0.0
        if minute.low > limit:
            high = 0.0
    return After(low, high, How.EXACT if high - low <= TOLERANCE else How.BOUNDED)


def _by_metrics(counts: Counts, metrics: Iterable[str], measured: Measured) -> After:
    """Refused by one of them is refused still; by another, admitted while all of them pass."""
    chosen = set(metrics)
    kept = sum(count for metric, count in counts.metric.items() if _plain(metric) in chosen)
    freed = sum(counts.metric.values()) - kept
    found = [measured(metric) or measured(f"shard/{metric}") for metric in sorted(chosen)]
    if any(minute is None or not minute.valued for minute in found):
        return After(0.0, counts.admitted + freed, How.UNKNOWN)
    breached = [minute.breached_share or 0.0 for minute in found if minute is not None]
    if all(share == 0.0 for share in breached):
        admitted = float(counts.admitted + freed)
        return After(admitted, admitted, How.EXACT)
    if any(share == 1.0 for share in breached):
        return After(0.0, 0.0, How.EXACT)
    return After(0.0, counts.admitted + freed, How.BOUNDED)


def _plain(metric: str) -> str:
    return metric.rpartition("/")[2]
