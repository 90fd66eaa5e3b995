"""What a proposed rule would have changed, by client and hour.

sums of history by minute and client, metrics by minute, a rule ─replay─►
    ReplayedHour, ReplayedHour, …

Exact where arithmetic is enough: a hold rejects everything that it matches, a ratio rejects its
share. Where the outcome depends on a metric's value within a minute, it is between two bounds.
Where history does not have the answer, the replay says so. It does not guess what other clients
would have done with more or less work running. replay_outcomes.py has what each kind of rule
would have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from headgate.base.names import Identity, Scope, parse_identity
from headgate.check.model import Verdict
from headgate.errors import InvalidName
from headgate.history.records import MetricMinute, Tally
from headgate.history.replay_outcomes import (
    TOLERANCE,
    After,
    DatabaseGate,
    Happened,
    How,
    MinuteCounts,
    Minutes,
    counts_of,
    displaced,
    outcome,
    unchanged,
)
from headgate.metrics.model import MetricSpec
from headgate.rules.matching import Applied, Rule, RuleBook

MINUTES_AN_HOUR = 60
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class ReplayedHour:
    """One client in one hour."""

    database: str
    client: str
    hour_minute: int
    """First minute of the hour, since 1970."""
    checks: int
    admitted_before: int
    after: After
    shadowed_by: str = ""
    """The more specific rule that would have decided instead of the proposed one."""

    @property
    def rejected_before(self) -> int:
        return self.checks - self.admitted_before

    @property
    def changes(self) -> bool:
        low, high = self.after.low, self.after.high
        same = max(abs(low - self.admitted_before), abs(high - self.admitted_before))
        return self.after.how is How.UNKNOWN or same > TOLERANCE


@dataclass(frozen=True, slots=True)
class ReplayContext:
    """The rules and metrics at the time that is replayed."""

    rules: RuleBook
    """The rules of that time: it has what applied at each replayed moment."""
    gates: Mapping[str, DatabaseGate] = field(default_factory=dict)
    """By database: the metrics that apply to its checks."""
    known_from_s: float = float("-inf")
    """Before this, the rules are not known."""
    fair: bool = False
    """Whether clients that waited long skip ratio rules."""


def replay(
    tallies: Iterable[Tally], metrics: Iterable[MetricMinute], rule: Rule, setting: ReplayContext
) -> list[ReplayedHour]:
    """`tallies` by minute and client. The rule is taken as in force all the while, but for its
    own windows."""
    minutes = {(m.minute, m.database, m.metric): m for m in metrics}
    player = _Player(rule, setting, minutes)
    by_minute: dict[tuple[int, str, str], list[Tally]] = {}
    for t in tallies:
        by_minute.setdefault((t.minute, t.database, t.client), []).append(t)
    found: dict[tuple[str, str, int], ReplayedHour] = {}
    for (minute, database, client), mine in by_minute.items():
        change = player.minute(minute, database, client, counts_of(mine))
        hour = minute - minute % MINUTES_AN_HOUR
        key = (database, client, hour)
        found[key] = _added(found.get(key), change, hour)
    return sorted(found.values(), key=lambda c: (c.hour_minute, c.database, c.client))


def _added(before: ReplayedHour | None, change: ReplayedHour, hour: int) -> ReplayedHour:
    after = change.after if before is None else before.after.plus(change.after)
    return ReplayedHour(
        change.database,
        change.client,
        hour,
        change.checks + (before.checks if before else 0),
        change.admitted_before + (before.admitted_before if before else 0),
        after,
        change.shadowed_by or (before.shadowed_by if before else ""),
    )


class _Player:
    def __init__(self, rule: Rule, setting: ReplayContext, minutes: Minutes) -> None:
        self._rule = rule
        self._setting = setting
        self._minutes = minutes
        others = (r for r in setting.rules.rules if r.id != rule.id)
        self._with_rule = RuleBook((*others, rule))
        self._identities: dict[str, Identity | None] = {}
        self._shadows: dict[tuple[str, str, float], str] = {}

    def minute(self, minute: int, database: str, client: str, counts: MinuteCounts) -> ReplayedHour:
        same = unchanged(counts)
        change = ReplayedHour(database, client, minute, counts.checks, counts.admitted, same)
        identity = self._identity(client)
        if identity is None:
            return replace(change, after=After(0, counts.checks, How.UNKNOWN))
        spans = list(self._spans(identity, database, minute))
        if all(before.rules == applied.rules for before, applied in spans):
            return replace(change, shadowed_by=self._shadow(spans, client, database))
        if minute * MINUTE_S < self._setting.known_from_s:
            return replace(change, after=After(0, counts.checks, How.UNKNOWN))
        afters = {
            outcome(self._happened(minute, database, counts, before, applied))
            if any(rule is self._rule for rule in applied.rules)
            else displaced(counts, before, applied)
            for before, applied in spans
        }
        if len(afters) == 1:
            return replace(change, after=afters.pop())
        # Rules came or went within the minute, and when in it a check came was not kept.
        return replace(change, after=After(0, counts.checks - counts.fixed, How.BOUNDED))

    def _happened(
        self, minute: int, database: str, counts: MinuteCounts, before: Applied, applied: Applied
    ) -> Happened:
        gate = self._setting.gates.get(database)
        measured = (self._minutes, minute, database)
        return Happened(counts, self._rule, before, applied, gate, measured, self._setting.fair)

    def _spans(
        self, identity: Identity, database: str, minute: int
    ) -> Iterator[tuple[Applied, Applied]]:
        """What applied without the rule and with it, from change to change within the minute."""
        wall_s, end_s = minute * MINUTE_S, (minute + 1) * MINUTE_S
        while wall_s < end_s:
            before = self._setting.rules.applied(identity, database, wall_s)
            applied = self._with_rule.applied(identity, database, wall_s)
            yield before, applied
            wall_s = min(before.until, applied.until)

    def _identity(self, client: str) -> Identity | None:
        """None for a name that many clients share, such as `(unknown)`."""
        if client not in self._identities:
            try:
                self._identities[client] = parse_identity(client)
            except InvalidName:
                self._identities[client] = None
        return self._identities[client]

    def _shadow(self, spans: list[tuple[Applied, Applied]], client: str, database: str) -> str:
        """The rule that decides instead, where the proposed one matches but has no effect."""
        applied = spans[0][1]
        key = (client, database, applied.since)
        if key not in self._shadows:
            mine = [s.by.id for s in applied.shadowed if s.rule.id == self._rule.id]
            self._shadows[key] = mine[0] if mine else ""
        return self._shadows[key]


# --- another threshold ---------------------------------------------------------------------------

# What a threshold would have done to the checks of the last hour. Pure.
#
# metrics by minute, checks by minute, a metric as it would be ──replay_threshold──► ThresholdReplay
#
# History keeps the lowest and the highest value of a minute, but not when each was. If the lowest
# breaches the threshold, it would have rejected all checks of that minute; if only the highest
# does, some of them. What rejected clients would have done next is not known and not guessed.

REPLAYED_MINUTES = 60


@dataclass(frozen=True, slots=True)
class ThresholdReplay:
    """What a metric as it would be had done to the checks of the last hour."""

    minutes: int
    """How many minutes were replayed."""
    checks: int
    """Of the database, within these minutes."""
    at_least: int
    """So many of them would have been rejected by this metric; `at_most` no more than that. Within
    a minute only the lowest and the highest value are kept."""
    at_most: int
    rejected: int
    """By its threshold, as it was."""
    unknown: int
    """Checks of minutes without a value; in neither bound."""
    says: str
    """In a line."""


def _says(minutes: int, checks: int, bounds: tuple[int, int], rejected: int, unknown: int) -> str:
    if not checks:
        return f"no client checked in the last {minutes} minutes, so there is no preview"
    if unknown == checks:
        return f"no values of the last {minutes} minutes are kept, so there is no preview"
    low, high = bounds
    told = f"{low:,}" if low == high else f"between {low:,} and {high:,}"
    left = f"; the value is unknown for {unknown:,} checks" if unknown else ""
    of = f"of {checks:,} checks of the last {minutes} minutes (now: {rejected:,})"
    return f"would have rejected {told} {of}{left}"


def replay_threshold(
    spec: MetricSpec,
    values: Iterable[MetricMinute],
    tallies: Iterable[Tally],
    *,
    enabled: bool = True,
    minutes: int = REPLAYED_MINUTES,
) -> ThresholdReplay:
    """`values` and `tallies`: of one database and these minutes, of whatever metrics."""
    told = list(values)
    name = replayed_name(spec, told)
    mine = {one.minute: one for one in told if one.metric == name}
    checks: dict[int, int] = {}
    rejected = 0
    for tally in tallies:
        checks[tally.minute] = checks.get(tally.minute, 0) + tally.count
        if tally.metric == name and tally.verdict == Verdict.THRESHOLD_EXCEEDED.value:
            rejected += tally.count
    at_least, at_most, unknown = _bounds(spec, mine, checks) if enabled else (0, 0, 0)
    total = sum(checks.values())
    says = _says(minutes, total, (at_least, at_most), rejected, unknown)
    return ThresholdReplay(minutes, total, at_least, at_most, rejected, unknown, says)


def replayed_name(spec: MetricSpec, values: Iterable[MetricMinute]) -> str:
    """The metric for a check that names no scope: the shard's, if the metric says so and this agent
    has it."""
    shard = f"{Scope.SHARD.value}/{spec.name}"
    has_shard = any(one.metric == shard for one in values)
    return shard if spec.scope is Scope.SHARD and has_shard else spec.name


def _bounds(
    spec: MetricSpec, values: Mapping[int, MetricMinute], checks: Mapping[int, int]
) -> tuple[int, int, int]:
    at_least = at_most = unknown = 0
    for minute, count in checks.items():
        value = values.get(minute)
        if value is None or value.low is None or value.high is None:
            unknown += count
            continue
        at_least += count if spec.breaches(value.low) else 0
        at_most += count if spec.breaches(value.high) else 0
    return at_least, at_most, unknown
