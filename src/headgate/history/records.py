"""What outlives the process, as values: the agent makes them, stores/ keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


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
class Report:
    """What a client said of itself. Nobody vouches for it: it is no change and not audited."""

    client: str
    origin: str
    """Address that it came from."""
    wall_s: float
    """When it last came, by this agent's clock."""
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of equal decisions in one minute."""

    minute: int
    """Wall-clock minutes since 1970."""
    database: str
    client: str
    verdict: str
    metric: str
    """What decided: a metric, with `shard/` before it if it is the shard's value, or a rule as
    `rule:r7`. Empty if the metrics admitted it; an exemption has its rule."""
    count: int


class CheckedMinute(NamedTuple):
    """A minute in which a client checked."""

    minute: int
    checks: int
    rejected: int


@dataclass(frozen=True, slots=True)
class MetricMinute:
    """One metric in one minute, sampled about once a second."""

    minute: int
    database: str
    metric: str
    """With `shard/` before it if it is the shard's."""
    looks: int
    absent: int
    """Looks without a usable value; the others make up `total`, `low` and `high`."""
    breached: int
    total: float
    low: float | None
    """None: no look found a value."""
    high: float | None
    threshold: float
    """As last seen."""

    @property
    def valued(self) -> int:
        return self.looks - self.absent

    @property
    def mean(self) -> float | None:
        return self.total / self.valued if self.valued else None

    @property
    def breached_share(self) -> float | None:
        """Of the time with a value; None where it never had one."""
        return self.breached / self.valued if self.valued else None

    def plus(self, other: MetricMinute) -> MetricMinute:
        """Both of the same minute and metric, together."""
        return replace(
            other,
            looks=self.looks + other.looks,
            absent=self.absent + other.absent,
            breached=self.breached + other.breached,
            total=self.total + other.total,
            low=_known(min, self.low, other.low),
            high=_known(max, self.high, other.high),
        )


def in_steps(minutes: Sequence[MetricMinute], step: int) -> Sequence[MetricMinute]:
    """Each metric's minutes summed up by so many; a step with none is not there."""
    if step == 1:
        return minutes
    found: dict[tuple[int, str, str], MetricMinute] = {}
    for one in minutes:
        first = one.minute - one.minute % step
        key = (first, one.database, one.metric)
        before, here = found.get(key), replace(one, minute=first)
        found[key] = here if before is None else before.plus(here)
    return list(found.values())


def _known(
    pick: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return pick(one, other)


@dataclass(frozen=True, slots=True, order=True)
class BudgetMinute:
    """Number of equal violations of one budget in one minute."""

    minute: int
    database: str
    budget: str
    what: str
    """`warned`, `blocked` or `delayed`."""
    limit: str
    """`concurrency`, `burst`, `capacity`; `threshold` of warnings; empty for delays."""
    count: int


@dataclass(frozen=True, slots=True)
class StoreFault:
    """The store cannot be written: since when, and what it said."""

    since_wall_s: float
    detail: str
