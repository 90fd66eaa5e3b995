"""Time as rules count it: it goes on with the monotonic clock, and never back (R87).

Kept in the store every few seconds together with the wall clock: after a restart it goes on
from there, plus what the wall clock says has passed meanwhile, if it says so. Thus a clock that
stands behind after a restart gives no rule back what it had used up before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.agent.ports import Clock

RULE_TIME = "rule_time"
"""The kind of record; there is one."""
KEEP_S = 10.0


class RuleMark(NamedTuple):
    """The rules' time at an instant of the wall clock."""

    ruled_s: float
    wall_s: float

    def written(self) -> dict[str, float]:
        return {"ruled_s": round(self.ruled_s, 3), "wall_s": round(self.wall_s, 3)}


def parse_mark(value: Mapping[str, Any] | None) -> RuleMark | None:
    """None for what another version has kept."""
    given = value or {}
    ruled_s, wall_s = given.get("ruled_s"), given.get("wall_s")
    if not isinstance(ruled_s, int | float) or not isinstance(wall_s, int | float):
        return None
    return RuleMark(float(ruled_s), float(wall_s))


class RuleTime:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now = clock.now()
        self._ahead_s = now.wall_s - now.mono_s
        """Of the monotonic clock."""
        self._goes_on = False

    def now_s(self) -> float:
        return self._clock.now().mono_s + self._ahead_s

    def mark(self) -> RuleMark:
        return RuleMark(self.now_s(), self._clock.now().wall_s)

    def go_on_from(self, marks: list[RuleMark]) -> None:
        """From the furthest one, which is the last that was made."""
        if not marks:
            return
        last, now = max(marks), self._clock.now()
        ahead_s = last.ruled_s + max(0.0, now.wall_s - last.wall_s) - now.mono_s
        self._ahead_s = max(self._ahead_s, ahead_s) if self._goes_on else ahead_s
        self._goes_on = True
