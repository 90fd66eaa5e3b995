"""Time as rules count it: it goes on with the monotonic clock, and never back (R87).

Noted every few seconds (rulenotes.py) together with the wall clock and the time since the machine
booted. After a restart it goes on from there, plus what has passed
meanwhile: by the time since boot, which nobody can set, while it is the same boot; after another
boot by the wall clock, if that says so. Thus a clock that stands behind after a restart gives no
rule back what it had used up before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headgate.agent.ports import Clock
from headgate.core.samples import BootInstant

OURSELVES = "headgate"


Boot = Callable[[], BootInstant | None]
"""None where the machine does not tell."""


def no_boot() -> None:
    return None


class RuleMark(NamedTuple):
    """The rules' time at an instant of the wall clock, and of the boot where that is known."""

    ruled_s: float
    wall_s: float
    boot: BootInstant | None = None

    def written(self) -> dict[str, Any]:
        boot = {"boot": f"{self.boot.id} {self.boot.s:.3f}"} if self.boot else {}
        return {"ruled_s": round(self.ruled_s, 3), "wall_s": round(self.wall_s, 3), **boot}

    def passed_s(self, boot: BootInstant | None) -> float | None:
        """Since then, by the time since boot; None where that cannot tell."""
        if boot is None or self.boot is None or boot.id != self.boot.id or boot.s < self.boot.s:
            return None
        return boot.s - self.boot.s


def parse_mark(value: Mapping[str, Any] | None) -> RuleMark | None:
    """None for what another version has kept."""
    given = value or {}
    ruled_s, wall_s = given.get("ruled_s"), given.get("wall_s")
    if not isinstance(ruled_s, int | float) or not isinstance(wall_s, int | float):
        return None
    return RuleMark(float(ruled_s), float(wall_s), _parse_boot(given.get("boot")))


def _parse_boot(value: object) -> BootInstant | None:
    boot_id, _, seconds = str(value or "").rpartition(" ")
    try:
        boot = BootInstant(boot_id, float(seconds))
    except ValueError:
        return None
    return boot if boot_id and math.isfinite(boot.s) else None


class RuleTime:
    def __init__(self, clock: Clock, boot: Boot = no_boot) -> None:
        self._clock = clock
        self._boot = boot
        now = clock.now()
        self._ahead_s = now.wall_s - now.mono_s
        """Of the monotonic clock."""
        self._goes_on = False

    def now_s(self) -> float:
        return self._clock.now().mono_s + self._ahead_s

    def mark(self) -> RuleMark:
        return RuleMark(self.now_s(), self._clock.now().wall_s, self._boot())

    def go_on_from(self, marks: list[RuleMark]) -> None:
        """From those of this boot, exactly; else from the furthest one, which is the last that
        was made."""
        if not marks:
            return
        now, boot = self._clock.now(), self._boot()
        exact = [m.ruled_s + s for m in marks if (s := m.passed_s(boot)) is not None]
        last = max(marks, key=lambda mark: mark.ruled_s)
        by_wall_s = 0.0 if exact else max(0.0, now.wall_s - last.wall_s)
        ahead_s = max([*exact, last.ruled_s + by_wall_s]) - now.mono_s
        self._ahead_s = max(self._ahead_s, ahead_s) if self._goes_on else ahead_s
        self._goes_on = True
