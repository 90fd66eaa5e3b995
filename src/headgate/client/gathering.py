"""Several agents, each with its own databases; all must admit.

Every round checks at all of them again: an OK of one agent is not kept while another rejects,
and each agent throws its own dice, once. The agent that rejected last is first in the next
round, so that a blocking driver seldom sends a check in vain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headgate.client import events
from headgate.client.answers import Answer
from headgate.client.circuit import Outage
from headgate.client.parsing import merged
from headgate.client.question import Debit, Question, RequestBuilder
from headgate.client.retrying import Conversation, Emit, Telling
from headgate.client.steps import Outcomes, Sleep, Steps, Together
from headgate.client.waits import Patience, Wait
from headgate.errors import WaitedTooLong


class GatheredCheck(NamedTuple):
    conversation: Conversation
    question: Question
    asker: RequestBuilder
    metrics: tuple[str, ...] = ()

    def asked(self, cost: float | None, debit: Debit | None = None) -> Question:
        """With a cost of its own, where one is given."""
        if debit is not None:
            return self.asker.may_debit(self.metrics, cost, debit)
        if cost is None:
            return self.question
        return self.asker.may_write(self.metrics, cost).alike(self.question)


class _Round(NamedTuple):
    """What each agent answered; a blocking driver stops at the first rejection."""

    outcomes: tuple[tuple[GatheredCheck, Answer | Outage], ...]

    @property
    def answers(self) -> tuple[Answer, ...]:
        given = [one for _, one in self.outcomes if isinstance(one, Answer)]
        return tuple(part for answer in given for part in answer.checks or (answer,))

    @property
    def silent(self) -> list[tuple[GatheredCheck, Outage]]:
        return [(who, one) for who, one in self.outcomes if isinstance(one, Outage)]


class Gathering:
    def __init__(
        self,
        members: Sequence[GatheredCheck],
        patience: Patience,
        clock: Callable[[], float],
        dice: Callable[[], float],
        emit: Emit | None = None,
    ) -> None:
        self.members = tuple(members)
        names = tuple(name for member in members for name in member.question.databases)
        self._about = Question(members[0].question.app, names, b"")
        self._patience = patience
        self._clock = clock
        self._dice = dice
        self._tell = Telling(emit, clock)
        self._first = 0

    def check(self, cost: float | None = None) -> Steps:
        order = self._order()
        asking = tuple(who.conversation.ask(who.asked(cost), math.inf) for who in order)
        said = self._said(order, (yield Together(asking)))
        if all(said.answers) and said.silent:
            who, outage = said.silent[0]
            raise who.conversation.unavailable(who.question, outage)
        answer = merged(said.answers)
        if not answer.admitted:
            self._tell.rejected(self._about, answer)
        return answer

    def wait(self, deadline_s: float | None = None, cost: float | None = None) -> Steps:
        wait = Wait(self._about, self._clock(), self._patience.limit_s(deadline_s))
        try:
            answer = yield from self._waiting(wait, cost)
        except WaitedTooLong as rejected:
            self._tell.ended(events.WaitTimedOut, wait, rejected.answer)
            raise
        self._tell.ended(events.Waited, wait, answer)
        return answer

    def _waiting(self, wait: Wait, cost: float | None) -> Steps:
        while True:
            order = self._order()
            asking = tuple(who.conversation.asking(who.asked(cost), wait.ends_s) for who in order)
            said = self._said(order, (yield Together(asking)))
            if all(said.answers):
                # For those that may still answer; None: for nobody.
                pauses = [who.conversation.after_no_answer(wait, out) for who, out in said.silent]
                pause_s = min((one_s for one_s in pauses if one_s is not None), default=None)
                if pause_s is None:
                    return merged(self._completed(said))
            else:
                rejection = merged(said.answers)
                self._tell.rejected(self._about, rejection)
                pause_s = wait.rejected(rejection, self._clock(), self._dice())
            yield Sleep(pause_s)

    def _order(self) -> tuple[GatheredCheck, ...]:
        return (*self.members[self._first :], *self.members[: self._first])

    def _said(self, order: tuple[GatheredCheck, ...], outcomes: object) -> _Round:
        assert isinstance(outcomes, list), "a driver returns what each of several agents said"
        said: Outcomes = outcomes
        pairs = tuple(zip(order, said, strict=False))
        for who, outcome in pairs:
            if Together.settles(outcome):
                self._first = self.members.index(who)
        # In the caller's order, not in the order of the checks.
        return _Round(tuple(sorted(pairs, key=lambda pair: self.members.index(pair[0]))))

    def _completed(self, said: _Round) -> tuple[Answer, ...]:
        """With the policy's own word for each that nobody waits for any longer."""
        settled = [
            who.conversation.without_throttler(who.question, outcome)
            if isinstance(outcome, Outage)
            else outcome
            for who, outcome in said.outcomes
        ]
        return tuple(part for answer in settled for part in answer.checks or (answer,))
