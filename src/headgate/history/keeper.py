"""Carry what must last to the store.   Recorder, MetricMinutes ──► Keeper ──► Store

The store may be gone for hours: checks do not notice, counts wait in the Recorder, and the
fault is on the status page, in /readyz and in the metrics until a write succeeds again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import structlog

from headgate.base.ports import Clock, Store
from headgate.check.decide import judge
from headgate.check.health import Health, MetricStatus
from headgate.check.model import State
from headgate.errors import StoreUnavailable
from headgate.history.recorder import Recorder
from headgate.history.records import MetricMinute, StoreFault
from headgate.metrics.samples import Instant

# --- metrics by the minute -----------------------------------------------------------------
# Metrics by the minute.   Board ──look, about once a second──► MetricMinutes ──► Keeper
#
# Enough to draw a day, and to preview another threshold.

MAX_WAITING = 20_000
MAX_METRICS = 500
"""For all databases; metrics beyond it are not kept by the minute."""


LAG = "lag"


def standings_of(health: Health) -> Iterator[tuple[str, MetricStatus]]:
    """Every metric, by the name that history calls it."""
    yield from health.standings.items()
    if health.shard is not None:
        for name, standing in health.shard.standings.items():
            yield f"shard/{name}", standing


class MetricMinutes:
    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str, str], MetricMinute] = {}
        self.dropped = 0

    def look(self, healths: Mapping[str, Health], now: Instant) -> None:
        minute, left = int(now.wall_s // 60), MAX_METRICS
        for database, health in healths.items():
            for name, standing in standings_of(health):
                if left == 0:
                    return
                left -= 1
                self._add(_look(minute, database, name, standing, now))
            for new in _lags(minute, database, health):
                if left == 0:
                    return
                left -= 1
                self._add(new)

    def drain(self, wall_s: float) -> list[MetricMinute]:
        """The minutes that are over: one write a minute. What cannot be kept is given back
        with `restore`."""
        present = int(wall_s // 60)
        over = [key for key in self._waiting if key[0] != present]
        return [self._waiting.pop(key) for key in over]

    def restore(self, minutes: Sequence[MetricMinute]) -> None:
        for minute in minutes:
            self._add(minute)

    def _add(self, new: MetricMinute) -> None:
        key = (new.minute, new.database, new.metric)
        before = self._waiting.get(key)
        if before is None and len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting[key] = new if before is None else before.plus(new)


def _look(
    minute: int, database: str, name: str, standing: MetricStatus, now: Instant
) -> MetricMinute:
    finding = judge(standing, now)
    threshold = standing.spec.threshold
    if finding.value is None or finding.state in (State.UNAVAILABLE, State.IGNORED):
        return MetricMinute(minute, database, name, 1, 1, 0, 0.0, None, None, threshold)
    breached, value = int(finding.state is State.BREACHED), finding.value
    return MetricMinute(minute, database, name, 1, 0, breached, value, value, value, threshold)


def _lags(minute: int, database: str, health: Health) -> Iterator[MetricMinute]:
    """Each replica's lag, as `lag@db-b`: the rollup keeps the worst of them only."""
    shard = health.shard
    rolled = shard.standings.get(LAG) if shard is not None else None
    if shard is None or rolled is None:
        return
    limit = rolled.spec.threshold
    for member, value in shard.lags.items():
        name = f"{LAG}@{member}"
        if value is None:
            yield MetricMinute(minute, database, name, 1, 1, 0, 0.0, None, None, limit)
        else:
            breached = int(rolled.spec.breaches(value))
            yield MetricMinute(minute, database, name, 1, 0, breached, value, value, value, limit)


log = structlog.get_logger()

# --- to the store --------------------------------------------------------------------------

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
                await self._store.history.add_tallies(
                    []
                )  # Is there room again, for more than counts?
            if tallies:
                await self._store.history.add_tallies(tallies)
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
                await self._store.history.add_metric_minutes(drained)
        except StoreUnavailable as error:
            self._metrics.restore(drained)
            self.mark_fault(str(error))
            return False
        return True

    async def _sweep(self, now: Instant) -> None:
        """Forget what is too old. Its failing is a fault, too, but loses no count."""
        try:
            if now.mono_s - self._swept_at >= SWEEP_INTERVAL_S:
                await self._store.history.forget_before(self.kept_from(now.wall_s))
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
