"""Propose a threshold for commit_delay from what a commit takes here, when all is well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.metrics.probes.numbers import value_of
from headgate.metrics.samples import Number

# Five times the slowest one in a hundred: noise stays below it, a stalled disk does not.
HEADROOM = 5.0
# Below this, what is measured is the scheduler of the agent's host.
LEAST_S = 0.010


class Readable(Protocol):
    async def read(self) -> Number: ...


@dataclass(frozen=True, slots=True)
class Baseline:
    count: int
    p50_s: float
    p99_s: float
    suggested_s: float


async def commit_baseline(probe: Readable, count: int = 200) -> Baseline:
    """Reads `count` times, one after the other; raises what the probe raises."""
    values_s = sorted([value_of(await probe.read()) for _ in range(count)])
    p99_s = percentile(values_s, 0.99)
    return Baseline(count, percentile(values_s, 0.5), p99_s, suggested_threshold(p99_s))


def percentile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def suggested_threshold(p99_s: float) -> float:
    return round_up(max(HEADROOM * p99_s, LEAST_S))


def round_up(value: float) -> float:
    """Up to two digits: 0.0234 → 0.024."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(round(value / step, 6)) * step, 10)
