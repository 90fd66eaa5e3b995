"""How long dice may keep a client from the metrics (R82). Off unless a bound is set.

REJECTED_BY_RATIO ──turn_of──► Turn: how long already, and whether the dice are waived now

Only the dice: a client whose turn it is gets judged by its metrics like anybody, and is
refused by them like anybody.
"""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """Where a client stands that was refused by dice."""

    waited_s: float
    """Since the first of the refusals by dice that came without a metric check between."""
    max_wait_s: float

    @property
    def dice_waived(self) -> bool:
        return self.waited_s >= self.max_wait_s

    @property
    def left_s(self) -> float:
        """Until the dice are waived."""
        return max(0.0, self.max_wait_s - self.waited_s)


def turn_of(diced_since: float | None, now_s: float, max_wait_s: float) -> Turn:
    """`diced_since` is None at the first refusal. A clock that stands still, or goes back,
    makes nobody wait longer than it goes on."""
    waited_s = 0.0 if diced_since is None else max(0.0, now_s - diced_since)
    return Turn(waited_s, max_wait_s)
