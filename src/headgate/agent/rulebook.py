"""Keep the rules in force.   store ──load──► RuleKeeper ──RuleBook, whole──► checker
                    operators ──put, patch, lift──► store (with audit), then in force
                    fleet ──follow──► in force, then noted in the store (fleetrules.py)

A rule ends by the reader's comparison, not by anything here: what this loop drops has long
ceased to count. It only follows what a comparison cannot see: a wall clock that was set
back must not prolong a rule (R87), and schedules have to be worked out for the days ahead.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from headgate.agent.fleetrecords import FleetRecords
from headgate.agent.fleetrules import FleetRules
from headgate.agent.ports import Clock, Store
from headgate.agent.ruleadvice import RuleAdvisor
from headgate.agent.ruledrafts import RuleDrafts
from headgate.agent.rulerests import FleetRests
from headgate.agent.rulesinforce import SLICE, RulesInForce
from headgate.agent.rulesteps import (
    RULE,
    STEP_S,
    Origin,
    RuleEntry,
    Step,
    ends_at,
    favor_targets,
    mark_of,
    put_of,
    value_of,
)
from headgate.agent.ruletime import OURSELVES, Boot, MarkKeeper, RuleTime, no_boot
from headgate.agent.schedules import RENEW_S, check_zone
from headgate.core.fleet import Item
from headgate.core.lint import Advice, Severity
from headgate.core.reach import Place
from headgate.core.records import AuditEntry, Record
from headgate.core.rule_settings import (
    PAIRED,
    KnownMetrics,
    RuleLimits,
    RuleSpec,
    parse_kept,
)
from headgate.core.rules import EVERYONE, Kind, Rule, RuleBook
from headgate.core.samples import Instant
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, StoreUnavailable

__all__ = ["FAVOR_RATIO", "SLICE", "NoSuchRule", "RuleKeeper"]

log = structlog.get_logger()

LIFTED = "rule.lifted"
TICK_S = 1.0
FORGET_AFTER_S = 86_400.0
MAX_FORGOTTEN_AT_ONCE = 100
FAVOR_RATIO = 0.9
_UNCHANGED = Advice(Severity.WARNING, "unchanged", "rule", "nothing changed: it is so already")


class NoSuchRule(HeadgateError, LookupError):
    """A rule that is not kept here, or that has ended."""


def _new_id() -> str:
    return f"r-{secrets.token_hex(3)}"


class RuleKeeper:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        apply: Callable[[RuleBook], None],
        known_metrics: KnownMetrics,
        *,
        limits: RuleLimits = RuleLimits(),  # noqa: B008 -- frozen
        new_id: Callable[[], str] = _new_id,
        boot: Boot = no_boot,
    ) -> None:
        self._store = store
        self._clock = clock
        self.known_metrics = known_metrics
        self._limits = limits
        self._new_id = new_id
        self._time = RuleTime(clock, boot)
        self._marks = MarkKeeper(store, clock, self._time)
        self._drafts = RuleDrafts(clock, self._time, known_metrics, limits)
        self._fleet = FleetRules(self._time, limits.max_rules)
        self._records = FleetRecords(store, clock, self._fleet, self._time)
        self._rules = RulesInForce(clock, apply, self._fleet, known_metrics)
        self._advisor = RuleAdvisor()
        self._lock = asyncio.Lock()
        self.rests = FleetRests(store, clock, self._rules, self._lock)

    # --- looking ---------------------------------------------------------------------------

    @property
    def book(self) -> RuleBook:
        """The snapshot in force. Holds rules that ended within the day, too, for explain."""
        return self._rules.book

    def entries(self) -> list[tuple[RuleEntry, Rule]]:
        """Every rule that is kept, ended ones too, with the rule as it is judged by."""
        return self._rules.entries()

    def entry(self, rule_id: str) -> RuleEntry:
        entry = self._rules.known(rule_id)
        if entry is None:
            parts = self._fleet.ids_of(rule_id)
            known_as = f", but {', '.join(parts)}" if parts else ""
            message = (
                f"no rule {rule_id!r} is kept here{known_as}; `headgate rules --all` lists them"
            )
            raise NoSuchRule(message)
        return entry

    def is_own(self, rule_id: str) -> bool:
        """Was set at this agent, not for the fleet."""
        return rule_id in self._rules.own

    def parts_of(self, item_id: str) -> tuple[str, ...]:
        """The ids under which one of the fleet's is in force here."""
        return self._fleet.ids_of(item_id)

    @property
    def fleet_faults(self) -> Mapping[str, str]:
        """Of the fleet's rules: why one is not in force here as it was set."""
        return {**self._rules.unmeasured, **self._fleet.faults}

    def advice(self, spec: RuleSpec, known: KnownMetrics | None = None) -> tuple[Advice, ...]:
        """`known`: the metrics, for one who asks for many rules and has them already."""
        wall_s = self._clock.now().wall_s
        return self._advisor.advice(spec, self.book, known or self.known_metrics, wall_s)

    # --- from the store --------------------------------------------------------------------

    def load(self, records: Iterable[Record], marks: Iterable[Record] = ()) -> None:
        """What was set before, as the store kept it (or as much as could be salvaged). `marks`:
        how far the rules' time had come."""
        records = list(records)
        self._go_on_from(records, list(marks))
        known = {entry.id: entry for entry in map(self._kept_entry, records) if entry is not None}
        for entry in known.values():
            if entry.spec.pair and entry.spec.pair not in known:
                # Set together or not at all: the other one is of another version, or was lost.
                log.warning("rule.half_of_a_pair", rule=entry.id)
                known[entry.id] = replace(entry, spec=replace(entry.spec, lifted_by=OURSELVES))
        resting = {e.id: e.spec.suspended for e in self._rules.own.values() if e.spec.suspended}
        for rule_id in resting.keys() & known.keys():
            spec = replace(known[rule_id].spec, suspended=resting[rule_id])
            known[rule_id] = replace(known[rule_id], spec=spec)
        self._rules.replace_own(known)

    def _go_on_from(self, records: Iterable[Record], marks: Iterable[Record]) -> None:
        """Each change is a mark, too: none is older than what it belongs to."""
        of_rules = (mark_of(record) for record in records)
        found = [*self._marks.read(marks), *(mark for mark in of_rules if mark is not None)]
        self._time.go_on_from(found)

    def _kept_entry(self, record: Record) -> RuleEntry | None:
        try:
            spec = parse_kept(record.key, record.value, record.revision)
            if spec.schedule is not None:
                check_zone(spec.schedule)
        except InvalidSettings as error:
            # Kept by another version, or where other zones are known: say so, go on without.
            log.error("rule.kept_rule_refused", rule=record.key, fault=str(error))
            return None
        return self._entry(spec)

    def _entry(self, spec: RuleSpec) -> RuleEntry:
        """A clock that stands before the rule was set is behind: count from when it was. Nor
        does it get back what it had used up, whatever the clock says since (R87)."""
        now = self._clock.now()
        passed_s = max(0.0, now.wall_s - spec.set_at)
        if spec.ruled_at is not None:
            passed_s = max(passed_s, self._time.now_s() - spec.ruled_at)
        return RuleEntry(spec, now.mono_s + spec.rule.expires_at - spec.set_at - passed_s)

    # --- from the fleet --------------------------------------------------------------------

    async def follow(
        self, items: Sequence[Item], places: Sequence[Place], *, whole: bool = False
    ) -> None:
        """What is set for the fleet. `places`: where each database of this agent stands. In force
        at once, also where neither the fleet's store nor the agent's own can be reached.

        `whole`: these are all, from one who knows what came after what (Mirror), and what is
        missing is gone. Else they are some, and may be late: the higher n counts, and nothing is
        meant by one that is missing. What was heard before changes nothing in any case."""
        async with self._lock:
            if not self._records.is_tried:
                # Once: while the agent's own disk hangs, what comes after need not wait for it.
                await self._recall()
            outcome = self._fleet.news(items, places, whole=whole)
            if outcome is not None:
                await self._rules.take(outcome)
                said = {"rules": len(outcome.entries), "gone": len(outcome.gone)}
                log.info("rules.followed", **said, refused=len(outcome.faults))

    async def _recall(self) -> None:
        if entries := await self._records.recall():
            self._rules.put(entries)

    # --- changing --------------------------------------------------------------------------

    async def put(
        self, raw: Mapping[str, Any], *, who: str, dry_run: bool = False
    ) -> list[RuleEntry]:
        async with self._lock:
            spec = self._drafts.parsed(raw, who, self._free_id())
            self._check_vacant(spec.id)
            steps = [Step(spec, "rule.set", self._rules.own.get(spec.id))]
            return await self._carry_out(steps, who, dry_run=dry_run)

    async def favor(
        self,
        target: str,
        *,
        who: str,
        over: str = EVERYONE,
        ratio: float = FAVOR_RATIO,
        more: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> list[RuleEntry]:
        """De-prioritise all except the target (R76): two rules, set and lifted together.

        `more`: for, expires_at, schedule, database, reason; both rules have them.
        """
        async with self._lock:
            favored, reduced = favor_targets(target, over)
            reason = f"{target} is favored over {over}"
            shared = {"kind": Kind.RATIO.value, "reason": reason, **(more or {})}
            # One look at the clock: they end together.
            wall_s = self._drafts.wall_s()
            one = {**shared, "target": favored, "ratio": 0.0}
            first = self._drafts.parsed(one, who, self._free_id(), wall_s=wall_s)
            other = {**shared, "target": reduced, "ratio": ratio}
            second = self._drafts.parsed(other, who, self._free_id({first.id}), wall_s=wall_s)
            steps = [
                Step(replace(first, pair=second.id), "rule.set"),
                Step(replace(second, pair=first.id), "rule.set"),
            ]
            return await self._carry_out(steps, who, dry_run=dry_run)

    async def patch(
        self,
        rule_id: str,
        raw: Mapping[str, Any],
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> list[RuleEntry]:
        """Change some of it: its ratio alone, its end alone (R86). None takes a setting out."""
        async with self._lock:
            entry = self._changeable(rule_id, expect)
            if not raw:
                raise InvalidSettings([Fault("rule", "nothing to change: give a setting of it")])
            if endless := [key for key in PAIRED if key in raw and raw[key] is None]:
                message = "cannot be taken out: every rule ends; say how long, such as 2h"
                raise InvalidSettings([Fault(f"rule.{key}", message) for key in endless])
            action = "rule.extended" if raw.keys() <= set(PAIRED) else "rule.changed"
            steps = [Step(self._drafts.patched(entry, raw, who), action, entry)]
            end = {key: value for key, value in raw.items() if key in PAIRED}
            other = self._rules.own.get(entry.spec.pair)
            if end and other is not None and not self._rules.ended(other):
                steps.append(Step(self._drafts.patched(other, end, who), "rule.extended", other))
            if all(step.before is not None and step.spec == step.before.spec for step in steps):
                return [replace(entry, advice=(_UNCHANGED,))]
            return await self._carry_out(steps, who, dry_run=dry_run)

    async def lift(
        self, rule_id: str, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> list[RuleEntry]:
        """End it now, and the one that was set together with it."""
        async with self._lock:
            entry = self._changeable(rule_id, expect)
            other = self._rules.own.get(entry.spec.pair)
            both = [entry] if other is None or self._rules.ended(other) else [entry, other]
            wall_s = self._clock.now().wall_s
            steps = [
                Step(
                    replace(
                        one.spec, rule=replace(one.spec.rule, expires_at=wall_s), lifted_by=who
                    ),
                    LIFTED,
                    one,
                )
                for one in both
            ]
            return await self._carry_out(steps, who, dry_run=dry_run)

    async def suspend(self, rule_id: str, why: str) -> bool:
        """Have an exemption rest, at once; kept where the store can be written (R79)."""
        return await self._rest(rule_id, why, "rule.suspended")

    async def resume(self, rule_id: str) -> bool:
        return await self._rest(rule_id, "", "rule.resumed")

    async def _rest(self, rule_id: str, why: str, action: str) -> bool:
        async with self._lock:
            entry = self._rules.known(rule_id)
            if entry is None or entry.spec.rule.kind is not Kind.EXEMPT or self._rules.ended(entry):
                return False
            if bool(entry.spec.suspended) is bool(why):
                return False
            spec = replace(entry.spec, suspended=why)
            self._rules.put([replace(entry, spec=spec)])  # Before it is kept: it protects.
            log.warning(action, rule=rule_id, why=why)
            if entry.origin is not None:
                wall_s = self._clock.now().wall_s
                await self._records.keep_rest(replace(entry, spec=spec), action, wall_s)
                return True
            try:
                (spec,) = await self._keep([Step(spec, action, entry)], OURSELVES)
                self._rules.own[rule_id] = replace(entry, spec=spec)
            except (StoreUnavailable, Conflict) as error:
                log.error("rule.rests_unkept", rule=rule_id, detail=str(error))
            return True

    def charged(self, rule_id: str) -> Mapping[str, float]:
        """Whom an exemption has starved for how long, as it was charged last."""
        entry = self._rules.known(rule_id)
        return entry.spec.charged if entry is not None else {}

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None:
        """Note it with the rule, so that a restart does not refill its budget (R79)."""
        async with self._lock:
            entry = self._rules.known(rule_id)
            if entry is None or self._rules.ended(entry):
                return
            spec = replace(entry.spec, charged=charged)
            if entry.origin is not None:
                await self._records.note_charge(replace(entry, spec=spec))
                return
            self._rules.own[rule_id] = replace(entry, spec=spec)
            try:
                note = Record(RULE, rule_id, value_of(spec), spec.rule.revision)
                await self._store.note_record(note)
            except (StoreUnavailable, Conflict) as error:
                log.warning("rule.charge_unkept", rule=rule_id, detail=str(error))

    # --- steps of a change -----------------------------------------------------------------

    def _free_id(self, taken: Iterable[str] = ()) -> str:
        while True:
            rule_id = self._new_id()
            if self._rules.known(rule_id) is None and rule_id not in taken:
                return rule_id

    def _changeable(self, rule_id: str, expect: int | None) -> RuleEntry:
        entry = self.entry(rule_id)
        if entry.origin is not None:
            raise InvalidSettings([Fault(f"rule {rule_id}", _of_the_fleet(entry.origin))])
        revision = entry.spec.rule.revision
        if expect is not None and expect != revision:
            message = (
                f"rule {rule_id} is at revision {revision}, not {expect}: "
                "somebody changed it in between; look again and repeat"
            )
            raise Conflict(message)
        if self._rules.ended(entry):
            message = "has ended; what has ended is not changed: set it anew"
            raise InvalidSettings([Fault(f"rule {rule_id}", message)])
        return entry

    def _check_vacant(self, rule_id: str) -> None:
        entry = self._rules.known(rule_id)
        if entry is not None and entry.origin is not None:
            raise Conflict(f"rule {rule_id} is there already: it {_of_the_fleet(entry.origin)}")
        if entry is not None and not self._rules.ended(entry):
            revision = entry.spec.rule.revision
            message = f"rule {rule_id} is there already, at revision {revision}; change that one"
            raise Conflict(message)

    async def _carry_out(
        self, steps: Sequence[Step], who: str, *, dry_run: bool
    ) -> list[RuleEntry]:
        """All of them or none: kept first, in force after."""
        proposed = [replace(self._entry(s.spec), advice=self.advice(s.spec)) for s in steps]
        await self._make_room(sum(step.before is None for step in steps), dry_run=dry_run)
        if dry_run:
            return proposed
        kept = await self._keep(steps, who)
        entries = [
            replace(entry, spec=spec, ends_mono_s=self._ends_mono_s(entry, step))
            for entry, step, spec in zip(proposed, steps, kept, strict=True)
        ]
        # What was advised was so when it was set; whoever looks later is told what is so then.
        self._rules.put([replace(entry, advice=()) for entry in entries])
        return entries

    def _ends_mono_s(self, proposed: RuleEntry, step: Step) -> float:
        """Who changes a ratio alone does not give the rule more time."""
        if step.before is None or step.action == "rule.set":
            return proposed.ends_mono_s
        if step.spec.set_at != step.before.spec.set_at:
            return proposed.ends_mono_s
        return min(proposed.ends_mono_s, step.before.ends_mono_s)

    async def _make_room(self, wanted: int, *, dry_run: bool) -> None:
        """Rules that ended are kept for a day, but not in the way of others."""
        over = len(self._rules.own) + wanted - self._limits.max_rules
        if over <= 0:
            return
        ended = sorted(filter(self._rules.ended, self._rules.own.values()), key=ends_at)
        if len(ended) < over:
            message = (
                f"{len(self._rules.own)} rules are kept, at most {self._limits.max_rules}; lift "
                "some, or set one on a category instead of many on its clients"
            )
            raise InvalidSettings([Fault("rules", message)])
        if not dry_run:
            for entry in ended[:over]:
                await self._forget(entry)

    async def _keep(self, steps: Sequence[Step], who: str) -> list[RuleSpec]:
        """The specs under their new revisions: all are kept, in one transaction, or none."""
        wall_s = self._clock.now().wall_s
        puts = [put_of(step, who, wall_s) for step in steps]
        lifts = all(step.action == LIFTED for step in steps)
        kept = await self._store.put_records(puts, must_fit=lifts)
        for step in steps:
            log.info(step.action, rule=step.spec.id, target=step.spec.rule.target, who=who)
        return [
            replace(step.spec, rule=replace(step.spec.rule, revision=record.revision))
            for step, record in zip(steps, kept, strict=True)
        ]

    # --- each second -----------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the clock. A check never waits for this, and ends no later without it."""
        while True:
            await self._clock.sleep(TICK_S)
            now = self._clock.now()
            passed_s = now.mono_s - self._rules.built_at.mono_s
            stepped_s = now.wall_s - self._rules.built_at.wall_s - passed_s
            if abs(stepped_s) > STEP_S:
                log.warning("rules.clock_was_set", by_s=round(stepped_s, 3))
            otherwise = self._rules.is_measured_otherwise()
            if abs(stepped_s) > STEP_S or passed_s >= RENEW_S or otherwise:
                async with self._lock:
                    await self._rules.renew(now)
                    await self._forget_ended(now)
                    await self._rules.forget_of_fleet(now)
            if self._fleet.unkept or not self._fleet.is_recalled:
                await self.keep_fleet()
            if self.book.rules:
                await self._marks.keep_when_due()

    async def keep_fleet(self) -> None:
        """Note down what has changed of the fleet's rules, for the time after a restart. A batch
        at a time: who changes a rule of this agent waits for none but one."""
        if not self._fleet.is_followed:
            return
        more = True
        while more:
            async with self._lock:
                await self._recall()
                more = await self._records.keep()

    async def _forget_ended(self, now: Instant) -> None:
        """By both clocks: a wall clock that leapt ahead may come back."""
        old = [
            entry
            for entry, rule in self.entries()
            if rule.expires_at < now.wall_s - FORGET_AFTER_S
            and entry.ends_mono_s <= now.mono_s
            and entry.origin is None
        ]
        try:
            for entry in old[:MAX_FORGOTTEN_AT_ONCE]:
                await self._forget(entry)
        except (StoreUnavailable, Conflict) as error:
            log.warning("rules.not_forgotten", detail=str(error))
        if gone := [entry.id for entry in old if entry.id not in self._rules.own]:
            self._rules.drop(gone)

    async def _forget(self, entry: RuleEntry) -> None:
        now = self._clock.now()
        was = value_of(entry.spec)
        audit = AuditEntry(now.wall_s, OURSELVES, "rule.forgotten", entry.id, was, None)
        await self._store.put_record(Record(RULE, entry.id, None, entry.spec.rule.revision), audit)
        del self._rules.own[entry.id]


def _of_the_fleet(origin: Origin) -> str:
    return (
        f"was set for the fleet ({origin.reach}, revision {origin.n}) by {origin.set_by}; change "
        f"or lift {origin.item_id} there: by an agent that has [fleet] settings, with `headgate "
        "rule` or `headgate fleet apply`"
    )
