"""Write the heartbeat that replicas measure their lag by, while a client needs it.

The writer decides at each beat whether its server is a primary: a heartbeat written on a
replica would hide the lag of everything below it. Beats stop when nobody needs them, because
binlog and log volume are the most expensive part of a throttler. The last beat before a pause says
so, and replicas do not take the pause for lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headgate.base.ports import Clock, HeartbeatWriter
from headgate.check.demand import NEVER, Demand, Work
from headgate.check.model import Activity
from headgate.errors import ProbeFailed, WriteRejected

log = structlog.get_logger()

FAREWELL_TRIES = 10


class Heartbeat:
    def __init__(
        self,
        database: str,
        writer: HeartbeatWriter,
        clock: Clock,
        demand: Demand,
        *,
        interval_s: float,
        lease_s: float,
        stands_aside: Callable[[], bool] = lambda: False,
    ) -> None:
        self.database = database
        self._writer = writer
        self._clock = clock
        self._demand = demand
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._stands_aside = stands_aside
        """True if it is known, without a query, that this agent must not write a beat."""
        self.on_rejected: Callable[[str], None] = lambda detail: None
        """Called with the server's message if it takes no writes or says it is no primary."""
        self.on_written: Callable[[], None] = lambda: None
        self._timeout_s = max(1.0, 2 * interval_s)
        self._wanted_at = NEVER
        self._farewells = 0
        self.fault: str | None = None
        self.beats_total = 0

    def renew(self, asked_at: float) -> None:
        """A client checked another member of the shard at that time."""
        self._wanted_at = max(self._wanted_at, asked_at)

    @property
    def leased(self) -> bool:
        if not self._lease_s or self._demand.keepers:
            return True
        if self._demand.state is Activity.HIBERNATING:
            return False
        wanted_at = max(self._wanted_at, self._demand.asked_at)
        return self._clock.now().mono_s - wanted_at < self._lease_s

    async def run(self) -> None:
        try:
            while True:
                if self._stands_aside():
                    self.fault = None  # Whatever went wrong, it is no longer ours to write.
                else:
                    await self._beat_or_rest()
                await self._pause()
        finally:
            await self._writer.close()

    async def _pause(self) -> None:
        if self._lease_s and (self.leased or not self._farewells):
            await self._demand.pause(self._interval_s)
        else:
            await self._clock.sleep(self._interval_s)

    async def _beat_or_rest(self) -> None:
        if self.leased:
            self._farewells = FAREWELL_TRIES
            await self._beat(resting=False)
        elif self._farewells:
            await self._beat(resting=True)
            self._farewells = self._farewells - 1 if self.fault else 0

    async def _beat(self, *, resting: bool) -> None:
        """One try. A stalled commit (semi-sync, full disk) is given up, never waited out."""
        try:
            async with asyncio.timeout(self._timeout_s):
                written = await self._writer.beat(resting=resting)
        except WriteRejected as error:
            self._mark(error.detail)
            self.on_rejected(error.detail)
        except ProbeFailed as error:
            self._mark(error.detail)
        except TimeoutError:
            self._mark(f"not written within {self._timeout_s:g} s")
        else:
            self._mark(None)
            if written:
                self.on_written()
            else:
                self.on_rejected("it says that it is not a primary")
            self.beats_total += written
            self._demand.count(Work.BEATS, int(written))

    def _mark(self, fault: str | None) -> None:
        if fault and not self.fault:
            log.warning("heartbeat.lost", database=self.database, detail=fault)
        elif self.fault and not fault:
            log.info("heartbeat.back", database=self.database)
        self.fault = fault
