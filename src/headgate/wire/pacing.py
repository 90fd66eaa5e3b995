"""Paced admission as a document: what is released, towards what, and who waits (R142)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.core.health import Standing
from headgate.core.names import Scope
from headgate.core.pacing import Pace

MAX_CLIENTS_NAMED = 20


class SetPointDoc(msgspec.Struct, frozen=True):
    """A paced metric, and where it is kept."""

    metric: str
    scope: str
    value: float | None
    """Null while it has none."""
    set_point: float
    threshold: float
    unit: str


class PaceDoc(msgspec.Struct, frozen=True):
    rate: float
    """Cost released a second; a check that declares none costs 1."""
    bears: float
    """What the database is thought to bear."""
    starting: bool
    """Slow start: the rate is still looking for its limit."""
    metric: str | None
    """The paced metric nearest to its set point, by which the rate was last set."""
    set_points: Sequence[SetPointDoc]
    cost_total: float
    """Charged since pacing began."""
    paced_total: int
    """Checks sent away since then."""
    clients: Sequence[str]
    """Who was last answered PACED: some of them."""
    clients_total: int


def pace_doc(
    pace: Pace,
    metrics: Sequence[Standing],
    *,
    worst: str,
    cost_total: float,
    paced_total: int,
    clients: Sequence[str],
) -> PaceDoc:
    return PaceDoc(
        rate=pace.rate,
        bears=pace.bears,
        starting=pace.starting,
        metric=worst or None,
        set_points=[_set_point(standing) for standing in metrics],
        cost_total=cost_total,
        paced_total=paced_total,
        clients=clients[:MAX_CLIENTS_NAMED],
        clients_total=len(clients),
    )


def _set_point(standing: Standing) -> SetPointDoc:
    spec, sample = standing.spec, standing.sample
    return SetPointDoc(
        metric=spec.name,
        scope=(standing.ref.scope or Scope.HOST).value,
        value=sample.value if sample is not None and standing.absent is None else None,
        set_point=set_point(standing),
        threshold=spec.threshold,
        unit=spec.unit,
    )


def set_point(standing: Standing) -> float:
    return standing.spec.threshold * standing.spec.pace_target
