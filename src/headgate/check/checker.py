"""Answer checks.   edge ──► Checker.check ──► decide; nothing here waits for anything.

Fairness remembers which clients ratio rules reject, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.base.names import ANONYMOUS
from headgate.base.ports import Clock
from headgate.budgets.charging import Debits
from headgate.check.board import Board
from headgate.check.decide import Steady, closed, decide, unmeasured, wrong_agent
from headgate.check.demand import Demands
from headgate.check.health import Health
from headgate.check.model import Check, Decision, Turn, Verdict, turn_of
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
        self._without_value = recorder.without_value
        self._record = recorder.record
        self._count, self._keep = recorder.count, recorder.in_full.append
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

    def follow(self, rules: RuleBook) -> None:
        """From the next check on, these are in force."""
        self.rules = rules

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
        if health is not None and health.lacks_any and decision.verdict is _OK:
            self._count_unmeasured(decision, health)
        if self.fairness is not None and (turn := self.fairness.turn(decision)) is not None:
            decision = self._in_turn(decision, turn, roll)
        if self.pacers and (pacer := self.pacers.get(check.database)) is not None:
            decision = pacer.meter(decision, roll)
        if check.budget and decision.verdict is _OK:
            decision = self._debited(decision, roll)
        self._record(decision)
        return decision

    def again(self, check: Check, steady: Steady, by: str) -> float | None:
        """Decide as before, for a client that may be another one: how long it has to wait, 0 if it
        is admitted. None if this cannot be: nothing was decided, nor counted. `by`: see
        recorder.decided_by."""
        now, database, rules = self._now(), check.database, self.rules
        if (
            now.mono_s >= steady.until_s
            or self._healths.get(database) is not steady.health
            or rules.applied(check.identity, database, now.wall_s) is not steady.applied
            or check.identity is ANONYMOUS
            or self.fairness is not None
            or self.active_agent
            or self.closed
            or (self.pacers and database in self.pacers)
        ):
            return None
        demand = self._demands.get(database)
        if demand is not None and now.mono_s >= demand.note_after:
            demand.note(check, steady.health, now.mono_s)
        roll = self._roll()
        if self._count(check, database, steady.verdict, by, now.wall_s):
            self._keep(decide(check, steady.health, rules, now=now, roll=roll))
        return steady.wait_s * (1 + roll)

    def _count_unmeasured(self, decision: Decision, health: Health) -> None:
        for standing in unmeasured(decision.check, health, decision.at):
            self._without_value[decision.check.database, standing.spec.name] += 1

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


# --- fairness ------------------------------------------------------------------------------------

# Which clients ratio rules reject, and for how long.
#
# Checker ──a decision──► Fairness ──► Turn: still within the limit, or skip the ratio rules
#
# Created only if `fairness_max_wait_s` is set. Memory is bounded: a number of clients have their
# own timer, and the rest share one timer for each rule that rejects them. So a client that makes up
# a name for each check neither fills memory nor displaces a client that waits.

MAX_CLIENTS = 4096
"""Clients with a timer of their own; about 200 bytes each."""
MAX_SHARED = 4096
"""Shared timers: one per rule. Not more rules than this are busy at once."""
IDLE_WAITS = 2.0
"""A client that has not checked for this many times the limit loses its place."""

_DICED = Verdict.REJECTED_BY_RATIO
_Key = tuple[str, str]
"""(database, client); or (database, rule id) of a shared timer"""


class Fairness:
    def __init__(self, max_wait_s: float, *, max_clients: int = MAX_CLIENTS) -> None:
        self.max_wait_s = max_wait_s
        self.waived_total = 0
        """Checks that skipped ratio rules."""
        self._max_clients = max_clients
        self._waiting: dict[_Key, tuple[float, float]] = {}
        """(first rejected by ratio, last rejected); the latest at the end."""
        self._shared: dict[_Key, float] = {}

    @property
    def clocks(self) -> int:
        """Kept just now, own and shared."""
        return len(self._waiting) + len(self._shared)

    def turn(self, decision: Decision) -> Turn | None:
        """None unless a ratio rejected it. The wait starts over after a check reaches the metrics,
        is put on hold, or skips the ratio rules."""
        key = (decision.check.database, decision.check.identity.text)
        if decision.verdict is not _DICED:
            self._waiting.pop(key, None)
            return None
        now_s = decision.at.mono_s
        turn = turn_of(self._since(key, decision), now_s, self.max_wait_s)
        if turn.dice_waived:
            self.waived_total += 1
            if self._waiting.pop(key, None) is None:
                self._shared.pop(_shared_key(decision), None)
        else:
            self._note(key, decision, now_s - turn.waited_s, now_s)
        return turn

    def foresee(self, decision: Decision) -> Turn | None:
        """How long a client waits already, and whether its next check is spared the dice; of one
        that is not counted, and of which no dice were thrown."""
        if decision.odds is None:
            return None
        key = (decision.check.database, decision.check.identity.text)
        since = self._since(key, decision)
        return None if since is None else turn_of(since, decision.at.mono_s, self.max_wait_s)

    # --- clocks ----------------------------------------------------------------------------

    def _since(self, key: _Key, decision: Decision) -> float | None:
        if (own := self._waiting.get(key)) is not None:
            return own[0]
        if self._has_room(decision.at.mono_s):
            return None
        return self._shared.get(_shared_key(decision))

    def _has_room(self, now_s: float) -> bool:
        if len(self._waiting) < self._max_clients:
            return True
        _, last_s = next(iter(self._waiting.values()))
        return now_s - last_s > IDLE_WAITS * self.max_wait_s

    def _note(self, key: _Key, decision: Decision, since_s: float, now_s: float) -> None:
        if self._waiting.pop(key, None) is None and not self._make_room(now_s):
            if len(self._shared) >= MAX_SHARED:
                del self._shared[next(iter(self._shared))]
            self._shared.setdefault(_shared_key(decision), since_s)
            return
        self._waiting[key] = since_s, now_s

    def _make_room(self, now_s: float) -> bool:
        if not self._has_room(now_s):
            return False
        if len(self._waiting) >= self._max_clients:
            del self._waiting[next(iter(self._waiting))]
        return True


def _shared_key(decision: Decision) -> _Key:
    rule = decision.rule
    return decision.check.database, rule.id if rule is not None else ""
