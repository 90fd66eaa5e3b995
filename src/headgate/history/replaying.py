"""Replay history against a proposed rule, some hours at a time.   Watching ──► Replayer ──► Store

From the newest hours back, so that where there is more than can be replayed at once it is the
oldest that is left out, and said so. Between two slices the loop answers checks.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from headgate.check.views import Parts
from headgate.history.outcomes import DatabaseGate, gate_of
from headgate.history.past import RulesThen, original_id, rules_between
from headgate.history.records import AuditEntry, MetricMinute, Tally
from headgate.history.replay import ReplayContext, ReplayedHour, replay
from headgate.rules.matching import EVERYONE, Rule
from headgate.rules.settings import RuleSpec

SLICE_MINUTES = 120
MAX_TALLIES = 300_000
"""Pairs of minute and client; about ten microseconds each."""
MAX_REPLAY_S = 10.0
MAX_AUDIT = 10_000
AHEAD_S = 60.0
"""The current minute is not over."""


class Replayed(NamedTuple):
    changes: Sequence[ReplayedHour]
    since_minute: int
    """Start of the replayed history."""
    until_minute: int
    whole: bool
    notes: Sequence[str]


class Replayer:
    def __init__(self, parts: Parts, rule: Rule) -> None:
        self._parts = parts
        self._rule = rule
        self._left = MAX_TALLIES

    async def replay(
        self, since_minute: int, until_minute: int, present: Iterable[RuleSpec]
    ) -> Replayed:
        audit = await self._parts.store.audit(limit=MAX_AUDIT)
        span_s = (since_minute * 60.0, (until_minute + 1) * 60.0 + AHEAD_S)
        then = await to_thread(rules_between, audit, list(present), *span_s)
        setting = self._setting(then, audit)
        began_s, changes = self._parts.clock.now().mono_s, list[ReplayedHour]()
        first, whole = until_minute + 1, True
        while first > since_minute and whole:
            last = first - 1
            begin = max(since_minute, last - last % SLICE_MINUTES)
            found, first = await self._slice(begin, last, setting)
            changes = [*found, *changes]
            late = self._parts.clock.now().mono_s - began_s > MAX_REPLAY_S
            whole = first == begin and (not late or begin == since_minute)
        notes = _notes(setting, then, since_minute)
        return Replayed(changes, first, until_minute, whole, notes)

    async def _slice(
        self, begin: int, last: int, setting: ReplayContext
    ) -> tuple[list[ReplayedHour], int]:
        """What changed, and from which minute on it was replayed."""
        store, rule = self._parts.store, self._rule
        tokens = () if rule.target == EVERYONE else rule.tokens
        tallies = await store.sums(
            tokens,
            since_minute=begin,
            until_minute=last,
            database=rule.database,
            limit=self._left,
        )
        minutes: Sequence[MetricMinute] = ()
        if tallies:
            minutes = await store.metric_minutes(
                since_minute=begin, until_minute=last, database=rule.database
            )
        if len(tallies) >= self._left:
            begin = tallies[0].minute + 1  # Of one that was cut off, not the first.
        self._left -= len(tallies)
        return await to_thread(_replayed, tallies, minutes, rule, setting, begin), begin

    def _setting(self, then: RulesThen, audit: Sequence[AuditEntry]) -> ReplayContext:
        known_from_s = audit[-1].wall_s if len(audit) >= MAX_AUDIT else float("-inf")
        return ReplayContext(
            then.book, self._gates(), known_from_s, self._parts.checker.fairness is not None
        )

    def _gates(self) -> dict[str, DatabaseGate]:
        return {name: gate_of(health) for name, health in self._parts.board.healths.items()}


def _replayed(
    tallies: Sequence[Tally],
    minutes: Sequence[MetricMinute],
    rule: Rule,
    setting: ReplayContext,
    begin: int,
) -> list[ReplayedHour]:
    changes = replay((t for t in tallies if t.minute >= begin), minutes, rule, setting)
    return [replace(c, shadowed_by=original_id(c.shadowed_by)) for c in changes]


def _notes(setting: ReplayContext, then: RulesThen, since_minute: int) -> list[str]:
    notes = []
    if setting.known_from_s > since_minute * 60.0:
        notes.append("Rules of older minutes were not read: their result is unknown.")
    if then.unreadable:
        notes.append(f"Rules of that time that cannot be read: {', '.join(then.unreadable)}.")
    return notes
