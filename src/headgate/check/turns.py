"""Which clients ratio rules reject, and for how long.

Checker ──a decision──► Fairness ──► Turn: still within the limit, or skip the ratio rules

Created only if `fairness_max_wait_s` is set. Memory is bounded: a number of clients have their own
timer, and the rest share one timer for each rule that rejects them. So a client that makes up a
name for each check neither fills memory nor displaces a client that waits.
"""

from __future__ import annotations

from headgate.check.fairness import Turn, turn_of
from headgate.check.model import Decision, Verdict

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
