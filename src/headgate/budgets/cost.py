"""What a statement will cost: a line through log plan cost and log CPU, per pattern and plan shape.

    estimate ──► take ──► run ──► settle ──► learned ──► the next estimate

    log2 CPU = level + slope × (log2 plan cost − its mean) + bend      the middle
             + half the variance × ln 2                                the mean, which is charged
             + 1.28 standard deviations                                p90: nine of ten are below

A pattern has one line for all its executions and one for each of three plan shapes. A line has
32 bytes. A pattern that has never run is estimated by one more line, which all patterns teach.

Values are kept as 32-bit floats, as in shared memory: `float32` after every step, so that all
who learn from the same statements know the same to the bit. log2 and exp2 are written out for
the same reason.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

from headgate.budgets.model import MAX_COST_NS, Estimate, StatementCheck, StatementFlags

COLD_K = 5000.0
COLD_K_WITHIN = (500.0, 20_000.0)
"""CPU ns per unit of plan cost of a pattern that has never run. Within these the planner knows what
it does. Beyond lie patterns that call functions whose cost it cannot know: of others they say
nothing, and a guess by them would block what is cheap."""
EARLY_CALLS = 3
"""From here on a pattern's line counts before there is a plan."""
EARLY_BITS = 2.0
"""An early block has to be sure: a quarter of the typical cost exceeds the limit, or what nine of
ten executions exceed, if that is less."""
MIN_UNITS, MAX_UNITS = 0.01, 1e15
"""Of plan cost."""
MAX_CALLS = 2**32 - 1
AGAIN_AFTER_NS = 900_000_000_000
AGAIN_SHARE = 100
"""A pattern that is blocked for its estimate alone never runs, so nobody learns that it has become
cheap. So one execution is let through now and then: a quarter of an hour after the last one, and
for expensive ones so rarely that they use a hundredth of one CPU at most."""

SHAPES = 3
"""Plan shapes of a pattern that have a line of their own."""
LINE_CALLS = 64
"""A line remembers about so many executions: slope and variance."""
LEVEL_CALLS = 16
"""Its level follows faster."""
BEND_CALLS = 8
"""From here on a line may bend: its level is corrected apart for plan costs near its mean and far
from it, below and above."""
BEND_WEIGHT = 0.125
BEND_UNIT = 1024.0
MOST_BEND = 8.0
MAX_SLOPE = 2.0
FAR_VARIANCE = 0.25
"""At least this of plan cost: closer than half a bit nothing is far."""
MAX_VARIANCE = 36.0
PRIOR_VARIANCE, PRIOR_CALLS = 0.25, 4.0
"""What p90 assumes before a line has seen enough: half a bit, as if by four executions."""
MAX_MEAN_BITS = 1.0
"""The mean is at most twice the middle: a larger variance is a change, not a distribution."""
TYPICAL_BITS = 2.0
Z90 = 1.2815515655446004
HALF_LN2 = 0.34657359027997264
LN2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476


@dataclass(frozen=True, slots=True)
class CostLine:
    shape: int = 0
    """16 bits; 0: of all plans."""
    calls: int = 0
    """At most LINE_CALLS; 0: it is free."""
    variance: float = 0.0
    """Of log2 CPU around the line."""
    plan_cost: float = 0.0
    """Mean of log2."""
    cpu: float = 0.0
    """Of log2, at that plan cost."""
    spread: float = 0.0
    """Variance of log2 plan cost."""
    common: float = 0.0
    """Its covariance with log2 CPU."""
    bends: tuple[int, int, int, int] = (0, 0, 0, 0)
    """In 1/1024: far below the mean, below, above, far above."""

    @property
    def slope(self) -> float:
        """How CPU grows with plan cost: 1 is in proportion, as it is before more is known."""
        found = (self.common * float(self.calls) + 1.0) * self._doubt
        return found if 0.0 < found < MAX_SLOPE else 0.0 if not found > 0.0 else MAX_SLOPE

    @property
    def _doubt(self) -> float:
        """How uncertain the slope is: 1 before anything of it is known."""
        return 1.0 / (self.spread * float(self.calls) + 1.0)

    @property
    def typical(self) -> float:
        return self.cpu + (self.bends[1] + self.bends[2]) / (2.0 * BEND_UNIT)

    @property
    def typical_estimate(self) -> Estimate:
        """Of an execution whose plan is not known: for views."""
        spread = self._total_variance
        mean = rounded(exp2(self.typical + min(spread * HALF_LN2, TYPICAL_BITS)))
        if not spread > 0.0:
            return Estimate(mean, mean)
        p90 = rounded(exp2(self.typical + Z90 * math.sqrt(min(spread, MAX_VARIANCE))))
        return Estimate(mean, max(mean, p90))

    @property
    def _total_variance(self) -> float:
        slope = self.slope
        return slope * slope * self.spread + self.variance

    @property
    def early_ns(self) -> int:
        """What nearly all executions exceed."""
        spread, below = self._total_variance, EARLY_BITS
        if spread > 0.0:
            below = max(below, Z90 * math.sqrt(min(spread, MAX_VARIANCE)))
        return rounded(exp2(self.typical - below))

    def bend_at(self, plan_cost: float) -> int:
        off = plan_cost - self.plan_cost
        far = off * off > max(self.spread, FAR_VARIANCE)
        return (0 if far else 1) if off < 0.0 else (3 if far else 2)

    def middle(self, plan_cost: float) -> float:
        """log2 of what is expected at that log2 of plan cost: half cost more, half less."""
        bend = self.bends[self.bend_at(plan_cost)] / BEND_UNIT
        return self.cpu + self.slope * (plan_cost - self.plan_cost) + bend

    def estimate(self, plan_cost: float) -> Estimate:
        middle, calls, off = self.middle(plan_cost), float(self.calls), plan_cost - self.plan_cost
        mean = rounded(exp2(middle + min(self.variance * HALF_LN2, MAX_MEAN_BITS)))
        spread = (self.variance * calls + PRIOR_VARIANCE * PRIOR_CALLS) / (calls + PRIOR_CALLS)
        # Wider while the line is uncertain: few executions, or a plan cost far from all seen.
        level = min(calls, float(LEVEL_CALLS))
        spread = spread * (1.0 + 0.5 / level + off * off * self._doubt)
        p90 = rounded(exp2(middle + Z90 * math.sqrt(min(spread, MAX_VARIANCE))))
        return Estimate(mean, max(mean, p90))

    def learned(self, plan_cost: float, cpu: float) -> CostLine:
        """In log2, both."""
        if not self.calls:
            return CostLine(self.shape, 1, plan_cost=float32(plan_cost), cpu=float32(cpu))
        calls = min(self.calls + 1, LINE_CALLS)
        slope, miss = self.slope, cpu - self.middle(plan_cost)
        bends, at = list(self.bends), self.bend_at(plan_cost)
        if self.calls >= BEND_CALLS:
            bends[at] = bent(bends[at] / BEND_UNIT + miss * BEND_WEIGHT)
        weight, level_weight = 1.0 / calls, 1.0 / min(calls, LEVEL_CALLS)
        off, cpu_off = plan_cost - self.plan_cost, cpu - self.cpu
        missed = min(miss * miss, MAX_VARIANCE)
        return CostLine(
            self.shape,
            calls,
            variance=float32(self.variance + (missed - self.variance) / self.calls),
            plan_cost=float32(self.plan_cost + level_weight * off),
            cpu=float32(self.cpu + level_weight * (slope * off + miss)),
            spread=float32((1.0 - weight) * (self.spread + weight * (off * off))),
            common=float32((1.0 - weight) * (self.common + weight * (off * cpu_off))),
            bends=(bends[0], bends[1], bends[2], bends[3]),
        )

    def raised(self, plan_cost: float, cpu: float) -> CostLine:
        """By a statement that was cut short: its level alone, so that no estimate falls."""
        miss = cpu - self.middle(plan_cost)
        if not miss > 0.0:
            return self
        weight = 1.0 / min(self.calls + 1, LEVEL_CALLS)
        return replace(self, cpu=float32(self.cpu + weight * miss))


NO_LINE = CostLine()


@dataclass(frozen=True, slots=True)
class Pattern:
    key: int
    calls: int = 0
    error: float = 0.0
    """EMA of |mean − actual| / actual."""
    cpu_ns: int = 0
    """Ever."""
    last_ns: int = 0
    """When it last ended, or was let try again."""
    whole: CostLine = NO_LINE
    """Of all plans."""
    shapes: tuple[CostLine, CostLine, CostLine] = (NO_LINE, NO_LINE, NO_LINE)

    def line_for(self, shape: int) -> CostLine:
        return next((one for one in self.shapes if _is_of(one, shape)), self.whole)


@dataclass(frozen=True, slots=True)
class FinishedStatement:
    """A statement that has ended."""

    plan_cost: float
    estimate_ns: int
    actual_ns: int
    flags: StatementFlags = StatementFlags.PLANNED
    aborted: bool = False
    shape: int = 0


# --- numbers ---------------------------------------------------------------------------------


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def log2(value: float) -> float:
    """To 1e-9; of numbers above 0."""
    fraction, exponent = math.frexp(value)
    if fraction < SQRT_HALF:
        fraction, exponent = fraction * 2.0, exponent - 1
    part = (fraction - 1.0) / (fraction + 1.0)
    square = part * part
    series = square * (1.0 / 7.0 + square * (1.0 / 9.0))
    series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + series))
    return float(exponent) + part * series * (2.0 / LN2)


def exp2(value: float) -> float:
    """To 1e-8."""
    if not value > -64.0:
        value = -64.0
    if value > 64.0:
        value = 64.0
    whole = int(value + 64.5) - 64
    part = (value - float(whole)) * LN2
    series = 1.0 + part * (1.0 / 6.0) * (1.0 + part * (1.0 / 7.0))
    series = 1.0 + part * (1.0 / 4.0) * (1.0 + part * (1.0 / 5.0) * series)
    series = 1.0 + part * (1.0 + part * (1.0 / 2.0) * (1.0 + part * (1.0 / 3.0) * series))
    return math.ldexp(series, whole)


def bent(value: float) -> int:
    if not value > -MOST_BEND:
        value = -MOST_BEND
    if value > MOST_BEND:
        value = MOST_BEND
    return int(value * BEND_UNIT + 16384.5) - 16384


def averaged(average: float, value: float, calls: int) -> float:
    """The mean of the first four; then a quarter of each new one."""
    weight = 1.0 / calls if calls < 4 else 0.25
    return float32(average + (value - average) * weight)


def rounded(cost_ns: float) -> int:
    if not cost_ns > 1.0:
        return 1
    if cost_ns >= MAX_COST_NS:
        return MAX_COST_NS
    return math.floor(cost_ns + 0.5)


def within_bounds(cost_ns: int) -> int:
    return min(max(cost_ns, 1), MAX_COST_NS)


def units(plan_cost: float, flags: StatementFlags) -> float:
    """The plan's cost as it is reckoned with: never 0 (a plan that cannot return anything has
    that), nor so large that it could not be averaged."""
    if flags & StatementFlags.UTILITY:
        return 1.0
    return min(plan_cost, MAX_UNITS) if plan_cost > MIN_UNITS else MIN_UNITS


# --- estimates -------------------------------------------------------------------------------


def estimate(ask: StatementCheck, pattern: Pattern | None, host: CostLine) -> Estimate:
    """Never below 1 ns, so that an explicit 0 admits nothing. `host`: the line of all patterns."""
    if ask.flags & StatementFlags.COST_GIVEN:
        given_ns = within_bounds(ask.cost_ns)
        return Estimate(given_ns, max(given_ns, within_bounds(ask.p90_ns)))
    if ask.flags & StatementFlags.EARLY:
        is_known = pattern is not None and pattern.calls >= EARLY_CALLS and pattern.whole.calls
        return _both(pattern.whole.early_ns if pattern and is_known else 1)
    plan_cost = units(ask.plan_cost, ask.flags)
    line = NO_LINE if pattern is None else pattern.line_for(ask.shape)
    if line.calls:
        return line.estimate(log2(plan_cost))
    if ask.flags & StatementFlags.UTILITY:
        return _both(1)
    return _both(rounded(guessed(host, plan_cost)))


def guessed(host: CostLine, plan_cost: float) -> float:
    """Of a pattern that has never run. A guess has no p90: nothing would ever correct one that
    blocks."""
    if not host.calls:
        return COLD_K * plan_cost
    least, most = (k * plan_cost for k in COLD_K_WITHIN)
    return min(max(exp2(host.middle(log2(plan_cost))), least), most)


def _both(cost_ns: int) -> Estimate:
    return Estimate(cost_ns, cost_ns)


def may_try_again(ask: StatementCheck, pattern: Pattern | None, mean_ns: int) -> bool:
    """Whether what is known of the pattern has become old."""
    if ask.flags & StatementFlags.COST_GIVEN or pattern is None or not pattern.calls:
        return False
    return ask.now_ns - pattern.last_ns >= max(AGAIN_AFTER_NS, mean_ns * AGAIN_SHARE)


# --- learning --------------------------------------------------------------------------------


def learned(pattern: Pattern, run: FinishedStatement, now_ns: int) -> Pattern:
    seen = replace(pattern, cpu_ns=pattern.cpu_ns + run.actual_ns, last_ns=now_ns)
    at = _logarithms(run)
    if run.aborted:
        return _raised(seen, run, at)
    calls = min(pattern.calls + 1, MAX_CALLS)
    off = abs(run.estimate_ns - run.actual_ns) / max(run.actual_ns, 1)
    return replace(
        seen,
        calls=calls,
        error=averaged(pattern.error, off, calls),
        whole=pattern.whole.learned(*at),
        shapes=_shapes_learned(pattern.shapes, run.shape, at) if run.shape else pattern.shapes,
    )


def _raised(pattern: Pattern, run: FinishedStatement, at: tuple[float, float]) -> Pattern:
    """An aborted statement was cut short: it may raise what is known, and never lower it."""
    if run.actual_ns <= run.estimate_ns:
        return pattern
    if not pattern.whole.calls:
        return replace(
            pattern, calls=min(pattern.calls + 1, MAX_CALLS), whole=pattern.whole.learned(*at)
        )
    a, b, c = (one.raised(*at) if _is_of(one, run.shape) else one for one in pattern.shapes)
    return replace(pattern, whole=pattern.whole.raised(*at), shapes=(a, b, c))


def _shapes_learned(
    lines: tuple[CostLine, CostLine, CostLine], shape: int, at: tuple[float, float]
) -> tuple[CostLine, CostLine, CostLine]:
    """In its own line, or a free one. Where there is none, every line forgets one of its
    executions: one that is not used any more becomes free, and shapes that come and go take no line
    from those that stay."""
    found = list(lines)
    known = [index for index, line in enumerate(lines) if _is_of(line, shape)]
    free = [index for index, line in enumerate(lines) if not line.calls]
    if known:
        found[known[0]] = lines[known[0]].learned(*at)
    elif free:
        found[free[0]] = CostLine(shape).learned(*at)
    else:
        found = [replace(line, calls=line.calls - 1) for line in lines]
    return found[0], found[1], found[2]


def _is_of(line: CostLine, shape: int) -> bool:
    return shape != 0 and line.calls > 0 and line.shape == shape


def informed(host: CostLine, run: FinishedStatement, calls: int) -> CostLine:
    """What all patterns teach for those that have never run. A pattern teaches at its 1st, 2nd,
    4th, 8th … execution, so that a frequent one does not outweigh all others. `calls`: its own by
    now; 1: it has none."""
    if run.aborted or run.flags & (StatementFlags.UTILITY | StatementFlags.COST_GIVEN):
        return host
    if not calls or calls & (calls - 1):
        return host
    return host.learned(*_logarithms(run))


def _logarithms(run: FinishedStatement) -> tuple[float, float]:
    return log2(units(run.plan_cost, run.flags)), log2(float(max(run.actual_ns, 1)))
