"""Who is told what differs.   Mirror ──► LogFollower ──► Watchers ──► rules, copies, the view"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from headgate.agent.logmirror import Mirror

log = structlog.get_logger()

Told = Callable[[frozenset[str]], None]
"""Called with the keys that differ, after the mirror has them."""
MAX_PENDING = 10_000
"""Keys that a watcher which fails still has to be told of; beyond, it is told of all there are."""


@dataclass(eq=False, slots=True)
class _Watcher:
    tell: Told
    pending: set[str] = field(default_factory=set)


class Watchers:
    """One that raises is logged, and told of the same keys again with the next ones; the others
    are not held up."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._watchers: list[_Watcher] = []

    def add(self, tell: Told) -> None:
        self._watchers.append(_Watcher(tell))

    def tell(self, changed: frozenset[str]) -> None:
        for watcher in self._watchers:
            if changed or watcher.pending:
                self._tell_one(watcher, changed)

    def _tell_one(self, watcher: _Watcher, changed: frozenset[str]) -> None:
        due = changed.union(watcher.pending) if watcher.pending else changed
        try:
            watcher.tell(due)
        except Exception:  # The supervisor of what is told: a fault of one is not the others'.
            log.exception("fleet.watcher_failed", keys=len(due), again="with the next beat")
            too_many = len(due) > MAX_PENDING
            watcher.pending = {e.key for e in self._mirror.entries()} if too_many else set(due)
        else:
            watcher.pending.clear()
