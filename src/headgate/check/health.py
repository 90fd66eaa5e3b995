"""From readings to the health of a database.   Sampler → Window → `MetricStatus` → Health → decide

A `MetricStatus` is the state of one metric after its last reading; a Health has the states of all
metrics of a database. Both are made when a reading arrives, so that a check only compares ages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headgate.base.names import MetricRef, Scope
from headgate.metrics.model import AbsencePolicy, MetricSpec
from headgate.metrics.samples import Absent, Cause, Reading, Sample

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Window:
    """The last readings of one metric, newest last, and what outlives them."""

    readings: tuple[Reading, ...] = ()
    last_sample: Sample | None = None
    absent_since: float | None = None
    """Since when readings have no value."""

    def push(self, reading: Reading, *, keep: int) -> Window:
        readings = (*self.readings, reading)[-max(keep, 1) :]
        if isinstance(reading, Sample):
            return Window(readings, reading, None)
        since, latest = self.absent_since, self.latest
        # What was not measured because nobody checks has not been failing.
        idled = isinstance(latest, Absent) and latest.cause is Cause.HIBERNATING
        if since is None or (idled and reading.cause is not Cause.HIBERNATING):
            since = reading.at
        return replace(self, readings=readings, absent_since=since)

    def without_latest(self) -> Window:
        return replace(self, readings=self.readings[:-1])

    @property
    def latest(self) -> Reading | None:
        return self.readings[-1] if self.readings else None


@dataclass(frozen=True, slots=True)
class MetricStatus:
    """One metric after its last reading. `passes` holds until `passes_until`."""

    spec: MetricSpec
    ref: MetricRef
    sample: Sample | None
    """The value that counts; kept while newer readings have none, for display."""
    absent: Absent | None
    absent_since: float | None
    breached: bool
    passes: bool
    passes_until: float
    utilization: float
    """Value as a share of the threshold; 0 where there is no value to compare."""
    valid_until: float = FOREVER
    """After this the value does not count, under any policy: its agent may no longer lead."""
    fresh_until: float = -FOREVER
    """Until then the sample counts as it is; -inf if there is no sample."""


def stand(
    spec: MetricSpec, window: Window, *, scope: Scope = Scope.HOST, until: float = FOREVER
) -> MetricStatus:
    """The state of `window` under `spec`, valid until `until`.

    Total: every window has a state.
    """
    latest, sample = window.latest, window.last_sample
    absent = latest if isinstance(latest, Absent) else None
    breached = _breached(spec, window)
    passes_until = min(until, _passes_until(spec, sample, absent))
    return MetricStatus(
        spec=spec,
        ref=MetricRef(spec.name, scope),
        sample=sample,
        absent=absent,
        absent_since=window.absent_since,
        breached=breached,
        passes=not breached and passes_until > -FOREVER,
        passes_until=passes_until,
        utilization=_utilization(spec, sample),
        valid_until=until,
        fresh_until=min(until, _fresh_until(spec, sample, absent)),
    )


def _utilization(spec: MetricSpec, sample: Sample | None) -> float:
    if sample is None:
        return 0.0
    if not spec.threshold:  # "None may be": the first one is all of it.
        return sample.value
    return sample.value / spec.threshold


def _breached(spec: MetricSpec, window: Window) -> bool:
    """M of the last N values breach; with fewer than N values, the missing ones do not count."""
    if window.last_sample is None:
        return False
    if spec.debounce.readings <= 1:
        return spec.breaches(window.last_sample.value)
    recent = [r for r in window.readings if isinstance(r, Sample)][-spec.debounce.readings :]
    return sum(spec.breaches(r.value) for r in recent) >= spec.debounce.breaches


def _fresh_until(spec: MetricSpec, sample: Sample | None, absent: Absent | None) -> float:
    return -FOREVER if sample is None or absent else sample.taken_at + spec.max_age_s


def _passes_until(spec: MetricSpec, sample: Sample | None, absent: Absent | None) -> float:
    """Until when an unbreached metric lets checks through; -inf for not at all."""
    if spec.absence is AbsencePolicy.IGNORE:
        return FOREVER
    if sample is None:
        return -FOREVER
    if spec.absence is AbsencePolicy.HOLD:
        return sample.taken_at + max(spec.hold_s, spec.max_age_s)
    return _fresh_until(spec, sample, absent)


@dataclass(frozen=True, slots=True)
class Selection:
    """The metrics that apply to a check that names none."""

    standings: tuple[MetricStatus, ...]
    all_pass: bool
    all_pass_until: float
    rejecting: tuple[MetricStatus, ...]
    """Those that do not pass, until `others_pass_until`."""
    others_pass_until: float
    worst: MetricStatus | None
    """The metric nearest to its threshold: what a one-number answer shows."""


def select(standings: Iterable[MetricStatus]) -> Selection:
    chosen = tuple(standings)
    return Selection(
        standings=chosen,
        all_pass=all(standing.passes for standing in chosen),
        all_pass_until=min((standing.passes_until for standing in chosen), default=-FOREVER),
        rejecting=tuple(standing for standing in chosen if not standing.passes),
        others_pass_until=min((s.passes_until for s in chosen if s.passes), default=FOREVER),
        worst=max(chosen, key=lambda standing: standing.utilization, default=None),
    )


NO_STANDINGS: Mapping[str, MetricStatus] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """A shard's standings, as far as this agent may speak for it."""

    shard: str
    standings: Mapping[str, MetricStatus]
    """Rollups of every metric; without a value if this agent may not answer for the shard."""
    primary: str = ""
    check_at: str = ""
    """Address of the agent that answers for the shard, if it is another one."""
    check_at_database: str = ""
    """That agent's name for the database."""
    lags: Mapping[str, float | None] = field(default_factory=dict)
    """Each replica's lag, as it goes into the rollup; None: without a value."""


@dataclass(frozen=True, slots=True)
class Health:
    """A database's standings, as one value that is replaced whole."""

    database: str
    standings: Mapping[str, MetricStatus]
    """This host's."""
    default: Selection
    """For checks without metric and scope: each metric in its own scope."""
    host: Selection
    """The same metrics, all with scope host."""
    whole: Selection
    """The same metrics, all with scope shard."""
    shard: ShardHealth | None = None
    lacks_any: bool = False
    """Whether the newest reading of some metric, of the host or the shard, has no value."""

    @property
    def own(self) -> Selection:
        """What this agent can answer alone: a replica's agent answers only for its host."""
        return self.host if self.shard is not None and self.shard.check_at else self.default


def health_of(
    database: str,
    standings: Mapping[str, MetricStatus],
    *,
    default: Iterable[str] | None = None,
    shard: ShardHealth | None = None,
) -> Health:
    names = [name for name in (default or standings) if name in standings]
    host = [standings[name] for name in names]
    whole = [shard.standings.get(s.spec.name) or not_rolled_up(s.spec) for s in host if shard]
    return Health(
        database=database,
        standings=MappingProxyType(dict(standings)),
        default=select(
            standing
            if shard is None or standing.spec.scope is Scope.HOST
            else shard.standings.get(standing.spec.name) or not_rolled_up(standing.spec)
            for standing in host
        ),
        host=select(host),
        whole=select(whole),
        shard=shard,
        lacks_any=any(
            standing.absent is not None
            for of in (standings, shard.standings if shard is not None else NO_STANDINGS)
            for standing in of.values()
        ),
    )


def steady_until(health: Health, now_s: float) -> float:
    """When the state of a metric may first change without a new reading, for any reason."""
    shard = health.shard.standings.values() if health.shard is not None else ()
    turns = [
        turn_s
        for s in (*health.standings.values(), *shard)
        for turn_s in (s.fresh_until, s.passes_until, s.valid_until, _ignored_from(s))
        if turn_s >= now_s
    ]
    return min(turns, default=FOREVER)


def _ignored_from(status: MetricStatus) -> float:
    """From when on a metric whose probes go on failing rejects no check (`reject_for_s`)."""
    since, limit_s = status.absent_since, status.spec.reject_for_s
    return since + limit_s if since is not None and limit_s else FOREVER


def not_rolled_up(spec: MetricSpec) -> MetricStatus:
    """The host's own value is no stand-in for the shard's."""
    absent = Absent(Cause.WARMING_UP, "it has not been rolled up yet", 0.0)
    rejecting = replace(spec, absence=AbsencePolicy.REJECT, reject_for_s=0.0)
    return stand(rejecting, Window((absent,)), scope=Scope.SHARD)


def never_read(spec: MetricSpec, *, at: float) -> Window:
    """The window of a metric whose first probe is still to come."""
    absent = Absent(Cause.NEVER_READ, "no probe has finished yet", at)
    return Window().push(absent, keep=1)
