"""What an agent knows of the fleet's rules, in its own store.   FleetRules ◄──► Store

They are in force before they are kept, and whether or not they can be: this is for the time
after a restart (R79, R87), and for the audit, by which their past is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import structlog

from headgate.agent.fleetrules import FLEET_RULE, FleetRules, marks_of
from headgate.agent.ports import Clock, Store
from headgate.agent.rulesteps import RuleEntry
from headgate.agent.ruletime import RuleTime
from headgate.core.records import Record
from headgate.errors import Conflict, InvalidSettings, StoreUnavailable

log = structlog.get_logger()

MAX_PUTS = 250
"""In one transaction: others wait for the store, too."""


class FleetRecords:
    def __init__(self, store: Store, clock: Clock, rules: FleetRules, time: RuleTime) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._time = time
        self._fault = ""
        self._salvaged = False
        self.is_tried = False
        """The store was asked, whatever it said."""

    async def recall(self) -> list[RuleEntry]:
        """What was known before a restart: as much as can be read now, and all of it later.
        Tells which rules in force are otherwise by it."""
        if self._rules.is_recalled:
            return []
        self.is_tried = True
        try:
            records = await self._store.records(FLEET_RULE)
            self._rules.is_recalled = True
        except StoreUnavailable as error:
            self._tell(error)
            if self._salvaged:
                return []
            records = await self._salvage()
        self._time.go_on_from(marks_of(records))
        return self._rules.recall(records, self._clock.now())

    async def _salvage(self) -> Sequence[Record]:
        try:
            records = await self._store.salvage_records(FLEET_RULE)
            self._salvaged = True
            return records
        except StoreUnavailable:
            return ()

    async def keep(self) -> bool:
        """Some of what has changed; whether there is more that the store may take now."""
        rules = self._rules
        for rule_id in [name for name in rules.unkept if rules.has_no_record(name)]:
            del rules.unkept[rule_id]
        due = list(islice(rules.unkept.items(), MAX_PUTS))
        if not due or not rules.is_recalled:
            return False
        try:
            puts = [rules.put_of(rule_id, wall_s) for rule_id, wall_s in due]
            rules.is_kept(await self._store.put_records(puts))
        except (StoreUnavailable, Conflict, InvalidSettings) as error:
            self._tell(error)
            # Somebody else has put them since: look again before the next try.
            rules.is_recalled = not isinstance(error, Conflict)
            return False
        self._fault = ""
        return bool(rules.unkept)

    async def keep_rest(self, entry: RuleEntry, action: str, wall_s: float) -> None:
        """That it rests, or goes on, which is in force already."""
        self._rules.replaced(entry, wall_s)
        if not self._rules.is_recalled:
            return
        try:
            put = self._rules.put_of(entry.id, wall_s, action)
            self._rules.is_kept(await self._store.put_records([put]))
        except (StoreUnavailable, Conflict) as error:
            log.error("rule.rests_unkept", rule=entry.id, detail=str(error))

    async def note_charge(self, entry: RuleEntry) -> None:
        note = self._rules.charged(entry)
        if note is None:
            return
        try:
            await self._store.note_record(note)
        except (StoreUnavailable, Conflict) as error:
            log.warning("rule.charge_unkept", rule=entry.id, detail=str(error))

    def _tell(self, error: Exception) -> None:
        """Once: it is tried each second."""
        if not self._fault:
            log.warning("rules.fleet_rules_unkept", detail=str(error))
        self._fault = str(error)
