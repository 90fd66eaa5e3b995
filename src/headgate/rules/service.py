"""Keep the rules in force.   logs ──follow──► RuleKeeper ──RuleBook, whole──► checker

Changes come from two logs: the agent's own, with those of its shards, and the one that a fleet
shares. What only this agent knows about a rule, it notes itself (ChangeNotes).

A rule ends by the reader's comparison, not by anything here: what this loop drops has no effect
any more. It only handles what a comparison cannot see: setting the wall clock back must not
prolong a rule, and schedules have to be computed for the days ahead.
"""

from __future__ import annotations

import asyncio
import json
from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import structlog

from headgate.base.keyvalue import Entry, Put, read_object
from headgate.base.ports import ChangeLog, Clock
from headgate.changes.model import NOTES, Change, ChangeKind, quoted, unquoted
from headgate.changes.reach import HERE, Place
from headgate.changes.state import counted_from, ends_at
from headgate.changes.time import STEP_S, ChangeTime, TimeMark, parse_mark
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, StoreUnavailable
from headgate.metrics.lint import Advice, Severity
from headgate.metrics.samples import Instant
from headgate.rules.followed import (
    NEVER,
    FollowedRules,
    RuleEntry,
    RuleNote,
    RuleUpdate,
    item_of,
    mark_of,
)
from headgate.rules.matching import NO_RULES, Kind, Rule, RuleBook, RuleBookDraft
from headgate.rules.schedules import RENEW_S
from headgate.rules.settings import (
    KnownMetrics,
    RuleLimits,
    RuleSpec,
    Sparing,
    advise,
    not_held,
)

__all__ = ["SLICE", "NoSuchRule", "RuleKeeper"]

log = structlog.get_logger()

TICK_S = 1.0
MAX_FORGOTTEN_AT_ONCE = 100

Forget = Callable[[Sequence[str]], Awaitable[None]]
"""Removes rules that ended a day ago from the agent's own log."""
RESTED, RESUMED = "rule.rested", "rule.resumed"
MAX_REASON_CHARS = 500
MAX_COMPARED = 20
"""With so many of the same target."""


class NoSuchRule(HeadgateError, LookupError):
    """A rule that is not in force here."""


async def _nothing(rule_ids: Sequence[str]) -> None:
    return


class RuleKeeper:
    def __init__(
        self,
        store: ChangeLog,
        clock: Clock,
        apply: Callable[[RuleBook], None],
        known_metrics: KnownMetrics,
        *,
        limits: RuleLimits = RuleLimits(),  # noqa: B008 -- frozen
        time: ChangeTime | None = None,
        forget: Forget = _nothing,
    ) -> None:
        self._clock = clock
        self.known_metrics = known_metrics
        self.time = time or ChangeTime(clock)
        self.forget = forget
        most = limits.max_rules
        logs = Logs(
            FollowedRules(self.time, most, own=True),
            FollowedRules(self.time, most, own=True, shard=True),
            FollowedRules(self.time, most),
        )
        self._rules = RulesInForce(clock, apply, logs, known_metrics)
        self._notes = ChangeNotes(store, clock, logs, self.time)
        self._advisor = RuleAdvisor()
        self._lock = asyncio.Lock()
        self.rests = RuleRests(clock, self._rules, self._notes, self._lock)

    # --- looking ---------------------------------------------------------------------------

    @property
    def book(self) -> RuleBook:
        """The snapshot in force. Holds rules that ended within the day, too, for explain."""
        return self._rules.book

    def entries(self) -> list[tuple[RuleEntry, Rule]]:
        """Every known rule, ended ones too, with the rule in its effective form."""
        return self._rules.entries()

    def entry(self, rule_id: str) -> RuleEntry:
        entry = self._rules.known(rule_id)
        if entry is None:
            parts = self.parts_of(rule_id)
            known_as = f", but {', '.join(parts)}" if parts else ""
            message = (
                f"no rule {rule_id!r} exists here{known_as}; `headgate rules --all` lists them"
            )
            raise NoSuchRule(message)
        return entry

    def is_own(self, rule_id: str) -> bool:
        """Is of this agent's own log."""
        own, shard, _ = self._rules.logs
        return any(log.ids_of(rule_id) or rule_id in log.entries for log in (own, shard))

    def has_ended(self, item: Change, *, own: bool) -> bool:
        """A change of any kind, by the time that changes count. `own`: of the agent's own log."""
        if item.kind != ChangeKind.RULE:
            return self.time.has_used_up(item, own=own)
        logs = self._rules.logs
        log = logs.fleet if not own else logs.own if item.reach == HERE else logs.shard
        found = (log.entries.get(rule_id) for rule_id in log.ids_of(item.id))
        entries = [entry for entry in found if entry is not None and entry.origin.n == item.n]
        if entries or not own:
            return any(map(self._rules.ended, entries))
        return item.reach == HERE and self._has_used_up(item)

    def _has_used_up(self, item: Change) -> bool:
        """Of a rule that is no longer so: it says itself where its time was."""
        ruled_at, end_s = (item.value or {}).get("ruled_at"), ends_at(item)
        if not isinstance(ruled_at, int | float) or end_s is None:
            return False
        return self.time.term(counted_from(item), end_s, ruled_at).has_ended(self._clock.now())

    def parts_of(self, item_id: str) -> tuple[str, ...]:
        """The ids under which a change of a log is in force here."""
        return next((ids for log in self._rules.logs if (ids := log.ids_of(item_id))), ())

    @property
    def faults(self) -> Mapping[str, str]:
        """Rules that are not in force here as they were set, and why."""
        return ChainMap(self._rules.unmeasured, *(log.faults for log in self._rules.logs))

    def advice(self, spec: RuleSpec, known: KnownMetrics | None = None) -> tuple[Advice, ...]:
        """`known`: the metrics, for a caller with many rules that has them already."""
        wall_s = self._clock.now().wall_s
        return self._advisor.advice(spec, self.book, known or self.known_metrics, wall_s)

    # --- from the logs ---------------------------------------------------------------------

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        """What is set. `places`: where each database of this agent is. `own`: from the agent's
        own log. In force at once, even if neither log can be reached.

        `whole`: these are all, from a source that knows their order, and what is missing is gone.
        Else they are some, and may be late: the higher n counts, and a missing one means nothing.
        What is known already changes nothing in any case."""
        async with self._lock:
            if not self._notes.is_tried or (own and whole):
                # Once, and where the own log was just read: while the agent's own disk hangs, what
                # comes after need not wait for it.
                await self._recall()
            if own:
                self._notes.go_on_from(items)
            logs = self._rules.logs
            if not own:
                await self._follow(logs.fleet, items, places, whole=whole)
                return
            here = [item for item in items if item.reach == HERE]
            await self._follow(logs.own, here, places, whole=whole)
            others = [item for item in items if item.reach != HERE]
            await self._follow(logs.shard, others, places, whole=whole)

    async def _follow(
        self, of: FollowedRules, items: Sequence[Change], places: Sequence[Place], *, whole: bool
    ) -> None:
        outcome = of.news(items, places, whole=whole)
        if outcome is not None:
            await self._rules.take(of, outcome)
            said = {"rules": len(outcome.entries), "gone": len(outcome.gone)}
            log.info("rules.followed", **said, rejected=len(outcome.faults), reach=of.name)

    async def _recall(self) -> None:
        if entries := await self._notes.recall():
            self._rules.put(entries)

    # --- what the agent notes --------------------------------------------------------------

    async def suspend(self, rule_id: str, why: str) -> bool:
        """Suspend an exemption at once; noted if the store can be written."""
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
            entry = replace(entry, spec=replace(entry.spec, suspended=why))
            self._rules.put([entry])  # Before it is noted: it protects.
            log.warning(action, rule=rule_id, why=why)
            try:
                await self._notes.keep_rest(entry, action)
            except (StoreUnavailable, Conflict) as error:
                log.error("rule.rests_unkept", rule=entry.id, detail=str(error))
            return True

    def charged(self, rule_id: str) -> Mapping[str, float]:
        """Which clients an exemption has starved for how long, as last charged."""
        entry = self._rules.known(rule_id)
        return entry.spec.charged if entry is not None else {}

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None:
        """Note it with the rule, so that a restart does not refill its budget."""
        async with self._lock:
            entry = self._rules.known(rule_id)
            if entry is not None and not self._rules.ended(entry):
                spec = replace(entry.spec, charged=charged)
                await self._notes.note_charge(replace(entry, spec=spec))

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
                await self._renew(now)
            await self.keep_notes()
            if not self.book.is_empty or self.time.is_counted:
                await self._notes.keep_time()

    async def _renew(self, now: Instant) -> None:
        async with self._lock:
            await self._rules.renew(now)
            over = await self._rules.forget_over(now)
        await self._forget(over)

    async def _forget(self, rule_ids: Iterable[str]) -> None:
        """Without the lock: the log puts its change in force, which takes it."""
        over = list(rule_ids)[:MAX_FORGOTTEN_AT_ONCE]
        try:
            if over:
                await self.forget(over)
        except (StoreUnavailable, Conflict) as error:
            log.warning("rules.not_forgotten", detail=str(error))

    async def keep_notes(self) -> None:
        """Note down what has changed, for the time after a restart. A batch at a time: who changes
        a rule of this agent waits for none but one."""
        more = self._notes.is_due
        while more:
            async with self._lock:
                await self._recall()
                more = await self._notes.keep()


class RuleRests:
    """Has a rule of others rest at this agent, for the time when the fleet's store cannot be
    reached, or has lost it, or nobody leads the shard: then nobody can lift it, and it would stop
    work here until its own end. It is this agent's alone, and kept in its own store."""

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
            message = f"is required, up to {MAX_REASON_CHARS} characters: say why, for others"
            raise InvalidSettings([Fault("rest.reason", message)])
        async with self._lock:
            return await self._set(
                rule_id, f"by {who} at this agent: {reason}", who, dry_run=dry_run
            )

    async def end(self, rule_id: str, *, who: str, dry_run: bool = False) -> list[RuleEntry]:
        async with self._lock:
            return await self._set(rule_id, "", who, dry_run=dry_run)

    async def _set(self, rule_id: str, why: str, who: str, *, dry_run: bool) -> list[RuleEntry]:
        found = list(self._concerned(rule_id))
        if not found:
            message = (
                "is not a rule of the fleet or of a shard that is in force here; end a rule of "
                "this agent with `headgate rule lift`"
            )
            raise InvalidSettings([Fault(f"rule {rule_id}", message)])
        entries = [replace(one, spec=replace(one.spec, suspended=why)) for one in found]
        if dry_run:
            return entries
        # In force before it is stored: if that fails, it holds until a restart, and is reported.
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
            message = f"holds until a restart: this agent's own store did not take it ({error})"
            return replace(entry, advice=(Advice(Severity.WARNING, "unkept", entry.id, message),))
        return entry


class RuleAdvisor:
    """Advice on a rule next to the others, also on each rule of a list of thousands without
    delaying checks: the caller then gives `known_metrics` that remember what they found.
    """

    def __init__(self) -> None:
        self._spared = (NO_RULES, Sparing(()))

    def advice(
        self, spec: RuleSpec, book: RuleBook, known_metrics: KnownMetrics, wall_s: float
    ) -> tuple[Advice, ...]:
        known = known_metrics(spec.rule.database)
        alike = list(islice(book.alike(spec.rule.target), MAX_COMPARED))
        advice = advise(spec, alike, known, wall_s)
        if spec.rule.kind is Kind.HOLD:
            advice += not_held(spec.rule, self._sparing(book).of(spec.rule), wall_s)
        return tuple(advice)

    def _sparing(self, of: RuleBook) -> Sparing:
        """Made once of a book: each hold of a list asks for it."""
        book, sparing = self._spared
        if book is not of:
            self._spared = book, sparing = of, Sparing(of.rules)
        return sparing


T = TypeVar("T")
SLICE = 250
"""Rules that are processed before checks have their turn."""


class Logs(NamedTuple):
    """Rules of each log, in the order in which they have their names."""

    own: FollowedRules
    """Rules of this agent alone."""
    shard: FollowedRules
    """Rules of its shards, from its own log."""
    fleet: FollowedRules


class RulesInForce:
    """The rules that count just now: of all logs, in one book.

    A change costs what it changes. Work on many rules is done in slices, on a draft, and takes
    effect all together. A caller of a method that waits holds the keeper's lock: no change is lost.
    """

    def __init__(
        self,
        clock: Clock,
        apply: Callable[[RuleBook], None],
        logs: Logs,
        known_metrics: KnownMetrics,
    ) -> None:
        self._clock = clock
        self._apply = apply
        self._known_metrics = known_metrics
        self._measured: frozenset[tuple[str, str]] = frozenset()
        """The known metrics when all rules were last computed."""
        self.unmeasured: dict[str, str] = {}
        """Rules → their effect here, if metrics are missing."""
        self.logs = logs
        self.built_at = clock.now()
        """When all were last computed."""
        self.book: RuleBook = NO_RULES

    def known(self, rule_id: str) -> RuleEntry | None:
        return self.of(rule_id).entries.get(rule_id)

    def of(self, rule_id: str) -> FollowedRules:
        """The log's whose rule it is."""
        return next((log for log in self.logs if rule_id in log.entries), self.logs.fleet)

    def entries(self) -> list[tuple[RuleEntry, Rule]]:
        found = ((self.known(rule.id), rule) for rule in self.book.rules)
        return [(entry, rule) for entry, rule in found if entry is not None]

    def ended(self, entry: RuleEntry) -> bool:
        if entry.spec.lifted_by:
            return True
        now = self._clock.now()
        return now.wall_s >= entry.spec.rule.expires_at or now.mono_s >= entry.ends_mono_s

    # --- changing --------------------------------------------------------------------------

    def put(self, entries: Sequence[RuleEntry]) -> None:
        """Together, at once; the others stay as they are, so that it takes no longer than that."""
        for entry in entries:
            self.of(entry.id).entries[entry.id] = entry
        now = self._clock.now()
        draft = self.book.draft(now.wall_s)
        draft.put(self._in_book(entry, now) for entry in entries)
        self._adopt_changed(draft, entries)

    def drop(self, gone: Iterable[str]) -> None:
        gone = list(gone)
        self._forget_unmeasured(gone)
        draft = self.book.draft(self._clock.now().wall_s)
        draft.drop(gone)
        self._adopt(draft, self.book.revision)

    async def take(self, of: FollowedRules, outcome: RuleUpdate) -> None:
        """What was set in one of the logs. Should it be given up meanwhile, nothing was done."""
        at = self.logs.index(of)
        taken = ChainMap(*(log.entries for log in self.logs[:at]))
        for ids in _slices(outcome.ids):
            of.work_out(outcome, ids, taken, self._clock.now())
            await _let_checks_in(outcome.ids)
        moved = [one for log in self.logs[at + 1 :] for one in log.make_way(outcome.entries)]
        entries, gone = list(outcome.entries.values()), outcome.gone
        now = self._clock.now()
        draft = self.book.draft(now.wall_s)
        draft.drop({*gone, *(one.was for one in moved)})
        for some in _slices([*entries, *(one.entry for one in moved)]):
            draft.put(self._in_book(entry, now) for entry in some)
            await _let_checks_in(entries)
        of.take_over(outcome, self._clock.now().wall_s)
        self._forget_unmeasured([*gone, *outcome.left_out])
        if entries or gone:
            draft.drop(outcome.left_out)
            changed = [*outcome.entries.values(), *(one.entry for one in moved)]
            self._adopt_changed(draft, changed, gone)
        if self.book.is_empty:
            self.built_at = now

    async def renew(self, now: Instant) -> None:
        """Windows of the days ahead, ends by both clocks, and metrics that came or went."""
        self.built_at, self._measured = now, self._measured_now()
        draft, entries = self.book.draft(now.wall_s), self._all()
        for some in _slices(entries):
            rules = (self._in_book(entry, now) for entry in some)
            draft.put([rule for rule in rules if not draft.has(rule)])
            await asyncio.sleep(0)
        self._adopt(draft, self.book.revision)

    async def forget_over(self, now: Instant) -> list[str]:
        """What ended a day ago; those of the agent's own log, which has them still."""
        for of in self.logs:
            for some in _slices(of.item_ids):
                of.prune(some, now.wall_s)
                await asyncio.sleep(0)
        own, shard, fleet = (log.forget_over(now) for log in self.logs)
        if gone := [*own, *shard, *fleet]:
            self.drop(gone)
        return own

    # --- metrics ---------------------------------------------------------------------------

    def is_measured_otherwise(self) -> bool:
        """Than when all were worked out: rules of others on metrics may say something else."""
        return any(log.entries for log in self.logs) and self._measured_now() != self._measured

    def _measured_now(self) -> frozenset[tuple[str, str]]:
        return frozenset((name, one.missing_on) for name, one in self._known_metrics("").items())

    def _in_book(self, entry: RuleEntry, now: Instant) -> Rule:
        """A metric that is not measured would lock a client out. A rule for this agent alone was
        validated for that; one that reaches further was set where other metrics exist, or has a
        typing error: metrics that are not measured here have no effect here."""
        rule = entry.in_book(now)
        if entry.origin.reach == HERE:
            return rule
        if entry.spec.suspended and rule.kind is not Kind.EXEMPT:
            return replace(rule, windows=NEVER)  # An operator has it rest here (RuleRests).
        if rule.kind is not Kind.METRICS:
            return rule
        known = self._known_metrics(rule.database)
        there = [name for name in rule.metrics if name in known and not known[name].missing_on]
        missing = [name for name in rule.metrics if name not in there]
        if not missing:
            self.unmeasured.pop(rule.id, None)
            return rule
        told = f"{', '.join(missing)}: not measured on every database here that the rule is for"
        rest = f"{', '.join(there)} alone" if there else "no metric, and so has no effect"
        self.unmeasured[rule.id] = f"{told}; here it names {rest}"
        return replace(rule, metrics=tuple(there)) if there else replace(rule, windows=NEVER)

    def _forget_unmeasured(self, gone: Iterable[str]) -> None:
        for rule_id in gone:
            self.unmeasured.pop(rule_id, None)

    # --- steps -----------------------------------------------------------------------------

    def _all(self) -> list[RuleEntry]:
        return [entry for log in self.logs for entry in log.entries.values()]

    def _adopt_changed(
        self, draft: RuleBookDraft, entries: Sequence[RuleEntry], gone: Collection[str] = ()
    ) -> None:
        resting = {entry.id for entry in entries if entry.spec.suspended}
        awake = {entry.id for entry in entries} | {*gone}
        draft.suspend(self.book.suspended - awake | resting)
        self._adopt(draft, self.book.revision + 1)

    def _adopt(self, draft: RuleBookDraft, revision: int) -> None:
        self.book = draft.book(revision)
        self._apply(self.book)


def _slices(many: Sequence[T]) -> Iterable[Sequence[T]]:
    return (many[start : start + SLICE] for start in range(0, len(many), SLICE))


async def _let_checks_in(many: Sequence[object]) -> None:
    if len(many) > SLICE:
        await asyncio.sleep(0)


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
    """What an agent notes of its changes, in its own log: of rules notes/rule/<id>, of the time of
    others that end notes/term/<kind>/….

    Changes are in force before anything is noted, and whether or not it can be: notes are for
    the time after a restart, and for the audit, which shows the past of a fleet's rules.
    """

    def __init__(
        self, store: ChangeLog, clock: Clock, rules: Sequence[FollowedRules], time: ChangeTime
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
            entries = (await self._store.list((NOTES,), allow_stale=True)).entries
            self._salvaged = True
            return entries
        except StoreUnavailable:
            return ()

    def go_on_from(self, items: Iterable[Change]) -> None:
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
        self, notes: Sequence[RuleNote], terms: Mapping[str, Mapping[str, Any] | None] = NO_TERMS
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
