"""Values for tests, with everything that does not matter filled in."""

from __future__ import annotations

from typing import Any

from headgate.core.decision import Check
from headgate.core.health import Health, Window, health_of, never_read, stand
from headgate.core.metric_settings import parse_metric_settings
from headgate.core.metrics import Engine, MetricSpec
from headgate.core.names import parse_identity, parse_metric_ref
from headgate.core.samples import Absent, Cause, Instant, Reading, Sample

NOW = Instant(mono_s=1000.0, wall_s=1_700_000_000.0)


def at(seconds: float) -> Instant:
    """`seconds` after NOW, on both clocks."""
    return Instant(NOW.mono_s + seconds, NOW.wall_s + seconds)


def metric(name: str = "lag", engine: Engine = Engine.POSTGRES, **settings: Any) -> MetricSpec:
    return parse_metric_settings(name, settings, engine)


def sample(value: float, *, age_s: float = 0.0) -> Sample:
    return Sample(value, NOW.mono_s - age_s)


def absent(cause: Cause = Cause.FAILED, detail: str = "refused", *, age_s: float = 0.0) -> Absent:
    return Absent(cause, detail, NOW.mono_s - age_s)


def window(*readings: Reading) -> Window:
    built = Window()
    for reading in readings:
        built = built.push(reading, keep=60)
    return built


def health(*metrics: tuple[MetricSpec, Window | Reading | float | None]) -> Health:
    """A database named main. A number is a fresh sample; None was never read."""
    standings = {}
    for spec, given in metrics:
        standings[spec.name] = stand(spec, _window_of(spec, given))
    return health_of("main", standings)


def _window_of(spec: MetricSpec, given: Window | Reading | float | None) -> Window:
    if given is None:
        return never_read(spec, at=NOW.mono_s)
    if isinstance(given, Window):
        return given
    if isinstance(given, Sample | Absent):
        return window(given)
    return window(sample(given))


def check(app: str = "etl:nightly", *metrics: str, database: str = "main", **more: Any) -> Check:
    refs = tuple(parse_metric_ref(name) for name in metrics)
    return Check(parse_identity(app), database, refs, **more)
