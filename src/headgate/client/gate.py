"""What Client and AsyncClient share: the settings, and the conversations they hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from headgate.client.circuit import Circuit, OnUnavailable
from headgate.client.events import Hook, events_of
from headgate.errors import Fault, InvalidSettings

if TYPE_CHECKING:
    from headgate.client.gathering import GatheredCheck
    from headgate.client.local import LocalCheck, LocalGate, Locally
    from headgate.client.question import Debit
    from headgate.client.steps import Sent, Step, Steps
    from headgate.client.target import Target

Sleeper = TypeVar("Sleeper")
Around: TypeAlias = 'Callable[[str, "Gate[Any]", Steps], Steps]'
"""Takes the operation, the gate and its steps; returns the same steps with something around."""


def system_dice() -> float:
    """Uniform in [0, 1), from the kernel: forked workers must not share one sequence."""
    return int.from_bytes(os.urandom(7), "big") / (1 << 56)


class Gate(Generic[Sleeper]):
    """Settings:

    app                  identity of the client, most specific level first: `job7:etl:nightly`
    database             the database whose health counts; of several, all must admit. A mapping
                         gives each its agent: {"orders": "http://a:8087", "users": "http://b:8087"}
    url                  the agent; by default HEADGATE_URL, else http://127.0.0.1:8087. Of several,
                         the first is preferred; the next is used when it does not answer
    tls_ca               for https://: a file with the CA to trust, instead of the system's
    metrics              metrics to check; by default the database's own set
    scope                "host": that agent's own server, "shard": the whole shard; by default
                         each metric's own scope
    cost                 how much work one check is for, in units of your own (rows, say); where
                         the agent paces a metric, it charges that much; by default 1
    follow               whether to check at another agent when the answer names one
    timeout_s            how long one agent may take to answer one check
    max_wait_s           how long `wait` retries after rejections; None: until admitted
    on_unavailable       when no agent answers for `unavailable_after_s`: "closed" raises
                         ThrottlerUnavailable, "open" goes on and marks the answer `unthrottled`;
                         then one check per `unavailable_after_s` is sent until an agent answers
    token                sent as a bearer token
    local                whether to decide in this process, from snapshots that the agent pushes;
                         without a fresh snapshot the client sends its check to the agent
    on_event             a function, or several, called with each event (headgate.client.events)
    dice, clock, sleep   chance and time, for tests

    Safe to share between threads, and over a fork: a child opens connections of its own.
    """

    def __init__(
        self,
        app: str,
        *,
        database: str | Sequence[str] | Mapping[str, str | Sequence[str]],
        url: str | Sequence[str] | None = None,
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
        local: bool = False,
        on_event: Hook | Iterable[Hook] | None = None,
        dice: Callable[[], float] = system_dice,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleeper | None = None,
    ) -> None:
        # Here, as in `_start`: what only a made client needs (see client/__init__.py).
        from headgate.client.circuit import Endpoints
        from headgate.client.gathering import GatheredCheck, Gathering
        from headgate.client.question import make_asker, metric_names
        from headgate.client.retrying import Conversation, Ways
        from headgate.client.routes import Routes
        from headgate.client.target import parse_targets
        from headgate.client.waits import Patience

        patience = Patience(timeout_s, max_wait_s, unavailable_after_s, on_unavailable)
        selected, emit = metric_names(metrics), events_of(on_event)

        def member(databases: str | Sequence[str], at: str | Sequence[str] | None) -> GatheredCheck:
            targets = parse_targets(at, tls_ca)
            asker = make_asker(app, databases, targets[0], token, scope)
            routes = Routes(targets[0]) if follow else None
            ways = Ways(Endpoints(targets), routes, asker)
            conversation = Conversation(patience, ways, clock, dice, emit)
            return GatheredCheck(conversation, asker.may_write(selected, cost), asker, selected)

        members = tuple(member(*agent) for agent in _by_agent(database, url))
        self._members = members
        self._conversation, self._asker = members[0].conversation, members[0].asker
        self._target: Target = self._conversation.endpoints.targets[0]
        self._gathering = (
            Gathering(members, patience, clock, dice, emit) if len(members) > 1 else None
        )
        self._clock = clock
        self._around: Around | None = None
        """Put around each conversation by an integration that traces them."""
        self._locally: Locally | None = None
        self._only: LocalCheck | None = None
        self._reads: LocalGate | None = None
        if local:
            from headgate.client.local import decide_locally

            self._locally = decide_locally(members, token, dice=dice)
            self._locally.abandon_with(self)
            # Event hooks get an event for each check: that is what the long way is for.
            if emit is None:
                self._only, self._reads = self._locally.only, self._locally.reads
        self._start(sleep)

    def _start(self, sleep: Sleeper | None) -> None:
        raise NotImplementedError

    @property
    def app(self) -> str:
        """The client's identity, as given: `job7:etl:nightly`."""
        return self._asker.app

    @property
    def databases(self) -> tuple[str, ...]:
        """Whose health is asked for, of all agents."""
        return tuple(name for member in self._members for name in member.asker.databases)

    @property
    def circuit(self) -> Circuit:
        """Whether an agent answers; of several, of the one that has been silent longest."""
        circuits = [member.conversation.circuit for member in self._members]
        return max(circuits, key=lambda circuit: (circuit.state != "closed", circuit.outage_s))

    def __repr__(self) -> str:
        at = [str(member.conversation.endpoints) for member in self._members]
        return (
            f"<{type(self).__name__} {self.app} on {', '.join(self.databases)} at {', '.join(at)}>"
        )

    def _debit(self, budget: str | None, cpu_s: float | None) -> Debit | None:
        """What is to be charged to which budget; a budget is one database's."""
        from headgate.client.question import checked_debit  # loaded when the client was made

        debit = checked_debit(budget, cpu_s)
        if debit is not None and self._gathering is not None:
            message = f"is of one database, but this client checks {', '.join(self.databases)}"
            raise InvalidSettings([Fault("budget", message)])
        return debit

    def _checking(self, cost: float | None = None, debit: Debit | None = None) -> Steps:
        if self._gathering is not None:
            steps = self._gathering.check(cost)
        else:
            steps = self._conversation.check(self._members[0].asked(cost, debit))
        return steps if self._around is None else self._around("check", self, steps)

    def _checking_read(self, threshold_s: float, metric: str, database: str | None) -> Steps:
        member = self._member_of(database)
        question = member.asker.may_read(threshold_s, metric, database)
        if self._reads is not None:
            self._reads.remember_read((threshold_s, metric, database), question)
        steps = member.conversation.check(question)
        return steps if self._around is None else self._around("check_read", self, steps)

    def _checked(self, cost: float | None, deadline_s: float | None = None) -> None:
        """As the long way does, where the short one is taken."""
        from headgate.client.question import checked_cost  # loaded when the client was made

        checked_cost(cost)
        self._conversation.patience.limit_s(deadline_s)

    def _waiting(
        self, deadline_s: float | None, cost: float | None = None, debit: Debit | None = None
    ) -> Steps:
        if self._gathering is not None:
            steps = self._gathering.wait(deadline_s, cost)
        else:
            steps = self._conversation.wait(self._members[0].asked(cost, debit), deadline_s)
        return steps if self._around is None else self._around("wait", self, steps)

    def _pausing(self, seconds: float) -> Generator[Step, Sent, None]:
        from headgate.client.steps import Sleep  # loaded when the client was made

        if seconds > 0:
            yield Sleep(seconds)

    def _member_of(self, database: str | None) -> GatheredCheck:
        if len(self._members) == 1:
            return self._members[0]
        for member in self._members:
            if database in member.asker.databases:
                return member
        message = (
            f"a read check is about one of {', '.join(self.databases)}: say which, not {database!r}"
        )
        raise InvalidSettings([Fault("database", message)])


def _by_agent(
    database: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    url: str | Sequence[str] | None,
) -> list[tuple[str | Sequence[str], str | Sequence[str] | None]]:
    """Which databases are checked at which agent; those of one agent in one check."""
    if not isinstance(database, Mapping):
        return [(database, url)]
    if url is not None or not database:
        message = "a mapping names an agent for each database; give url for one agent of all"
        raise InvalidSettings([Fault("database", message)])
    agents: dict[tuple[str, ...], list[str]] = {}
    for name, at in database.items():
        agents.setdefault((at,) if isinstance(at, str) else tuple(at), []).append(name)
    return [(names, at) for at, names in agents.items()]
