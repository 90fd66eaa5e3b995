"""How late the loop is, as a histogram tells it."""

from __future__ import annotations

import asyncio

from headgate.http.exposition.series import BEAT_S, BOUNDS_S, Pulse
from tests.fixtures.fakes import HandClock


def test_lateness_is_counted_up_to_each_bound() -> None:
    pulse = Pulse(HandClock())
    for late_s in (-0.1, 0.001, 0.3, 60.0):
        pulse.note(late_s)
    counted = pulse.up_to()
    assert (counted["0.001"], counted["0.25"], counted["0.5"]) == (2, 2, 3)
    assert (counted["2.5"], counted["+Inf"]) == (3, 4)
    assert pulse.sum_s == 60.301 and len(counted) == len(BOUNDS_S) + 1


class Busy(HandClock):
    """Sleeps are as much longer as the loop is kept busy."""

    busy_s = 0.0

    def _step(self, seconds: float) -> None:
        super()._step(seconds + self.busy_s)


async def test_a_loop_that_is_kept_busy_is_late() -> None:
    clock = Busy()
    pulse = Pulse(clock)
    running = asyncio.create_task(pulse.run())
    await clock.advance(BEAT_S)
    assert pulse.up_to()["0.001"] == 1
    clock.busy_s = 0.4
    await clock.advance(BEAT_S)
    running.cancel()
    assert pulse.up_to()["0.25"] == 1 and pulse.up_to()["0.5"] == 2
