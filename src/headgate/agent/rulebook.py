"""Keep the rules in force.   store ──load──► RuleKeeper ──RuleBook, whole──► checker
                    operators ──put, patch, lift──► store (with audit), then in force

A rule ends by the reader's comparison, not by anything here: what this loop drops has long
ceased to count. It only follows what a comparison cannot see: a wall clock that was set
back must not prolong a rule (R87), and schedules have to be worked out for the days ahead.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from headgate.agent.metricbook import MetricBook
from headgate.agent.ports import Clock, Store
from headgate.agent.schedules import RENEW_S, check_zone, windows_ahead
from headgate.core.lint import Advice
from headgate.core.records import AuditEntry, Record
from headgate.core.rule_advice import advise
from headgate.core.rule_settings import (
    FIXED,
    PAIRED,
    KnownMetric,
    KnownMetrics,
    RuleLimits,
    RuleSpec,
    parse_kept,
    parse_rule,
    parse_target,
    written,
)
from headgate.core.rules import EVERYONE, NO_RULES, Kind, Rule, RuleBook, Window
from headgate.core.samples import Instant
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, StoreUnavailable

log = structlog.get_logger()

RULE = "rule"
"""The kind of record."""
OURSELVES = "headgate"
TICK_S = 1.0
STEP_S = 1.0
"""A wall clock that moved by more than this against the monotonic one was set."""
FORGET_AFTER_S = 86_400.0
MAX_FORGOTTEN_AT_ONCE = 100
MAX_COMPARED = 20
"""With so many of the same target, for advice: a list of rules is not to hold up checks."""
FAVOR_RATIO = 0.9
NEVER: tuple[Window, ...] = ()
"""No clock brings back what was lifted."""


class NoSuchRule(HeadgateError, LookupError):
    """A rule that is not kept here, or that has ended."""


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One rule as it is kept, and as it is judged by."""

    spec: RuleSpec
    ends_mono_s: float
    """By this the rule ends, whatever becomes of the wall clock."""
    advice: tuple[Advice, ...] = ()

    @property
    def id(self) -> str:
        return self.spec.id

    def in_book(self, now: Instant) -> Rule:
        """As the book has it: with its windows, and with an end that no clock can put off."""
        rule, schedule = self.spec.rule, self.spec.schedule
        if self.spec.lifted_by:
            return replace(rule, windows=NEVER)
        by_mono = now.wall_s + self.ends_mono_s - now.mono_s
        if by_mono < rule.expires_at - STEP_S:
            rule = replace(rule, expires_at=by_mono)
        if schedule is not None:
            rule = replace(rule, windows=windows_ahead(schedule, now.wall_s))
        return rule


@dataclass(frozen=True, slots=True)
class _Step:
    """One rule put in the place of another, under one audit entry."""

    spec: RuleSpec
    action: str
    before: RuleEntry | None = None


def metrics_known_to(book: MetricBook) -> KnownMetrics:
    """What rules are held against: the metrics as they are configured now."""

    def known(database: str) -> Mapping[str, KnownMetric]:
        plans = [plan for plan in book.databases() if database in ("", plan.name)]
        entries = {plan.name: book.entries(plan.name) for plan in plans}
        measured = {at: {n for n, e in of.items() if e.enabled} for at, of in entries.items()}
        found: dict[str, KnownMetric] = {}
        for plan in plans:
            for name, entry in entries[plan.name].items():
                in_default = entry.enabled and plan.in_default(name)
                seen = found.get(name, KnownMetric(0.0, False))
                # Of several databases: what is laxer than the laxest says nothing anywhere.
                limit = max(seen.threshold, entry.spec.threshold)
                missing_on = next((at for at, of in measured.items() if name not in of), "")
                found[name] = KnownMetric(limit, seen.in_default or in_default, missing_on)
        return found

    return known


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
        self._alike: dict[frozenset[str], list[Rule]] = {}
        """By whom they are for: what may shadow what wholly."""
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
        alike = self._alike.get(frozenset(spec.rule.tokens), ())
        return tuple(advise(spec, alike[:MAX_COMPARED], known, wall_s))

    # --- from the store --------------------------------------------------------------------

    def load(self, records: Iterable[Record]) -> None:
        """What was set before, as the store kept it (or as much as could be salvaged)."""
        now = self._clock.now()
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
        self._publish(now)

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
        """A clock that stands before the rule was set is behind: count from when it was."""
        now = self._clock.now()
        left_s = spec.rule.expires_at - max(now.wall_s, spec.set_at)
        return RuleEntry(spec, now.mono_s + left_s)

    # --- changing --------------------------------------------------------------------------

    async def put(
        self, raw: Mapping[str, Any], *, who: str, dry_run: bool = False
    ) -> list[RuleEntry]:
        async with self._lock:
            spec = self._parsed(raw, who)
            self._check_vacant(spec.id)
            steps = [_Step(spec, "rule.set", self._entries.get(spec.id))]
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
            favored, reduced = _favor_targets(target, over)
            reason = f"{target} is favored over {over}"
            shared = {"kind": Kind.RATIO.value, "reason": reason, **(more or {})}
            first = self._parsed({**shared, "target": favored, "ratio": 0.0}, who)
            second = self._parsed({**shared, "target": reduced, "ratio": ratio}, who, {first.id})
            steps = [
                _Step(replace(first, pair=second.id), "rule.set"),
                _Step(replace(second, pair=first.id), "rule.set"),
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
            action = "rule.extended" if raw.keys() <= set(PAIRED) else "rule.changed"
            steps = [_Step(self._patched(entry, raw, who), action, entry)]
            end = {key: value for key, value in raw.items() if key in PAIRED}
            other = self._entries.get(entry.spec.pair)
            if end and other is not None and not self._ended(other):
                steps.append(_Step(self._patched(other, end, who), "rule.extended", other))
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
                _Step(
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
            self._entries[rule_id] = replace(entry, spec=spec)
            self._publish(self._clock.now())  # Before it is kept: it protects the others.
            log.warning(action, rule=rule_id, why=why)
            try:
                (spec,) = await self._keep([_Step(spec, action, entry)], OURSELVES)
                self._entries[rule_id] = replace(entry, spec=spec)
            except (StoreUnavailable, Conflict) as error:
                log.error("rule.rests_unkept", rule=rule_id, detail=str(error))
            return True

    # --- steps of a change -----------------------------------------------------------------

    def _parsed(self, raw: Mapping[str, Any], who: str, taken: Iterable[str] = ()) -> RuleSpec:
        wall_s = round(self._clock.now().wall_s, 3)
        spec = parse_rule(
            raw,
            rule_id=self._free_id(taken),
            author=who,
            wall_s=wall_s,
            known_metrics=self._known_metrics,
            limits=self._limits,
        )
        if spec.schedule is not None:
            check_zone(spec.schedule)
        return spec

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
        parsed = self._parsed({**merged, "id": rule.id}, who)
        changed = replace(parsed.rule, created_at=rule.created_at, created_by=rule.created_by)
        return replace(
            spec,
            rule=replace(changed, revision=rule.revision),
            schedule=parsed.schedule,
            set_at=parsed.set_at if new_end else spec.set_at,
        )

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
        self, steps: Sequence[_Step], who: str, *, dry_run: bool
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
        self._entries |= {entry.id: entry for entry in entries}
        self._publish(self._clock.now())
        return entries

    def _ends_mono_s(self, proposed: RuleEntry, step: _Step) -> float:
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
        ended = sorted(filter(self._ended, self._entries.values()), key=_expires_at)
        if len(ended) < over:
            message = (
                f"{len(self._entries)} rules are kept, at most {self._limits.max_rules}; lift "
                "some, or set one on a category instead of many on its clients"
            )
            raise InvalidSettings([Fault("rules", message)])
        if not dry_run:
            for entry in ended[:over]:
                await self._forget(entry)

    async def _keep(self, steps: Sequence[_Step], who: str) -> list[RuleSpec]:
        """The specs under their new revisions: all are kept, in one transaction, or none."""
        wall_s = self._clock.now().wall_s
        kept = await self._store.put_records([_put_of(step, who, wall_s) for step in steps])
        for step in steps:
            log.info(step.action, rule=step.spec.id, target=step.spec.rule.target, who=who)
        return [
            replace(step.spec, rule=replace(step.spec.rule, revision=record.revision))
            for step, record in zip(steps, kept, strict=True)
        ]

    # --- in force --------------------------------------------------------------------------

    def _publish(self, now: Instant) -> None:
        self._built_at = now
        rules = [entry.in_book(now) for entry in self._entries.values()]
        self._alike = {}
        for rule in rules:
            self._alike.setdefault(frozenset(rule.tokens), []).append(rule)
        self.book = RuleBook(
            rules,
            revision=max((rule.revision for rule in rules), default=0),
            suspended=frozenset(e.id for e in self._entries.values() if e.spec.suspended),
        )
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
                    self._publish(now)
                    await self._forget_ended(now)

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
        if old:
            self._publish(now)

    async def _forget(self, entry: RuleEntry) -> None:
        now = self._clock.now()
        was = _value(entry.spec)
        audit = AuditEntry(now.wall_s, OURSELVES, "rule.forgotten", entry.id, was, None)
        await self._store.put_record(Record(RULE, entry.id, None, entry.spec.rule.revision), audit)
        del self._entries[entry.id]


def _favor_targets(target: str, over: str) -> tuple[str, str]:
    """Whom to leave alone, and whom to refuse. Who is in both must be left alone: that takes a
    rule on both, for among equals the stricter wins."""
    faults = []
    for place, given in (("target", target), ("over", over)):
        try:
            parse_target(given)
        except ValueError as error:
            faults.append(Fault(f"favor.{place}", str(error)))
    if not faults and target in (over, EVERYONE):
        faults.append(Fault("favor.target", f"{target} cannot be favored over {over}"))
    if faults:
        raise InvalidSettings(faults)
    if over == EVERYONE:
        return target, over
    return ":".join(dict.fromkeys([*target.split(":"), *over.split(":")])), over


def _put_of(step: _Step, who: str, wall_s: float) -> tuple[Record, AuditEntry]:
    """What stands for it in the store, built on what it replaces, and its audit entry."""
    before = step.before.spec if step.before else None
    revision = before.rule.revision if before else 0
    value, was = _value(step.spec), _value(before) if before else None
    audit = AuditEntry(wall_s, who, step.action, step.spec.id, was, value)
    return Record(RULE, step.spec.id, value, revision), audit


def _value(spec: RuleSpec) -> Mapping[str, Any]:
    """As it is kept and audited: in times that a person can read."""
    rule = spec.rule
    value: dict[str, Any] = {
        **written(rule, spec.schedule),
        "expires_at": _iso(rule.expires_at),
        "created_at": _iso(rule.created_at),
        "created_by": rule.created_by,
        "set_at": _iso(spec.set_at),
    }
    texts = {"pair": spec.pair, "suspended": spec.suspended, "lifted_by": spec.lifted_by}
    return value | {key: text for key, text in texts.items() if text}


def _iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat().replace("+00:00", "Z")


def _expires_at(entry: RuleEntry) -> float:
    return entry.spec.rule.expires_at
