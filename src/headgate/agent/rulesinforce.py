"""The rules that apply now.   rules of all logs ──► RuleBook, whole ──► checker

A change costs what it changes; work on many rules is done in slices, on a draft, and comes in force
all together. A caller of a method that waits holds the keeper's lock, so that no change is lost.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from headgate.agent.followedrules import FollowedRules, Outcome
from headgate.agent.ports import Clock
from headgate.agent.rulesteps import NEVER, RuleEntry
from headgate.core.reach import HERE
from headgate.core.rule_settings import KnownMetrics
from headgate.core.rules import NO_RULES, Kind, Rule, RuleBook, RuleDraft
from headgate.core.samples import Instant

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

    async def take(self, of: FollowedRules, outcome: Outcome) -> None:
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
        self, draft: RuleDraft, entries: Sequence[RuleEntry], gone: Collection[str] = ()
    ) -> None:
        resting = {entry.id for entry in entries if entry.spec.suspended}
        awake = {entry.id for entry in entries} | {*gone}
        draft.suspend(self.book.suspended - awake | resting)
        self._adopt(draft, self.book.revision + 1)

    def _adopt(self, draft: RuleDraft, revision: int) -> None:
        self.book = draft.book(revision)
        self._apply(self.book)


def _slices(many: Sequence[T]) -> Iterable[Sequence[T]]:
    return (many[start : start + SLICE] for start in range(0, len(many), SLICE))


async def _let_checks_in(many: Sequence[object]) -> None:
    if len(many) > SLICE:
        await asyncio.sleep(0)
