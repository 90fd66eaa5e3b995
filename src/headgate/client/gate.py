"""What Client and AsyncClient share: the settings, and the conversations they hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from headgate.client.availability import Availability, OnUnavailable

if TYPE_CHECKING:
    from headgate.client.conversation import Steps
    from headgate.client.question import Question

Sleeper = TypeVar("Sleeper")

DEFAULT_CHUNK_SIZE = 100


def system_dice() -> float:
    """Uniform in [0, 1), from the kernel: forked workers must not share one sequence."""
    return int.from_bytes(os.urandom(7), "big") / (1 << 56)


class Gate(Generic[Sleeper]):
    """Settings, in the caller's words:

    app                  who asks, from the most to the least specific level: `job7:etl:nightly`
    database             whose health matters; of several, all must admit
    url                  the agent; by default HEADGATE_URL, else http://127.0.0.1:8087
    tls_ca               for https://: a file with the authority to trust, instead of the system's
    metrics              which to look at; by default the database's own set
    scope                "host": of that agent's own server, "shard": of the whole shard; by
                         default each metric's own
    cost                 how much work each question is about, in units of your own (rows, say);
                         where the agent paces a metric, that much is charged; by default 1
    follow               whether to ask where an agent says that the shard is spoken for
    timeout_s            how long one agent may take to answer one question
    max_wait_s           how long `wait` goes on being refused; None: until admitted
    on_unavailable       when no agent answers for `unavailable_after_s`: "closed" raises
                         ThrottlerUnavailable, "open" goes on and marks the answer `unthrottled`;
                         from then on it asks once in `unavailable_after_s`, until answered
    token                sent as a bearer token
    dice, clock, sleep   chance and time, for tests

    Safe to share between threads, and over a fork: a child opens connections of its own.
    """

    def __init__(
        self,
        app: str,
        *,
        database: str | Sequence[str],
        url: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        metrics: str | Sequence[str] = (),
        scope: Literal["host", "shard"] | None = None,
        cost: float | None = None,
        follow: bool = True,
        timeout_s: float = 1.0,
        max_wait_s: float | None = None,
        on_unavailable: OnUnavailable = "closed",
        unavailable_after_s: float = 10.0,
        token: str | None = None,
        dice: Callable[[], float] = system_dice,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleeper | None = None,
    ) -> None:
        # Here, as in `_start`: what only a made client needs (see client/__init__.py).
        from headgate.client.conversation import Conversation, Patience
        from headgate.client.question import make_asker, metric_names
        from headgate.client.routes import Routes
        from headgate.client.target import DEFAULT_URL, parse_target, url_from_environment

        patience = Patience(timeout_s, max_wait_s, unavailable_after_s, on_unavailable)
        self._target = parse_target(url or url_from_environment() or DEFAULT_URL, tls_ca)
        self._asker = make_asker(app, database, self._target, token, scope)
        self._metrics = metric_names(metrics)
        self._may_write = self._asker.may_write(self._metrics, cost)
        availability = Availability(self._target.url, forget_after_s=unavailable_after_s)
        routes = Routes(self._target) if follow else None
        self._conversation = Conversation(
            self._target.url, patience, availability, clock, dice, routes
        )
        self._start(sleep)

    def _start(self, sleep: Sleeper | None) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        asker = self._asker
        return (
            f"<{type(self).__name__} {asker.app} on {', '.join(asker.databases)} at {self._target}>"
        )

    def _checking(self, cost: float | None = None) -> Steps:
        return self._conversation.check(self._asked(cost))

    def _checking_read(self, threshold_s: float, metric: str, database: str | None) -> Steps:
        return self._conversation.check(self._asker.may_read(threshold_s, metric, database))

    def _waiting(self, deadline_s: float | None, cost: float | None = None) -> Steps:
        return self._conversation.wait(self._asked(cost), deadline_s)

    def _asked(self, cost: float | None) -> Question:
        return self._may_write if cost is None else self._asker.may_write(self._metrics, cost)
