"""What happened to clients and metrics over time: the input for detecting starvation.

counts of a tick, looks at metrics ─advance─►
    DatabaseCourses (Courses and Gates) ─`starvation.judge`─►

A Course is the current run of one client, or of all clients that share a level. A MetricGate is one
metric. Both are values: a stretch keeps a copy of the Gates at its start, and the difference to
the current ones is what happened since. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from headgate.base.names import is_crowd, levels_of
from headgate.history.effects import Effects

NOTHING: Mapping[str, int] = MappingProxyType({})
NEVER = float("-inf")
PIECE = 100
MAX_COURSES = 4096
"""Per database, levels included. At this limit a new client replaces an idle one; if there is
no idle one, the new client is not watched."""


@dataclass(frozen=True, slots=True)
class StarvationTerms:
    window_s: float = 600.0
    """A client that metrics reject without a break for this long may be starved."""
    waterline: float = 0.05
    """Share of its runtime from which starvation is reported; 10 min of 12 h is 1.4 %."""
    idle_s: float = 120.0
    """Longer gaps between two checks count as neither runtime nor starvation."""
    run_gap_s: float = 900.0
    """After a gap this long, the client's next check begins another run."""
    settle_s: float = 120.0
    """After this time, the effect of admitted work is over."""
    min_tries: int = 5
    pinned_share: float = 0.995
    patience_s: float = 3600.0
    """A metric is not pinned if it falls fast enough to be below its threshold within this time."""
    spells: float = 4.0
    """Every gate closes sometimes; starvation lasts this many times longer than usual."""
    exemption_budget_s: float = 1200.0
    """How long a client may be starved because of an exemption before the agent suspends it."""
    max_luck: float = 1e-9
    """Starved only if the chance that the client just checked at bad moments is below this."""


class Reason(Enum):
    """Why time passes without work."""

    METRIC = "metric"
    DICE = "dice"
    HELD = "held"
    PACED = "paced"
    BUDGET = "budget"
    OTHER = "other"


_REASONS = (
    Reason.METRIC,
    Reason.DICE,
    Reason.HELD,
    Reason.PACED,
    Reason.BUDGET,
    Reason.OTHER,
)


class ClientTick(NamedTuple):
    """What one client's questions came to within a tick."""

    admitted: int = 0
    """Admitted by the metrics."""
    exempted: int = 0
    """Admitted by an exemption although a metric would have rejected them."""
    exempt_by: str = ""
    passed: int = 0
    """Admitted by the metrics, then rejected for another reason."""
    by_metric: Mapping[str, int] = NOTHING
    diced: int = 0
    held: int = 0
    paced: int = 0
    over_budget: int = 0
    other: int = 0

    @property
    def progressed(self) -> bool:
        return bool(self.admitted or self.exempted or self.passed)

    @property
    def reason(self) -> Reason:
        """What rejected most checks."""
        metrics = sum(self.by_metric.values())
        counts = (metrics, self.diced, self.held, self.paced, self.over_budget, self.other)
        return _REASONS[counts.index(max(counts))]

    def plus(self, more: ClientTick) -> ClientTick:
        by_metric = dict(self.by_metric)
        for metric, count in more.by_metric.items():
            by_metric[metric] = by_metric.get(metric, 0) + count
        return ClientTick(
            self.admitted + more.admitted,
            self.exempted + more.exempted,
            self.exempt_by or more.exempt_by,
            self.passed + more.passed,
            by_metric,
            self.diced + more.diced,
            self.held + more.held,
            self.paced + more.paced,
            self.over_budget + more.over_budget,
            self.other + more.other,
        )


class ClientMetrics(NamedTuple):
    """The metrics and thresholds that apply to one client."""

    metrics: frozenset[str]
    stricter: Mapping[str, str] = MappingProxyType({})
    """Metric with a threshold only for this client → the rule that sets it."""


class MinuteLook(NamedTuple):
    """A metric with a value."""

    breached: bool
    utilization: float


# --- metrics -------------------------------------------------------------------------------

RECENT_S, EARLIER_S = 120.0, 600.0


class MetricGate(NamedTuple):
    """One metric since it was first looked at."""

    watched_s: float = 0.0
    breached_s: float = 0.0
    open_s: float = 0.0
    """Time in which the metric admitted a client that it applies to."""
    load_s: float = 0.0
    """Its share of the threshold, times the seconds."""
    recent: float | None = None
    """Value as a share of the threshold, averaged over the last RECENT_S."""
    earlier: float | None = None
    """The same, averaged over EARLIER_S."""
    opened_at: float = NEVER
    closed_since: float | None = None
    usual_closed_s: float = 0.0
    """How long it usually stays closed."""

    def after(self, look: MinuteLook, opened: bool, now_s: float, seconds: float) -> MetricGate:
        return MetricGate(
            self.watched_s + seconds,
            self.breached_s + (seconds if look.breached else 0.0),
            self.open_s + (seconds if opened else 0.0),
            self.load_s + look.utilization * seconds,
            _smoothed(self.recent, look.utilization, seconds / RECENT_S),
            _smoothed(self.earlier, look.utilization, seconds / EARLIER_S),
            now_s if opened else self.opened_at,
            *self._closed(look, opened, now_s),
        )

    def _closed(self, look: MinuteLook, opened: bool, now_s: float) -> tuple[float | None, float]:
        since, usual_s = self.closed_since, self.usual_closed_s
        if opened and since is not None:
            spell_s = now_s - since
            return None, spell_s if not usual_s else usual_s + 0.3 * (spell_s - usual_s)
        if not opened and look.breached and since is None:
            return now_s, usual_s
        return since, usual_s

    def healthy_in_s(self) -> float:
        """When it will be at its threshold if it goes on as it does; inf unless it falls."""
        if self.recent is None or self.earlier is None or self.recent >= self.earlier:
            return float("inf")
        fall_a_s = (self.earlier - self.recent) / (EARLIER_S - RECENT_S)
        return max(0.0, self.recent - 1.0) / fall_a_s


def _smoothed(before: float | None, value: float, weight: float) -> float:
    return value if before is None else before + min(1.0, weight) * (value - before)


class Meanwhile(NamedTuple):
    """A gate's difference between two instants."""

    seconds: float
    breached_share: float
    open_share: float
    mean: float


def meanwhile(then: MetricGate, now: MetricGate) -> Meanwhile | None:
    seconds = now.watched_s - then.watched_s
    if seconds <= 0:
        return None
    return Meanwhile(
        seconds,
        (now.breached_s - then.breached_s) / seconds,
        (now.open_s - then.open_s) / seconds,
        (now.load_s - then.load_s) / seconds,
    )


Gates = Mapping[str, MetricGate]
NO_GATES: Gates = MappingProxyType({})


# --- clients -------------------------------------------------------------------------------


class Subject(NamedTuple):
    name: str
    is_level: bool = False
    """All clients that have this level."""


class StarvedStretch(NamedTuple):
    """Time since which metrics reject every check of a client."""

    since_s: float
    gates: Gates
    """The Gates at the start of the stretch."""
    rejected: Mapping[str, int]
    tries: int
    """Ticks in which a metric rejected a check."""
    last_s: float

    @property
    def metric(self) -> str:
        """What rejected most checks."""
        return max(sorted(self.rejected), key=lambda metric: self.rejected[metric])

    def after(self, seen: ClientTick, now_s: float) -> StarvedStretch:
        rejected = dict(self.rejected)
        for metric, count in seen.by_metric.items():
            rejected[metric] = rejected.get(metric, 0) + count
        return StarvedStretch(self.since_s, self.gates, rejected, self.tries + 1, now_s)


class Course(NamedTuple):
    subject: Subject
    asked_s: float
    runtime_s: float = 0.0
    starved_s: float = 0.0
    """Starved time in stretches that are over."""
    stretch: StarvedStretch | None = None
    admitted: int = 0
    admitted_s: float = NEVER
    exempted: int = 0
    exempted_s: float = NEVER
    exempt_by: str = ""
    rejected_s: Mapping[Reason, float] = MappingProxyType({})

    def after(
        self, seen: ClientTick, gates: Gates, now_s: float, policy: StarvationTerms
    ) -> Course:
        silent_s = now_s - self.asked_s
        if silent_s > policy.run_gap_s:
            return Course(self.subject, now_s).after(seen, gates, now_s, policy)
        active_s = silent_s if silent_s <= policy.idle_s else 0.0
        moves = seen.progressed
        return Course(
            self.subject,
            now_s,
            self.runtime_s + active_s,
            self._starved(now_s, policy) if moves else self.starved_s,
            None if moves else self._stretched(seen, gates, now_s, policy),
            self.admitted + seen.admitted,
            now_s if seen.admitted else self.admitted_s,
            self.exempted + seen.exempted,
            now_s if seen.exempted else self.exempted_s,
            seen.exempt_by or self.exempt_by,
            self.rejected_s if moves else self._waited(seen.reason, active_s),
        )

    def _starved(self, now_s: float, policy: StarvationTerms) -> float:
        length_s = now_s - self.stretch.since_s if self.stretch else 0.0
        return self.starved_s + (length_s if length_s >= policy.window_s else 0.0)

    def _stretched(
        self, seen: ClientTick, gates: Gates, now_s: float, policy: StarvationTerms
    ) -> StarvedStretch | None:
        stretch = self.stretch
        if stretch is not None and now_s - stretch.last_s > policy.idle_s:
            stretch = None  # It was away, held, or not let as far as the metrics.
        if not seen.by_metric:
            return stretch
        return (stretch or StarvedStretch(now_s, gates, NOTHING, 0, now_s)).after(seen, now_s)

    def _waited(self, reason: Reason, seconds: float) -> Mapping[Reason, float]:
        return {**self.rejected_s, reason: self.rejected_s.get(reason, 0.0) + seconds}


# --- a database ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DatabaseCourses:
    """One database, as one value that is replaced whole."""

    database: str
    now_s: float
    courses: Mapping[Subject, Course] = field(default_factory=dict)
    gates: Gates = field(default_factory=lambda: NO_GATES)
    judged: Mapping[str, ClientMetrics] = field(default_factory=dict)
    """By client."""
    effects: Effects = field(default_factory=Effects)

    def running(self, policy: StarvationTerms) -> list[Course]:
        """Clients, not levels, that checked recently."""
        return [
            course
            for subject, course in self.courses.items()
            if not subject.is_level and self.now_s - course.asked_s <= policy.idle_s
        ]


class Tick(NamedTuple):
    """What happened since the last one."""

    now_s: float
    seen: Mapping[str, ClientTick]
    looks: Mapping[str, MinuteLook]
    judged: Mapping[str, ClientMetrics]
    """Of the clients of `seen`, at least."""


def advance(scene: DatabaseCourses, tick: Tick, policy: StarvationTerms) -> DatabaseCourses:
    """A tick later."""
    steps = advancing(scene, tick, policy)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            later: DatabaseCourses = end.value
            return later


def advancing(
    scene: DatabaseCourses, tick: Tick, policy: StarvationTerms
) -> Generator[None, None, DatabaseCourses]:
    """The same in pieces of about a millisecond, so that the caller can do other work between."""
    now_s, seen, looks, judged = tick
    seconds = max(0.0, min(now_s - scene.now_s, policy.idle_s))
    gates = _gates(scene.gates, seen, looks, judged, now_s, seconds)
    kept = {
        subject: course
        for subject, course in scene.courses.items()
        if now_s - course.asked_s <= policy.run_gap_s
    }
    for done, (subject, what) in enumerate(_by_subject(seen).items(), start=1):
        if done % PIECE == 0:
            yield
        course = kept.get(subject) or _room_for(subject, kept, now_s, policy)
        if course is not None:
            kept[subject] = course.after(what, gates, now_s, policy)
    known = {s.name: scene.judged[s.name] for s in kept if s.name in scene.judged}
    yield
    work = {client: float(what.admitted + what.exempted) for client, what in seen.items()}
    values = {metric: look.utilization for metric, look in looks.items()}
    effects = scene.effects.after(work, values, {subject.name for subject in kept})
    return DatabaseCourses(scene.database, now_s, kept, gates, {**known, **judged}, effects)


def _gates(
    gates: Gates,
    seen: Mapping[str, ClientTick],
    looks: Mapping[str, MinuteLook],
    judged: Mapping[str, ClientMetrics],
    now_s: float,
    seconds: float,
) -> Gates:
    opened = {
        metric
        for client, what in seen.items()
        if (what.admitted or what.passed) and client in judged
        for metric in judged[client].metrics
    }
    return {
        metric: gates.get(metric, MetricGate()).after(look, metric in opened, now_s, seconds)
        for metric, look in looks.items()
    } | {metric: gate for metric, gate in gates.items() if metric not in looks}


def _by_subject(seen: Mapping[str, ClientTick]) -> dict[Subject, ClientTick]:
    """Levels that several have in common first: they find room before the many that are alone,
    and tell of those of them that have no name (base/names.py)."""
    levels: dict[Subject, ClientTick] = {}
    shared: dict[Subject, None] = {}
    for client, what in seen.items():
        for level in levels_of(client):
            subject = Subject(level, is_level=True)
            if subject in levels:
                levels[subject] = levels[subject].plus(what)
                shared[subject] = None
            else:
                levels[subject] = what
                if is_crowd(client):
                    shared[subject] = None
    clients = {Subject(client): what for client, what in seen.items()}
    return {**{subject: levels[subject] for subject in shared}, **clients, **levels}


def _room_for(
    subject: Subject, kept: dict[Subject, Course], now_s: float, policy: StarvationTerms
) -> Course | None:
    if len(kept) >= MAX_COURSES:
        oldest = min(kept, key=lambda s: kept[s].asked_s)
        if now_s - kept[oldest].asked_s <= policy.idle_s:
            return None
        del kept[oldest]
    return Course(subject, now_s)
