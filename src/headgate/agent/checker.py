"""Answer checks.   edge ──► Checker.check ──► decide; nothing here waits for anything."""

from __future__ import annotations

from collections.abc import Callable

from headgate.agent.board import Board
from headgate.agent.demand import Demands
from headgate.agent.ports import Clock
from headgate.agent.recorder import Recorder
from headgate.core.decide import decide, misdirected
from headgate.core.decision import Check, Decision
from headgate.core.rules import NO_RULES, RuleBook


class Checker:
    def __init__(
        self,
        board: Board,
        recorder: Recorder,
        demands: Demands,
        clock: Clock,
        roll: Callable[[], float],
        *,
        anonymous_may_pass: bool,
    ) -> None:
        self._healths = board.healths
        self._record = recorder.record
        self._demands = demands.by_database
        self._now = clock.now
        self._roll = roll
        self._anonymous_may_pass = anonymous_may_pass
        self.rules: RuleBook = NO_RULES
        """Replaced whole when rules change."""
        self.active_agent = ""
        """Set on a standby that is passive: where to ask instead."""

    def check(self, check: Check) -> Decision:
        # As explain() does, spelt out: this is the hot path, and a frame is a tenth of it.
        now, health = self._now(), self._healths.get(check.database)
        if self.active_agent:
            return misdirected(check, health, self.active_agent, now=now, roll=self._roll())
        demand = self._demands.get(check.database)
        if demand is not None and now.mono_s >= demand.note_after:
            demand.note(check, health, now.mono_s)
        decision = decide(
            check,
            health,
            self.rules,
            now=now,
            roll=self._roll(),
            anonymous_may_pass=self._anonymous_may_pass,
        )
        self._record(decision)
        return decision

    def explain(self, check: Check) -> Decision:
        """The same answer, counted nowhere."""
        return decide(
            check,
            self._healths.get(check.database),
            self.rules,
            now=self._now(),
            roll=self._roll(),
            anonymous_may_pass=self._anonymous_may_pass,
        )
