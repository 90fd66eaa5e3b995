"""Keep what servers trace, for replay.   TraceSource ──each second──► TraceMemory ──► replay

Bounded in number and age. When there are too many, the oldest are not simply dropped. A sample is
drawn again, the older half first: a busy hour stays an hour, in fewer traces that each count more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import structlog

from headgate.base.ports import Clock
from headgate.budgets.traces import Trace, TraceBatch, thinned
from headgate.errors import HeadgateError

log = structlog.get_logger()

MAX_TRACES = 50_000
KEPT_S = 24 * 3600.0
READ_TIMEOUT_S = 2.0
MAX_HEALTH_CHANGES = 2000
FORGOTTEN_MS = 3_600_000
"""Removed at once: an hour's traces together, not a few each second."""


class TraceSource(Protocol):
    async def traces_since(self, sequence: int, started_ms: int) -> TraceBatch:
        """From the `sequence`-th of the server that started then; of another one, from its first.
        MeterFailed with the cause. Never a stand-in."""
        ...


class TraceMemory:
    """One database's."""

    def __init__(
        self, database: str, source: TraceSource, clock: Clock, max_traces: int = MAX_TRACES
    ) -> None:
        self._database = database
        self._source = source
        self._clock = clock
        self._max_traces = max_traces
        self._traces: list[Trace] = []
        self._next, self._started_ms = 0, 0
        self._health: list[tuple[int, bool | None]] = []
        self._since_ms: int | None = None
        self.lost_total = 0
        """Written by the server, and overwritten before they were read."""
        self.fault = "has not been read yet"
        """Why nothing new comes; empty: it comes."""

    async def look(self, healthy: bool | None) -> None:
        """`healthy`: what budgets for bad times go by just now."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                batch = await self._source.traces_since(self._next, self._started_ms)
        except TimeoutError:
            self._failed(f"no answer in {READ_TIMEOUT_S:g} s")
        except (HeadgateError, OSError) as error:
            self._failed(str(error))
        else:
            self._take(batch, healthy)

    def _take(self, batch: TraceBatch, healthy: bool | None) -> None:
        wall_ms = int(self._clock.now().wall_s * 1000)
        # What was written before we first looked has been overwritten in part: that is no loss.
        first_look = self._since_ms is None
        if first_look:
            self._since_ms = min((trace.wall_ms for trace in batch.traces), default=wall_ms)
        else:
            self.lost_total += batch.lost
        self._next, self._started_ms, self.fault = batch.next_sequence, batch.started_ms, ""
        if not self._health or self._health[-1][1] is not healthy:
            self._health.append((wall_ms, healthy))
            del self._health[:-MAX_HEALTH_CHANGES]
        self._traces.extend(batch.traces)
        self._forget(wall_ms)

    def _forget(self, wall_ms: int) -> None:
        too_old_ms = wall_ms - int(KEPT_S * 1000)
        if self._traces and self._traces[0].wall_ms < too_old_ms - FORGOTTEN_MS:
            self._traces = [trace for trace in self._traces if trace.wall_ms >= too_old_ms]
        while len(self._traces) > self._max_traces:
            half = len(self._traces) // 2
            older = thinned(self._traces[:half], half // 2)
            self._traces = [*older, *self._traces[half:]]

    def _failed(self, fault: str) -> None:
        if fault != self.fault:
            log.warning("traces.unreadable", database=self._database, detail=fault)
        self.fault = fault

    # --- looking -----------------------------------------------------------------------------

    def since(self, wall_ms: int) -> list[Trace]:
        """Of statements that began then or later."""
        return [trace for trace in self._traces if trace.wall_ms >= wall_ms]

    def between(self, since_ms: int, until_ms: int) -> list[Trace]:
        """Of statements that began then, and not later."""
        return [trace for trace in self._traces if since_ms <= trace.wall_ms <= until_ms]

    def health_at(self, wall_ms: int) -> bool | None:
        at = bisect_right(self._health, wall_ms, key=lambda change: change[0])
        return self._health[at - 1][1] if at else None

    @property
    def since_ms(self) -> int | None:
        """From when on there would be traces; None: nothing was read yet."""
        return self._since_ms

    @property
    def health(self) -> Sequence[tuple[int, bool | None]]:
        """As it changed: see counterfactual.HealthThen."""
        return tuple(self._health)

    def __len__(self) -> int:
        return len(self._traces)
