"""Metrics by the minute.   Board ──look, about once a second──► MetricMinutes ──► Keeper

Enough to draw a day, and to preview another threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headgate.check.decide import judge
from headgate.check.health import Health, MetricStatus
from headgate.check.model import State
from headgate.history.records import MetricMinute
from headgate.metrics.samples import Instant

MAX_WAITING = 20_000
MAX_METRICS = 500
"""For all databases; metrics beyond it are not kept by the minute."""


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
