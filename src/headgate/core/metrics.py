"""What a metric is: where its number comes from, and when that number is too high."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from headgate.core.names import Scope


class Engine(Enum):
    POSTGRES = "postgres"
    MYSQL = "mysql"
    """MySQL and MariaDB: the probes find out which."""


class Comparison(Enum):
    """When a value breaches. Explicit per metric: pool usage cannot exceed 1 (R5)."""

    ABOVE = ">"
    AT_LEAST = ">="


class Mode(Enum):
    GAUGE = "gauge"
    RATE = "rate"
    """Per-second increase of a counter, between two probes."""


class AbsencePolicy(Enum):
    REJECT = "reject"
    HOLD = "hold"
    """Judge the last value until it is `hold_s` old, then reject."""
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Builtin:
    """Measured by Headgate itself; which statement or file depends on the engine."""

    name: str


@dataclass(frozen=True, slots=True)
class Sql:
    query: str


@dataclass(frozen=True, slots=True)
class Http:
    """A number behind a URL: a JSON pointer into the body, or one Prometheus series."""

    url: str
    pointer: str | None = None
    series: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point in the group `headgate.probes`."""

    name: str


Source = Builtin | Sql | Http | Command | Plugin
Option = str | float | bool | tuple[str, ...]
NO_OPTIONS: Mapping[str, Option] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Debounce:
    """Breached only when `breaches` of the last `readings` values breach (R11)."""

    breaches: int = 1
    readings: int = 1


@dataclass(frozen=True, slots=True)
class MetricSpec:
    name: str
    source: Source
    threshold: float
    comparison: Comparison = Comparison.ABOVE
    unit: str = ""
    mode: Mode = Mode.GAUGE
    interval_s: float = 1.0
    timeout_s: float = 0.5
    max_age_s: float = 2.5
    debounce: Debounce = Debounce()
    absence: AbsencePolicy = AbsencePolicy.REJECT
    hold_s: float = 0.0
    scope: Scope = Scope.HOST
    options: Mapping[str, Option] = field(default_factory=lambda: NO_OPTIONS)

    def breaches(self, value: float) -> bool:
        if self.comparison is Comparison.AT_LEAST:
            return value >= self.threshold
        return value > self.threshold
