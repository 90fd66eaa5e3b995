"""The clock that snapshots are dated by: one that goes on while the host is asleep.

Python's monotonic clock stands still then, on Linux and macOS alike, so that what was known when
the lid was closed would be fresh when it is opened. A virtual machine that is paused as a whole
sees nothing of it by any clock of its own: see wire/snapshot.py for what is made of that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial


def _sleepless() -> Callable[[], float]:
    # Of the one of macOS, CLOCK_MONOTONIC counts sleep, unlike time.monotonic().
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    clock = getattr(time, name, None)
    return time.monotonic if clock is None else partial(time.clock_gettime, clock)


now: Callable[[], float] = _sleepless()
"""Seconds from an arbitrary moment; never compared with time.monotonic()."""
