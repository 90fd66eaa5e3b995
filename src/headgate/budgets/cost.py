"""What a statement will cost: k × plan cost, k = EMA(CPU) / EMA(plan cost) per pattern.

    estimate ──► take ──► run ──► settle ──► learned ──► the next estimate

Averages are kept as 32-bit floats, as in shared memory: `float32` after every step, so that all
who learn from the same statements know the same to the bit.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

from headgate.budgets.ask import MAX_COST_NS, StatementCheck, StatementFlags

COLD_K = 5000.0
COLD_K_WITHIN = (500.0, 20_000.0)
"""CPU ns per unit of plan cost while nothing at all has been measured."""
EARLY_CALLS = 3
"""From here on a pattern's average counts before there is a plan."""
EARLY_SHARE = 4
"""An early block has to be sure: a quarter of the average is enough to exceed the limit."""
MIN_UNITS, MAX_UNITS = 0.01, 1e15
"""Of plan cost."""
MAX_CALLS = 2**32 - 1
AGAIN_AFTER_NS = 900_000_000_000
AGAIN_SHARE = 100
"""A pattern that is blocked for its estimate alone never runs, so nobody learns that it has become
cheap. So one execution is let through now and then: a quarter of an hour after the last one, and
for expensive ones so rarely that they use a hundredth of one CPU at most."""


@dataclass(frozen=True, slots=True)
class Pattern:
    key: int
    cpu: float = 0.0
    """EMA, in ns."""
    plan_cost: float = 0.0
    """EMA."""
    calls: int = 0
    error: float = 0.0
    """EMA of |estimate − actual| / actual."""
    cpu_ns: int = 0
    """Ever."""
    last_ns: int = 0
    """When it last ended, or was let try again."""

    @property
    def k(self) -> float:
        return self.cpu / self.plan_cost


@dataclass(frozen=True, slots=True)
class MedianCost:
    """What is known of all patterns: the median of k, for those that nobody has seen."""

    median_k: float = 0.0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class FinishedStatement:
    """A statement that has ended."""

    plan_cost: float
    estimate_ns: int
    actual_ns: int
    flags: StatementFlags = StatementFlags.PLANNED
    aborted: bool = False


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def averaged(average: float, value: float, calls: int) -> float:
    """The mean of the first four; then a quarter of each new one (0.75^8 of a step is left after
    eight executions)."""
    weight = 1.0 / calls if calls < 4 else 0.25
    return float32(average + (value - average) * weight)


def estimate_ns(ask: StatementCheck, pattern: Pattern | None, host: MedianCost) -> int:
    """Never below 1 ns, so that an explicit 0 admits nothing."""
    if ask.flags & StatementFlags.COST_GIVEN:
        return within_bounds(ask.cost_ns)
    if ask.flags & StatementFlags.EARLY:
        is_known = pattern is not None and pattern.calls >= EARLY_CALLS
        return _rounded(pattern.cpu / EARLY_SHARE) if pattern and is_known else 1
    if pattern is not None and pattern.calls:
        return _rounded(pattern.k * units(ask.plan_cost, ask.flags))
    if ask.flags & StatementFlags.UTILITY:
        return 1
    k, (least, most) = COLD_K, COLD_K_WITHIN
    if host.calls:
        # Where the planner knows what it does. Beyond lie patterns that call functions whose cost
        # it cannot know: of others they tell nothing, and a guess by them would block what is
        # cheap.
        k = least if host.median_k < least else min(host.median_k, most)
    return _rounded(k * units(ask.plan_cost, ask.flags))


def may_try_again(ask: StatementCheck, pattern: Pattern | None, estimate_ns: int) -> bool:
    """Whether what is known of the pattern has become old."""
    if ask.flags & StatementFlags.COST_GIVEN or pattern is None or not pattern.calls:
        return False
    return ask.now_ns - pattern.last_ns >= max(AGAIN_AFTER_NS, estimate_ns * AGAIN_SHARE)


def within_bounds(cost_ns: int) -> int:
    return min(max(cost_ns, 1), MAX_COST_NS)


def units(plan_cost: float, flags: StatementFlags) -> float:
    """The plan's cost as it is reckoned with: never 0 (a plan that cannot return anything has
    that), nor so large that it could not be averaged."""
    if flags & StatementFlags.UTILITY:
        return 1.0
    return min(plan_cost, MAX_UNITS) if plan_cost > MIN_UNITS else MIN_UNITS


def _rounded(cost_ns: float) -> int:
    if not cost_ns > 1.0:
        return 1
    if cost_ns >= MAX_COST_NS:
        return MAX_COST_NS
    return math.floor(cost_ns + 0.5)


def learned(pattern: Pattern, run: FinishedStatement, now_ns: int) -> Pattern:
    seen = replace(pattern, cpu_ns=pattern.cpu_ns + run.actual_ns, last_ns=now_ns)
    if run.aborted and not _raises(pattern, run):
        return seen
    calls = min(pattern.calls + 1, MAX_CALLS)
    off = abs(run.estimate_ns - run.actual_ns) / max(run.actual_ns, 1)
    return replace(
        seen,
        calls=calls,
        cpu=averaged(pattern.cpu, float(run.actual_ns), calls),
        plan_cost=averaged(pattern.plan_cost, units(run.plan_cost, run.flags), calls),
        error=pattern.error if run.aborted else averaged(pattern.error, off, calls),
    )


def _raises(pattern: Pattern, run: FinishedStatement) -> bool:
    """An aborted statement was cut short: it may raise what is known, the average as well as k,
    and never lower it."""
    if run.actual_ns <= run.estimate_ns:
        return False
    actual = float(run.actual_ns)
    k_is_higher = actual * pattern.plan_cost > pattern.cpu * units(run.plan_cost, run.flags)
    return not pattern.calls or (actual > pattern.cpu and k_is_higher)


def informed(host: MedianCost, run: FinishedStatement) -> MedianCost:
    """The median by small steps: up if above it, down if below."""
    if run.aborted or run.flags & (StatementFlags.UTILITY | StatementFlags.COST_GIVEN):
        return host
    k = max(run.actual_ns, 1) / units(run.plan_cost, run.flags)
    if not host.calls:
        return MedianCost(k, 1)
    if k > host.median_k:
        return MedianCost(host.median_k * 17 / 16, host.calls + 1)
    if k < host.median_k:
        return MedianCost(host.median_k * 16 / 17, host.calls + 1)
    return MedianCost(host.median_k, host.calls + 1)
