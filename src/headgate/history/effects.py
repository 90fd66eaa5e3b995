"""Whether a client's work moves a metric: admitted work against the metric's movement.

Ticks ──`Effects.after`──► sums per client, metric and delay ──`effect_of`──► Effect

Work can drive a metric in two ways: lag grows while work goes on, and the number of running
statements rises and falls with it. So a tick's movement of the metric is compared with the work
of earlier ticks, and with the change of that work, at several delays; the clearest counts. Only
what happens within a block of ticks is compared, so that an hour in which both were high proves
nothing, and the error grows where movements resemble the ones before. A client that always does
exactly the same has no visible effect: nothing says what the metric would be without it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

DELAYS = (0, 1, 2, 4)
"""In ticks."""
HISTORY = DELAYS[-1] + 2
BLOCK_TICKS = 30
MIN_BLOCKS = 2
CLEAR = 5.0
"""Times its own error: of a million harmless clients, a few would be blamed by chance."""
MAX_CLIENTS = 32
"""Per database: those that do most. Of others no effect is known."""
FORGET = 0.99
"""Per block: what was true hours ago counts for less."""


class Effect(NamedTuple):
    """What one admitted check adds to a metric, as a share of its threshold."""

    size: float
    error: float

    @property
    def is_clear(self) -> bool:
        return self.size > 0 and self.size >= CLEAR * self.error


class EffectBlock(NamedTuple):
    """Sums of a few ticks of work `x` and movement `y`, and of each with the one before it."""

    n: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    x_next: float = 0.0
    y_next: float = 0.0
    last: tuple[float, float] = (0.0, 0.0)

    def after(self, x: float, y: float) -> EffectBlock:
        before_x, before_y = self.last
        return EffectBlock(
            self.n + 1,
            self.x + x,
            self.y + y,
            self.xx + x * x,
            self.yy + y * y,
            self.xy + x * y,
            self.x_next + x * before_x,
            self.y_next + y * before_y,
            (x, y),
        )


class EffectSums(NamedTuple):
    """Of the blocks that are over: squares and products of deviations from each block's mean."""

    n: float = 0.0
    blocks: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    x_next: float = 0.0
    y_next: float = 0.0
    block: EffectBlock = EffectBlock()

    def after(self, x: float, y: float) -> EffectSums:
        block = self.block.after(x, y)
        if block.n < BLOCK_TICKS:
            return self._replace(block=block)
        n, f = block.n, FORGET
        mean_x, mean_y = block.x / n, block.y / n
        return EffectSums(
            f * self.n + n,
            f * self.blocks + 1,
            f * self.xx + block.xx - n * mean_x * mean_x,
            f * self.yy + block.yy - n * mean_y * mean_y,
            f * self.xy + block.xy - n * mean_x * mean_y,
            f * self.x_next + block.x_next - n * mean_x * mean_x,
            f * self.y_next + block.y_next - n * mean_y * mean_y,
        )

    def effect(self) -> Effect | None:
        """The slope and its error; None while too little was seen, or nothing changed."""
        if self.blocks < MIN_BLOCKS * FORGET or self.xx <= 1e-9 or self.yy <= 1e-12:
            return None
        slope = self.xy / self.xx
        alike = max(0.0, (self.x_next / self.xx) * (self.y_next / self.yy))
        free = (self.n - self.blocks) * (1 - min(alike, 0.99)) / (1 + min(alike, 0.99)) - 1
        rest = max(0.0, self.yy - slope * self.xy)
        return Effect(slope, math.sqrt(rest / self.xx / max(1.0, free)))


@dataclass(frozen=True, slots=True)
class Effects:
    """Of the clients of one database on its metrics; replaced whole with each tick."""

    values: Mapping[str, float] = field(default_factory=dict)
    """The last look at each metric."""
    work: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By client: what it was admitted in the last ticks, the newest first."""
    sums: Mapping[tuple[str, str], tuple[EffectSums, ...]] = field(default_factory=dict)
    """By client and metric: for each delay, on the work and on its change."""

    def after(
        self, done: Mapping[str, float], values: Mapping[str, float], running: Container[str]
    ) -> Effects:
        """`done` is what each client was admitted since the last tick."""
        work = {
            client: (done.get(client, 0.0), *self.work.get(client, ()))[:HISTORY]
            for client in self._tracked(done)
            if client in running
        }
        moved = {m: value - self.values[m] for m, value in values.items() if m in self.values}
        sums = {
            (client, metric): _added(self.sums.get((client, metric)), past, movement)
            for client, past in work.items()
            if len(past) == HISTORY
            for metric, movement in moved.items()
        }
        kept = {key: one for key, one in self.sums.items() if key[0] in work and key not in sums}
        return Effects(values, work, kept | sums)

    def _tracked(self, done: Mapping[str, float]) -> list[str]:
        """Those who did something lately, then the busiest of the others, then who was tracked."""
        busy = [client for client, past in self.work.items() if any(past)]
        others = sorted(
            (client for client, amount in done.items() if amount),
            key=lambda client: (-done[client], client),
        )
        return list(dict.fromkeys((*busy, *others, *self.work)))[:MAX_CLIENTS]

    def effect_of(self, client: str, metric: str) -> Effect | None:
        """The clearest over all delays; None where nothing is known."""
        found = (one.effect() for one in self.sums.get((client, metric), ()))
        known = [one for one in found if one is not None]
        return max(known, key=_clarity) if known else None


def _clarity(effect: Effect) -> float:
    return effect.size / effect.error if effect.error else math.copysign(math.inf, effect.size)


NO_SUMS = (EffectSums(),) * (2 * len(DELAYS))


def _added(
    sums: tuple[EffectSums, ...] | None, work: tuple[float, ...], movement: float
) -> tuple[EffectSums, ...]:
    xs = [x for d in DELAYS for x in (work[d], work[d] - work[d + 1])]
    return tuple(one.after(x, movement) for one, x in zip(sums or NO_SUMS, xs, strict=True))
