"""What outlives the process, as values: the agent makes them, stores/ keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A metric set or removed at run time, as it is kept: `raw` None means removed."""

    database: str
    metric: str
    raw: Mapping[str, Any] | None
    revision: int


@dataclass(frozen=True, slots=True)
class Record:
    """Something an operator set, kept as it was said: `value` None means removed."""

    kind: str
    """Such as `skip` or `peer`."""
    key: str
    """Such as `commerce/-80 db-b`."""
    value: Mapping[str, Any] | None
    revision: int


@dataclass(frozen=True, slots=True)
class AuditEntry:
    wall_s: float
    who: str
    action: str
    """Such as `metric.set`."""
    target: str
    """Such as `main/lag`."""
    before: Any
    after: Any
    id: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """Decisions of one minute that are alike (R134–R136)."""

    minute: int
    """Wall-clock minutes since 1970."""
    database: str
    client: str
    verdict: str
    metric: str
    """The metric (or rule) that decided; empty for an admission."""
    count: int


@dataclass(frozen=True, slots=True)
class StoreFault:
    """The store cannot be written: since when, and what it said."""

    since_wall_s: float
    detail: str
