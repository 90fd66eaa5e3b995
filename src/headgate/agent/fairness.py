"""Who has been kept from the metrics by dice, and for how long (R82).

Checker ──a decision──► Fairness ──► Turn: still within the bound, or the dice are waived

Made only where `fairness_max_wait_s` is set. Memory is bounded: so many clients have a clock
of their own; those that come beyond share one for each rule that refuses them, so that names
made up per check neither fill memory nor push out whoever waits.
"""

from __future__ import annotations

from headgate.core.decision import Decision, Verdict
from headgate.core.fairness import Turn, turn_of

MAX_CLIENTS = 4096
"""With a clock of their own; some 200 bytes each."""
MAX_SHARED = 4096
"""Clocks that are shared: one for each rule, of which more are not that busy at once."""
IDLE_WAITS = 2.0
"""A client that has not asked for so many times the bound gives its place away."""

_DICED = Verdict.REJECTED_BY_RATIO
_Key = tuple[str, str]
"""(database, client); or (database, rule id) of a shared clock"""


class Fairness:
    def __init__(self, max_wait_s: float, *, max_clients: int = MAX_CLIENTS) -> None:
        self.max_wait_s = max_wait_s
        self.waived_total = 0
        """Checks whose dice were waived."""
        self._max_clients = max_clients
        self._waiting: dict[_Key, tuple[float, float]] = {}
        """(refused by dice since, and last), who was refused last at the end."""
        self._shared: dict[_Key, float] = {}

    @property
    def clocks(self) -> int:
        """Kept just now, own and shared."""
        return len(self._waiting) + len(self._shared)

    def turn(self, decision: Decision) -> Turn | None:
        """None unless it was refused by dice. Whoever comes to the metrics, or is held, or
        whose dice are waived hereby, begins anew."""
        key = (decision.check.database, decision.check.identity.text)
        if decision.verdict is not _DICED:
            self._waiting.pop(key, None)
            return None
        now_s = decision.at.mono_s
        turn = turn_of(self._since(key, decision), now_s, self.max_wait_s)
        if turn.dice_waived:
            self.waived_total += 1
            self._begin_anew(key, decision)
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

    def _begin_anew(self, key: _Key, decision: Decision) -> None:
        if self._waiting.pop(key, None) is None:
            self._shared.pop(_shared_key(decision), None)

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
