"""Keep the rules in force.   logs ──follow──► RuleKeeper ──RuleBook, whole──► checker

Changes come from two logs: the agent's own, with those of its shards, and the one that a fleet
shares. What only this agent knows about a rule, it notes itself (changenotes.py).

A rule ends by the reader's comparison, not by anything here: what this loop drops has no effect
any more. It only handles what a comparison cannot see: setting the wall clock back must not
prolong a rule, and schedules have to be computed for the days ahead.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import structlog

from headgate.agent.changenotes import ChangeNotes
from headgate.agent.changetime import STEP_S, ChangeTime
from headgate.agent.followedrules import FollowedRules, item_of
from headgate.agent.ports import Clock, OwnStore
from headgate.agent.rulesinforce import SLICE, Logs, RulesInForce
from headgate.agent.rulesteps import RuleEntry
from headgate.agent.schedules import RENEW_S
from headgate.core.change import Item
from headgate.core.lint import Advice, Severity
from headgate.core.reach import HERE, Place
from headgate.core.rule_advice import Sparing, advise, not_held
from headgate.core.rule_settings import KnownMetrics, RuleLimits, RuleSpec
from headgate.core.rules import NO_RULES, Kind, Rule, RuleBook
from headgate.core.samples import Instant
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, StoreUnavailable

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
        store: OwnStore,
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
        items: Sequence[Item],
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
        self, of: FollowedRules, items: Sequence[Item], places: Sequence[Place], *, whole: bool
    ) -> None:
        outcome = of.news(items, places, whole=whole)
        if outcome is not None:
            await self._rules.take(of, outcome)
            said = {"rules": len(outcome.entries), "gone": len(outcome.gone)}
            log.info("rules.followed", **said, refused=len(outcome.faults), reach=of.name)

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
