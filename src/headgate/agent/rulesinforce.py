"""The rules that count just now.   the agent's own, the fleet's ──► RuleBook, whole ──► checker

A change costs what it changes; what concerns many rules is done in slices, on a draft, and in
force all together. Whoever calls what waits holds the keeper's lock, so that no change is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from headgate.agent.fleetrules import FleetRules, Outcome
from headgate.agent.ports import Clock
from headgate.agent.rulesteps import NEVER, RuleEntry
from headgate.core.rule_settings import KnownMetrics
from headgate.core.rules import NO_RULES, Kind, Rule, RuleBook, RuleDraft
from headgate.core.samples import Instant

T = TypeVar("T")
SLICE = 250
"""Rules that are looked at before checks have their turn."""


class RulesInForce:
    def __init__(
        self,
        clock: Clock,
        apply: Callable[[RuleBook], None],
        fleet: FleetRules,
        known_metrics: KnownMetrics,
    ) -> None:
        self._clock = clock
        self._apply = apply
        self._known_metrics = known_metrics
        self._measured: frozenset[tuple[str, str]] = frozenset()
        """What was known of the metrics when all rules were last worked out."""
        self.unmeasured: dict[str, str] = {}
        """Rules of the fleet → what they say here, for want of metrics."""
        self.own: dict[str, RuleEntry] = {}
        """Set at this agent."""
        self.fleet = fleet
        self.built_at = clock.now()
        """When all were last worked out."""
        self.book: RuleBook = NO_RULES

    def known(self, rule_id: str) -> RuleEntry | None:
        return self.own.get(rule_id) or self.fleet.entries.get(rule_id)

    def entries(self) -> list[tuple[RuleEntry, Rule]]:
        found = ((self.known(rule.id), rule) for rule in self.book.rules)
        return [(entry, rule) for entry, rule in found if entry is not None]

    def ended(self, entry: RuleEntry) -> bool:
        if entry.spec.lifted_by:
            return True
        now = self._clock.now()
        return now.wall_s >= entry.spec.rule.expires_at or now.mono_s >= entry.ends_mono_s

    # --- changing --------------------------------------------------------------------------

    def replace_own(self, own: dict[str, RuleEntry]) -> None:
        """All of them anew: at start, when no check waits yet."""
        self.own = own
        self.fleet.make_way(own)
        now = self.built_at = self._clock.now()
        revisions = [entry.spec.rule.revision for entry in own.values()]
        if self.fleet.entries:
            revisions.append(self.book.revision + 1)
        entries = self._all()
        self.book = RuleBook(
            [self._in_book(entry, now) for entry in entries],
            revision=max(revisions, default=0),
            suspended=frozenset(entry.id for entry in entries if entry.spec.suspended),
            wall_s=now.wall_s,
        )
        self._apply(self.book)

    def put(self, entries: Sequence[RuleEntry]) -> None:
        """Together, at once; the others stay as they are, so that it takes no longer than that."""
        self.own |= {entry.id: entry for entry in entries if entry.origin is None}
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

    async def take(self, outcome: Outcome) -> None:
        """What the fleet has set. Should it be given up meanwhile, nothing was done."""
        for ids in _slices(outcome.ids):
            self.fleet.work_out(outcome, ids, self.own, self._clock.now())
            await _let_checks_in(outcome.ids)
        entries, gone = list(outcome.entries.values()), outcome.gone
        base, draft = None, self.book.draft()
        while base is not self.book:  # Another: the store came back meanwhile, with its rules.
            base, now = self.book, self._clock.now()
            draft = base.draft(now.wall_s)
            draft.drop(gone)
            for some in _slices(entries):
                draft.put(self._in_book(entry, now) for entry in some)
                await _let_checks_in(entries)
        self.fleet.take_over(outcome, self._clock.now().wall_s)
        self._forget_unmeasured([*gone, *outcome.left_out])
        if entries or gone:
            draft.drop(outcome.left_out)
            self._adopt_changed(draft, list(outcome.entries.values()), gone)

    async def renew(self, now: Instant) -> None:
        """Windows of the days ahead, ends by both clocks, and metrics that came or went."""
        self.built_at, self._measured = now, self._measured_now()
        draft, entries = self.book.draft(now.wall_s), self._all()
        for some in _slices(entries):
            rules = (self._in_book(entry, now) for entry in some)
            draft.put([rule for rule in rules if not draft.has(rule)])
            await asyncio.sleep(0)
        self._adopt(draft, self.book.revision)

    async def forget_of_fleet(self, now: Instant) -> None:
        for some in _slices(self.fleet.item_ids):
            self.fleet.prune(some, now.wall_s)
            await asyncio.sleep(0)
        if gone := self.fleet.forget_over(now):
            self.drop(gone)

    # --- metrics ---------------------------------------------------------------------------

    def is_measured_otherwise(self) -> bool:
        """Than when all were worked out: rules of the fleet on metrics may say something else."""
        return bool(self.fleet.entries) and self._measured_now() != self._measured

    def _measured_now(self) -> frozenset[tuple[str, str]]:
        return frozenset((name, one.missing_on) for name, one in self._known_metrics("").items())

    def _in_book(self, entry: RuleEntry, now: Instant) -> Rule:
        """To be judged by what is not measured is to be locked out. An agent's own rule was
        checked for that; one of the fleet's was set by somebody who knows other metrics, or
        mistyped one: what is not measured here, it says nothing of here."""
        rule = entry.in_book(now)
        if entry.origin is None:
            return rule
        if entry.spec.suspended and rule.kind is not Kind.EXEMPT:
            return replace(rule, windows=NEVER)  # An operator has it rest here (rulerests.py).
        if rule.kind is not Kind.METRICS:
            return rule
        known = self._known_metrics(rule.database)
        there = [name for name in rule.metrics if name in known and not known[name].missing_on]
        missing = [name for name in rule.metrics if name not in there]
        if not missing:
            self.unmeasured.pop(rule.id, None)
            return rule
        told = f"{', '.join(missing)}: not measured on every database here that it is for"
        rest = f"{', '.join(there)} alone" if there else "no metric, and so has no effect"
        self.unmeasured[rule.id] = f"{told}; here it names {rest}"
        return replace(rule, metrics=tuple(there)) if there else replace(rule, windows=NEVER)

    def _forget_unmeasured(self, gone: Iterable[str]) -> None:
        for rule_id in gone:
            self.unmeasured.pop(rule_id, None)

    # --- steps -----------------------------------------------------------------------------

    def _all(self) -> list[RuleEntry]:
        return [*self.own.values(), *self.fleet.entries.values()]

    def _adopt_changed(
        self, draft: RuleDraft, entries: Sequence[RuleEntry], gone: Collection[str] = ()
    ) -> None:
        resting = {entry.id for entry in entries if entry.spec.suspended}
        awake = {entry.id for entry in entries} | {*gone}
        draft.suspend(self.book.suspended - awake | resting)
        # By the store's count of changes; the fleet's are not in it, and are noticed as well.
        own = (entry.spec.rule.revision for entry in entries if entry.origin is None)
        self._adopt(draft, max([self.book.revision + 1, *own]))

    def _adopt(self, draft: RuleDraft, revision: int) -> None:
        self.book = draft.book(revision)
        self._apply(self.book)


def _slices(many: Sequence[T]) -> Iterable[Sequence[T]]:
    return (many[start : start + SLICE] for start in range(0, len(many), SLICE))


async def _let_checks_in(many: Sequence[object]) -> None:
    if len(many) > SLICE:
        await asyncio.sleep(0)
