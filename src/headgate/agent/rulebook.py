"""Keep the rules in force.   store ──load──► RuleKeeper ──RuleBook, whole──► checker
                    operators ──put, patch, lift──► store (with audit), then in force

A rule ends by the reader's comparison, not by anything here: what this loop drops has long
ceased to count. It only follows what a comparison cannot see: a wall clock that was set
back must not prolong a rule (R87), and schedules have to be worked out for the days ahead.
A change costs what it changes; what concerns all rules is done in slices, on a draft.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import structlog

from headgate.agent.ports import Clock, Store
from headgate.agent.rulesteps import (
    RULE,
    STEP_S,
    RuleEntry,
    Step,
    ends_at,
    favor_targets,
    mark_of,
    put_of,
    value_of,
)
from headgate.agent.ruletime import KEEP_S, RULE_TIME, RuleTime, parse_mark
from headgate.agent.schedules import RENEW_S, check_zone
from headgate.core.lint import Advice, Severity
from headgate.core.records import AuditEntry, Record
from headgate.core.rule_advice import advise, not_held
from headgate.core.rule_settings import (
    FIXED,
    PAIRED,
    KnownMetric,
    KnownMetrics,
    RuleLimits,
    RuleSpec,
    parse_kept,
    parse_rule,
    written,
)
from headgate.core.rules import EVERYONE, NO_RULES, Kind, Rule, RuleBook, RuleDraft
from headgate.core.samples import Instant
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, StoreUnavailable

log = structlog.get_logger()

OURSELVES = "headgate"
TICK_S = 1.0
FORGET_AFTER_S = 86_400.0
MAX_FORGOTTEN_AT_ONCE = 100
SLICE = 250
"""Rules that are looked at before checks have their turn."""
MAX_COMPARED = 20
"""With so many of the same target, for advice: a list of rules is not to hold up checks."""
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
    ) -> None:
        self._store = store
        self._clock = clock
        self._apply = apply
        self._known_metrics = known_metrics
        self._limits = limits
        self._new_id = new_id
        self._entries: dict[str, RuleEntry] = {}
        self._time = RuleTime(clock)
        self._mark_revision = 0
        self._marked_at = float("-inf")
        self._built_at = clock.now()
        self._lock = asyncio.Lock()
        self.book: RuleBook = NO_RULES
        """The snapshot in force. Holds rules that ended within the day, too, for explain."""

    # --- looking ---------------------------------------------------------------------------

    def entries(self) -> list[tuple[RuleEntry, Rule]]:
        """Every rule that is kept, ended ones too, with the rule as it is judged by."""
        known = self._entries
        return [(known[rule.id], rule) for rule in self.book.rules if rule.id in known]

    def entry(self, rule_id: str) -> RuleEntry:
        try:
            return self._entries[rule_id]
        except KeyError:
            message = f"no rule {rule_id!r} is kept here; `headgate rules --all` lists them"
            raise NoSuchRule(message) from None

    def advice(self, spec: RuleSpec) -> tuple[Advice, ...]:
        wall_s = self._clock.now().wall_s
        known = self._known_metrics(spec.rule.database)
        alike = list(islice(self.book.alike(spec.rule.target), MAX_COMPARED))
        advice = advise(spec, alike, known, wall_s)
        return (*advice, *not_held(spec.rule, self.book.rules, wall_s))

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
        resting = {e.id: e.spec.suspended for e in self._entries.values() if e.spec.suspended}
        for rule_id in resting.keys() & known.keys():
            spec = replace(known[rule_id].spec, suspended=resting[rule_id])
            known[rule_id] = replace(known[rule_id], spec=spec)
        self._entries = known
        self._publish(self._clock.now())

    def _go_on_from(self, records: Iterable[Record], marks: Iterable[Record]) -> None:
        """Each change is a mark, too: none is older than what it belongs to."""
        found = []
        for record in marks:
            self._mark_revision = record.revision
            found.append(parse_mark(record.value))
        found += [mark_of(record) for record in records]
        self._time.go_on_from([mark for mark in found if mark is not None])

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

    # --- changing --------------------------------------------------------------------------

    async def put(
        self, raw: Mapping[str, Any], *, who: str, dry_run: bool = False
    ) -> list[RuleEntry]:
        async with self._lock:
            spec = self._parsed(raw, who)
            self._check_vacant(spec.id)
            steps = [Step(spec, "rule.set", self._entries.get(spec.id))]
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
            wall_s = self._wall_s()
            first = self._parsed({**shared, "target": favored, "ratio": 0.0}, who, wall_s)
            more = {**shared, "target": reduced, "ratio": ratio}
            second = self._parsed(more, who, wall_s, taken={first.id})
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
            steps = [Step(self._patched(entry, raw, who), action, entry)]
            end = {key: value for key, value in raw.items() if key in PAIRED}
            other = self._entries.get(entry.spec.pair)
            if end and other is not None and not self._ended(other):
                steps.append(Step(self._patched(other, end, who), "rule.extended", other))
            if all(step.before is not None and step.spec == step.before.spec for step in steps):
                return [replace(entry, advice=(_UNCHANGED,))]
            return await self._carry_out(steps, who, dry_run=dry_run)

    async def lift(
        self, rule_id: str, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> list[RuleEntry]:
        """End it now, and the one that was set together with it."""
        async with self._lock:
            entry = self._changeable(rule_id, expect)
            other = self._entries.get(entry.spec.pair)
            both = [entry] if other is None or self._ended(other) else [entry, other]
            wall_s = self._clock.now().wall_s
            steps = [
                Step(
                    replace(
                        one.spec, rule=replace(one.spec.rule, expires_at=wall_s), lifted_by=who
                    ),
                    "rule.lifted",
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
            entry = self._entries.get(rule_id)
            if entry is None or entry.spec.rule.kind is not Kind.EXEMPT or self._ended(entry):
                return False
            if bool(entry.spec.suspended) is bool(why):
                return False
            spec = replace(entry.spec, suspended=why)
            self._put_in_force([replace(entry, spec=spec)])  # Before it is kept: it protects.
            log.warning(action, rule=rule_id, why=why)
            try:
                (spec,) = await self._keep([Step(spec, action, entry)], OURSELVES)
                self._entries[rule_id] = replace(entry, spec=spec)
            except (StoreUnavailable, Conflict) as error:
                log.error("rule.rests_unkept", rule=rule_id, detail=str(error))
            return True

    def charged(self, rule_id: str) -> Mapping[str, float]:
        """Whom an exemption has starved for how long, as it was charged last."""
        entry = self._entries.get(rule_id)
        return entry.spec.charged if entry is not None else {}

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None:
        """Note it with the rule, so that a restart does not refill its budget (R79)."""
        async with self._lock:
            entry = self._entries.get(rule_id)
            if entry is None or self._ended(entry):
                return
            spec = replace(entry.spec, charged=charged)
            self._entries[rule_id] = replace(entry, spec=spec)
            try:
                note = Record(RULE, rule_id, value_of(spec), spec.rule.revision)
                await self._store.note_record(note)
            except (StoreUnavailable, Conflict) as error:
                log.warning("rule.charge_unkept", rule=rule_id, detail=str(error))

    # --- steps of a change -----------------------------------------------------------------

    def _wall_s(self) -> float:
        return round(self._clock.now().wall_s, 3)

    def _parsed(
        self,
        raw: Mapping[str, Any],
        who: str,
        wall_s: float | None = None,
        *,
        taken: Iterable[str] = (),
        known_metrics: KnownMetrics | None = None,
    ) -> RuleSpec:
        wall_s = self._wall_s() if wall_s is None else wall_s
        spec = parse_rule(
            raw,
            rule_id=self._free_id(taken),
            author=who,
            wall_s=wall_s,
            known_metrics=known_metrics or self._known_metrics,
            limits=self._limits,
        )
        if spec.schedule is not None:
            check_zone(spec.schedule)
        return replace(spec, ruled_at=round(self._time.now_s(), 3))

    def _free_id(self, taken: Iterable[str]) -> str:
        while True:
            rule_id = self._new_id()
            if rule_id not in self._entries and rule_id not in taken:
                return rule_id

    def _patched(self, entry: RuleEntry, raw: Mapping[str, Any], who: str) -> RuleSpec:
        spec, rule = entry.spec, entry.spec.rule
        if fixed := [key for key in FIXED if key in raw]:
            message = "cannot be changed: that would be another rule; lift this one and set it"
            raise InvalidSettings([Fault(f"rule.{key}", message) for key in fixed])
        merged = {**written(rule, spec.schedule), **raw}
        new_end = any(raw.get(key) is not None for key in PAIRED)
        if not new_end:
            # It was judged when it was set; only now counts as "in the past".
            merged |= {"for": None, "expires_at": rule.expires_at}
        merged = {key: value for key, value in merged.items() if value is not None}
        # Limits that stay as they are may bite by now: that is what they are there for.
        known = self._known_metrics if "thresholds" in raw else self._known_without_values
        parsed = self._parsed({**merged, "id": rule.id}, who, known_metrics=known)
        changed = replace(parsed.rule, created_at=rule.created_at, created_by=rule.created_by)
        return replace(
            spec,
            rule=replace(changed, revision=rule.revision),
            schedule=parsed.schedule,
            set_at=parsed.set_at if new_end else spec.set_at,
            ruled_at=parsed.ruled_at if new_end else spec.ruled_at,
        )

    def _known_without_values(self, database: str) -> Mapping[str, KnownMetric]:
        known = self._known_metrics(database)
        return {name: metric._replace(value=None) for name, metric in known.items()}

    def _changeable(self, rule_id: str, expect: int | None) -> RuleEntry:
        entry = self.entry(rule_id)
        revision = entry.spec.rule.revision
        if expect is not None and expect != revision:
            message = (
                f"rule {rule_id} is at revision {revision}, not {expect}: "
                "somebody changed it in between; look again and repeat"
            )
            raise Conflict(message)
        if self._ended(entry):
            message = "has ended; what has ended is not changed: set it anew"
            raise InvalidSettings([Fault(f"rule {rule_id}", message)])
        return entry

    def _check_vacant(self, rule_id: str) -> None:
        entry = self._entries.get(rule_id)
        if entry is not None and not self._ended(entry):
            revision = entry.spec.rule.revision
            message = f"rule {rule_id} is there already, at revision {revision}; change that one"
            raise Conflict(message)

    def _ended(self, entry: RuleEntry) -> bool:
        if entry.spec.lifted_by:
            return True
        now = self._clock.now()
        return now.wall_s >= entry.spec.rule.expires_at or now.mono_s >= entry.ends_mono_s

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
        self._put_in_force(entries)
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
        over = len(self._entries) + wanted - self._limits.max_rules
        if over <= 0:
            return
        ended = sorted(filter(self._ended, self._entries.values()), key=ends_at)
        if len(ended) < over:
            message = (
                f"{len(self._entries)} rules are kept, at most {self._limits.max_rules}; lift "
                "some, or set one on a category instead of many on its clients"
            )
            raise InvalidSettings([Fault("rules", message)])
        if not dry_run:
            for entry in ended[:over]:
                await self._forget(entry)

    async def _keep(self, steps: Sequence[Step], who: str) -> list[RuleSpec]:
        """The specs under their new revisions: all are kept, in one transaction, or none."""
        wall_s = self._clock.now().wall_s
        kept = await self._store.put_records([put_of(step, who, wall_s) for step in steps])
        for step in steps:
            log.info(step.action, rule=step.spec.id, target=step.spec.rule.target, who=who)
        return [
            replace(step.spec, rule=replace(step.spec.rule, revision=record.revision))
            for step, record in zip(steps, kept, strict=True)
        ]

    # --- in force --------------------------------------------------------------------------

    def _publish(self, now: Instant) -> None:
        """All of them anew: at start, when no check waits yet."""
        self._built_at = now
        rules = [entry.in_book(now) for entry in self._entries.values()]
        self.book = RuleBook(
            rules,
            revision=max((rule.revision for rule in rules), default=0),
            suspended=frozenset(e.id for e in self._entries.values() if e.spec.suspended),
            wall_s=now.wall_s,
        )
        self._apply(self.book)

    def _put_in_force(self, entries: Sequence[RuleEntry]) -> None:
        """Together, at once; the others stay as they are, so that it takes no longer than that."""
        self._entries |= {entry.id: entry for entry in entries}
        now = self._clock.now()
        draft = self.book.draft(now.wall_s)
        draft.put(entry.in_book(now) for entry in entries)
        resting = {entry.id for entry in entries if entry.spec.suspended}
        draft.suspend(self.book.suspended - {entry.id for entry in entries} | resting)
        self._adopt(draft, [entry.spec.rule.revision for entry in entries])

    def _adopt(self, draft: RuleDraft, revisions: Iterable[int] = ()) -> None:
        self.book = draft.book(max([self.book.revision, *revisions]))
        self._apply(self.book)

    async def run(self) -> None:
        """Follow the clock. A check never waits for this, and ends no later without it."""
        while True:
            await self._clock.sleep(TICK_S)
            now = self._clock.now()
            passed_s = now.mono_s - self._built_at.mono_s
            stepped_s = now.wall_s - self._built_at.wall_s - passed_s
            if abs(stepped_s) > STEP_S:
                log.warning("rules.clock_was_set", by_s=round(stepped_s, 3))
            if abs(stepped_s) > STEP_S or passed_s >= RENEW_S:
                async with self._lock:
                    await self._renew(now)
                    await self._forget_ended(now)
            if now.mono_s - self._marked_at >= KEEP_S and self._entries:
                self._marked_at = now.mono_s
                await self._keep_mark()

    async def _renew(self, now: Instant) -> None:
        """Windows of the days ahead, and ends by both clocks: worked out in slices, in force
        all together. The lock is held meanwhile, so that no change is lost."""
        self._built_at = now
        draft, entries = self.book.draft(now.wall_s), list(self._entries.values())
        for start in range(0, len(entries), SLICE):
            rules = (entry.in_book(now) for entry in entries[start : start + SLICE])
            draft.put([rule for rule in rules if not draft.has(rule)])
            await asyncio.sleep(0)
        self._adopt(draft)

    async def _keep_mark(self) -> None:
        """A fault of the store is told elsewhere; this is tried again."""
        mark = self._time.mark()
        record = Record(RULE_TIME, RULE_TIME, mark.written(), self._mark_revision)
        try:
            if self._mark_revision:
                await self._store.note_record(record)
                return
            audit = AuditEntry(
                mark.wall_s, OURSELVES, "rules.time_kept", RULE_TIME, None, record.value
            )
            self._mark_revision = (await self._store.put_record(record, audit)).revision
        except (StoreUnavailable, Conflict) as error:
            log.warning("rules.time_unkept", detail=str(error))

    async def _forget_ended(self, now: Instant) -> None:
        """By both clocks: a wall clock that leapt ahead may come back."""
        old = [
            entry
            for entry, rule in self.entries()
            if rule.expires_at < now.wall_s - FORGET_AFTER_S and entry.ends_mono_s <= now.mono_s
        ]
        try:
            for entry in old[:MAX_FORGOTTEN_AT_ONCE]:
                await self._forget(entry)
        except (StoreUnavailable, Conflict) as error:
            log.warning("rules.not_forgotten", detail=str(error))
        if gone := [entry.id for entry in old if entry.id not in self._entries]:
            draft = self.book.draft(now.wall_s)
            draft.drop(gone)
            self._adopt(draft)

    async def _forget(self, entry: RuleEntry) -> None:
        now = self._clock.now()
        was = value_of(entry.spec)
        audit = AuditEntry(now.wall_s, OURSELVES, "rule.forgotten", entry.id, was, None)
        await self._store.put_record(Record(RULE, entry.id, None, entry.spec.rule.revision), audit)
        del self._entries[entry.id]
