"""What `wait` and `run` share: who asks about what, and the wait for leave, through the SDK."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

import typer

from headgate.errors import ThrottlerUnavailable, WaitedTooLong

if TYPE_CHECKING:
    from headgate.client.answers import Answer
    from headgate.client.sync_client import Client

FIRST_PAUSE_S = 0.1
"""Before asking again an agent that named no time."""


class Duration:
    """`90s`, `30m`, `1h30m`."""

    def __init__(self, text: str) -> None:
        from headgate.core.units import parse_seconds

        try:
            self.seconds = parse_seconds(text)
        except ValueError as fault:
            raise typer.BadParameter(str(fault)) from None


Databases: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="HEADGATE_DATABASE",
        metavar="D1,D2",
        help="The database to be worked on; of several, all must admit.",
    ),
]
MaxWait: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        metavar="DURATION",
        parser=Duration,
        show_default=False,
        help="Give up after this long (90s, 10m, 2h). Default: wait until admitted.",
    ),
]
OnUnavailable: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="closed|open",
        help="When no agent answers: closed gives no leave to work (and stops a running job), "
        "open lets it go on unthrottled.",
    ),
]
UnavailableAfter: TypeAlias = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="For how long silence is no more than a pause."),
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but errors; the exit code tells.")
]


@dataclass(frozen=True, slots=True)
class About:
    """Who asks about what; names are judged by the client that is made of them."""

    app: str
    database: str
    metrics: str | None
    scope: str | None

    def __post_init__(self) -> None:
        if self.scope not in (None, "host", "shard"):
            raise typer.BadParameter(f"--scope {self.scope!r} must be host or shard")


@dataclass(frozen=True, slots=True)
class Silence:
    """What an agent that does not answer means."""

    policy: str
    after_s: float

    def __post_init__(self) -> None:
        if self.policy not in ("closed", "open"):
            raise typer.BadParameter(f"--on-unavailable {self.policy!r} must be closed or open")

    @property
    def on_unavailable(self) -> Literal["closed", "open"]:
        return cast(Literal["closed", "open"], self.policy)


@dataclass(frozen=True, slots=True)
class Whom:
    """The agent that is asked."""

    url: str
    token: str | None = field(repr=False)

    @classmethod
    def found(cls, url: str | None, token: str | None) -> Whom:
        from headgate.cli.api import checked_token, default_url, find_target

        return cls(find_target(url or default_url()).url, checked_token(token))


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks whom about what."""

    about: About
    silence: Silence
    whom: Whom
    quiet: bool

    def client(self) -> Client:
        from headgate.client.sync_client import Client

        about = self.about
        return Client(
            about.app,
            database=tuple(about.database.split(",")),
            url=self.whom.url,
            metrics=tuple(about.metrics.split(",")) if about.metrics else (),
            scope=cast(Literal["host", "shard"] | None, about.scope),
            on_unavailable=self.silence.on_unavailable,
            unavailable_after_s=self.silence.after_s,
            token=self.whom.token,
        )


def say(asking: Asker, line: str) -> None:
    """On standard error: standard output is the job's. A job goes on when nobody reads there."""
    from headgate.cli.render import plain

    if not asking.quiet:
        with suppress(OSError):
            said = f"headgate: {plain(asking.about.app)}: {plain(line)}"
            print(said, file=sys.stderr, flush=True)


def wait_for_leave(asking: Asker, max_wait: Duration | None) -> float:
    """How long it took. WaitedTooLong and ThrottlerUnavailable are the caller's to tell."""
    started_s = time.monotonic()
    limit_s = None if max_wait is None else max_wait.seconds
    with asking.client() as client:
        answer = _told_leave(asking, client, limit_s)
    waited_s = time.monotonic() - started_s
    if answer.unthrottled:
        say(asking, f"goes on unthrottled: {answer.reason}")
    elif waited_s >= 1:
        say(asking, f"admitted after {waited_s:.1f} s")
    return waited_s


def _told_leave(asking: Asker, client: Client, limit_s: float | None) -> Answer:
    """The SDK waits in silence; whoever sits before a terminal is told what for."""
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


def _in_vain(asking: Asker, refusal: Answer, limit_s: float) -> str:
    about = asking.about
    advised = f"; come back in {refusal.retry_after_s:.1f} s" if refusal.retry_after_s else ""
    return (
        f"{about.app} on {about.database}: refused, and no further question fits into {limit_s:g}"
        f" s; {refusal.verdict}: {refusal.reason}{advised}"
    )
