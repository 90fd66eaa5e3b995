"""Paced admission as a document: the rate, its set point, and who waits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.base.names import Scope
from headgate.check.health import MetricStatus
from headgate.pacing.model import Pace

MAX_CLIENTS_NAMED = 20


class SetPointDoc(msgspec.Struct, frozen=True):
    """A paced metric, and where it is kept."""

    metric: str
    scope: str
    value: float | None
    """Null while it has no value."""
    set_point: float
    threshold: float
    unit: str


class PaceDoc(msgspec.Struct, frozen=True):
    rate: float
    """Cost a second that is admitted; a check that declares none costs 1."""
    sustained: float
    """Estimate of the cost a second that the database sustains."""
    starting: bool
    """Slow start: the rate still grows to its limit."""
    metric: str | None
    """The paced metric nearest to its set point, which last set the rate."""
    set_points: Sequence[SetPointDoc]
    cost_total: float
    """Cost charged since pacing began."""
    paced_total: int
    """Checks that pacing rejected since then."""
    clients: Sequence[str]
    """Some of the clients that were last answered PACED."""
    clients_total: int


def pace_doc(
    pace: Pace,
    metrics: Sequence[MetricStatus],
    *,
    worst: str,
    cost_total: float,
    paced_total: int,
    clients: Sequence[str],
) -> PaceDoc:
    return PaceDoc(
        rate=pace.rate,
        sustained=pace.sustained,
        starting=pace.starting,
        metric=worst or None,
        set_points=[_set_point(standing) for standing in metrics],
        cost_total=cost_total,
        paced_total=paced_total,
        clients=clients[:MAX_CLIENTS_NAMED],
        clients_total=len(clients),
    )


def _set_point(standing: MetricStatus) -> SetPointDoc:
    spec, sample = standing.spec, standing.sample
    return SetPointDoc(
        metric=spec.name,
        scope=(standing.ref.scope or Scope.HOST).value,
        value=sample.value if sample is not None and standing.absent is None else None,
        set_point=set_point(standing),
        threshold=spec.threshold,
        unit=spec.unit,
    )


def set_point(standing: MetricStatus) -> float:
    return standing.spec.threshold * standing.spec.pace_target
