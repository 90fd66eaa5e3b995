"""Have a rule of others rest at one agent.   operator ──► RuleRests ──► RulesInForce, ChangeNotes

For the time when the fleet's store cannot be reached, or has lost it, or nobody leads the shard:
then nobody can lift it, and it would stop work here until its own end. It is this agent's alone,
and kept in its own store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import structlog

from headgate.agent.changenotes import ChangeNotes
from headgate.agent.followedrules import item_of
from headgate.agent.ports import Clock
from headgate.agent.rulesinforce import RulesInForce
from headgate.agent.rulesteps import RuleEntry
from headgate.core.lint import Advice, Severity
from headgate.errors import Conflict, Fault, InvalidSettings, StoreUnavailable

log = structlog.get_logger()

RESTED, RESUMED = "rule.rested", "rule.resumed"
MAX_REASON_CHARS = 500


class RuleRests:
    def __init__(
        self, clock: Clock, rules: RulesInForce, notes: ChangeNotes, lock: asyncio.Lock
    ) -> None:
        """`lock`: the keeper's, who changes the same rules."""
        self._clock = clock
        self._notes = notes
        self._rules = rules
        self._lock = lock

    async def put(
        self, rule_id: str, reason: str, *, who: str, dry_run: bool = False
    ) -> list[RuleEntry]:
        """All that is in force of it here, with what was set together with it."""
        if not 1 <= len(reason) <= MAX_REASON_CHARS:
            message = f"is needed, of up to {MAX_REASON_CHARS} characters: others will ask"
            raise InvalidSettings([Fault("rest.reason", message)])
        async with self._lock:
            return await self._set(rule_id, f"rests here by {who}: {reason}", who, dry_run=dry_run)

    async def end(self, rule_id: str, *, who: str, dry_run: bool = False) -> list[RuleEntry]:
        async with self._lock:
            return await self._set(rule_id, "", who, dry_run=dry_run)

    async def _set(self, rule_id: str, why: str, who: str, *, dry_run: bool) -> list[RuleEntry]:
        found = list(self._concerned(rule_id))
        if not found:
            message = (
                "is no rule of the fleet or of a shard that is in force here; one of this agent's "
                "own is ended with `headgate rule lift`"
            )
            raise InvalidSettings([Fault(f"rule {rule_id}", message)])
        entries = [replace(one, spec=replace(one.spec, suspended=why)) for one in found]
        if dry_run:
            return entries
        # In force before it is kept: what cannot be kept holds until a restart, and is told.
        self._rules.put(entries)
        action = RESTED if why else RESUMED
        log.warning(action, rule=rule_id, who=who, why=why)
        return [await self._kept(entry, action, who) for entry in entries]

    def _concerned(self, rule_id: str) -> Iterator[RuleEntry]:
        """By the item's id all of its parts; by that of a part, that one."""
        _, *others = self._rules.logs
        for log in others:
            named = [rule_id] if rule_id in log.entries else log.ids_of(rule_id)
            for name in named:
                entry = log.entries[name]
                if self._rules.ended(entry):
                    continue
                yield entry
                pair = log.ids_of(item_of(entry.spec.pair)) if entry.spec.pair else ()
                for other in pair:
                    if other not in named and not self._rules.ended(log.entries[other]):
                        yield log.entries[other]

    async def _kept(self, entry: RuleEntry, action: str, who: str) -> RuleEntry:
        try:
            await self._notes.keep_rest(entry, action, who)
        except (StoreUnavailable, Conflict) as error:
            log.error("rule.rests_unkept", rule=entry.id, detail=str(error))
            message = f"is so until a restart: this agent's own store did not take it ({error})"
            return replace(entry, advice=(Advice(Severity.WARNING, "unkept", entry.id, message),))
        return entry
