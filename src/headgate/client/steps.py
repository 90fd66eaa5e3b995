"""What a conversation wants done, and the results it gets. Drivers do it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias

from headgate.client.answers import Answer
from headgate.client.circuit import Outage
from headgate.client.http1 import Response
from headgate.client.replies import NoAnswer
from headgate.client.target import Target


class Ask(NamedTuple):
    request: bytes
    timeout_s: float
    """Of the agent, from when the question is put to it; never cut short by a deadline, which
    says something of the caller's hurry and nothing of the agent."""
    target: Target | None = None
    """None: the client's own agent."""
    queue_s: float = math.inf
    """Of the caller: how long it may queue for a connection, which says nothing about the
    agent. The queue always moves: each check before it ends within its timeout."""
    in_vain: Callable[[], str] = str
    """Called at the end of that queue: why no agent would answer; empty: send the check."""


class NoTurn(NamedTuple):
    """The question was never put: no connection came free in time."""

    queued_s: float


class Sleep(NamedTuple):
    seconds: float


class Tell(NamedTuple):
    """Sent in the background, while work goes on; `settle` is called with what came of it."""

    request: bytes
    timeout_s: float
    settle: Callable[[Response | NoAnswer], None]
    target: Target | None = None


class Together(NamedTuple):
    """Check at several agents, at once where possible, else one after the other until one
    rejects: whatever the others would answer, the work may not start."""

    asking: tuple[Asking, ...]

    @staticmethod
    def settles(outcome: Answer | Outage) -> bool:
        return isinstance(outcome, Answer) and not outcome.admitted


Reply: TypeAlias = Response | NoAnswer
Outcomes: TypeAlias = "list[Answer | Outage]"
Step: TypeAlias = Ask | Sleep | Tell | Together
Sent: TypeAlias = "Reply | NoTurn | Outcomes | None"
Asking: TypeAlias = "Generator[Step, Sent, Answer | Outage]"
Steps: TypeAlias = "Generator[Step, Sent, Answer]"
