"""Answer checks.   edge ──► Checker.check ──► decide; nothing here waits for anything."""

from __future__ import annotations

from collections.abc import Callable

from headgate.agent.board import Board
from headgate.agent.ports import Clock
from headgate.agent.recorder import Recorder
from headgate.core.decide import decide
from headgate.core.decision import Check, Decision
from headgate.core.rules import NO_RULES, RuleBook


class Checker:
    def __init__(
        self,
        board: Board,
        recorder: Recorder,
        clock: Clock,
        roll: Callable[[], float],
        *,
        anonymous_may_pass: bool,
    ) -> None:
        self._healths = board.healths
        self._record = recorder.record
        self._now = clock.now
        self._roll = roll
        self._anonymous_may_pass = anonymous_may_pass
        self.rules: RuleBook = NO_RULES
        """Replaced whole when rules change."""

    def check(self, check: Check) -> Decision:
        # As explain() does, spelt out: this is the hot path, and a frame is a tenth of it.
        decision = decide(
            check,
            self._healths.get(check.database),
            self.rules,
            now=self._now(),
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
