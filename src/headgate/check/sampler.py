"""Read each metric at its own pace.   probe.read → Sampler → Board

A probe runs alone: the next one starts when the last has ended or was given up, so a slow
host gets fewer probes, never more. Every attempt ends with a Reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headgate.base.ports import Clock, Probe
from headgate.check.board import Board
from headgate.check.demand import Demands, Work
from headgate.check.model import Activity
from headgate.errors import ProbeFailed
from headgate.metrics.model import MetricMode, MetricSpec
from headgate.metrics.samples import Absent, Cause, Reading, Sample, rate_between, reading_of

log = structlog.get_logger()

CLOSE_TIMEOUT_S = 2.0
EXPECTED = (Cause.NEVER_READ, Cause.HIBERNATING)
"""Causes that a first value ends, and that were no loss."""
IDLE = "no client has checked for a while, so nothing is measured; a check wakes it (about 1 s)"


async def take(probe: Probe, spec: MetricSpec, clock: Clock) -> Reading:
    """One reading. A value is dated by the start of its probe: it is at least that old."""
    started = clock.now().mono_s
    try:
        async with asyncio.timeout(spec.timeout_s):
            number = await probe.read()
    except ProbeFailed as error:
        return Absent(error.cause, error.detail, clock.now().mono_s)
    except TimeoutError:
        detail = f"no answer in {spec.timeout_s:g} s"
        return Absent(Cause.TIMED_OUT, detail, clock.now().mono_s)
    return reading_of(number, taken_at=started)


class Sampler:
    """The running probes, one task each."""

    def __init__(self, board: Board, clock: Clock, demands: Demands) -> None:
        self._board = board
        self._clock = clock
        self._demands = demands.by_database
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._on_reading: list[Callable[[str, str, Reading], None]] = []
        self.readings_total: dict[tuple[str, str, str], int] = {}
        """(database, metric, `value` or the cause of a missing one) → how often."""

    def watch(self, callback: Callable[[str, str, Reading], None]) -> None:
        self._on_reading.append(callback)

    def start(self, database: str, spec: MetricSpec, probe: Probe) -> None:
        key = (database, spec.name)
        assert key not in self._tasks, f"{key} is being probed already"
        self._tasks[key] = asyncio.create_task(
            self._supervise(database, spec, probe), name=f"probe {database}/{spec.name}"
        )

    async def stop(self, database: str, metric: str) -> None:
        task = self._tasks.pop((database, metric), None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_TIMEOUT_S)

    async def close(self) -> None:
        for key in list(self._tasks):
            self._tasks[key].cancel()
        for database, metric in list(self._tasks):
            await self.stop(database, metric)

    async def _supervise(self, database: str, spec: MetricSpec, probe: Probe) -> None:
        try:
            while True:
                try:
                    await self._run(database, spec, probe)
                except Exception as error:
                    # A bug in a probe must not silence its metric: it becomes unavailable.
                    log.exception("probe.crashed", database=database, metric=spec.name)
                    detail = f"the probe crashed: {type(error).__name__}"
                    self._deliver(database, spec, Absent(Cause.FAILED, detail, self._now()))
                    await self._clock.sleep(spec.interval_s)
        finally:
            await _close(probe)

    async def _run(self, database: str, spec: MetricSpec, probe: Probe) -> None:
        demand = self._demands[database]
        before: Sample | None = None
        due = self._now()
        while True:
            demand.count(Work.PROBES)
            reading = await take(probe, spec, self._clock)
            if spec.mode is MetricMode.RATE and isinstance(reading, Sample):
                before, reading = reading, rate_between(before, reading)
            self._deliver(database, spec, reading)
            if demand.state is Activity.HIBERNATING:
                self._deliver(database, spec, Absent(Cause.HIBERNATING, IDLE, self._now()))
                before = None  # A rate over the time asleep would say nothing of now.
            # Missed turns are skipped, not caught up on.
            due = max(due + demand.stretch(spec.interval_s), self._now())
            await demand.pause(due - self._now())
            due = min(due, self._now())

    def _deliver(self, database: str, spec: MetricSpec, reading: Reading) -> None:
        outcome = "value" if isinstance(reading, Sample) else reading.cause.value
        key = (database, spec.name, outcome)
        self.readings_total[key] = self.readings_total.get(key, 0) + 1
        self._log_change(database, spec, reading)
        self._board.push(database, spec.name, reading)
        for callback in self._on_reading:
            callback(database, spec.name, reading)

    def _log_change(self, database: str, spec: MetricSpec, reading: Reading) -> None:
        window = self._board.window(database, spec.name)
        before = window.latest if window else None
        was = before.cause if isinstance(before, Absent) else None
        now = reading.cause if isinstance(reading, Absent) else None
        if was is now or (was in EXPECTED and now is None) or now is Cause.HIBERNATING:
            return
        if isinstance(reading, Absent):
            cause = reading.cause.value
            log.warning(
                "metric.lost",
                database=database,
                metric=spec.name,
                cause=cause,
                detail=reading.detail,
            )
        else:
            log.info("metric.back", database=database, metric=spec.name, value=reading.value)

    def _now(self) -> float:
        return self._clock.now().mono_s


async def _close(probe: Probe) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await probe.close()
    except (TimeoutError, ProbeFailed, OSError) as error:
        log.warning("probe.close_failed", error=str(error))
