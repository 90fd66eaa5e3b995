"""`check`, `wait`, `explain`: may this client work now, and if not, what would have to change?"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli import completing
from headgate.cli.asking import About, CheckOptions, MaxWait, Quiet, UnavailablePolicy
from headgate.cli.documents import plain
from headgate.cli.options import (
    LOOK_BACK_TIMEOUT_S,
    AgentOptions,
    At,
    Cpu,
    Duration,
    duration,
)
from headgate.errors import WaitedTooLong

if TYPE_CHECKING:
    from headgate.check.answer_api import AnswerDoc
    from headgate.cli.api import Answered, Api
    from headgate.client.answers import Answer

WAKE_S, WAKE_RETRY_S = 5.0, 0.2
"""How long a check waits for the first readings of a database that was idle, and how often it
looks."""
IDLE_CAUSES = frozenset({"hibernating", "heartbeat_idle", "stale"})
WAKING_CAUSES = IDLE_CAUSES | {"never_read", "warming_up"}
RETRY_S = 0.5
"""Pause before the next check, where an agent did not answer, or named no time."""

Wait = Annotated[
    Duration, duration("--wait", about="Check again until admitted, for at most this long.")
]
NO_WAIT = Duration("0s")
Cost = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        show_default=False,
        help="How much work will start, such as rows; for paced metrics. Default: 1.",
    ),
]


Budget = Annotated[
    str | None,
    typer.Option(
        metavar="BUDGET",
        show_default=False,
        autocompletion=completing.budgets,
        help="Charge the work to this budget of the database; needs --cpu.",
    ),
]


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """What is to start."""

    cost: Cost = None
    budget: Budget = None
    cpu: Cpu = None

    @property
    def query(self) -> dict[str, str | None]:
        numbers = {"cost": self.cost, "cpu_s": self.cpu}
        said = {name: f"{n:.15g}" for name, n in numbers.items() if n is not None}
        return {**said, "budget": self.budget}


def check(
    question: CheckOptions, work: WorkOptions, agent: AgentOptions, wait: Wait = NO_WAIT
) -> None:
    """Check whether a job may run now.

    The exit code is the answer: 0 if admitted. Rejected: 10 threshold exceeded, 11 by ratio,
    12 client on hold, 13 unknown metric or database, 14 a metric is unavailable. Also: 15 another
    agent answers for the shard, 16 healthy but paced (retry later), 17 over its budget, 20 no
    agent answers. Where another agent answers for the shard, this command follows, and says so on
    standard error. A check wakes an idle database, and waits up to 5 s for its first
    readings.
    """
    from headgate.check.answer_api import AnswerDoc
    from headgate.cli.documents import read
    from headgate.cli.output import show_line

    asked = ask_until(agent.connect(), {**question.query, **work.query}, wait_s=wait)
    answer = read(AnswerDoc, asked.document)
    reject_incoherent(asked, answer, question.database)
    # What draws tables takes as long to load as all the rest: an admission needs none of it.
    if answer.admitted:
        show_line(asked, agent.as_json, "ADMITTED", admission(answer, asked.document), "bold green")
        return
    from headgate.cli.exits import exit_code_of_verdict

    agent.show(asked, "metrics.rejection_view")
    raise typer.Exit(exit_code_of_verdict(answer.verdict))


def admission(answer: AnswerDoc, document: Mapping[str, Any]) -> str:
    """What follows the word."""
    charged = _charged(document)
    line = f"  {plain(answer.app)} may work on {plain(answer.database)}"
    return f"{line}; {charged}" if charged else line


def _charged(document: Mapping[str, Any]) -> str:
    """What was charged to the budget that was named; empty where there is nothing to tell."""
    debit = document.get("budget")
    if not isinstance(debit, Mapping):
        return ""
    if debit.get("note"):
        return plain(str(debit["note"]))
    return plain(f"{debit.get('cost_s')} s of CPU charged to budget {debit.get('budget')}")


def wait(
    about: About,
    silence: UnavailablePolicy,
    agent: AgentOptions,
    max_wait: MaxWait = None,
    quiet: Quiet = False,
) -> None:
    """Wait until a job may run.

    It pauses between checks, with jitter, and never for less than the agent's retry time. Exit
    code 0: admitted; 10 to 19, as for `check`: rejected until --max-wait was over; 20: no agent
    answers. Standard error says what it waits for.
    """
    from headgate.cli.asking import AgentAddress, ClientOptions, wait_for_permission
    from headgate.cli.output import show_json

    asking = ClientOptions(about, silence, AgentAddress.found(agent), quiet)
    try:
        answer, waited_s = wait_for_permission(asking, max_wait)
    except WaitedTooLong as error:
        if agent.as_json and error.answer is not None:
            show_json(_waited(about, error.answer, max_wait or 0.0))
        raise
    if agent.as_json:
        show_json(_waited(about, answer, waited_s))


def _waited(about: About, answer: Answer, waited_s: float) -> dict[str, object]:
    return {
        "app": about.app,
        "database": about.database,
        "admitted": bool(answer),
        "verdict": answer.verdict,
        "reason": answer.reason,
        "unthrottled": answer.unthrottled,
        "waited_s": round(waited_s, 3),
    }


def explain(question: CheckOptions, agent: AgentOptions, at: At = None) -> None:
    """Show how a check would be answered, and why.

    Shows every metric that is compared, which of them decide, and what would have to change.
    An explanation is not counted: it appears in no history and among no clients. With --at, what
    history keeps of that minute: what was decided, by which metric or rule, and which rules were
    in force.
    """
    if at is not None:
        _explain_at(question, at, agent)
        return
    asked = ask_following(agent.connect(), "/v1/explain", question.query)
    agent.show(asked, "explain.explain_view")


def _explain_at(question: CheckOptions, at: str, agent: AgentOptions) -> None:
    from datetime import datetime

    from headgate.cli.history import moment

    when = moment(at, datetime.now().astimezone())
    api = agent.connect(timeout_s=LOOK_BACK_TIMEOUT_S)
    asked = api.get("/v1/explain", app=question.app, database=question.database, at=when)
    agent.show(asked, "history.past_view")


def ask_following(api: Api, path: str, question: Mapping[str, str | None]) -> Answered:
    """From the agent that we are sent to, as the SDK does: rarely more than once."""
    from headgate.client.routes import MAX_HOPS

    asked = api.ask(path, **question)
    for _ in range(MAX_HOPS):
        if asked.document.get("verdict") != "WRONG_AGENT":
            break
        onward = api.onward(asked.document.get("check_at"))
        if onward is None:
            break
        print(f"headgate: {api.url} sends us to {plain(onward.url)}", file=sys.stderr)
        known_as = asked.document.get("check_at_database") or question["database"]
        question = {**question, "database": str(known_as)}
        api, asked = onward, onward.ask(path, **question)
    return asked


def ask_until(api: Api, question: Mapping[str, str | None], *, wait_s: float) -> Answered:
    """The first admission, or the last answer before `wait_s` is over. An idle database wakes by
    the first check: its readings are waited for in any case."""
    from headgate.cli.api import AgentUnreachable

    began_s = time.monotonic()
    ends_s, wakes_until_s = began_s + wait_s, 0.0
    while True:
        try:
            asked = ask_following(api, "/v1/check", question)
        except AgentUnreachable:
            pause_s = RETRY_S
            if time.monotonic() + pause_s > ends_s:
                raise
        else:
            if not wakes_until_s and _misses_values(asked, IDLE_CAUSES):
                wakes_until_s = began_s + WAKE_S
                print(f"headgate: {question['database']} was idle; it wakes up", file=sys.stderr)
            if time.monotonic() < wakes_until_s and _misses_values(asked, WAKING_CAUSES):
                time.sleep(WAKE_RETRY_S)
                continue
            pause_s = _pause_s(asked)
            # Where no further check fits in, the caller gets its answer now, not at the end.
            if asked.document.get("admitted") is True or time.monotonic() + pause_s > ends_s:
                return asked
        time.sleep(pause_s)


def _misses_values(asked: Answered, causes: frozenset[str]) -> bool:
    """Whether the check is rejected for metrics without a value, by these causes alone."""
    metrics = asked.document.get("metrics")
    failing = [m for m in metrics or () if m.get("state") in ("breached", "unavailable")]
    return bool(failing) and all(
        m["state"] == "unavailable" and m.get("cause") in causes for m in failing
    )


def reject_incoherent(asked: Answered, answer: AnswerDoc, database: str) -> None:
    """An answer that contradicts itself, or is about another database, admits nothing."""
    from headgate.errors import BadDocument

    says_ok = {answer.verdict == "OK", answer.admitted, asked.status == 200}
    if len(says_ok) > 1:
        said = f"status {asked.status}, verdict {answer.verdict}, admitted {answer.admitted}"
        raise BadDocument("verdict", f"contradicts the rest ({said})")
    if answer.database != database:
        raise BadDocument(
            "database", f"is {answer.database!r}, and the check was about {database!r}"
        )


def _pause_s(asked: Answered) -> float:
    retry_ms = asked.document.get("retry_after_ms")
    known = isinstance(retry_ms, int | float) and retry_ms > 0
    return float(retry_ms) / 1000 if known and retry_ms is not None else RETRY_S
