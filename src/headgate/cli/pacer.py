"""When a running job is stopped and let go on. Values in, a move out: no clock, no process.

    answers ──► Pacer.heard / Pacer.unheard ──► STOP · GO_ON · STAY

Each stop and each run lasts `steady_s` at least: a metric that hovers about its threshold would
otherwise stop the job at every second question. Silence is no refusal (R50): for
`unavailable_after_s` it changes nothing, and then the caller's own policy decides (R48).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

OnUnavailable = Literal["closed", "open"]


class Move(Enum):
    STAY = auto()
    STOP = auto()
    GO_ON = auto()


@dataclass(frozen=True, slots=True)
class Pace:
    steady_s: float = 2.0
    unavailable_after_s: float = 10.0
    on_unavailable: OnUnavailable = "closed"


@dataclass(slots=True)
class Tally:
    """What the summary tells."""

    stops: int = 0
    stopped_s: float = 0.0
    silent_s: float = 0.0
    """Without an answer, until the last question that had none."""


def pause_s(every_s: float, advised_s: float, roll: float) -> float:
    """Until the next question. Advice of a minute, as of a hold, bounds when work is tried again;
    a job that stands still is to be let go on soon after the hold is lifted. So it is followed up
    to twice `every_s`, and jobs that were told alike come back at different times (R32)."""
    if advised_s <= 2 * every_s:
        return max(every_s, advised_s)
    return every_s * (1 + roll)


class Pacer:
    """Of one running job. Times are monotonic."""

    def __init__(self, pace: Pace, started_s: float) -> None:
        self.pace = pace
        self.stopped = False
        self.tally = Tally()
        self._since_s = started_s
        self._silent_since_s: float | None = None

    def heard(self, admitted: bool, now_s: float) -> Move:
        self._end_silence(now_s)
        return self._move(stop=not admitted, now_s=now_s)

    def unheard(self, asked_s: float, now_s: float) -> Move:
        if self._silent_since_s is None:
            self._silent_since_s = asked_s
        if now_s - self._silent_since_s < self.pace.unavailable_after_s:
            return Move.STAY
        return self._move(stop=self.pace.on_unavailable == "closed", now_s=now_s)

    def stopped_for_s(self, now_s: float) -> float:
        return now_s - self._since_s if self.stopped else 0.0

    def end(self, now_s: float) -> Tally:
        """The job is over."""
        self._end_silence(now_s)
        self.tally.stopped_s += self.stopped_for_s(now_s)
        return self.tally

    def _move(self, *, stop: bool, now_s: float) -> Move:
        if stop == self.stopped or now_s - self._since_s < self.pace.steady_s:
            return Move.STAY
        self.tally.stopped_s += self.stopped_for_s(now_s)
        self.tally.stops += stop
        self.stopped, self._since_s = stop, now_s
        return Move.STOP if stop else Move.GO_ON

    def _end_silence(self, now_s: float) -> None:
        if self._silent_since_s is not None:
            self.tally.silent_s += now_s - self._silent_since_s
            self._silent_since_s = None
