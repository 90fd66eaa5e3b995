"""The one place that asks the machine for the time and for dice."""

from __future__ import annotations

import asyncio
import random
import time

from headgate.core.samples import Instant

_monotonic, _wall = time.monotonic, time.time  # noqa: TID251 -- the clock


class SystemClock:
    def now(self) -> Instant:
        return Instant(_monotonic(), _wall())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Dice:
    """Uniform in [0, 1). Seeded in tests, so that a run can be had again."""

    def __init__(self, seed: int | None = None) -> None:
        self.roll = random.Random(seed).random  # noqa: S311 -- fairness, not secrecy
