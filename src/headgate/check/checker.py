"""Answer checks.   edge ──► Checker.check ──► decide; nothing here waits for anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.base.ports import Clock
from headgate.budgets.charging import Debits
from headgate.check.board import Board
from headgate.check.decide import closed, decide, wrong_agent
from headgate.check.demand import Demands
from headgate.check.fairness import Turn
from headgate.check.model import Check, Decision, Verdict
from headgate.check.turns import Fairness
from headgate.history.recorder import Recorder
from headgate.pacing.pacer import Pacer
from headgate.rules.matching import NO_RULES, RuleBook

NO_DICE = 0.5
"""The middle of the range, instead of a random number: only the jitter of retry-after uses it."""
NO_DEBITS = Debits({}, lambda _: None)
_OK = Verdict.OK


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
        self.anonymous_may_pass = anonymous_may_pass
        self.rules: RuleBook = NO_RULES
        """Replaced as a whole when rules change."""
        self.pacers: Mapping[str, Pacer] = {}
        """By database, if one of its metrics is paced."""
        self.fairness: Fairness | None = None
        """Set if there is a limit on how long ratio rules may reject a client."""
        self.debits: Debits | None = None
        """Set if the agent has traffic control: checks may name a budget."""
        self.active_agent = ""
        """Set on a passive standby: the address to check at instead."""
        self.closed = ""
        """Set if the operators' changes cannot be read: why every check is rejected."""

    def check(self, check: Check) -> Decision:
        # Spelt out: this is the hot path, and a frame is a tenth of it.
        now, health = self._now(), self._healths.get(check.database)
        if self.active_agent:
            return wrong_agent(check, health, self.active_agent, now=now, roll=self._roll())
        demand = self._demands.get(check.database)
        if demand is not None and now.mono_s >= demand.note_after:
            demand.note(check, health, now.mono_s)
        roll = self._roll()
        if self.closed and health is not None:
            decision = closed(check, health, self.closed, now=now, roll=roll)
            self._record(decision)
            return decision
        decision = decide(
            check,
            health,
            self.rules,
            now=now,
            roll=roll,
            anonymous_may_pass=self.anonymous_may_pass,
        )
        if self.fairness is not None and (turn := self.fairness.turn(decision)) is not None:
            decision = self._in_turn(decision, turn, roll)
        if self.pacers and (pacer := self.pacers.get(check.database)) is not None:
            decision = pacer.meter(decision, roll)
        if check.budget and decision.verdict is _OK:
            decision = self._debited(decision, roll)
        self._record(decision)
        return decision

    def _debited(self, decision: Decision, roll: float) -> Decision:
        charged = (self.debits or NO_DEBITS).meter(decision, roll)
        if not charged.admitted:
            self.give_back(decision)
        return charged

    def give_back(self, decision: Decision) -> None:
        """Undo an admission: a check about several databases is one piece of work, and another
        database, or the budget that the check names, has rejected it."""
        pacer = self.pacers.get(decision.check.database)
        if pacer is not None and decision.admitted:
            pacer.give_back(decision)

    def explain(self, check: Check) -> Decision:
        """What the metrics and rules make of it, counted nowhere. No dice are thrown: the answer
        would be of one throw, and not of the next. See Decision.odds."""
        decision = self.gate(check)
        if self.closed:
            return decision
        if self.fairness is not None and (turn := self.fairness.foresee(decision)) is not None:
            decision = decision._replace(turn=turn)
        pacer = self.pacers.get(check.database)
        if pacer is not None:
            decision = pacer.foresee(decision, NO_DICE)
        if not check.budget or not decision.admitted:
            return decision
        return (self.debits or NO_DEBITS).meter(decision, NO_DICE, only_look=True)

    def gate(self, check: Check) -> Decision:
        """The same without pacing, which comes and goes many times a second."""
        now, health = self._now(), self._healths.get(check.database)
        if self.closed and health is not None:
            return closed(check, health, self.closed, now=now, roll=NO_DICE)
        return decide(
            check,
            health,
            self.rules,
            now=now,
            roll=NO_DICE,
            anonymous_may_pass=self.anonymous_may_pass,
            dice_waived=True,
        )

    def _in_turn(self, diced: Decision, turn: Turn, roll: float) -> Decision:
        """A ratio rejects the client until its wait is over; then the metrics decide."""
        if not turn.dice_waived:
            return diced._replace(turn=turn)
        decision = decide(
            diced.check, diced.health, self.rules, now=diced.at, roll=roll, dice_waived=True
        )
        return decision._replace(turn=turn)
