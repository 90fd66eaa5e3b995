"""Read a probe the way the sampler does, and say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.errors import ProbeFailed
from headgate.metrics.probes.factory import MetricProbe
from headgate.metrics.probes.numbers import value_of
from headgate.metrics.samples import Cause, Measured, Number
from tests.fixtures.eventually import DEADLINE_S, aeventually

TRY_S = 10.0
"""One that hangs is tried again after so long."""


async def within(probe: MetricProbe, timeout_s: float) -> float:
    """Cancelled at the metric's timeout."""
    return (await measured(probe, timeout_s)).value


async def measured(probe: MetricProbe, timeout_s: float = DEADLINE_S) -> Measured:
    """With what the probe says about its number."""
    async with asyncio.timeout(timeout_s):
        return as_measured(await probe.read())


def as_measured(number: Number) -> Measured:
    return number if isinstance(number, Measured) else Measured(number)


async def failure(probe: MetricProbe, timeout_s: float = DEADLINE_S) -> ProbeFailed:
    with pytest.raises(ProbeFailed) as caught:
        await within(probe, timeout_s)
    return caught.value


async def cut_off(probe: MetricProbe, when: Callable[[], bool]) -> None:
    """Cancelled as at the metric's timeout, once it has come so far."""
    reading = asyncio.ensure_future(probe.read())
    try:
        await aeventually(when)
        assert not reading.done()
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    assert reading.cancelled()


async def works(probe: MetricProbe, timeout_s: float = TRY_S) -> bool:
    try:
        await within(probe, timeout_s)
    except (ProbeFailed, TimeoutError):
        return False
    return True


async def becomes(condition: Callable[[], Awaitable[bool]], within_s: float = DEADLINE_S) -> None:
    """`aeventually` for conditions that have to be awaited."""
    predicate: Callable[[], bool | Awaitable[bool]] = condition
    await aeventually(predicate, within_s)


async def exceeds(probe: MetricProbe, least: float) -> bool:
    return value_of(await probe.read()) > least


async def stays_below(probe: MetricProbe, most: float) -> bool:
    return value_of(await probe.read()) < most


async def says(probe: MetricProbe, cause: Cause | None) -> bool:
    """Whether a number comes with `cause`, or its absence does."""
    try:
        return (await measured(probe)).cause is cause
    except ProbeFailed as failed:
        return failed.cause is cause


def open_sockets() -> int:
    """Sockets that this process holds."""
    kinds = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            kinds.append(str(fd.readlink()))
    return sum(kind.startswith("socket:") for kind in kinds)
