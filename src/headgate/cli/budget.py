"""Commands on budgets: list, show, create, set, mode, delete, forgive, lint, compile, violations,
top, explain, replay. `headgate changes` has their history, files and rollback.

A change is built on the revision that was seen (If-Match), as with metrics and rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias
from urllib.parse import quote

import typer

from headgate.cli import completing
from headgate.cli.options import (
    FLEET_TIMEOUT_S,
    INTERVAL,
    LOOK_BACK_TIMEOUT_S,
    AgentOptions,
    AnyDatabase,
    AsJson,
    At,
    ChangeOptions,
    Cpu,
    DatabaseArgument,
    DryRun,
    Interval,
    ReachOptions,
    Since,
    Strict,
    completed_by,
    lasts_option,
)
from headgate.cli.table import BUDGET_TABLE
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api

BUDGETS = "/v1/budgets"
MAX_SQL_CHARS = 1024 * 1024
TAKEN_NAMES = frozenset({"violations", "state", "explain", "lint", "replay"})
"""Of the API's own routes: such a budget can be had in a file, and not be named in a path."""


def _option(*names: str, metavar: str, about: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, show_default=False)


Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="BUDGET", autocompletion=completing.budgets)
]
Words: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTING=VALUE…",
        show_default=False,
        autocompletion=completed_by(BUDGET_TABLE, but=("name",)),
        help="Such as rate=20% capacity=2s max_workers=2; VALUE `unset` takes one out.",
    ),
]
Match: TypeAlias = Annotated[
    list[str] | None,
    _option(
        "--match",
        metavar="KEY=VALUE,…",
        about="One rule: all of its keys must match. Repeat the option for more rules. Keys: "
        "username, database, application_name, remote_address, query, fingerprint, tag.NAME. "
        "'*' matches every statement.",
    ),
]
Each: TypeAlias = Annotated[
    list[str] | None,
    _option(
        "--each", metavar="KEY", about="A bucket of its own for each value of this key; repeatable."
    ),
]
For: TypeAlias = Annotated[str | None, lasts_option("30m, 2h, 7d. Default: it does not end.")]
PolicyFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="The policy: TOML, or JSON if its name ends so.")
]
Anyway: TypeAlias = Annotated[
    bool, typer.Option("--anyway", help="Accept a policy that would lock out an administrator.")
]
OneOf: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="BUDGET",
        show_default=False,
        autocompletion=completing.budgets,
        help="Only violations of this budget.",
    ),
]


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """What a budget is to be."""

    words: Words = None
    match: Match = None
    each: Each = None
    lasts: For = None

    def read(self) -> dict[str, Any]:
        """Only what was said; None: a setting that is taken out."""
        from headgate.cli.lint import read_rules, read_settings

        said = read_settings(self.words or ())
        rules = read_rules(self.match or (), self.each or ())
        return (
            said | ({"rules": rules} if rules else {}) | ({"for": self.lasts} if self.lasts else {})
        )


# --- looking ---------------------------------------------------------------------------------


def list_budgets(database: AnyDatabase = None, *, agent: AgentOptions) -> None:
    """List budgets: how full, what they block, and what to do about it."""
    api = agent.connect()
    if database is None:
        agent.show(api.get(BUDGETS), "budgets.policies_view")
    else:
        agent.show(api.get(policy_path(database)), "budgets.policy_view")


def show_budget(
    database: DatabaseArgument,
    name: Name,
    reach: ReachOptions,
    agent: AgentOptions,
) -> None:
    """Show one budget: its settings, its buckets, and what it has blocked.

    With a reach: as it is set there; DATABASE is `all` then.
    """
    _check_meant(database, reach.said)
    answered = agent.connect().get(budget_path(database, name), reach=reach.said)
    agent.show(answered, "budgets.budget_view")


def violations(
    database: DatabaseArgument,
    since: Since = "1h",
    budget: OneOf = None,
    *,
    agent: AgentOptions,
) -> None:
    """Show what was blocked, warned and delayed: by budget, limit and minute."""
    from headgate.cli.history import span_since

    path = policy_path(database, "violations")
    answered = agent.connect().get(path, since=span_since(since), budget=budget)
    agent.show(answered, "budgets.violations_view")


def top(
    context: typer.Context,
    database: DatabaseArgument,
    agent: AgentOptions,
    interval: Interval = INTERVAL,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
) -> None:
    """Watch a database's budgets live: fill, blocked a second, what to do; q quits.

    It is the view `budgets` of `headgate top`, of one database.
    """
    from headgate.cli.top import TopOptions, watch

    watch(context, TopOptions("budgets", interval, agent, database, once=once))


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Who runs a statement, and where."""

    username: Annotated[
        str | None,
        _option("--user", metavar="NAME", about="Database user that runs the statement."),
    ] = None
    dbname: Annotated[
        str | None, _option("--dbname", metavar="NAME", about="Database of the server.")
    ] = None
    application_name: Annotated[
        str | None,
        _option("--application-name", metavar="NAME", about="Application name of the session."),
    ] = None
    remote_address: Annotated[
        str | None, _option("--address", metavar="IP", about="Client IP (omit for Unix sockets).")
    ] = None
    query_id: Annotated[
        str | None,
        _option("--query-id", metavar="N", about="Query id of the statement in the server."),
    ] = None
    cpu: Cpu = None


def explain(
    database: DatabaseArgument,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The statement, or - for stdin.")],
    session: SessionOptions,
    agent: AgentOptions,
    at: At = None,
) -> None:
    """Explain whether a statement would run, by which rule and budget, and what would help.

    With --at, how it was then: by the debt that a replay of the traced statements leads to.
    """
    said = {"sql": sys.stdin.read(MAX_SQL_CHARS) if sql == "-" else sql, **asdict(session)}
    said["database"], cpu = said.pop("dbname"), said.pop("cpu")
    said["cost_ms"] = None if cpu is None else cpu * 1000
    if at is not None:
        from headgate.cli.history import moment

        said["at"] = moment(at, datetime.now().astimezone())
    body = {key: value for key, value in said.items() if value is not None}
    api = agent.connect(timeout_s=LOOK_BACK_TIMEOUT_S)
    answered = api.change("POST", policy_path(database, "explain"), body)
    agent.show(answered, "budgets.explained_view")


# --- changing --------------------------------------------------------------------------------


def create(
    database: DatabaseArgument,
    name: Name,
    given: BudgetOptions,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Create a budget. It starts in `warn` unless you say mode=enforce.

    For example: headgate budget create main etl rate=20% capacity=2s --match username=etl
    For a fleet: headgate budget create all etl rate=20% --match username=etl --shard 'commerce/*'
    """
    if name in TAKEN_NAMES:
        raise typer.BadParameter(f"{name} is a word of the API's own; give it another name")
    body = {key: value for key, value in given.read().items() if value is not None}
    one = OneBudget(database, name, reach.said, change)
    _change(one.maker("PUT", body), "CREATED", agent)


def set_budget(
    database: DatabaseArgument,
    name: Name,
    given: BudgetOptions,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Change some settings of a budget; --match and --each replace all of its rules."""
    body = given.read()
    if not body:
        raise typer.BadParameter("nothing to change: give a setting, such as rate=30%")
    one = OneBudget(database, name, reach.said, change)
    _change(one.maker("PATCH", body), "CHANGED", agent)


def mode(
    database: DatabaseArgument,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[BUDGET] MODE",
            autocompletion=completing.budgets_or_modes,
            help="off, warn or enforce.",
        ),
    ],
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Limit all budgets to MODE: off stops all enforcement at once, enforce removes "
            "the limit. With a reach: on every database in it.",
        ),
    ] = False,
    *,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Switch a budget, or all of them: off, warn, enforce.

    For example: headgate budget mode main etl enforce; headgate budget mode main off --all
    """
    wanted = 1 if every else 2
    if len(words) != wanted or words[-1] not in ("off", "warn", "enforce"):
        message = "say which and what: `mode main etl enforce`, or `mode main off --all`"
        raise typer.BadParameter(message)
    said, dry_run = reach.said, change.dry_run
    if not every:
        one = OneBudget(database, words[0], said, change)
        _change(one.maker("PATCH", {"mode": words[1]}), "CHANGED", agent)
        return

    def cap(api: Api) -> Answered:
        path, body = policy_path(database), {"mode_cap": words[0]}
        if said is None:
            return api.change("PATCH", path, body, etag=api.get(path).etag, dry_run=dry_run)
        ask = None if change.yes else said
        return api.change("PATCH", path, body, query={"reach": said}, dry_run=dry_run, ask=ask)

    _check_meant(database, said)
    _change(cap, "SWITCHED", agent)


def delete(
    database: DatabaseArgument,
    name: Name,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Delete a budget; its statements then run without it."""
    _change(OneBudget(database, name, reach.said, change).maker("DELETE", None), "DELETED", agent)


def forgive(
    database: DatabaseArgument,
    name: Name,
    dry_run: DryRun = False,
    *,
    agent: AgentOptions,
) -> None:
    """Clear the debt of a budget's buckets."""

    def raise_epoch(api: Api) -> Answered:
        path = budget_path(database, name)
        return api.change("POST", f"{path}/forgive", etag=api.get(path).etag, dry_run=dry_run)

    _change(raise_epoch, "FORGIVEN", agent)


# --- files -----------------------------------------------------------------------------------


def lint(path: PolicyFile, strict: Strict = False, as_json: AsJson = False) -> None:
    """Validate a policy file without an agent: faults with their lines, and advice.

    Exit code 1 for faults; with --strict for advice, too.
    """
    from headgate.cli.lint import notes_on_policy, show_notes

    notes = notes_on_policy(path)
    show_notes(path, notes, as_json=as_json)
    if any(note.level == "fault" for note in notes) or (strict and notes):
        raise typer.Exit(1)


def compile_file(path: PolicyFile, anyway: Anyway = False, as_json: AsJson = False) -> None:
    """Compile a policy file for the Postgres parameter pg_headgate.policy, without an agent.

    Prints the compiled policy as one line of base64. A policy with faults prints nothing.
    """
    from headgate.cli.lint import as_parameter

    compiled = as_parameter(path, anyway=anyway)
    if as_json:
        from headgate.cli.output import show_json

        show_json({"file": str(path), "parameter": "pg_headgate.policy", "value": compiled})
    else:
        print(compiled)


class OneBudget(NamedTuple):
    """A budget, and how it is to be changed."""

    database: str
    name: str
    reach: str | None
    """None: the agent knows how far it reaches."""
    change: ChangeOptions

    def maker(self, method: str, given: Mapping[str, Any] | None) -> Callable[[Api], Answered]:
        """Built on what was seen, a new one on there being none. With a reach, the command shows
        what the change reaches, and prompts."""
        _check_meant(self.database, self.reach)
        path = budget_path(self.database, self.name)
        query = {} if self.reach is None else {"reach": self.reach}

        def make(api: Api) -> Answered:
            new = method == "PUT"
            etag = None if new else api.get(path, **query).etag
            ask, dry_run = None if self.change.yes else self.reach, self.change.dry_run
            how: Any = {"etag": etag, "query": query, "new": new}
            return api.change(method, path, given, dry_run=dry_run, ask=ask, **how)

        return make


# --- steps -----------------------------------------------------------------------------------


EVERY = "all"


def _check_meant(database: str, reach: str | None) -> None:
    """A budget is for every database in its reach. One database is less than that, unless the reach
    is one shard or one agent."""
    level, _, pattern = (reach or "").partition(":")
    is_one = level in ("shard", "host") and "*" not in pattern
    if reach is not None and database != EVERY and not is_one:
        raise typer.BadParameter(
            f"with a reach a budget is for every database in it: write `{EVERY}` instead "
            f"of {database!r}; or leave the reach out, for {database} at this agent"
        )


def policy_path(database: str, *below: str) -> str:
    return "/".join((BUDGETS, *(quote(part, safe="") for part in (database, *below))))


def budget_path(database: str, name: str) -> str:
    return policy_path(database, name)


def _change(make: Callable[[Api], Answered], done: str, agent: AgentOptions) -> None:
    from headgate.budgets.api import PolicyChangeDoc
    from headgate.cli.documents import read
    from headgate.cli.exits import FAILED

    changed = make(agent.connect(timeout_s=FLEET_TIMEOUT_S))
    agent.show(changed, "budgets.change_view", done=done)
    change = read(PolicyChangeDoc, changed.document)
    if change.changed and not change.dry_run and any(one.fault for one in change.published):
        # Kept, and tried again; but a script must not take it for done.
        raise typer.Exit(FAILED)


# --- replay --------------------------------------------------------------------------------------

# `headgate budget replay`: what a policy would have changed. Changes nothing.

TIMEOUT_S = 60.0

ReplayFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="The policy: TOML, or JSON if its name ends so. Default: the one in force, which "
        "shows how close a replay is to what happened.",
    ),
]
By = Annotated[
    str,
    typer.Option(
        metavar="KEY,…",
        help="Group clients by this key: username, database, application_name, remote_address, "
        "query, tag.NAME.",
    ),
]


def replay(
    database: DatabaseArgument,
    path: ReplayFile = None,
    since: Since = "1h",
    by: By = "username",
    *,
    agent: AgentOptions,
) -> None:
    """Replay recorded statements against another policy, and print what would have changed.

    For each budget and client: how many statements would have run, been warned, delayed or
    blocked, and how many were. Counts of cheap statements are estimates, because only some are
    traced. It looks back 24 h at most.
    """
    from headgate.budgets.parse import written
    from headgate.cli.history import minutes_ago
    from headgate.settings.document import load_policy

    since_s = 60.0 * minutes_ago(since, datetime.now().astimezone())
    body: dict[str, Any] = {"since_s": since_s, "by": [k for k in by.split(",") if k]}
    if path is not None:
        body["policy"] = written(load_policy(path))
    api = agent.connect(timeout_s=TIMEOUT_S)
    answered = api.change("POST", policy_path(database, "replay"), body)
    agent.show(answered, "budget_replay.replay_view")


def last_hour(api: Api, document: Mapping[str, Any], log: str | None) -> list[str]:
    """What a file of changes would have done to statements, one line for each database whose
    budgets it changes; nothing where the agent cannot say: it is no part of the change."""
    from headgate.budgets.api import PoliciesDoc
    from headgate.budgets.replay_api import BudgetReplayDoc
    from headgate.cli.documents import read
    from headgate.present.budget_replay import last_hour_told

    if not any(document.get(section) for section in ("budgets", "policies")):
        return []
    told, body = [], {"changes": document, **({} if log is None else {"log": log})}
    try:
        known = read(PoliciesDoc, api.get(BUDGETS, most="0").document)
        for policy in known.databases:
            answered = api.change("POST", policy_path(policy.database, "replay"), body)
            found = read(BudgetReplayDoc, answered.document)
            if found.difference_total:
                told.append(f"{policy.database}: {last_hour_told(found)}")
    except HeadgateError:
        return told
    return told
