"""What a metric is: where its number comes from, and when that number is too high."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from headgate.base.names import Scope


class Engine(Enum):
    POSTGRES = "postgres"
    MYSQL = "mysql"
    """MySQL and MariaDB: the probes find out which."""


@dataclass(frozen=True, slots=True)
class DsnParts:
    """A connection string, taken apart: what may be written down, and the secret in it."""

    dsn: str
    """Without the password."""
    password: str | None = field(repr=False)
    user: str
    host: str
    """Empty: a Unix socket."""
    where: str


class Comparison(Enum):
    """When a value breaches. Explicit per metric: pool usage cannot exceed 1."""

    ABOVE = ">"
    AT_LEAST = ">="


class MetricMode(Enum):
    GAUGE = "gauge"
    RATE = "rate"
    """Per-second increase of a counter, between two probes."""


class AbsencePolicy(Enum):
    REJECT = "reject"
    HOLD = "hold"
    """Use the last value until it is `hold_s` old, then reject."""
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
    """Breached only when `breaches` of the last `readings` values breach."""

    breaches: int = 1
    readings: int = 1


class RollupOf(Enum):
    """Whose values a shard's value is made of."""

    REPLICAS = "replicas"
    ALL = "all"
    PRIMARY = "primary"


class MissingPolicy(Enum):
    """What a member without a usable value does to the shard's."""

    REJECT = "reject"
    """The shard has no value either, for `missing_for_s`; then the member is skipped, visibly."""
    IGNORE = "ignore"
    """Skip the member at once."""


class EmptyPolicy(Enum):
    """What the shard's value is when no member is left to make it of. Never 0."""

    REJECT = "reject"
    ADMIT = "admit"


NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rollup:
    """How members' values become the shard's."""

    by: str = "max"
    """A key of rollup.AGGREGATES, or a plug-in."""
    of: RollupOf = RollupOf.ALL
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    """Only members that have all of these."""
    limit: float = 0.0
    """With `unhealthy`: how many members may be unhealthy."""
    quorum: int = 0
    """With `quorum`: how many members must be healthy."""
    ignore_hosts: int = 0
    ignore_above: float | None = None
    """Ignore a worst member only if its value is above this."""
    missing: MissingPolicy = MissingPolicy.REJECT
    missing_for_s: float = 600.0
    empty: EmptyPolicy = EmptyPolicy.REJECT
    grace_s: float = 0.0
    """How long a member that has just joined may be unhealthy without counting."""
    hopeless_factor: float = 10.0
    hopeless_for_s: float = 600.0
    """Skip a replica that is this many times above its threshold for this long; 0: never."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    name: str
    source: Source
    threshold: float
    comparison: Comparison = Comparison.ABOVE
    unit: str = ""
    mode: MetricMode = MetricMode.GAUGE
    interval_s: float = 1.0
    timeout_s: float = 0.5
    max_age_s: float = 2.5
    debounce: Debounce = Debounce()
    absence: AbsencePolicy = AbsencePolicy.REJECT
    hold_s: float = 0.0
    reject_for_s: float = 0.0
    """How long a missing value rejects before the metric is ignored; 0: until there is one."""
    scope: Scope = Scope.HOST
    """Where a check that names no scope looks, in a database that belongs to a shard."""
    rollup: Rollup = field(default_factory=Rollup)
    options: Mapping[str, Option] = field(default_factory=lambda: NO_OPTIONS)
    pace: bool = False
    """Whether work is paced to keep the metric at `pace_target`, not stopped at the threshold."""
    pace_target: float = 0.8
    """The value that pacing aims at, as a share of the threshold."""

    def breaches(self, value: float) -> bool:
        if self.comparison is Comparison.AT_LEAST:
            return value >= self.threshold
        return value > self.threshold


def granularity_s(spec: MetricSpec, *, age_s: float, beats_every_s: float) -> float:
    """How fine a value can be: the longest of what it passes through on its way to a check. Lag
    from a heartbeat is no finer than the heartbeat."""
    by_heartbeat = spec.source == Builtin("lag") and spec.options.get("method") != "native"
    return max(beats_every_s if by_heartbeat else 0.0, spec.interval_s, age_s)


_ABSENCES = (AbsencePolicy.REJECT, AbsencePolicy.HOLD, AbsencePolicy.IGNORE)
"""From the strictest to the loosest."""


def is_looser(spec: MetricSpec, than: MetricSpec) -> bool:
    """Whether it may pass where the other one does not, by its threshold or by what a missing
    value means."""
    if spec.threshold == than.threshold:
        later = (spec.comparison, than.comparison) == (Comparison.ABOVE, Comparison.AT_LEAST)
    else:
        later = spec.threshold > than.threshold
    ours, theirs = ((_ABSENCES.index(one.absence), one.hold_s) for one in (spec, than))
    opens_s, opened_s = (one.reject_for_s or math.inf for one in (spec, than))
    missing = (spec.rollup.missing, than.rollup.missing)
    empty = (spec.rollup.empty, than.rollup.empty)
    return (
        later
        or ours > theirs
        or opens_s < opened_s
        or missing == (MissingPolicy.IGNORE, MissingPolicy.REJECT)
        or empty == (EmptyPolicy.ADMIT, EmptyPolicy.REJECT)
    )
