"""How long a client runs, compared with its own past runs.   minutes ──runs_of──► Runs

A run is a stretch of minutes in which the client checked, with no pause longer than 15 minutes.
A job that takes far longer than ever before is worth a look, starved or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

GAP_MINUTES = 15
"""As StarvationTerms.run_gap_s: after a pause this long, the next check begins another run."""
MIN_EARLIER = 3
FAR_BEYOND = 1.5
"""Factor on the longest run before."""
MIN_MINUTES = 10


class ClientRun(NamedTuple):
    from_minute: int
    until_minute: int
    """Not included."""

    @property
    def minutes(self) -> int:
        return self.until_minute - self.from_minute


class Runs(NamedTuple):
    last: ClientRun
    ongoing: bool
    earlier: tuple[ClientRun, ...]

    @property
    def usual_minutes(self) -> float | None:
        """The median of those before; None where there are too few to say."""
        lengths = sorted(run.minutes for run in self.earlier)
        if len(lengths) < MIN_EARLIER:
            return None
        half = len(lengths) // 2
        return lengths[half] if len(lengths) % 2 else (lengths[half - 1] + lengths[half]) / 2

    @property
    def longest_minutes(self) -> int:
        return max((run.minutes for run in self.earlier), default=0)

    @property
    def unusual(self) -> bool:
        if len(self.earlier) < MIN_EARLIER or self.last.minutes < MIN_MINUTES:
            return False
        return self.last.minutes > FAR_BEYOND * self.longest_minutes


def runs_of(minutes: Iterable[int], *, since_minute: int, now_minute: int) -> Runs | None:
    """From the minutes in which it checked; None if there are none. A run that began before
    `since_minute` may be longer than it looks, so it is not compared."""
    found: list[ClientRun] = []
    for minute in sorted(set(minutes)):
        if found and minute - found[-1].until_minute < GAP_MINUTES:
            found[-1] = ClientRun(found[-1].from_minute, minute + 1)
        else:
            found.append(ClientRun(minute, minute + 1))
    if not found:
        return None
    last = found.pop()
    whole = [run for run in found if run.from_minute > since_minute + GAP_MINUTES]
    return Runs(last, now_minute - last.until_minute < GAP_MINUTES, tuple(whole))
