"""Carry what must last to the store.   Recorder ──► Keeper ──► Store

The store may be gone for hours: checks do not notice, counts wait in the Recorder, and the
fault is on the status page, in /readyz and in the metrics until a write succeeds again.
"""

from __future__ import annotations

import structlog

from headgate.agent.ports import Clock, Store
from headgate.agent.recorder import Recorder
from headgate.core.records import StoreFault
from headgate.core.samples import Instant
from headgate.errors import StoreUnavailable

log = structlog.get_logger()

FLUSH_INTERVAL_S = 1.0
FAULT_INTERVAL_S = 5.0
SWEEP_INTERVAL_S = 600.0


class Keeper:
    def __init__(
        self, recorder: Recorder, store: Store, clock: Clock, *, history_days: int
    ) -> None:
        self._recorder = recorder
        self._store = store
        self._clock = clock
        self._kept_minutes = history_days * 24 * 60
        self._swept_at = float("-inf")
        self.fault: StoreFault | None = None

    async def run(self) -> None:
        while True:
            await self.flush()
            await self._clock.sleep(FAULT_INTERVAL_S if self.fault else FLUSH_INTERVAL_S)

    async def flush(self) -> None:
        """Hand over what waits. What the store does not take goes on waiting."""
        now = self._clock.now()
        tallies = self._recorder.drain(now.wall_s)
        try:
            if tallies or self.fault:
                await self._store.add_tallies(tallies)
        except StoreUnavailable as error:
            self._recorder.restore(tallies)
            self.mark_fault(str(error))
            return
        await self._sweep(now)

    async def _sweep(self, now: Instant) -> None:
        """Forget what is too old. Its failing is a fault, too, but loses no count."""
        try:
            if now.mono_s - self._swept_at >= SWEEP_INTERVAL_S:
                await self._store.forget_before(int(now.wall_s // 60) - self._kept_minutes)
                self._recorder.forget_idle(now.wall_s)
                self._swept_at = now.mono_s
        except StoreUnavailable as error:
            self.mark_fault(str(error))
        else:
            self._mark(None)

    def mark_fault(self, detail: str) -> None:
        self._mark(StoreFault(self._clock.now().wall_s, detail))

    def _mark(self, fault: StoreFault | None) -> None:
        if fault is not None and self.fault is None:
            log.error("store.fault", store=self._store.name, detail=fault.detail)
            self.fault = fault
        elif fault is not None and self.fault is not None:
            self.fault = StoreFault(self.fault.since_wall_s, fault.detail)
        elif self.fault is not None:
            log.info("store.back", store=self._store.name)
            self.fault = None
