"""Write the heartbeat that replicas measure their lag by.

The writer decides at each beat whether its server is a primary: a heartbeat written on a
replica would hide the lag of everything below it (R21).
"""

from __future__ import annotations

import asyncio

import structlog

from headgate.agent.ports import Clock, HeartbeatWriter
from headgate.errors import ProbeFailed

log = structlog.get_logger()


class Heartbeat:
    def __init__(
        self, database: str, writer: HeartbeatWriter, clock: Clock, *, interval_s: float
    ) -> None:
        self.database = database
        self._writer = writer
        self._clock = clock
        self._interval_s = interval_s
        self._timeout_s = max(1.0, 2 * interval_s)
        self.fault: str | None = None
        self.beats_total = 0

    async def run(self) -> None:
        try:
            while True:
                await self._beat()
                await self._clock.sleep(self._interval_s)
        finally:
            await self._writer.close()

    async def _beat(self) -> None:
        """One try. A stalled commit (semi-sync, full disk) is given up, never waited out."""
        try:
            async with asyncio.timeout(self._timeout_s):
                self.beats_total += await self._writer.beat()
        except ProbeFailed as error:
            self._mark(error.detail)
        except TimeoutError:
            self._mark(f"not written within {self._timeout_s:g} s")
        else:
            self._mark(None)

    def _mark(self, fault: str | None) -> None:
        if fault and not self.fault:
            log.warning("heartbeat.lost", database=self.database, detail=fault)
        elif self.fault and not fault:
            log.info("heartbeat.back", database=self.database)
        self.fault = fault
