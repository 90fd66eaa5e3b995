"""Time for changes that end: it follows the monotonic clock and never goes back.

Noted every few seconds (rules/notes.py) together with the wall clock and the time since the machine
booted. After a restart it goes on from there, plus what has passed
meanwhile: during the same boot by the time since boot, which cannot be set; after another boot by
the wall clock, if that is later. So a clock that is behind after a restart gives no change back the
time that it had used up before. The time at which a change was set is noted, too: for a rule with
the rest of it (rules/notes.py), for any other change here. A change that another one took the place
of keeps its note (PAST), whatever its kind: a rollback brings back what is left of it, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from headgate.base.ports import Clock
from headgate.changes.model import FORGET_AFTER_S, Change
from headgate.changes.reach import HERE
from headgate.changes.state import counted_from, ends_at
from headgate.metrics.samples import BootInstant, Instant

STEP_S = 1.0
"""A wall clock that moved by more than this against the monotonic one was set."""

PAST = "past/"
"""The notes of changes that others took the place of begin so."""
MAX_PAST = 10_000

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
    boot_id, _, seconds = str(given.get("boot") or "").rpartition(" ")
    boot: BootInstant | None = None
    with suppress(ValueError):
        if boot_id and math.isfinite(float(seconds)):
            boot = BootInstant(boot_id, float(seconds))
    return TimeMark(float(ruled_s), float(wall_s), boot)


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


class TermNote(NamedTuple):
    """A term as the store has it."""

    set_at: float
    ruled_at: float
    end_s: float | None
    """None: an older version has noted it."""

    def written(self) -> dict[str, Any]:
        end = {} if self.end_s is None else {"end_s": self.end_s}
        return {"set_at": self.set_at, "ruled_at": self.ruled_at, **end}


class ChangeTime:
    def __init__(self, clock: Clock, boot: Boot = no_boot) -> None:
        self._terms: dict[str, Term] = {}
        """Of changes that are no rules, by the name of their note."""
        self._past: dict[str, Term] = {}
        """Of those that others took the place of, rules too: a rollback asks for them."""
        self._noted: dict[str, TermNote] = {}
        """The same as the store has it."""
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
        before = self._terms.get(name) or self._noted.get(name)
        if before is not None and before.set_at != set_at:
            self._leave(name)
        known = self._to_note(name) or self._noted.get(name)
        is_same = known is not None and known.set_at == set_at
        noted_at = known.ruled_at if known and is_same else self.past_at(name, set_at)
        self._terms[name] = term = self.term(set_at, end_s, noted_at)
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
        """Its time is over, also if another change has taken its place: of a rule only then.
        `own`: of the agent's own log."""
        logs = ("host" if item.reach == HERE else "shard", "own") if own else ("fleet",)
        now, set_at = self._clock.now(), counted_from(item)
        names = [f"{item.kind}/{log}/{item.id}" for log in logs]
        past = (self._past.get(_past_name(name, set_at)) for name in names)
        terms = [one for one in (*map(self._terms.get, names), *past) if one]
        if (end_s := ends_at(item)) is not None:  # It may have had another end since.
            terms = [self.term(one.set_at, end_s, one.ruled_at) for one in terms]
        return any(one.set_at == set_at and one.has_ended(now) for one in terms)

    # --- others took their place ---------------------------------------------------------------

    def note_past(self, name: str, term: Term) -> None:
        """Another change takes the place of this one, or it is taken out."""
        if not math.isfinite(term.end_s):
            return
        past = _past_name(name, term.set_at)
        self._past[past] = term
        self._unkept[past] = None
        if len(self._past) > MAX_PAST:
            oldest = next(iter(self._past))
            del self._past[oldest]
            self._unkept[oldest] = None

    def past_at(self, name: str, set_at: float) -> float | None:
        """This time when it was set, of one whose place was another's; None: it is not known."""
        term = self._past.get(_past_name(name, set_at))
        return term.ruled_at if term is not None else None

    def _leave(self, name: str) -> None:
        """It may have lost its place while the agent did not run: then its note tells of it."""
        term, noted = self._terms.pop(name, None), self._noted.get(name)
        if term is None and noted is not None and noted.end_s is not None:
            term = self.term(noted.set_at, noted.end_s, noted.ruled_at)
        if term is not None:
            self.note_past(name, term)

    def forget(self, name: str) -> None:
        self._leave(name)
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
        return bool(self._terms or self._past)

    # --- notes of it ---------------------------------------------------------------------------

    def recall(self, notes: Mapping[str, Mapping[str, Any]]) -> None:
        """What was noted before a restart."""
        for name, value in notes.items():
            set_at, ruled_at, end_s = (value.get(key) for key in TermNote._fields)
            if isinstance(set_at, int | float) and isinstance(ruled_at, int | float):
                end_s = float(end_s) if isinstance(end_s, int | float) else None
                self._noted[name] = TermNote(float(set_at), float(ruled_at), end_s)
        # What was counted until now was counted without them: it is taken up again.
        self._terms.clear()
        self._unkept = {name: None for name in self._unkept if name.startswith(PAST)}
        over_s, ruled_s = self._clock.now().wall_s - FORGET_AFTER_S, self.now_s() - FORGET_AFTER_S
        for name, noted in self._noted.items():
            if not name.startswith(PAST) or noted.end_s is None or name in self._unkept:
                continue
            if noted.end_s < over_s and noted.ruled_at + noted.end_s - noted.set_at < ruled_s:
                self._unkept[name] = None  # By both clocks: one that leapt may come back.
            else:
                self._past[name] = self.term(noted.set_at, noted.end_s, noted.ruled_at)
        self.recalled += 1

    def unkept(self) -> dict[str, Mapping[str, Any] | None]:
        """What there is to note; None: nothing any more."""
        mark = self.mark().written()
        found = {name: self._to_note(name) for name in self._unkept}
        return {
            name: None if one is None else {**one.written(), **mark} for name, one in found.items()
        }

    def is_noted(self, notes: Mapping[str, Mapping[str, Any] | None]) -> None:
        for name, value in notes.items():
            if value is None:
                self._noted.pop(name, None)
            else:
                self._noted[name] = TermNote(value["set_at"], value["ruled_at"], value["end_s"])
            if self._to_note(name) == self._noted.get(name):
                self._unkept.pop(name, None)

    def _to_note(self, name: str) -> TermNote | None:
        term = self._terms.get(name) or self._past.get(name)
        if term is None or term.ruled_at is None:
            return None
        return TermNote(term.set_at, term.ruled_at, term.end_s)


def _past_name(name: str, set_at: float) -> str:
    return f"{PAST}{set_at!r}/{name}"
