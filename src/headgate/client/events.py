"""What happens to a client, as values for logs and metrics.   Conversation ──► Events ──► hooks

A closed union: match on the class. Hooks run in the thread or task that checks, so they should
be quick; one that raises is named in the log once and never breaks the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias, get_args

from headgate.client.answers import Answer
from headgate.errors import Fault, InvalidSettings

_IS_COROUTINE = 0x80
"""inspect.CO_COROUTINE; importing inspect would cost more than all the rest of this module."""


class Checked(NamedTuple):
    """One check was answered by one agent, or decided in this process."""

    app: str
    databases: tuple[str, ...]
    agent: str
    """Its URL; `local` where the client decided without an agent."""
    verdict: str | None
    """None: no answer; `detail` says why."""
    took_s: float
    detail: str = ""


class Rejected(NamedTuple):
    """A piece of work may not start now. Not a failure, and never counted as one."""

    app: str
    databases: tuple[str, ...]
    answer: Answer


class Waited(NamedTuple):
    """A wait ended with an admission; also one that was admitted at once."""

    app: str
    databases: tuple[str, ...]
    waited_s: float
    rejections: int
    answer: Answer


class WaitTimedOut(NamedTuple):
    """Checks were rejected until the deadline of the wait."""

    app: str
    databases: tuple[str, ...]
    waited_s: float
    rejections: int
    answer: Answer


class FailedOpen(NamedTuple):
    """A piece of work starts without a throttler."""

    app: str
    databases: tuple[str, ...]
    agent: str
    outage_s: float
    detail: str


class FailedClosed(NamedTuple):
    """A piece of work is stopped, because no agent answers."""

    app: str
    databases: tuple[str, ...]
    agent: str
    outage_s: float
    detail: str


class CircuitOpened(NamedTuple):
    """Nobody has answered for the bounded wait."""

    app: str
    agent: str
    outage_s: float
    detail: str


class CircuitHalfOpened(NamedTuple):
    """The client sends one check to see whether an agent answers again."""

    app: str
    agent: str
    outage_s: float


class CircuitClosed(NamedTuple):
    """An agent answers again, even if with a rejection."""

    app: str
    agent: str
    outage_s: float


class Rerouted(NamedTuple):
    """Questions go elsewhere from now on."""

    app: str
    databases: tuple[str, ...]
    before: str
    now: str
    why: str


class WentUnthrottled(NamedTuple):
    """A period of going without a throttler is over; it is reported to the agent."""

    app: str
    databases: tuple[str, ...]
    agent: str
    duration_s: float
    pieces: int


Event: TypeAlias = (
    Checked
    | Rejected
    | Waited
    | WaitTimedOut
    | FailedOpen
    | FailedClosed
    | CircuitOpened
    | CircuitHalfOpened
    | CircuitClosed
    | Rerouted
    | WentUnthrottled
)
Hook: TypeAlias = Callable[[Event], object]
EVENTS: tuple[type[Event], ...] = get_args(Event)


class Events:
    """Tells every hook."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = tuple(hooks)
        self._failed: set[int] = set()

    def __call__(self, event: Event) -> None:
        for place, hook in enumerate(self._hooks):
            try:
                hook(event)
            # Whatever it raises is its author's fault: throttling must not depend on a log line.
            except Exception as fault:
                if place not in self._failed:
                    self._failed.add(place)
                    warn("the hook %r raised %r at %s; it is called on, and its further failures "
                         "are not logged", hook, fault, type(event).__name__)  # fmt: skip


def events_of(on_event: Hook | Iterable[Hook] | None) -> Events | None:
    """None: there are no hooks, so no events are created."""
    if on_event is None:
        return None
    hooks = (on_event,) if callable(on_event) else tuple(on_event)
    for hook in hooks:
        code = getattr(hook, "__code__", None)
        if not callable(hook) or (code is not None and code.co_flags & _IS_COROUTINE):
            message = f"must be plain functions that take an event, not {hook!r}"
            raise InvalidSettings([Fault("on_event", message)])
    return Events(hooks) if hooks else None


# --- log lines -----------------------------------------------------------------------------


def warn(message: str, *fields: object) -> None:
    # Imported here: most jobs never get to log a line.
    import logging

    logging.getLogger("headgate.client").warning(message, *fields)
