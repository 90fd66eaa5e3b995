"""From readings to the health of a database.   Sampler → Window → Standing → Health → decide

A Standing is what one metric amounts to after its last reading; a Health is a database's
standings. Both are made when a reading arrives, so that a check only has to compare ages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from headgate.core.metrics import AbsencePolicy, MetricSpec
from headgate.core.names import MetricRef
from headgate.core.samples import Absent, Cause, Reading, Sample

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Window:
    """The last readings of one metric, newest last, and what outlives them."""

    readings: tuple[Reading, ...] = ()
    last_sample: Sample | None = None
    absent_since: float | None = None
    """When the present run of absences began."""

    def push(self, reading: Reading, *, keep: int) -> Window:
        readings = (*self.readings, reading)[-max(keep, 1) :]
        if isinstance(reading, Sample):
            return Window(readings, reading, None)
        since = self.absent_since if self.absent_since is not None else reading.at
        return replace(self, readings=readings, absent_since=since)

    @property
    def latest(self) -> Reading | None:
        return self.readings[-1] if self.readings else None


@dataclass(frozen=True, slots=True)
class Standing:
    """One metric after its last reading. `passes` holds until `passes_until`."""

    spec: MetricSpec
    ref: MetricRef
    sample: Sample | None
    """The value it is judged by; kept through absences for the record."""
    absent: Absent | None
    absent_since: float | None
    breached: bool
    passes: bool
    passes_until: float
    utilization: float
    """Value as a share of the threshold; 0 where there is no value to compare."""


def stand(spec: MetricSpec, window: Window) -> Standing:
    """What `window` amounts to under `spec`. Total: every window has a standing."""
    latest, sample = window.latest, window.last_sample
    absent = latest if isinstance(latest, Absent) else None
    breached = _breached(spec, window)
    passes_until = _passes_until(spec, sample, absent)
    return Standing(
        spec=spec,
        ref=MetricRef(spec.name, spec.scope),
        sample=sample,
        absent=absent,
        absent_since=window.absent_since,
        breached=breached,
        passes=not breached and passes_until > -FOREVER,
        passes_until=passes_until,
        utilization=sample.value / spec.threshold if sample else 0.0,
    )


def _breached(spec: MetricSpec, window: Window) -> bool:
    """M of the last N values breach; with fewer than N values, the missing ones do not count."""
    if window.last_sample is None:
        return False
    if spec.debounce.readings <= 1:
        return spec.breaches(window.last_sample.value)
    recent = [r for r in window.readings if isinstance(r, Sample)][-spec.debounce.readings :]
    return sum(spec.breaches(r.value) for r in recent) >= spec.debounce.breaches


def _passes_until(spec: MetricSpec, sample: Sample | None, absent: Absent | None) -> float:
    """Until when an unbreached metric lets checks through; -inf for not at all."""
    if spec.absence is AbsencePolicy.IGNORE:
        return FOREVER
    if sample is None:
        return -FOREVER
    if spec.absence is AbsencePolicy.HOLD:
        return sample.taken_at + max(spec.hold_s, spec.max_age_s)
    return -FOREVER if absent else sample.taken_at + spec.max_age_s


@dataclass(frozen=True, slots=True)
class Health:
    """A database's standings, as one value that is replaced whole."""

    database: str
    standings: Mapping[str, Standing]
    default: tuple[Standing, ...]
    """What a check that names no metric is judged by."""
    all_pass: bool
    all_pass_until: float
    worst: Standing | None
    """The default metric nearest to its threshold: what a one-number answer shows."""


def health_of(
    database: str, standings: Mapping[str, Standing], *, default: Iterable[str] | None = None
) -> Health:
    chosen = tuple(standings[name] for name in (default or standings) if name in standings)
    return Health(
        database=database,
        standings=MappingProxyType(dict(standings)),
        default=chosen,
        all_pass=all(standing.passes for standing in chosen),
        all_pass_until=min((standing.passes_until for standing in chosen), default=-FOREVER),
        worst=max(chosen, key=lambda standing: standing.utilization, default=None),
    )


def never_read(spec: MetricSpec, *, at: float) -> Window:
    """The window of a metric whose first probe is still to come."""
    absent = Absent(Cause.NEVER_READ, "no probe has finished yet", at)
    return Window().push(absent, keep=1)
