"""See quickly that a primary has become read only.   FenceProbe ──► FenceWatcher ──► RoleWatcher

A MySQL or MariaDB server becomes a replica without closing a connection, so nothing tells the
agent. While clients check the shard, one short statement every 25 ms finds out, on a connection
that no other probe can delay. Otherwise it is idle. If it fails, the role is still read every
`collect_interval_s`, and `fault` says so.
"""

from __future__ import annotations

import asyncio

import structlog

from headgate.base.ports import Clock, FenceProbe
from headgate.check.activity import Activity
from headgate.check.demand import Demand, Work
from headgate.errors import ProbeFailed
from headgate.shard.roles import CLOSE_TIMEOUT_S, RoleWatcher

log = structlog.get_logger()

LOOK_EVERY_S = 0.025
AGAIN_S = 1.0
"""Pause after a look that failed."""


class FenceWatcher:
    def __init__(
        self, watcher: RoleWatcher, probe: FenceProbe, clock: Clock, demand: Demand
    ) -> None:
        self._watcher = watcher
        self._probe = probe
        self._clock = clock
        self._demand = demand
        self._stirred = asyncio.Event()
        self.fault = ""
        """Why the last look failed; empty: it did not."""
        watcher.on_read = self._stirred.set

    async def run(self) -> None:
        try:
            while True:
                if self._is_wanted():
                    await self._look()
                    await self._clock.sleep(AGAIN_S if self.fault else LOOK_EVERY_S)
                else:
                    self._stirred.clear()
                    await self._stirred.wait()
        except asyncio.CancelledError:
            await self._close()
            raise

    def _is_wanted(self) -> bool:
        now = self._clock.now().mono_s
        return self._watcher.is_primary and self._demand.shard_state(now) is Activity.AWAKE

    async def _look(self) -> None:
        self._demand.count(Work.PROBES)
        try:
            takes_writes = await self._probe.read()
        except ProbeFailed as error:
            self._mark(error.detail)
            return
        self._mark("")
        if not takes_writes:
            self._watcher.void("the server has become read only; its role is being read again")

    def _mark(self, fault: str) -> None:
        if fault and not self.fault:
            log.warning("fence.away", database=self._watcher.database, detail=fault)
        elif self.fault and not fault:
            log.info("fence.back", database=self._watcher.database)
        self.fault = fault

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._probe.close()
        except (TimeoutError, ProbeFailed, OSError) as error:
            log.warning("fence.close_failed", database=self._watcher.database, error=str(error))
