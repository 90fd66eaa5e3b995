"""What an agent notes about changes, in its own log.   FollowedRules ◄──► notes/rule/<id>
                                                        ChangeTime ◄──► notes/term/<kind>/…

Changes are in force before anything is noted, and whether or not it can be: notes are for the time
after a restart, and for the audit, which shows the past of a fleet's rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

import structlog

from headgate.agent.changetime import ChangeTime, TimeMark, parse_mark
from headgate.agent.followedrules import FollowedRules, Note
from headgate.agent.ports import Clock, OwnStore
from headgate.agent.rulesteps import RuleEntry, mark_of
from headgate.core.change import NOTES, ChangeKind, Item, quoted, unquoted
from headgate.core.keyvalue import Entry, Put
from headgate.core.reach import HERE
from headgate.core.stored import read_object
from headgate.errors import Conflict, StoreUnavailable

log = structlog.get_logger()

RULES = f"{NOTES}rule/"
RULE_TIME = f"{NOTES}rule_time"
"""The time of changes so far (changetime.py)."""
TERMS = f"{NOTES}term/"
"""That time when a change was set that ends and is no rule."""
MAX_PUTS = 250
"""In one transaction: others wait for the store, too."""
KEEP_TIME_S = 10.0
NO_TERMS: Mapping[str, Mapping[str, Any] | None] = MappingProxyType({})


class ChangeNotes:
    def __init__(
        self, store: OwnStore, clock: Clock, rules: Sequence[FollowedRules], time: ChangeTime
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

    async def recall(self) -> list[RuleEntry]:
        """What was noted before a restart: as much as can be read now, and all of it later.
        Tells which rules in force are otherwise by it."""
        if self._is_recalled:
            return []
        self.is_tried = True
        entries: Sequence[Entry]
        try:
            entries = (await self._store.list((NOTES,))).entries
            self._is_recalled = True
        except StoreUnavailable as error:
            self._tell(error)
            if self._salvaged:
                return []
            entries = await self._salvage()
        notes = dict(_notes(entries))
        self._time.go_on_from([mark for value in notes.values() if (mark := parse_mark(value))])
        self._time.recall(_under(TERMS, notes))
        of_rules = _under(RULES, notes)
        return [entry for rules in self._rules for entry in rules.recall(of_rules)]

    async def _salvage(self) -> Sequence[Entry]:
        try:
            entries = (await self._store.salvage_list((NOTES,))).entries
            self._salvaged = True
            return entries
        except StoreUnavailable:
            return ()

    def go_on_from(self, items: Iterable[Item]) -> None:
        """Each rule that was set here is a mark, too: none is older than what it belongs to."""
        marks: list[TimeMark] = [
            mark
            for item in items
            if item.kind == ChangeKind.RULE and item.reach == HERE and item.value is not None
            if (mark := mark_of(item.value)) is not None
        ]
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

    async def keep_rest(self, entry: RuleEntry, action: str, who: str = "") -> None:
        """Note that it is suspended, or not any more; it is in force already. Raises on failure."""
        wall_s = self._clock.now().wall_s
        rules = self._of(entry.id)
        rules.replaced(entry, wall_s)
        if not self._is_recalled:
            return
        note = rules.note_of(entry.id, wall_s, action, who)
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
        self, notes: Sequence[Note], terms: Mapping[str, Mapping[str, Any] | None] = NO_TERMS
    ) -> None:
        values = {f"{RULES}{quoted(note.rule_id)}": note.value for note in notes}
        values |= {f"{TERMS}{quoted(name)}": value for name, value in terms.items()}
        puts = [Put(key, None if one is None else _bytes(one)) for key, one in values.items()]
        audit = [note.audit for note in notes if note.audit is not None]
        await self._store.commit((), puts, audit=audit)

    def _of(self, rule_id: str) -> FollowedRules:
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
