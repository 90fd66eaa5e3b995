"""The retry policy, once.   Client ──► Conversation ══steps══► driver ──► agent

A conversation is a generator: it yields what it wants done (Ask, Sleep), is sent what came
of it, and returns the Answer. It opens no socket and calls no sleep, so that threads and
event loops share every rule below:

- one question per piece of work; an OK is never kept for another one (R30, R33);
- a refusal is waited out with full jitter, never asking sooner than the agent said (R32); one
  for the pace alone is waited out as said, for that is a turn (R143);
- no answer is not a refusal: it is retried for a bounded time, and then the client's own
  policy decides; a refusal in between starts that time anew (R47–R50);
- who goes on without an agent asks seldom, until one answers: a question that nobody will
  answer costs its whole timeout;
- "ask there" is neither a refusal nor silence: the client asks there, MAX_HOPS times at most
  for one question, and ends up refused where agents only point at each other (R37).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias

from headgate.client.answers import PACED, UNAVAILABLE, UNKNOWN_METRIC, Answer
from headgate.client.availability import Availability, OnUnavailable, Outage
from headgate.client.http1 import Response
from headgate.client.logs import warn
from headgate.client.parsing import merged
from headgate.client.question import Question
from headgate.client.replies import NoAnswer, read_reply
from headgate.client.routes import MAX_HOPS, Routes, is_dead_end
from headgate.client.target import Target
from headgate.errors import Fault, InvalidSettings, ThrottlerUnavailable, WaitedTooLong

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 5.0
# The last question before a deadline is given at least this long to be answered.
MIN_ASK_S = 0.05
# A new primary knows its metrics within seconds (R45); a misspelt database is unknown for ever.
UNKNOWN_WARNING_AFTER_S = 10.0


class Ask(NamedTuple):
    request: bytes
    timeout_s: float
    target: Target | None = None
    """None: the client's own agent."""


class Sleep(NamedTuple):
    seconds: float


Reply: TypeAlias = Response | NoAnswer
Steps: TypeAlias = Generator[Ask | Sleep, Reply | None, Answer]
Replying: TypeAlias = Generator[Ask | Sleep, Reply | None, Answer | NoAnswer]


class Patience:
    """How long a client waits for what, and what it does when nobody answers (R48)."""

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
        self._check()

    def _check(self) -> None:
        faults = [*self._time_faults()]
        if self.on_unavailable not in ("closed", "open"):
            message = f"must be 'closed' or 'open', not {self.on_unavailable!r}"
            faults.append(Fault("on_unavailable", message))
        if faults:
            raise InvalidSettings(faults)

    def _time_faults(self) -> Generator[Fault, None, None]:
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            yield Fault("timeout_s", f"must be seconds above 0, not {self.timeout_s!r}")
        for name in ("max_wait_s", "unavailable_after_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                yield Fault(name, f"must be 0 or more seconds, not {value!r}")


def backoff_s(tries: int, roll: float) -> float:
    """Full jitter: anything up to a bound that doubles, so that a herd does not return as one."""
    return roll * min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(tries, 16))


class _Hops:
    """How often this question may still be sent on."""

    def __init__(self, left: int = MAX_HOPS) -> None:
        self.left = left


class _Wait:
    """One wait so far."""

    def __init__(self, question: Question, started_s: float, limit_s: float) -> None:
        self.question = question
        self.started_s = started_s
        self.limit_s = limit_s
        self.refusal: Answer | None = None
        self.refusals = 0
        self.unanswered = 0
        self.unknown_since_s: float | None = None
        self.warned = False

    @property
    def ends_s(self) -> float:
        return self.started_s + self.limit_s

    def left_s(self, now_s: float) -> float:
        return self.ends_s - now_s

    def too_long(self, now_s: float, refusal: Answer) -> WaitedTooLong:
        advice = f"; come back in {refusal.retry_after_s:.1f} s" if refusal.retry_after_s else ""
        lost = "; since then no agent has answered" if self.unanswered else ""
        return WaitedTooLong(
            f"{self.question}: refused for {now_s - self.started_s:.1f} s of at most"
            f" {self.limit_s:g} s ({self.refusals} refusals); the last, {refusal.verdict}:"
            f" {refusal.reason}{advice}{lost}",
            refusal,
        )

    def note_unknown(self, now_s: float, refusal: Answer) -> None:
        """Goes on waiting, but not in silence, where no other answer ever came."""
        if refusal.verdict != UNKNOWN_METRIC:
            self.unknown_since_s = None
            return
        if self.unknown_since_s is None:
            self.unknown_since_s = now_s
        unknown_s = now_s - self.unknown_since_s
        if unknown_s >= UNKNOWN_WARNING_AFTER_S and not self.warned:
            self.warned = True
            warn("%s: for %.1f s every answer has been UNKNOWN_METRIC, about database %s (%s); "
                 "still waiting: is the name right?",
                 self.question, unknown_s, _unknown_databases(refusal), refusal.reason)  # fmt: skip


def _unknown_databases(refusal: Answer) -> str:
    parts = refusal.checks or (refusal,)
    return " and ".join(part.database for part in parts if part.verdict == UNKNOWN_METRIC)


def _together(outcomes: list[Answer | NoAnswer]) -> Answer | NoAnswer:
    """A no is a no, whoever else is silent (R50); else silence is silence."""
    answers = tuple(one for one in outcomes if isinstance(one, Answer))
    lost = next((one for one in outcomes if isinstance(one, NoAnswer)), None)
    return lost if lost is not None and all(answers) else merged(answers)


class Conversation:
    def __init__(
        self,
        agent: str,
        patience: Patience,
        availability: Availability,
        clock: Callable[[], float],
        dice: Callable[[], float],
        routes: Routes | None = None,
    ) -> None:
        self.agent = agent
        self.routes = routes
        """None: whoever is asked, nobody is followed."""
        self.patience = patience
        self.availability = availability
        self.clock = clock
        self.dice = dice

    def check(self, question: Question) -> Steps:
        outcome = yield from self._ask(question, math.inf)
        if isinstance(outcome, Outage):
            raise ThrottlerUnavailable(self._nobody(question, outcome))
        return outcome

    def wait(self, question: Question, deadline_s: float | None = None) -> Steps:
        wait = _Wait(question, self.clock(), self._limit_s(deadline_s))
        bypassed = self._bypassed(wait.started_s)
        if bypassed is not None:
            return self._without_throttler(question, bypassed)
        while True:
            outcome = yield from self._ask(question, wait.ends_s)
            if isinstance(outcome, Outage):
                pause_s = self._after_no_answer(wait, outcome)
                if pause_s is None:
                    return self._without_throttler(question, outcome)
            elif outcome.admitted:
                return outcome
            else:
                pause_s = self._after_refusal(wait, outcome)
            yield Sleep(pause_s)

    def _limit_s(self, deadline_s: float | None) -> float:
        limit_s = self.patience.max_wait_s if deadline_s is None else deadline_s
        if limit_s is None:
            return math.inf
        if not (math.isfinite(limit_s) and limit_s >= 0):
            raise InvalidSettings([Fault("deadline_s", f"must be 0 or more, not {limit_s!r}")])
        return limit_s

    def _ask(
        self, question: Question, ends_s: float
    ) -> Generator[Ask | Sleep, Reply | None, Answer | Outage]:
        asked_s = self.clock()
        outcome = yield from self._answer(question, ends_s)
        if isinstance(outcome, NoAnswer):
            return self.availability.unanswered(asked_s, self.clock(), outcome.detail)
        self.availability.answered(self.clock())
        return outcome

    def _answer(self, question: Question, ends_s: float) -> Replying:
        if self.routes is None:
            return (yield from self._put(question, None, ends_s))
        if question.parts:
            return (yield from self._each(question, self.routes, ends_s))
        return (yield from self._found(question, self.routes, ends_s))

    def _found(self, question: Question, routes: Routes, ends_s: float) -> Replying:
        """Asked where it was answered last; where that leads nowhere, at home again."""
        hops, known = _Hops(), routes.to(question)
        outcome = yield from self._follow(question, routes, known, hops, ends_s)
        if known is not None and is_dead_end(outcome):
            outcome = yield from self._follow(question, routes, None, hops, ends_s)
        return outcome

    def _follow(
        self, question: Question, routes: Routes, at: Target | None, hops: _Hops, ends_s: float
    ) -> Replying:
        while True:
            outcome = yield from self._put(question, at, ends_s)
            onward = routes.onward(outcome, at)
            if onward is None or not hops.left:
                routes.settle(question, at, outcome)
                return outcome
            hops.left -= 1
            at = onward

    def _each(self, question: Question, routes: Routes, ends_s: float) -> Replying:
        """About several databases: in one question, until one of them is answered elsewhere."""
        outcomes: list[Answer | NoAnswer] = []
        if any(routes.to(part) for part in question.parts):
            for part in question.parts:
                outcomes.append((yield from self._found(part, routes, ends_s)))
            return _together(outcomes)
        whole = yield from self._put(question, None, ends_s)
        if isinstance(whole, NoAnswer) or whole.admitted:
            return whole
        for check, part in zip(whole.checks, question.parts, strict=False):
            outcome: Answer | NoAnswer = check
            onward = routes.onward(check, None)
            if onward is not None:
                hops = _Hops(MAX_HOPS - 1)
                outcome = yield from self._follow(part, routes, onward, hops, ends_s)
            outcomes.append(outcome)
        return _together(outcomes) if outcomes != list(whole.checks) else whole

    def _put(self, question: Question, at: Target | None, ends_s: float) -> Replying:
        """One question to one agent."""
        left_s = max(MIN_ASK_S, ends_s - self.clock())
        timeout_s = min(self.patience.timeout_s, left_s)
        asked = question.put_to(at)
        reply = yield Ask(asked.request, timeout_s, at)
        assert reply is not None, "a driver sends a reply to every Ask"
        outcome = read_reply(reply, asked)
        if isinstance(outcome, NoAnswer) and at is not None:
            return NoAnswer(f"{at}, where an agent said to ask: {outcome.detail}")
        return outcome

    def _bypassed(self, now_s: float) -> Outage | None:
        if self.availability.outage is None:
            return None
        return self.availability.bypassed(now_s, self._next_probe_at_s(now_s))

    def _next_probe_at_s(self, now_s: float) -> float:
        """Jittered: a herd that lost its agent at one time must not return as one."""
        return now_s + self.patience.unavailable_after_s * (1 + self.dice() / 2)

    def _after_refusal(self, wait: _Wait, refusal: Answer) -> float:
        wait.refusal, wait.unanswered = refusal, 0
        now_s, advised_s = self.clock(), refusal.retry_after_s or 0.0
        wait.note_unknown(now_s, refusal)
        # Paced: the agent has given it a turn, and jitter with it; whoever comes later loses it.
        paced = refusal.verdict == PACED and advised_s > 0
        jitter_s = 0.0 if paced else backoff_s(wait.refusals, self.dice())
        wait.refusals += 1
        left_s = wait.left_s(now_s)
        # Where no further question can be asked in time, the caller is told so now.
        if left_s <= 0 or advised_s > left_s:
            raise wait.too_long(now_s, refusal)
        return max(advised_s, min(jitter_s, left_s))

    def _after_no_answer(self, wait: _Wait, outage: Outage) -> float | None:
        """How long to pause; None: nobody will have answered, act on that."""
        now_s = self.clock()
        wait_left_s = wait.left_s(now_s)
        outage_left_s = outage.since_s + self.patience.unavailable_after_s - now_s
        jitter_s = backoff_s(wait.unanswered, self.dice())
        wait.unanswered += 1
        if outage_left_s <= 0:
            self._declare(outage, now_s)
            return None
        if wait_left_s <= 0:
            # Refused before: the last thing heard was a no, and silence does not lift it.
            if wait.refusal is not None:
                raise wait.too_long(now_s, wait.refusal)
            return None
        return min(jitter_s, outage_left_s, wait_left_s)

    def _declare(self, outage: Outage, now_s: float) -> None:
        # A closed client asks each time: it must not fail work that would be admitted by now.
        if self.patience.on_unavailable == "open":
            self.availability.declare(outage, now_s, self._next_probe_at_s(now_s))

    def _without_throttler(self, question: Question, outage: Outage) -> Answer:
        message = self._nobody(question, outage)
        if self.patience.on_unavailable == "closed":
            raise ThrottlerUnavailable(message)
        self.availability.gone_ahead(outage)
        return Answer(UNAVAILABLE, admitted=True, reason=message, unthrottled=True)

    def _nobody(self, question: Question, outage: Outage) -> str:
        return (
            f"{question}: no agent answered at {self.agent} for {outage.lasted_s:.1f} s"
            f" (questions: {outage.asks}; the last: {outage.detail}); start `headgate agent`"
            " there, or point url or HEADGATE_URL at one"
        )
