"""The clock that snapshots are dated by: one that goes on while the host is suspended.

Python's monotonic clock stops then, on Linux and macOS alike, so that a snapshot from before
the laptop was closed would count as fresh when it is opened. No clock in a virtual machine
notices that the whole machine was paused: check/snapshot_api.py says how that is handled.
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
