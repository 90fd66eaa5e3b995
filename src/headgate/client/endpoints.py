"""The client's own agents, where it was given several: active–passive.

It stays with the one that answered last, goes on to the next when that falls silent, and
tries a more preferred one again after a while, with one check of one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.client.availability import Claim
from headgate.client.target import Target

LOOK_BACK_AFTER_S = 60.0


class Endpoints:
    """Shared by threads without a lock: values are replaced, never edited."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._current = 0
        self._look_back_at_s = 0.0
        self._claim = Claim()

    @property
    def current(self) -> Target:
        return self.targets[self._current]

    def order(self, now_s: float) -> tuple[Target, ...]:
        """The agents to check at, one after the other until one answers."""
        first = self._current
        if first and now_s >= self._look_back_at_s and self._claim.win():
            self._look_again(now_s)
            return self.targets
        return (*self.targets[first:], *self.targets[:first])

    def answered(self, target: Target, now_s: float) -> Target | None:
        """Stay at this agent. Returns the one used before, if that was another."""
        place, before = self.targets.index(target), self._current
        if place == before:
            return None
        self._current = place
        self._look_again(now_s)
        return self.targets[before]

    def _look_again(self, now_s: float) -> None:
        self._look_back_at_s = now_s + LOOK_BACK_AFTER_S
        self._claim = Claim()

    def __str__(self) -> str:
        return " or ".join(target.url for target in self.targets)
