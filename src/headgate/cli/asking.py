"""What `wait` and `run` share: which client checks what, and the wait until it is admitted."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias, cast

import typer

from headgate.cli.options import (
    AgentOptions,
    App,
    Database,
    Databases,
    Duration,
    Metrics,
    Scope,
    duration,
)
from headgate.errors import ThrottlerUnavailable, WaitedTooLong

if TYPE_CHECKING:
    from headgate.client.answers import Answer
    from headgate.client.sync_client import Client

FIRST_PAUSE_S = 0.1
"""Before the next check, where the agent named no time."""


UNAVAILABLE_AFTER = Duration("10s")

MaxWait: TypeAlias = Annotated[
    Duration | None,
    duration(
        "--max-wait",
        about="Give up after this long: 90s, 10m, 2h. Default: wait until admitted.",
        default=False,
    ),
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors; see the exit code.")
]


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The client and the metrics of one check."""

    app: App
    database: Database = "main"
    metrics: Metrics = None
    scope: Scope = None

    @property
    def query(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in ("app", "database", "metrics", "scope")}


@dataclass(frozen=True, slots=True)
class About(CheckOptions):
    """The same of the SDK's client, which validates the names."""

    database: Databases = "main"

    def __post_init__(self) -> None:
        if self.scope not in (None, "host", "shard"):
            raise typer.BadParameter(f"--scope {self.scope!r} must be host or shard")


@dataclass(frozen=True, slots=True)
class UnavailablePolicy:
    """What an agent that does not answer means."""

    policy: Annotated[
        str,
        typer.Option(
            "--on-unavailable",
            metavar="closed|open",
            help="When no agent answers: closed gives no permission (and stops a running job), "
            "open lets it continue unthrottled.",
        ),
    ] = "closed"
    after_s: Annotated[
        Duration,
        duration("--unavailable-after", about="How long an agent may be silent before that."),
    ] = UNAVAILABLE_AFTER

    def __post_init__(self) -> None:
        if self.policy not in ("closed", "open"):
            raise typer.BadParameter(f"--on-unavailable {self.policy!r} must be closed or open")

    @property
    def on_unavailable(self) -> Literal["closed", "open"]:
        return cast(Literal["closed", "open"], self.policy)


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """The agent to check with."""

    url: str
    token: str | None = field(repr=False)

    @classmethod
    def found(cls, agent: AgentOptions) -> AgentAddress:
        from headgate.cli.api import checked_token, default_url, find_target

        return cls(find_target(agent.url or default_url()).url, checked_token(agent.token))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """A client, its check, and the agent to check with."""

    about: About
    silence: UnavailablePolicy
    agent: AgentAddress
    quiet: bool

    def client(self) -> Client:
        from headgate.client.sync_client import Client

        about = self.about
        return Client(
            about.app,
            database=tuple(about.database.split(",")),
            url=self.agent.url,
            metrics=tuple(about.metrics.split(",")) if about.metrics else (),
            scope=cast(Literal["host", "shard"] | None, about.scope),
            on_unavailable=self.silence.on_unavailable,
            unavailable_after_s=self.silence.after_s,
            token=self.agent.token,
        )


def say(asking: ClientOptions, line: str) -> None:
    """On standard error: standard output is the job's. A job goes on when nobody reads there."""
    from headgate.cli.documents import plain

    if not asking.quiet:
        with suppress(OSError):
            said = f"headgate: {plain(asking.about.app)}: {plain(line)}"
            print(said, file=sys.stderr, flush=True)


class Admitted(NamedTuple):
    answer: Answer
    waited_s: float


def wait_for_permission(asking: ClientOptions, max_wait_s: float | None) -> Admitted:
    """WaitedTooLong and ThrottlerUnavailable are the caller's to tell."""
    started_s = time.monotonic()
    with asking.client() as client:
        answer = _admission(asking, client, max_wait_s)
    waited_s = time.monotonic() - started_s
    if answer.unthrottled:
        say(asking, f"continues unthrottled: {answer.reason}")
    elif waited_s >= 1:
        say(asking, f"admitted after {waited_s:.1f} s")
    return Admitted(answer, waited_s)


def _admission(asking: ClientOptions, client: Client, limit_s: float | None) -> Answer:
    """The SDK waits in silence; a person at a terminal wants to know why."""
    try:
        first = client.check()
    except ThrottlerUnavailable:
        return client.wait(limit_s)
    if first:
        return first
    pause_s = first.retry_after_s or FIRST_PAUSE_S
    if limit_s is not None and pause_s > limit_s:
        raise WaitedTooLong(_in_vain(asking, first, limit_s), first)
    say(asking, f"waits: {first.reason or first.verdict}")
    time.sleep(pause_s)
    return client.wait(None if limit_s is None else limit_s - pause_s)


def _in_vain(asking: ClientOptions, rejected: Answer, limit_s: float) -> str:
    about = asking.about
    advised = f"; retry after {rejected.retry_after_s:.1f} s" if rejected.retry_after_s else ""
    return (
        f"{about.app} on {about.database}: rejected, and no further check fits into {limit_s:g}"
        f" s; {rejected.verdict}: {rejected.reason}{advised}"
    )
