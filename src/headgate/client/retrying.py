"""The retry policy, once.   Client ──► Conversation ══steps══► driver ──► agent

A conversation is a generator: it yields `Ask` and `Sleep` steps, is sent the result,
and returns the Answer. It opens no socket and calls no sleep, so that threads and event loops
share every rule below:

- One check per piece of work; an OK is never kept for another one.
- After a rejection the client waits with full jitter, never less than the agent's retry_after.
  After PACED it waits exactly that long, because the agent has reserved a turn.
- No answer is not a rejection: the client retries for a bounded time, and then its own policy
  decides. A rejection in between restarts that time.
- A client that continues without an agent checks seldom until one answers: a check without an
  answer costs its whole timeout.
- Of several agents of its own, the client checks first at the one that answered last.
- Each period without an agent is reported in the background to the agent that ends it.
- "Wrong agent" is neither a rejection nor silence: the client checks at the agent named in the
  answer, at most MAX_HOPS times for one check. Where agents only name each other, it is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol, TypeAlias

from headgate.client import events
from headgate.client.answers import ON_HOLD, UNAVAILABLE, Answer
from headgate.client.circuit import Availability, Circuit, Endpoints, Outage
from headgate.client.events import warn
from headgate.client.parsing import merged
from headgate.client.question import Question, RequestBuilder
from headgate.client.replies import NoAnswer, read_reply
from headgate.client.routes import MAX_HOPS, Routes, is_dead_end
from headgate.client.steps import (
    Ask,
    Asking,
    NoTurn,
    Reply,
    Sent,
    Sleep,
    Step,
    Steps,
    Tell,
)
from headgate.client.target import Target
from headgate.client.unthrottled import PATH, Periods, report_body
from headgate.client.waits import Patience, Wait, backoff_s
from headgate.errors import HeadgateError, ThrottlerUnavailable, WaitedTooLong

LOOK_EVERY_S = 1.0
"""So often a local client that is held looks whether it still is."""
LOCAL = "local"
"""The agent's name in answers that were decided in this process."""

Emit: TypeAlias = Callable[[events.Event], None]
Pausing: TypeAlias = "Generator[Step, Sent, float]"
Replying: TypeAlias = "Generator[Step, Sent, Answer | NoAnswer]"


class DecidesLocally(Protocol):
    """Decides in this process, where it knows enough."""

    def check(self, question: Question, now_s: float) -> Answer | None:
        """None: send the check to the agent. `now_s` is of the conversation's clock."""
        ...

    def is_ready(self, question: Question) -> bool:
        """Whether it would be decided here; nothing is decided yet, nor counted."""
        ...

    def would_admit(self, question: Question) -> bool:
        """Whether nothing but dice is in the way now; nothing is decided yet, nor counted."""
        ...


class Ways(NamedTuple):
    """Which agents to check at, and how."""

    endpoints: Endpoints
    routes: Routes | None = None
    """None: do not follow an agent's answer to another agent."""
    asker: RequestBuilder | None = None
    """None: periods of going without an agent are not reported."""


class _Hops:
    """How often this question may still be sent on."""

    def __init__(self, left: int = MAX_HOPS) -> None:
        self.left = left


def _together(outcomes: list[Answer | NoAnswer]) -> Answer | NoAnswer:
    """A rejection counts even where other agents are silent; else silence is silence."""
    answers = tuple(one for one in outcomes if isinstance(one, Answer))
    lost = next((one for one in outcomes if isinstance(one, NoAnswer)), None)
    return lost if lost is not None and all(answers) else merged(answers)


class Telling:
    """The events of checks, where there are hooks for them."""

    def __init__(self, emit: Emit | None, clock: Callable[[], float]) -> None:
        self.emit = emit
        self.clock = clock

    def asked(
        self, question: Question, agent: str, outcome: Answer | NoAnswer, asked_s: float
    ) -> None:
        if self.emit is None:
            return
        told = question.app, question.databases, agent
        took_s = self.clock() - asked_s
        if isinstance(outcome, NoAnswer):
            self.emit(events.Checked(*told, None, took_s, outcome.detail))
        else:
            self.emit(events.Checked(*told, outcome.verdict, took_s))

    def rejected(self, question: Question, rejection: Answer) -> None:
        if self.emit is not None:
            self.emit(events.Rejected(question.app, question.databases, rejection))

    def ended(
        self, kind: type[events.Waited | events.WaitTimedOut], wait: Wait, answer: Answer | None
    ) -> None:
        if self.emit is not None and answer is not None:
            story = self.clock() - wait.started_s, wait.rejections, answer
            self.emit(kind(wait.about.app, wait.about.databases, *story))

    def failed(
        self,
        kind: type[events.FailedOpen | events.FailedClosed],
        question: Question,
        agents: Endpoints,
        outage: Outage,
    ) -> None:
        if self.emit is not None:
            who = question.app, question.databases, str(agents)
            self.emit(kind(*who, outage.lasted_s, outage.detail))

    def rerouted(self, question: Question, before: Target, now: Target, why: str) -> None:
        if self.emit is not None and before.url != now.url:
            self.emit(events.Rerouted(question.app, question.databases, before.url, now.url, why))


class AgentExchange:
    """One question to the right agent: ours, whichever of them answers, or the one that an
    answer names."""

    def __init__(
        self,
        ways: Ways,
        timeout_s: float,
        availability: Availability,
        tell: Telling,
    ) -> None:
        self._endpoints, self.routes, _ = ways
        self._timeout_s = timeout_s
        self._availability = availability
        self._tell, self._clock = tell, tell.clock

    def put(self, question: Question, ends_s: float) -> Replying:
        if self.routes is None:
            return (yield from self._put(question, None, ends_s))
        if question.parts:
            return (yield from self._each(question, self.routes, ends_s))
        return (yield from self._found(question, self.routes, ends_s))

    def _found(self, question: Question, routes: Routes, ends_s: float) -> Replying:
        """Check where the last answer came from; if that fails, at the client's own agent."""
        hops, known = _Hops(), routes.to(question)
        outcome = yield from self._follow(question, routes, known, hops, ends_s)
        if known is not None and is_dead_end(outcome):
            outcome = yield from self._follow(question, routes, None, hops, ends_s)
        if self._tell.emit is not None:
            now = routes.to(question) or routes.home
            self._tell.rerouted(question, known or routes.home, now, "it decides for the shard")
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
        """One question to one agent; None: to ours, whichever of them answers."""
        if at is not None:
            outcome = yield from self._put_to(question, at, ends_s)
            if isinstance(outcome, NoAnswer):
                return NoAnswer(f"{at} (named by another agent as the right one): {outcome.detail}")
            return outcome
        if len(self._endpoints.targets) == 1:
            return (yield from self._put_to(question, None, ends_s))
        return (yield from self._put_to_any(question, ends_s))

    def _put_to_any(self, question: Question, ends_s: float) -> Replying:
        details: list[str] = []
        for target in self._endpoints.order(self._clock()):
            at = None if target is self._endpoints.targets[0] else target
            outcome = yield from self._put_to(question, at, ends_s)
            if isinstance(outcome, NoAnswer):
                details.append(f"{target}: {outcome.detail}")
                continue
            before = self._endpoints.answered(target, self._clock())
            if before is not None:
                if self.routes is not None:
                    self.routes.home = target
                why = "; ".join(details) or "it is preferred"
                self._tell.rerouted(question, before, target, why)
            return outcome
        return NoAnswer("; ".join(details))

    def _put_to(self, question: Question, at: Target | None, ends_s: float) -> Replying:
        asked_s, timeout_s = self._clock(), self._timeout_s
        asked, target = question.put_to(at), at or self._endpoints.targets[0]

        def in_vain() -> str:
            """A caller that queued while no agent answered does not repeat the attempt."""
            outage = self._availability.outage
            if outage is None or outage.since_s > asked_s:
                return ""
            return f"{outage.detail}, to those before it in line"

        queue_s = max(timeout_s, ends_s - asked_s)
        reply = yield Ask(asked.request, timeout_s, target, queue_s, in_vain)
        if isinstance(reply, NoTurn):
            raise WaitedTooLong(
                f"{question}: no check was sent: all connections to {target} were busy for"
                f" {reply.queued_s:.1f} s with other checks of this client. Let fewer tasks check"
                " at once, or decide in this process (local=True)."
            )
        assert reply is not None and not isinstance(reply, list), "a driver replies to every step"
        outcome = read_reply(reply, asked)
        self._tell.asked(question, target.url, outcome, asked_s)
        return outcome


class Conversation:
    def __init__(
        self,
        patience: Patience,
        ways: Ways,
        clock: Callable[[], float],
        dice: Callable[[], float],
        emit: Emit | None = None,
    ) -> None:
        self.patience = patience
        self.endpoints, self.routes, self._asker = ways
        self._app = "" if ways.asker is None else ways.asker.app
        self.availability = Availability(patience.unavailable_after_s, patience.on_unavailable)
        self.periods = Periods()
        self.clock = clock
        self.dice = dice
        self._tell = Telling(emit, clock)
        self._exchange = AgentExchange(ways, patience.timeout_s, self.availability, self._tell)
        self._local: DecidesLocally | None = None
        """Consulted before any check is sent to an agent."""

    def decide_locally(self, local: DecidesLocally | None) -> None:
        self._local = local

    @property
    def circuit(self) -> Circuit:
        return self.availability.circuit

    # --- one agent's answer, or none ---------------------------------------------------------

    def check(self, question: Question) -> Steps:
        outcome = yield from self.ask(question, math.inf)
        if isinstance(outcome, Outage):
            raise self.unavailable(question, outcome)
        if not outcome.admitted:
            self._tell.rejected(question, outcome)
        return outcome

    def wait(self, question: Question, deadline_s: float | None = None) -> Steps:
        wait = Wait(question, self.clock(), self.patience.limit_s(deadline_s))
        try:
            answer = yield from self._waiting(question, wait)
        except WaitedTooLong as rejected:
            self._tell.ended(events.WaitTimedOut, wait, rejected.answer)
            raise
        self._tell.ended(events.Waited, wait, answer)
        return answer

    def _waiting(self, question: Question, wait: Wait) -> Steps:
        bypassed = self.bypassed(question, wait.started_s)
        if bypassed is not None:
            return self.without_throttler(question, bypassed)
        while True:
            outcome = yield from self.ask(question, wait.ends_s)
            if isinstance(outcome, Outage):
                pause_s = self.after_no_answer(wait, outcome)
                if pause_s is None:
                    return self.without_throttler(question, outcome)
            elif outcome.admitted:
                return outcome
            else:
                self._tell.rejected(question, outcome)
                pause_s = wait.rejected(outcome, self.clock(), self.dice())
                pause_s = yield from self._held(question, outcome, pause_s)
            yield Sleep(pause_s)

    def _held(self, question: Question, rejection: Answer, pause_s: float) -> Pausing:
        """Of a hold, sleep most of its pause, and end it early where the hold was lifted here.
        That sends no check; each waiter looks at its own time, so that not all start at once."""
        if self._local is None or rejection.verdict != ON_HOLD:
            return pause_s
        while pause_s > LOOK_EVERY_S:
            slept_s = LOOK_EVERY_S * (1 + self.dice()) / 2
            yield Sleep(slept_s)
            pause_s -= slept_s
            if self._local.would_admit(question):
                return 0.0
        return pause_s

    def asking(self, question: Question, ends_s: float) -> Asking:
        """For one of several: an outage that work goes on in is an answer as well."""
        bypassed = self.bypassed(question, self.clock())
        if bypassed is not None:
            return self.without_throttler(question, bypassed)
        return (yield from self.ask(question, ends_s))

    def ask(self, question: Question, ends_s: float) -> Asking:
        asked_s = self.clock()
        if self._local is not None:
            decided = self._local.check(question, asked_s)
            if decided is not None:
                self._tell.asked(question, LOCAL, decided, asked_s)
                yield from self._heard()
                return decided
        if self.availability.is_declared:
            self.availability.probing()
            if self._tell.emit is not None:
                told = self._app, str(self.endpoints), self.circuit.outage_s
                self._tell.emit(events.CircuitHalfOpened(*told))
        outcome = yield from self._exchange.put(question, ends_s)
        if isinstance(outcome, NoAnswer):
            return self.availability.unanswered(asked_s, self.clock(), outcome.detail)
        yield from self._heard()
        return outcome

    def _heard(self) -> Generator[Step, Sent, None]:
        """An agent is there: it answered, or it just pushed the snapshot that decided."""
        self._note_answer()
        if self.periods.pending:
            yield from self._reporting()

    # --- without a throttler -----------------------------------------------------------------

    def bypassed(self, question: Question, now_s: float) -> Outage | None:
        if self.availability.outage is None:
            return None
        if self._local is not None and self._local.is_ready(question):
            return None
        return self.availability.bypassed(now_s, self._next_probe_at_s(now_s))

    def _next_probe_at_s(self, now_s: float) -> float:
        """Jittered: a herd that lost its agent at one time must not return as one."""
        return now_s + self.patience.unavailable_after_s * (1 + self.dice() / 2)

    def after_no_answer(self, wait: Wait, outage: Outage) -> float | None:
        """How long to pause; None: nobody will have answered, act on that."""
        now_s = self.clock()
        wait_left_s = wait.left_s(now_s)
        outage_left_s = outage.since_s + self.patience.unavailable_after_s - now_s
        jitter_s = backoff_s(wait.unanswered, self.dice())
        wait.unanswered += 1
        if outage_left_s <= 0:
            opens = self.availability.declare(outage, now_s, self._next_probe_at_s(now_s))
            if opens and self._tell.emit is not None:
                told = self._app, str(self.endpoints), outage.lasted_s, outage.detail
                self._tell.emit(events.CircuitOpened(*told))
            return None
        if wait_left_s <= 0:
            raise self._too_late(wait, outage, now_s)
        return min(jitter_s, outage_left_s, wait_left_s)

    def _too_late(self, wait: Wait, outage: Outage, now_s: float) -> HeadgateError:
        """A deadline says how long the caller has, and nothing about the agent. Only after the
        agent was silent for the bounded wait does a caller continue without it."""
        # Rejected before: the last answer was a rejection, and silence does not lift it.
        if wait.rejection is not None:
            return wait.too_long(now_s, wait.rejection)
        question = wait.about
        self._tell.failed(events.FailedClosed, question, self.endpoints, outage)
        return ThrottlerUnavailable(
            f"{self._nobody(question, outage)}; the deadline of {wait.limit_s:g} s came before"
            f" the {self.patience.unavailable_after_s:g} s of unavailable_after_s"
        )

    def without_throttler(self, question: Question, outage: Outage) -> Answer:
        if self.patience.on_unavailable == "closed":
            self._tell.failed(events.FailedClosed, question, self.endpoints, outage)
            raise self.unavailable(question, outage)
        if self.periods.piece(self.clock()):
            warn("%s has not answered for %.1f s (%s); work goes on unthrottled",
                 self.endpoints, outage.lasted_s, outage.detail)  # fmt: skip
        self._tell.failed(events.FailedOpen, question, self.endpoints, outage)
        return Answer(
            UNAVAILABLE,
            admitted=True,
            reason=self._nobody(question, outage),
            database=question.databases[0] if len(question.databases) == 1 else "",
            unthrottled=True,
        )

    def unavailable(self, question: Question, outage: Outage) -> ThrottlerUnavailable:
        return ThrottlerUnavailable(self._nobody(question, outage))

    def _nobody(self, question: Question, outage: Outage) -> str:
        return (
            f"{question}: no agent answered at {self.endpoints} for {outage.lasted_s:.1f} s"
            f" (checks sent: {outage.asks}; last error: {outage.detail}); start `headgate agent`"
            " there, or point url or HEADGATE_URL at one"
        )

    # --- and with one again ------------------------------------------------------------------

    def _note_answer(self) -> None:
        outage = self.availability.outage
        # Another thread may have ended the outage while this one went ahead without an agent.
        if outage is None and not self.periods.is_going:
            return
        now_s, was_open = self.clock(), self.availability.answered()
        outage_s = 0.0 if outage is None else now_s - outage.since_s
        if was_open and self._tell.emit is not None:
            self._tell.emit(events.CircuitClosed(self._app, str(self.endpoints), outage_s))
        period = self.periods.ended(now_s)
        if period is None:
            return
        warn("%s answers again after %.1f s; pieces of work run without it: %d",
             self.endpoints, outage_s, period.pieces)  # fmt: skip
        if self._tell.emit is not None and self._asker is not None:
            who = (self._asker.app, self._asker.databases, str(self.endpoints))
            self._tell.emit(events.WentUnthrottled(*who, period.duration_s, period.pieces))

    def _reporting(self) -> Generator[Step, Sent, None]:
        now_s, asker, target = self.clock(), self._asker, self.endpoints.current
        periods = () if asker is None else self.periods.due(now_s)
        if asker is None or not periods:
            return
        body = report_body(asker.app, asker.databases, periods, now_s)

        def settle(reply: Reply) -> None:
            self.periods.told(periods, reply, self.clock())

        request = asker.report(target, PATH, body)
        yield Tell(request, self.patience.timeout_s, settle, target)

    def farewell(self) -> Generator[Step, Sent, None]:
        """The last chance to tell; nothing where nobody listens."""
        if self.periods.pending and self.availability.outage is None:
            yield from self._reporting()
