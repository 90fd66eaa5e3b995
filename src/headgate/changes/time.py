"""Time for changes that end: it follows the monotonic clock and never goes back.

Noted every few seconds (rules/service.py), with the wall clock and the time since the machine
booted. After a restart it goes on from there, plus what has passed meanwhile: during
the same boot by the time since boot, which cannot be set; after another boot by
the wall clock, if that is later. So a clock that is behind after a restart gives no change back the
time that it had used up before. The time at which a change was set is noted, too: for a rule with
the rest of it (rules/followed.py), for any other change here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headgate.base.ports import Clock
from headgate.changes.model import Change
from headgate.changes.reach import HERE
from headgate.changes.state import counted_from
from headgate.metrics.samples import BootInstant, Instant

STEP_S = 1.0
"""A wall clock that moved by more than this against the monotonic one was set."""

MAX_PAST = 1000

Boot = Callable[[], BootInstant | None]
"""None if the machine does not report it."""


def no_boot() -> None:
    return None


class TimeMark(NamedTuple):
    """This time at an instant of the wall clock, and of the boot where that is known."""

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


def parse_mark(value: Mapping[str, Any] | None) -> TimeMark | None:
    """None for what another version has kept."""
    given = value or {}
    ruled_s, wall_s = given.get("ruled_s"), given.get("wall_s")
    if not isinstance(ruled_s, int | float) or not isinstance(wall_s, int | float):
        return None
    return TimeMark(float(ruled_s), float(wall_s), _parse_boot(given.get("boot")))


def _parse_boot(value: object) -> BootInstant | None:
    boot_id, _, seconds = str(value or "").rpartition(" ")
    try:
        boot = BootInstant(boot_id, float(seconds))
    except ValueError:
        return None
    return boot if boot_id and math.isfinite(boot.s) else None


class Term(NamedTuple):
    """The time of a change that ends."""

    set_at: float
    end_s: float
    """Both by the wall clock."""
    ruled_at: float | None
    """This time when it was set; None: not known yet."""
    ends_mono_s: float
    """It has ended by this time, whatever the wall clock says."""

    def has_ended(self, now: Instant) -> bool:
        return now.wall_s >= self.end_s or now.mono_s >= self.ends_mono_s


class ChangeTime:
    def __init__(self, clock: Clock, boot: Boot = no_boot) -> None:
        self._terms: dict[str, Term] = {}
        """Of changes that are no rules, by the name of their note."""
        self._past: dict[tuple[str, float], Term] = {}
        """Of those that others took the place of, with their set_at: a rollback asks for them."""
        self._noted: dict[str, tuple[float, float]] = {}
        """The same as the store has it: set_at and ruled_at."""
        self._unkept: dict[str, None] = {}
        """Those that are not in the store in their current form."""
        self.recalled = 0
        """How often notes were read."""
        self._clock = clock
        self._boot = boot
        now = clock.now()
        self._ahead_s = now.wall_s - now.mono_s
        """Of the monotonic clock."""
        self._goes_on = False

    def now_s(self) -> float:
        return self._clock.now().mono_s + self._ahead_s

    def mark(self) -> TimeMark:
        return TimeMark(self.now_s(), self._clock.now().wall_s, self._boot())

    def go_on_from(self, marks: list[TimeMark]) -> None:
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

    # --- how much of its time a change has used up ---------------------------------------------

    def term(self, set_at: float, end_s: float, *known: float | None) -> Term:
        """`known`: this time when it was set, if noted. A wall clock before the time of setting is
        behind: count from the time of setting. Time that was used up stays used up."""
        now, ruled_s = self._clock.now(), self.now_s()
        passed_s, term_s = max(0.0, now.wall_s - set_at), end_s - set_at
        # By a clock that is ahead it may seem to be over: that is not noted down.
        ruled_at = round(ruled_s - passed_s, 3) if passed_s < term_s else None
        for noted_at in known:
            if noted_at is not None:
                ruled_at, passed_s = noted_at, max(passed_s, ruled_s - noted_at)
        return Term(set_at, end_s, ruled_at, now.mono_s + term_s - passed_s)

    def ends_mono_s(self, name: str, set_at: float, end_s: float | None) -> float:
        """By when a change has ended, by the monotonic clock."""
        if end_s is None:
            self.forget(name)
            return math.inf
        known = self._to_note(name) or self._noted.get(name)
        noted_at = known[1] if known is not None and known[0] == set_at else None
        if noted_at is None and (past := self._past.pop((name, set_at), None)):
            noted_at = past.ruled_at
        if (before := self._terms.get(name)) and before.set_at != set_at:
            self._note_past(name, before)
        term = self._terms[name] = self.term(set_at, end_s, noted_at)
        if self._to_note(name) != self._noted.get(name):
            self._unkept[name] = None
        return term.ends_mono_s

    def is_used_up(self, name: str, set_at: float, end_s: float) -> bool:
        """Its time is over, though the wall clock, which was set back, says that some is left."""
        term = self._terms.get(name)
        if term is None or (term.set_at, term.end_s) != (set_at, end_s):
            self.ends_mono_s(name, set_at, end_s)
            term = self._terms[name]
        now = self._clock.now()
        return now.mono_s >= term.ends_mono_s and now.wall_s < end_s - STEP_S

    def has_ended(self, name: str) -> bool:
        term = self._terms.get(name)
        return term is not None and term.has_ended(self._clock.now())

    def has_used_up(self, item: Change, *, own: bool) -> bool:
        """The time of a change that is no rule is over. `own`: of the agent's own log."""
        logs = ("host" if item.reach == HERE else "shard", "own") if own else ("fleet",)
        now, set_at = self._clock.now(), counted_from(item)
        names = [f"{item.kind}/{log}/{item.id}" for log in logs]
        terms = [*map(self._terms.get, names), *(self._past.get((name, set_at)) for name in names)]
        return any(one and one.set_at == set_at and one.has_ended(now) for one in terms)

    def _note_past(self, name: str, term: Term) -> None:
        self._past[name, term.set_at] = term
        if len(self._past) > MAX_PAST:
            del self._past[next(iter(self._past))]

    def forget(self, name: str) -> None:
        if term := self._terms.pop(name, None):
            self._note_past(name, term)
        if name in self._noted:
            self._unkept[name] = None
        else:
            self._unkept.pop(name, None)

    def keep_only(self, prefix: str, names: Collection[str]) -> None:
        """Of those whose notes begin so."""
        for name in [*self._terms, *self._noted]:
            if name.startswith(prefix) and name.removeprefix(prefix) not in names:
                self.forget(name)

    @property
    def is_due(self) -> bool:
        """There is something to note."""
        return bool(self._unkept)

    @property
    def is_counted(self) -> bool:
        """There is a change whose time it is."""
        return bool(self._terms)

    # --- notes of it ---------------------------------------------------------------------------

    def recall(self, notes: Mapping[str, Mapping[str, Any]]) -> None:
        """What was noted before a restart."""
        for name, value in notes.items():
            set_at, ruled_at = value.get("set_at"), value.get("ruled_at")
            if isinstance(set_at, int | float) and isinstance(ruled_at, int | float):
                self._noted[name] = float(set_at), float(ruled_at)
        # What was counted until now was counted without them: it is taken up again.
        self._terms.clear()
        self._unkept.clear()
        self.recalled += 1

    def unkept(self) -> dict[str, Mapping[str, Any] | None]:
        """What there is to note; None: nothing any more."""
        mark = self.mark().written()
        found = {name: self._to_note(name) for name in self._unkept}
        return {
            name: None if one is None else {"set_at": one[0], "ruled_at": one[1], **mark}
            for name, one in found.items()
        }

    def is_noted(self, notes: Mapping[str, Mapping[str, Any] | None]) -> None:
        for name, value in notes.items():
            if value is None:
                self._noted.pop(name, None)
            else:
                self._noted[name] = value["set_at"], value["ruled_at"]
            if self._to_note(name) == self._noted.get(name):
                self._unkept.pop(name, None)

    def _to_note(self, name: str) -> tuple[float, float] | None:
        term = self._terms.get(name)
        return None if term is None or term.ruled_at is None else (term.set_at, term.ruled_at)


def iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat().replace("+00:00", "Z")
