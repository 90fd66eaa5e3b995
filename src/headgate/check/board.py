"""The newest health of each database.   Sampler ──push──► Board ──health──► Checker

One writer (the event loop) replaces frozen values; readers take whatever is there.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.check.health import (
    Health,
    MetricStatus,
    ShardHealth,
    Window,
    health_of,
    never_read,
    stand,
)
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Reading

# What `top` draws and what debounce looks back on; never less than a metric's own window.
READINGS_KEPT = 60


class Board:
    def __init__(self) -> None:
        self._default: dict[str, tuple[str, ...] | None] = {}
        self._windows: dict[tuple[str, str], Window] = {}
        self._standings: dict[str, dict[str, MetricStatus]] = {}
        self._shards: dict[str, ShardHealth] = {}
        self._on_shard: list[Callable[[str], None]] = []
        self.healths: dict[str, Health] = {}
        """Read directly on the hot path: database → its newest Health."""

    def place(self, database: str, spec: MetricSpec, *, at: float) -> None:
        """Start or change a metric. A changed spec applies to the existing values, too."""
        key = (database, spec.name)
        self._windows.setdefault(key, never_read(spec, at=at))
        self._judge(database, spec)

    def restart(self, database: str, spec: MetricSpec, *, at: float) -> None:
        """Place a metric whose old values mean something else now: they are forgotten."""
        self._windows.pop((database, spec.name), None)
        self.place(database, spec, at=at)

    def drop(self, database: str, metric: str) -> None:
        self._windows.pop((database, metric), None)
        self._standings[database].pop(metric, None)
        self._refresh(database)

    def open(self, database: str, default: tuple[str, ...] | None) -> None:
        """Add `database`, or change which metrics apply to checks that name none."""
        self._default[database] = default
        self._standings.setdefault(database, {})
        self._refresh(database)

    def shut(self, database: str) -> None:
        for metric in list(self._standings.pop(database)):
            self._windows.pop((database, metric), None)
        self._shards.pop(database, None)
        del self._default[database], self.healths[database]

    def set_shard(self, database: str, shard: ShardHealth | None) -> None:
        """What its shard amounts to, as far as this agent may say."""
        if shard is None:
            self._shards.pop(database, None)
        else:
            self._shards[database] = shard
        if database in self._default:
            self._refresh(database)
            for callback in self._on_shard:
                callback(database)

    def watch_shards(self, callback: Callable[[str], None]) -> None:
        """Called with the database whenever what its shard amounts to was set."""
        self._on_shard.append(callback)

    def push(self, database: str, metric: str, reading: Reading) -> None:
        standing = self._standings.get(database, {}).get(metric)
        if standing is None:
            return  # Removed while its last probe was under way.
        key = (database, metric)
        keep = max(READINGS_KEPT, standing.spec.debounce.readings)
        self._windows[key] = self._windows[key].push(reading, keep=keep)
        self._judge(database, standing.spec)

    def window(self, database: str, metric: str) -> Window | None:
        return self._windows.get((database, metric))

    def _judge(self, database: str, spec: MetricSpec) -> None:
        window = self._windows[(database, spec.name)]
        self._standings[database][spec.name] = stand(spec, window)
        self._refresh(database)

    def _refresh(self, database: str) -> None:
        self.healths[database] = health_of(
            database,
            self._standings[database],
            default=self._default[database],
            shard=self._shards.get(database),
        )
