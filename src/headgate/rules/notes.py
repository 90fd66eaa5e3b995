"""What an agent notes of its changes, for the time after a restart.

RuleKeeper ──► ChangeNotes ──► notes/ of the agent's own log      RuleNotes: of the rules of one log

What only this agent knows about a rule is noted here, and never in a log that others read: how much
of its time is used up by the rules' own clock, whether it is suspended, and which clients it has
starved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from headgate.base.declared import parse_date_time
from headgate.base.keyvalue import Entry, Put, read_object
from headgate.base.ports import ChangeLog, Clock
from headgate.changes.model import NOTES, OURSELVES, Change, ChangeKind, quoted, unquoted
from headgate.changes.reach import HERE
from headgate.changes.time import ChangeTime, TimeMark, parse_mark
from headgate.errors import Conflict, InvalidSettings, StoreUnavailable
from headgate.history.records import AuditEntry
from headgate.rules.drafts import RuleEntry, value_of
from headgate.rules.settings import RuleSpec, parse_kept

log = structlog.get_logger()

RULES = f"{NOTES}rule/"
RULE_TIME = f"{NOTES}rule_time"
"""The time of changes so far (changes/time.py)."""
TERMS = f"{NOTES}term/"
"""That time when a change was set that ends and is no rule."""
MAX_PUTS = 250
"""In one transaction: others wait for the store, too."""
KEEP_TIME_S = 10.0
NO_TERMS: Mapping[str, Mapping[str, Any] | None] = MappingProxyType({})


class RuleNote(NamedTuple):
    """What the agent notes of a rule."""

    rule_id: str
    value: Mapping[str, Any] | None
    """None: nothing is to be kept of it."""
    audit: AuditEntry | None
    """So that the audit has the past of a fleet's rule, too; the agent's own log has an entry for
    each change already."""


class RuleNotes:
    """Of the rules of one log."""

    def __init__(
        self,
        time: ChangeTime,
        entries: Mapping[str, RuleEntry],
        items: Mapping[str, Change],
        *,
        own: bool,
        shard: bool,
    ) -> None:
        """`entries`, `items`: as they are in force, and as the log has them."""
        self._time = time
        self.entries = entries
        self._items = items
        self._own = own
        self._shard = shard
        self.noted: dict[str, RuleSpec] = {}
        """As the store has it."""
        self.unkept: dict[str, float] = {}
        """Rules that are not in the store in their current form; since when (wall clock)."""

    def recall(self, notes: Mapping[str, Mapping[str, Any]]) -> None:
        """What was known of them before a restart."""
        self.noted = {}
        for rule_id, value in notes.items():
            here = value.get("reach") == str(HERE)
            own = here or value.get("own") is True
            if own is not self._own or (own and here is self._shard):
                continue
            try:
                self.noted[rule_id] = parse_kept(rule_id, value.get("rule"), value.get("n", 0))
            except InvalidSettings as error:
                log.error("rule.note_rejected", rule=rule_id, fault=str(error))

    def changed(self, entry: RuleEntry, wall_s: float) -> None:
        noted = self.noted.get(entry.id)
        if noted == entry.spec:
            self.noted[entry.id] = entry.spec  # One of both is enough.
        elif noted is not None or self._says_more(entry):
            self.unkept.setdefault(entry.id, wall_s)

    def _says_more(self, entry: RuleEntry) -> bool:
        """Than its item does, which is in the agent's own log: only that has to be noted."""
        if not self._own or self._shard:
            return True
        item, spec = self._items.get(entry.origin.item_id), entry.spec
        said = None if item is None or item.value is None else item.value.get("ruled_at")
        return bool(spec.suspended or spec.charged) or said is None or said != spec.ruled_at

    def charged(self, entry: RuleEntry) -> RuleNote | None:
        """What to note of it; None where that is due in any case, with all of it."""
        if entry.id in self.unkept:
            return None
        self.noted[entry.id] = entry.spec
        return RuleNote(entry.id, self._note_value(entry), None)

    def note_of(self, rule_id: str, wall_s: float, action: str = "", who: str = "") -> RuleNote:
        """What there is to note of it. `action`: an operator (`who`) or the agent made it so."""
        noted, entry = self.noted.get(rule_id), self.entries.get(rule_id)
        was = value_of(noted) if noted else None
        if entry is None:
            audit = AuditEntry(wall_s, OURSELVES, "rule.unfollowed", rule_id, was, None)
            return RuleNote(rule_id, None, None if self._own else audit)
        by = (who or OURSELVES) if action else entry.origin.set_by
        now = value_of(entry.spec)
        audit = AuditEntry(wall_s, by, action or "rule.followed", rule_id, was, now)
        is_told = self._own and not action
        value = self._note_value(entry) if self._says_more(entry) else None
        return RuleNote(rule_id, value, None if is_told else audit)

    def _note_value(self, entry: RuleEntry) -> Mapping[str, Any]:
        origin = {"reach": str(entry.origin.reach), "n": entry.origin.n, "own": self._own}
        return {**origin, **self._time.mark().written(), "rule": value_of(entry.spec)}

    def is_noted(self, notes: Iterable[RuleNote]) -> None:
        for note in notes:
            self.unkept.pop(note.rule_id, None)
            entry = self.entries.get(note.rule_id)
            if note.value is None or entry is None:
                self.noted.pop(note.rule_id, None)
            else:
                self.noted[note.rule_id] = entry.spec

    def has_no_note(self, rule_id: str) -> bool:
        """Gone before anything was noted: nothing has to be taken out."""
        return rule_id not in self.entries and rule_id not in self.noted


class ChangeNotes:
    """What an agent notes of its changes, in its own log: of rules notes/rule/<id>, of the time of
    others that end notes/term/<kind>/….

    Changes are in force before anything is noted, and whether or not it can be: notes are for
    the time after a restart, and for the audit, which shows the past of a fleet's rules.
    """

    def __init__(
        self, store: ChangeLog, clock: Clock, rules: Sequence[RuleNotes], time: ChangeTime
    ) -> None:
        """`rules`: of the agent's own log first."""
        self._store = store
        self._clock = clock
        self._rules = rules
        self._time = time
        self._fault = ""
        self._salvaged = False
        self._is_recalled = False
        """The notes in the store have been read."""
        self._time_kept_at = float("-inf")
        self.is_tried = False
        """The first read of the store has ended, with or without success."""

    # --- from the store --------------------------------------------------------------------

    async def recall(self) -> bool:
        """What was noted before a restart: as much as can be read now, and all of it later. Whether
        there is something new."""
        if self._is_recalled:
            return False
        self.is_tried = True
        entries: Sequence[Entry] = ()
        try:
            entries = (await self._store.list((NOTES,))).entries
            self._is_recalled = True
        except StoreUnavailable as error:
            self._tell(error)
            if self._salvaged:
                return False
            with suppress(StoreUnavailable):
                entries = (await self._store.list((NOTES,), allow_stale=True)).entries
                self._salvaged = True
        notes = dict(_notes(entries))
        self._time.go_on_from([mark for value in notes.values() if (mark := parse_mark(value))])
        self._time.recall(_under(TERMS, notes))
        of_rules = _under(RULES, notes)
        for rules in self._rules:
            rules.recall(of_rules)
        return True

    def go_on_from(self, items: Iterable[Change]) -> None:
        """Each rule that was set here is a mark, too: none is older than what it belongs to. It
        tells how far time had come when its end was set, by both clocks."""
        marks: list[TimeMark] = []
        for item in items:
            if item.kind != ChangeKind.RULE or item.reach != HERE or item.value is None:
                continue
            with suppress(ValueError):
                set_at = parse_date_time(item.value.get("set_at"))
                mark = parse_mark({"ruled_s": item.value.get("ruled_at"), "wall_s": set_at})
                marks += [mark] if mark else []
        self._time.go_on_from(marks)

    # --- into the store --------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        return (
            any(rules.unkept for rules in self._rules) or self._time.is_due or not self._is_recalled
        )

    async def keep(self) -> bool:
        """Some of what has changed; whether there is more that the store may take now."""
        if not self._is_recalled:
            return False
        for rules in self._rules:
            for rule_id in [name for name in rules.unkept if rules.has_no_note(name)]:
                del rules.unkept[rule_id]
        due = [
            (rules, [rules.note_of(*one) for one in islice(rules.unkept.items(), MAX_PUTS)])
            for rules in self._rules
        ]
        terms = dict(islice(self._time.unkept().items(), MAX_PUTS))
        if not terms and not any(notes for _, notes in due):
            return False
        try:
            await self._put([note for _, notes in due for note in notes], terms)
        except StoreUnavailable as error:
            self._tell(error)
            return False
        for rules, notes in due:
            rules.is_noted(notes)
        self._time.is_noted(terms)
        self._fault = ""
        return any(rules.unkept for rules in self._rules)

    async def keep_suspension(self, rule_id: str, action: str, who: str = "") -> None:
        """Note that it is suspended, or not any more; it is in force already. Raises on failure."""
        wall_s, rules = self._clock.now().wall_s, self._of(rule_id)
        rules.unkept[rule_id] = wall_s
        if not self._is_recalled:
            return
        note = rules.note_of(rule_id, wall_s, action, who)
        await self._put([note])
        rules.is_noted([note])

    async def note_charge(self, entry: RuleEntry) -> None:
        note = self._of(entry.id).charged(entry)
        if note is None:
            await self.keep()  # With all the rest that is due of it.
            return
        try:
            await self._put([note])
        except StoreUnavailable as error:
            log.warning("rule.charge_unkept", rule=entry.id, detail=str(error))

    async def keep_time(self) -> None:
        """Every few seconds. A fault of the store is reported elsewhere; this is tried again."""
        mono_s = self._clock.now().mono_s
        if mono_s - self._time_kept_at < KEEP_TIME_S:
            return
        self._time_kept_at = mono_s
        try:
            put = Put(RULE_TIME, _bytes(self._time.mark().written()))
            await self._store.commit((), (put,))
        except (StoreUnavailable, Conflict) as error:
            log.warning("rules.time_unkept", detail=str(error))

    async def _put(
        self, notes: Sequence[RuleNote], terms: Mapping[str, Mapping[str, Any] | None] = NO_TERMS
    ) -> None:
        values = {f"{RULES}{quoted(note.rule_id)}": note.value for note in notes}
        values |= {f"{TERMS}{quoted(name)}": value for name, value in terms.items()}
        puts = [Put(key, None if one is None else _bytes(one)) for key, one in values.items()]
        audit = [note.audit for note in notes if note.audit is not None]
        await self._store.commit((), puts, audit=audit)

    def _of(self, rule_id: str) -> RuleNotes:
        return next((r for r in self._rules if rule_id in r.entries), self._rules[-1])

    def _tell(self, error: Exception) -> None:
        """Once: it is tried each second."""
        if not self._fault:
            log.warning("rules.notes_unkept", detail=str(error))
        self._fault = str(error)


def _under(prefix: str, notes: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {
        unquoted(key.removeprefix(prefix)): value
        for key, value in notes.items()
        if key.startswith(prefix)
    }


def _notes(entries: Iterable[Entry]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for entry in entries:
        try:
            yield entry.key, read_object(entry.value)
        except ValueError as error:
            log.error("rules.note_unreadable", key=entry.key, fault=str(error))


def _bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
