"""How late this process is.   Pulse.run ──► counts ──► /metrics

It sleeps until a given time and measures how late it wakes. Anything that keeps the loop busy (a
large answer, a host without CPU) makes it late, and would delay a check at that moment as well.
"""

from __future__ import annotations

from bisect import bisect_left

from headgate.base.ports import Clock

BEAT_S = 0.25
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Pulse:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    async def run(self) -> None:
        while True:
            due_s = self._clock.now().mono_s + BEAT_S
            await self._clock.sleep(BEAT_S)
            self.note(self._clock.now().mono_s - due_s)

    def note(self, late_s: float) -> None:
        late_s = max(0.0, late_s)
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self.sum_s += late_s

    def up_to(self) -> dict[str, int]:
        """Upper bound → how many were no later, as a histogram tells it."""
        found, so_far = {}, 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            so_far += count
            found[bound] = so_far
        return found
