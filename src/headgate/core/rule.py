"""One rule on clients, as a value: what it does, to which clients, and when.

rules.py decides which of several rules counts for a client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

EVERYONE = "all"
FOREVER = float("inf")
DEFAULT_CEILING = 3.0


class Kind(Enum):
    RATIO = "ratio"
    """Rejects a share of the checks by chance."""
    HOLD = "hold"
    """Rejects every check."""
    EXEMPT = "exempt"
    """Waives metrics: all, or the named ones. Guarded."""
    METRICS = "metrics"
    """Uses these metrics if the check names none."""
    THRESHOLDS = "thresholds"
    """Uses stricter thresholds."""


KIND_MEANINGS: dict[Kind, str] = {
    Kind.RATIO: "rejects that share of the checks by chance; metrics decide the rest",
    Kind.HOLD: "rejects every check",
    Kind.EXEMPT: "admits although metrics breach, all or the named ones, up to a ceiling",
    Kind.METRICS: "uses these metrics if a check names none",
    Kind.THRESHOLDS: "uses stricter thresholds; a looser one has no effect",
}


# Bound once: looking up a member of an enum is a call, and this runs at each check.
_RATIO, _HOLD = Kind.RATIO, Kind.HOLD


class Justification(Enum):
    """An exemption needs one of the three."""

    TRANSIENT = "transient"
    INCIDENT = "incident"
    SYSTEM = "system"


JUSTIFICATION_MEANINGS: dict[Justification, str] = {
    Justification.TRANSIENT: "a short starvation that ends soon, such as a job's last hour",
    Justification.INCIDENT: "the fix of an incident, which must not wait for what it repairs",
    Justification.SYSTEM: "an essential component with little load, such as a heartbeat",
}


class Order(Enum):
    """When the dice are thrown. Admission is as likely either way; the counts differ."""

    BEFORE = "before"
    AFTER = "after"


Window = tuple[float, float]
"""Wall-clock seconds: from, and up to but not including."""
NO_LIMITS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    target: str
    """A whole identity, one of its tokens, several of them (`a:b`), or `all`."""
    ratio: float = 0.0
    """Share of checks to reject: RATIO."""
    expires_at: float = FOREVER
    """Wall-clock seconds. No sweeper is needed: the reader compares."""
    kind: Kind = Kind.RATIO
    order: Order = Order.BEFORE
    metrics: tuple[str, ...] = ()
    """EXEMPT: waived ones, empty for all. METRICS: the ones to use."""
    thresholds: Mapping[str, float] = field(default_factory=lambda: NO_LIMITS)
    """THRESHOLDS: metric → limit; one that is looser than the metric's own has no effect."""
    justification: Justification | None = None
    ceiling: float = DEFAULT_CEILING
    """EXEMPT: suspended while a waived metric is above this many times its threshold."""
    database: str = ""
    """Only on this database; empty: on all."""
    windows: tuple[Window, ...] | None = None
    """In force only within these; None for always."""
    created_at: float = 0.0
    created_by: str = ""
    reason: str = ""
    revision: int = 0

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.target.split(":"))

    @property
    def refuses_all(self) -> bool:
        return self.kind is _HOLD or (self.ratio >= 1 and self.kind is _RATIO)

    def in_force(self, wall_s: float) -> bool:
        if wall_s >= self.expires_at:
            return False
        return self.windows is None or any(a <= wall_s < b for a, b in self.windows)

    def ends_at(self, wall_s: float) -> float:
        """When it next ceases to be in force, of one that is."""
        ends = [end for begin, end in self.windows or () if begin <= wall_s < end]
        return min(self.expires_at, max(ends, default=FOREVER))

    def edges(self) -> Iterator[float]:
        """Instants at which it begins or ceases to be in force."""
        yield self.expires_at
        for window in self.windows or ():
            yield from window
