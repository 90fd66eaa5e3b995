"""Which checks go to another agent than the client's own, because an agent said so.

Only the agent of a shard's primary decides for the shard, and the primary can change. An agent
that is not the right one answers with the URL of the one that is; the client goes there, and
starts there with its next check. The URL is a shortcut, never the only way: when it fails, the
client returns to its own agent.
"""

from __future__ import annotations

from headgate.client.answers import METRIC_UNAVAILABLE, UNKNOWN_METRIC, WRONG_AGENT, Answer
from headgate.client.question import Question
from headgate.client.replies import NoAnswer
from headgate.client.target import Target, sent_on

MAX_HOPS = 2
MAX_LEARNT = 64
# From an agent that may not be the right one any more: better to start at the client's own again.
_DOUBTFUL = frozenset({WRONG_AGENT, UNKNOWN_METRIC, METRIC_UNAVAILABLE})


class Routes:
    """Shared by threads without a lock: each change is one operation on a dict."""

    def __init__(self, home: Target) -> None:
        self.home = home
        self._learnt: dict[bytes, Target] = {}

    def to(self, question: Question) -> Target | None:
        """None: the client's own agent. By the whole check: a check at host scope goes to the
        client's own agent, even where a check at shard scope goes to another."""
        return self._learnt.get(question.subject)

    def onward(self, answer: Answer | NoAnswer, here: Target | None) -> Target | None:
        """Where `answer` sends us, if it does and that is somewhere else."""
        if isinstance(answer, NoAnswer) or answer.verdict != WRONG_AGENT:
            return None
        target = sent_on(self.home, answer.check_at)
        if target is None or same_place(target, here or self.home):
            return None
        name = answer.check_at_database
        return target if name in (None, answer.database) else target._replace(database=name)

    def settle(self, question: Question, at: Target | None, answer: Answer | NoAnswer) -> None:
        """Remember where this was answered, or forget where it was not."""
        doubtful = isinstance(answer, NoAnswer) or answer.verdict in _DOUBTFUL
        if at is None or doubtful or same_place(at, self.home):
            self.forget(question)
        else:
            self.learn(question, at)

    def learn(self, question: Question, at: Target) -> None:
        if len(self._learnt) >= MAX_LEARNT and question.subject not in self._learnt:
            self._learnt.clear()
        self._learnt[question.subject] = at

    def forget(self, question: Question) -> None:
        self._learnt.pop(question.subject, None)


def is_dead_end(answer: Answer | NoAnswer) -> bool:
    return isinstance(answer, NoAnswer) or answer.verdict == WRONG_AGENT


def same_place(one: Target, other: Target) -> bool:
    return one[1:4] == other[1:4] and (one.trust is None) == (other.trust is None)
