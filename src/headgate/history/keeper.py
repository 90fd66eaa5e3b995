"""Carry what must last to the store.   Recorder, MetricMinutes ──► Keeper ──► Store

The store may be gone for hours: checks do not notice, counts wait in the Recorder, and the
fault is on the status page, in /readyz and in the metrics until a write succeeds again.
"""

from __future__ import annotations

import structlog

from headgate.base.ports import Clock, Store
from headgate.errors import StoreUnavailable
from headgate.history.minutes import MetricMinutes
from headgate.history.recorder import Recorder
from headgate.history.records import StoreFault
from headgate.metrics.samples import Instant

log = structlog.get_logger()

FLUSH_INTERVAL_S = 1.0
FAULT_INTERVAL_S = 5.0
SWEEP_INTERVAL_S = 600.0


class Keeper:
    def __init__(
        self,
        recorder: Recorder,
        store: Store,
        clock: Clock,
        *,
        history_days: int,
        metrics: MetricMinutes | None = None,
    ) -> None:
        """`metrics`: what to keep of them by the minute; None for nothing."""
        self._recorder = recorder
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._kept_minutes = history_days * 24 * 60
        self._swept_at = float("-inf")
        self.fault: StoreFault | None = None

    def kept_from(self, wall_s: float) -> int:
        """The oldest minute that is kept, had there been anything to keep then."""
        return int(wall_s // 60) - self._kept_minutes

    async def run(self) -> None:
        while True:
            await self.flush()
            await self._clock.sleep(FAULT_INTERVAL_S if self.fault else FLUSH_INTERVAL_S)

    async def flush(self) -> None:
        """Hand over what waits. What the store does not take goes on waiting."""
        now = self._clock.now()
        if self._store.fault is not None:
            self.mark_fault(self._store.fault)  # The fault of a change that an operator made.
        tallies = self._recorder.drain(now.wall_s)
        try:
            if self.fault:
                await self._store.add_tallies([])  # Is there room again, for more than counts?
            if tallies:
                await self._store.add_tallies(tallies)
        except StoreUnavailable as error:
            self._recorder.restore(tallies)
            self.mark_fault(str(error))
            return
        if await self._keep_metrics(now):
            await self._sweep(now)

    async def _keep_metrics(self, now: Instant) -> bool:
        if self._metrics is None:
            return True
        drained = self._metrics.drain(now.wall_s)
        try:
            if drained:
                await self._store.add_metric_minutes(drained)
        except StoreUnavailable as error:
            self._metrics.restore(drained)
            self.mark_fault(str(error))
            return False
        return True

    async def _sweep(self, now: Instant) -> None:
        """Forget what is too old. Its failing is a fault, too, but loses no count."""
        try:
            if now.mono_s - self._swept_at >= SWEEP_INTERVAL_S:
                await self._store.forget_before(self.kept_from(now.wall_s))
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
