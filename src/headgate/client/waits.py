"""How long a client waits for what, and the story of one wait so far."""

from __future__ import annotations

import math

from headgate.client.answers import PACED, UNKNOWN_METRIC, Answer
from headgate.client.circuit import OnUnavailable
from headgate.client.events import warn
from headgate.client.question import Question
from headgate.errors import Fault, InvalidSettings, WaitedTooLong

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 5.0
# A new primary knows its metrics within seconds; a misspelled database is never known.
UNKNOWN_WARNING_AFTER_S = 10.0


class Patience:
    """How long a client waits for what, and what it does when no agent answers."""

    __slots__ = ("max_wait_s", "on_unavailable", "timeout_s", "unavailable_after_s")

    def __init__(
        self,
        timeout_s: float = 1.0,
        max_wait_s: float | None = None,
        unavailable_after_s: float = 10.0,
        on_unavailable: OnUnavailable = "closed",
    ) -> None:
        self.timeout_s = timeout_s
        self.max_wait_s = max_wait_s
        self.unavailable_after_s = unavailable_after_s
        self.on_unavailable = on_unavailable
        faults = []
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            faults.append(Fault("timeout_s", f"must be seconds above 0, not {timeout_s!r}"))
        times = {"max_wait_s": max_wait_s, "unavailable_after_s": unavailable_after_s}
        for name, value in times.items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                faults.append(Fault(name, f"must be 0 or more seconds, not {value!r}"))
        if on_unavailable not in ("closed", "open"):
            message = f"must be 'closed' or 'open', not {on_unavailable!r}"
            faults.append(Fault("on_unavailable", message))
        if faults:
            raise InvalidSettings(faults)

    def limit_s(self, deadline_s: float | None) -> float:
        limit_s = self.max_wait_s if deadline_s is None else deadline_s
        if limit_s is None:
            return math.inf
        if not (math.isfinite(limit_s) and limit_s >= 0):
            raise InvalidSettings([Fault("deadline_s", f"must be 0 or more, not {limit_s!r}")])
        return limit_s


def backoff_s(tries: int, roll: float) -> float:
    """Full jitter: anything up to a bound that doubles, so that a herd does not return as one."""
    return roll * min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(tries, 16))


class Wait:
    """One wait so far."""

    def __init__(self, about: Question, started_s: float, limit_s: float) -> None:
        self.about = about
        self.started_s = started_s
        self.limit_s = limit_s
        self.rejection: Answer | None = None
        self.rejections = 0
        self.unanswered = 0
        self.unknown_since_s: float | None = None
        self.warned = False

    @property
    def ends_s(self) -> float:
        return self.started_s + self.limit_s

    def left_s(self, now_s: float) -> float:
        return self.ends_s - now_s

    def rejected(self, rejection: Answer, now_s: float, roll: float) -> float:
        """How long to pause before the next check; WaitedTooLong where none is left."""
        self.rejection, self.unanswered = rejection, 0
        self._note_unknown(now_s, rejection)
        advised_s = rejection.retry_after_s or 0.0
        # Paced: the agent has reserved a turn, jitter included; a client that is late loses it.
        paced = rejection.verdict == PACED and advised_s > 0
        jitter_s = 0.0 if paced else backoff_s(self.rejections, roll)
        self.rejections += 1
        left_s = self.left_s(now_s)
        # No further check fits before the deadline: raise now.
        if left_s <= 0 or advised_s > left_s:
            raise self.too_long(now_s, rejection)
        return max(advised_s, min(jitter_s, left_s))

    def too_long(self, now_s: float, rejection: Answer) -> WaitedTooLong:
        advice = f"; retry after {rejection.retry_after_s:.1f} s" if rejection.retry_after_s else ""
        lost = "; since then no agent has answered" if self.unanswered else ""
        return WaitedTooLong(
            f"{self.about}: not admitted within {self.limit_s:g} s (rejections:"
            f" {self.rejections}, over {now_s - self.started_s:.1f} s); the last,"
            f" {rejection.verdict}: {rejection.reason}{advice}{lost}",
            rejection,
        )

    def _note_unknown(self, now_s: float, rejection: Answer) -> None:
        """Goes on waiting, but not in silence, where no other answer ever came."""
        if rejection.verdict != UNKNOWN_METRIC:
            self.unknown_since_s = None
            return
        if self.unknown_since_s is None:
            self.unknown_since_s = now_s
        unknown_s = now_s - self.unknown_since_s
        if unknown_s >= UNKNOWN_WARNING_AFTER_S and not self.warned:
            self.warned = True
            parts = rejection.checks or (rejection,)
            unknown = [part.database for part in parts if part.verdict == UNKNOWN_METRIC]
            warn("%s: for %.1f s every answer has been UNKNOWN_METRIC, about database %s (%s); "
                 "still waiting: is the name right?",
                 self.about, unknown_s, " and ".join(unknown), rejection.reason)  # fmt: skip
