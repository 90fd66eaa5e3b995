"""What both engines' heartbeats share: judging a row's age, and writing one in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.connections import Lane, S

# Clocks kept by NTP differ by less; beyond it, "now" on the replica means nothing (R24).
TOLERATED_SKEW_S = 0.1


def lag_of(age_s: float | None, table: str) -> float:
    if age_s is None:
        raise ProbeFailed(
            Cause.FAILED, f"the heartbeat table {table} is empty: nobody has written to it yet"
        )
    if age_s < -TOLERATED_SKEW_S:
        raise ProbeFailed(
            Cause.INVALID,
            f"the heartbeat in {table} is {-age_s:.3f} s in the future: the clocks of the two "
            "servers disagree; keep both by NTP",
        )
    return max(0.0, age_s)


class Writer(Generic[S]):
    """One heartbeat per call, on a connection of its own: a slow probe must not delay it."""

    def __init__(
        self, lane: Lane[S], beat: Callable[[S], Awaitable[bool]], timeout_s: float
    ) -> None:
        self._lane = lane
        self._beat = beat
        self._timeout_s = timeout_s

    async def beat(self) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._beat(session)
        except TimeoutError:
            message = f"{self._lane.label}: no heartbeat written in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None

    async def close(self) -> None:
        await self._lane.close()
