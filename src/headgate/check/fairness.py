"""How long ratio rules may reject a client by chance. Off unless a limit is set.

a rejection by ratio ──turn_of──► Turn: for how long already, and whether to skip the dice now

Only the dice are skipped: the client's metrics still apply to it, as to every client, and can
still reject it.
"""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """How long a client has waited that ratio rules reject."""

    waited_s: float
    """Seconds since the first rejection by ratio after the client's last check of metrics."""
    max_wait_s: float

    @property
    def dice_waived(self) -> bool:
        return self.waited_s >= self.max_wait_s

    @property
    def left_s(self) -> float:
        """Until the dice are waived."""
        return max(0.0, self.max_wait_s - self.waited_s)


def turn_of(diced_since: float | None, now_s: float, max_wait_s: float) -> Turn:
    """`diced_since` is None at the first rejection. A clock that stops or goes back makes no
    client wait longer than that."""
    waited_s = 0.0 if diced_since is None else max(0.0, now_s - diced_since)
    return Turn(waited_s, max_wait_s)
