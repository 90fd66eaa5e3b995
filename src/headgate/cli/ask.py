"""`check`, `wait`, `explain`: may this client work now, and if not, what would have to change?"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.asking import (
    Databases,
    MaxWait,
    OnUnavailable,
    Quiet,
    UnavailableAfter,
)
from headgate.cli.options import App, AsJson, Database, Metrics, Scope, Token, Url

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api
    from headgate.wire.answers import AnswerDoc

LOOK_BACK_TIMEOUT_S = 15.0
RETRY_S = 0.5
"""Pause before asking again an agent that did not answer, or named no time."""

Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="Ask again until admitted, for at most this long."),
]
Cost = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        show_default=False,
        help="How much work is to start (rows, say), where a metric is paced. Default: 1.",
    ),
]


Budget = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Charge the work to this budget of the database; needs --cpu-s.",
    ),
]
CpuS = Annotated[
    float | None,
    typer.Option(
        "--cpu-s",
        metavar="SECONDS",
        show_default=False,
        help="CPU that the work will take on the server; needs --budget.",
    ),
]


def check(
    app: App,
    database: Database = "main",
    metrics: Metrics = None,
    scope: Scope = None,
    cost: Cost = None,
    budget: Budget = None,
    cpu_s: CpuS = None,
    wait: Wait = 0.0,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Ask for leave to do one piece of work.

    The exit code is the answer: 0 admitted, 10 threshold exceeded, 11 refused by ratio,
    12 client denied, 13 unknown metric or database, 14 a metric cannot be read, 15 to be asked
    elsewhere, 16 healthy but paced (come back when told), 17 over its budget, 20 no agent
    answers. Where an agent says that its shard is spoken for elsewhere, this asks there, and says
    so on standard error.
    """
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.exits import exit_code_of_verdict
    from headgate.cli.output import show
    from headgate.cli.pages import answer_page, debit_text
    from headgate.wire.answers import AnswerDoc

    question = {"app": app, "database": database, "metrics": metrics, "scope": scope}
    if cost is not None:
        question["cost"] = f"{cost:.15g}"
    question |= {"budget": budget, "cpu_s": None if cpu_s is None else f"{cpu_s:.15g}"}
    asked = ask_until(connect(url, token), question, wait_s=wait)
    answer = read(AnswerDoc, asked.document)
    refuse_incoherent(asked, answer, database)
    show(asked, as_json, lambda canvas: answer_page(answer, canvas, debit_text(asked.document)))
    raise typer.Exit(exit_code_of_verdict(answer.verdict))


def wait(
    app: App,
    database: Databases = "main",
    metrics: Metrics = None,
    scope: Scope = None,
    max_wait: MaxWait = None,
    on_unavailable: OnUnavailable = "closed",
    unavailable_after: UnavailableAfter = 10.0,
    quiet: Quiet = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Wait for leave to do one piece of work, as a program with the SDK would.

    With jittered pauses that are never shorter than the agent asks for. Exits with 0 once
    admitted; with the code of the last refusal (10 to 19, as `check` has them) where --max-wait
    is over, and with 20 where no agent answers. What it waits for goes to standard error.
    """
    from headgate.cli.asking import About, Asker, Silence, Whom, wait_for_leave

    about = About(app, database, metrics, scope)
    silence = Silence(on_unavailable, unavailable_after)
    wait_for_leave(Asker(about, silence, Whom.found(url, token), quiet), max_wait)


At = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        show_default=False,
        help="That minute in the past instead of now: 07:10, 90m, 2026-03-01T07:10.",
    ),
]


def explain(
    app: App,
    database: Database = "main",
    metrics: Metrics = None,
    scope: Scope = None,
    at: At = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Say what a check would be answered, and why.

    Shows every metric that is looked at, which of them decide, and what would have to
    change. Asking this is not counted: it appears in no history and among no clients. With
    --at, what history keeps of that minute: what was decided, by which metric or rule, and
    which rules were in force.
    """
    if at is not None:
        _explain_at(app, database, at, connect_with=(url, token), as_json=as_json)
        return
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import explain_page
    from headgate.wire.rules import ExplainDoc

    api = connect(url, token)
    question = {"app": app, "database": database, "metrics": metrics, "scope": scope}
    asked = ask_following(api, "/v1/explain", question)
    show(asked, as_json, lambda canvas: explain_page(read(ExplainDoc, asked.document), canvas))


def _explain_at(
    app: str,
    database: str,
    at: str,
    *,
    connect_with: tuple[str | None, str | None],
    as_json: bool,
) -> None:
    from datetime import datetime

    from headgate.cli.api import connect
    from headgate.cli.history import moment
    from headgate.cli.output import show_view
    from headgate.present.history import past_view
    from headgate.wire.past import PastDoc

    now = datetime.now().astimezone()
    api = connect(*connect_with, timeout_s=LOOK_BACK_TIMEOUT_S)
    asked = api.get("/v1/explain", app=app, database=database, at=moment(at, now))
    show_view(asked, as_json, PastDoc, past_view)


def ask_following(api: Api, path: str, question: Mapping[str, str | None]) -> Answered:
    """Asked where the agent sends us, as the SDK does: seldom more than once."""
    from headgate.cli.render import plain
    from headgate.client.routes import MAX_HOPS

    asked = api.ask(path, **question)
    for _ in range(MAX_HOPS):
        if asked.document.get("verdict") != "MISDIRECTED":
            break
        onward = api.onward(asked.document.get("ask"))
        if onward is None:
            break
        print(f"headgate: {api.url} sends us to {plain(onward.url)}", file=sys.stderr)
        known_as = asked.document.get("ask_database") or question["database"]
        question = {**question, "database": str(known_as)}
        api, asked = onward, onward.ask(path, **question)
    return asked


def ask_until(api: Api, question: Mapping[str, str | None], *, wait_s: float) -> Answered:
    """The first admission, or the last answer before `wait_s` is over."""
    from headgate.cli.exits import AgentUnreachable

    ends_s = time.monotonic() + wait_s
    while True:
        try:
            asked = ask_following(api, "/v1/check", question)
        except AgentUnreachable:
            pause_s = RETRY_S
            if time.monotonic() + pause_s > ends_s:
                raise
        else:
            pause_s = _pause_s(asked)
            # Where no further question fits in, the caller is told now, not at the end.
            if asked.document.get("admitted") is True or time.monotonic() + pause_s > ends_s:
                return asked
        time.sleep(pause_s)


def refuse_incoherent(asked: Answered, answer: AnswerDoc, database: str) -> None:
    """A leave to work that contradicts itself, or is about something else, is none (R28)."""
    from headgate.errors import BadDocument

    says_ok = {answer.verdict == "OK", answer.admitted, asked.status == 200}
    if len(says_ok) > 1:
        said = f"status {asked.status}, verdict {answer.verdict}, admitted {answer.admitted}"
        raise BadDocument("verdict", f"contradicts the rest ({said})")
    if answer.database != database:
        raise BadDocument("database", f"is {answer.database!r}, and {database!r} was asked about")


def _pause_s(asked: Answered) -> float:
    retry_ms = asked.document.get("retry_after_ms")
    known = isinstance(retry_ms, int | float) and retry_ms > 0
    return float(retry_ms) / 1000 if known and retry_ms is not None else RETRY_S
