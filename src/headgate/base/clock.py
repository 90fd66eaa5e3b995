"""The one place that reads the machine's clock and makes random numbers."""

from __future__ import annotations

import asyncio
import random
import time
from functools import cache
from pathlib import Path

from headgate.metrics.samples import BootInstant, Instant

_monotonic, _wall = time.monotonic, time.time  # noqa: TID251 -- the clock
_made = tuple.__new__
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    def now(self) -> Instant:
        return _made(Instant, (_monotonic(), _wall()))  # Half the time of Instant(…).

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def boot_now() -> BootInstant | None:
    """None where the machine does not tell one boot from another."""
    boot_id = _boot_id()
    return BootInstant(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME)) if boot_id else None


@cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Dice:
    """Uniform in [0, 1). Seeded in tests, so that a run can be had again."""

    def __init__(self, seed: int | None = None) -> None:
        self.roll = random.Random(seed).random  # noqa: S311 -- fairness, not secrecy
