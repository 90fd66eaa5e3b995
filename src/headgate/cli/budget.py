"""Commands on budgets: list, show, create, set, mode, delete, forgive, lint, compile, violations,
top, explain, replay. `headgate changes` has their history, files and rollback.

A change is built on the revision that was seen (If-Match), as with metrics and rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias
from urllib.parse import quote

import typer

from headgate.cli import completing
from headgate.cli.options import (
    FLEET_TIMEOUT_S,
    INTERVAL,
    AgentOptions,
    AsJson,
    DatabaseArgument,
    FleetWide,
    InCluster,
    InRegion,
    InShard,
    Interval,
    OnHost,
    Token,
    Url,
    Yes,
    completed_by,
    confirmed,
    lasting,
    reach_of,
)
from headgate.cli.table import BUDGET_TABLE
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api

BUDGETS = "/v1/budgets"
TAKEN_NAMES = frozenset({"violations", "state", "explain", "lint", "replay"})
"""Of the API's own routes: such a budget can be had in a file, and not be named in a path."""


def _option(*names: str, metavar: str, about: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, show_default=False)


AnyDatabase: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="DATABASE",
        show_default=False,
        autocompletion=completing.databases,
        help="Default: all.",
    ),
]
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
        about="A rule: all of these; repeat the option for one rule more. Keys: username, "
        "database, application_name, remote_address, query, fingerprint, tag.NAME. '*' matches "
        "every statement.",
    ),
]
Each: TypeAlias = Annotated[
    list[str] | None,
    _option("--each", metavar="KEY", about="A bucket for each value of it; repeatable."),
]
For: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TIME",
        parser=lasting,
        show_default=False,
        help="It ends automatically: 30m, 2h, 7d.",
    ),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Validate and show the difference; change nothing.")
]
PolicyFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="The policy: TOML, or JSON if its name ends so.")
]
Strict: TypeAlias = Annotated[bool, typer.Option("--strict", help="Advice fails, too.")]
Anyway: TypeAlias = Annotated[
    bool, typer.Option("--anyway", help="Compile also what would lock out an administrator.")
]
Since: TypeAlias = Annotated[str, typer.Option(metavar="TIME", help="So long ago: 30m, 6h, 7d.")]


# --- looking ---------------------------------------------------------------------------------


def list_budgets(
    database: AnyDatabase = None, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """List budgets: how full, what they block, and what to do about it."""
    from headgate.budgets.api import PoliciesDoc, PolicyDoc
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import policies_view, policy_view

    api = connect(url, token)
    if database is None:
        show_view(api.get(BUDGETS), as_json, PoliciesDoc, policies_view)
    else:
        show_view(api.get(policy_path(database)), as_json, PolicyDoc, policy_view)


def show_budget(
    database: DatabaseArgument,
    name: Name,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show one budget: its settings, its buckets, and what it has blocked.

    With a reach: as it is set there; DATABASE is `all` then.
    """
    from headgate.budgets.api import BudgetDoc
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import budget_view

    reach = reach_of(fleet, region, cluster, shard, host)
    _check_meant(database, reach)
    answered = connect(url, token).get(budget_path(database, name), reach=reach)
    show_view(answered, as_json, BudgetDoc, budget_view)


def violations(
    database: DatabaseArgument,
    since: Since = "1h",
    budget: Annotated[
        str | None, _option("--budget", metavar="BUDGET", about="Only of this one.")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what was blocked, warned and delayed: by budget, limit and minute."""
    from headgate.budgets.api import ViolationsDoc
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import violations_view

    path = policy_path(database, "violations")
    answered = connect(url, token).get(path, since=since, budget=budget)
    show_view(answered, as_json, ViolationsDoc, violations_view)


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

    url, token, as_json = agent.url, agent.token, agent.as_json
    shown = TopOptions("budgets", interval, url, token, database, once=once, as_json=as_json)
    watch(context, shown)


def explain(
    database: DatabaseArgument,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The statement, or - for stdin.")],
    username: Annotated[
        str | None,
        _option("--user", metavar="NAME", about="Database user that runs the statement."),
    ] = None,
    dbname: Annotated[
        str | None, _option("--dbname", metavar="NAME", about="Database of the server.")
    ] = None,
    application_name: Annotated[
        str | None,
        _option("--application-name", metavar="NAME", about="Application name of the session."),
    ] = None,
    address: Annotated[
        str | None, _option("--address", metavar="IP", about="Client IP (omit for Unix sockets).")
    ] = None,
    query_id: Annotated[
        str | None,
        _option("--query-id", metavar="N", about="Query id of the statement in the server."),
    ] = None,
    cost_ms: Annotated[
        float | None, _option("--cost-ms", metavar="MS", about="CPU it takes, if you know.")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Explain whether a statement would run now, by which rule and budget, and what would help."""
    from headgate.budgets.api import StatementExplainDoc
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import explained_view

    said = {
        "sql": _stdin() if sql == "-" else sql,
        "username": username,
        "database": dbname,
        "application_name": application_name,
        "remote_address": address,
        "query_id": query_id,
        "cost_ms": cost_ms,
    }
    body = {key: value for key, value in said.items() if value is not None}
    answered = connect(url, token).change("POST", policy_path(database, "explain"), body)
    show_view(answered, as_json, StatementExplainDoc, explained_view)


def _stdin() -> str:
    import sys

    return sys.stdin.read(1024 * 1024)


# --- changing --------------------------------------------------------------------------------


def create(
    database: DatabaseArgument,
    name: Name,
    words: Words = None,
    match: Match = None,
    each: Each = None,
    lasts: For = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create a budget. It starts in `warn` unless you say mode=enforce.

    For example: headgate budget create main etl rate=20% capacity=2s --match username=etl
    For a fleet: headgate budget create all etl rate=20% --match username=etl --shard 'commerce/*'
    """
    from headgate.cli.lint import read_rules, read_settings

    if name in TAKEN_NAMES:
        raise typer.BadParameter(f"{name} is a word of the API's own; give it another name")
    given = {key: value for key, value in read_settings(words or ()).items() if value is not None}
    rules = read_rules(match or (), each or ())
    given |= {"rules": rules} if rules else {}
    given |= {"for": lasts} if lasts else {}
    reach = reach_of(fleet, region, cluster, shard, host)
    one = OneBudget(database, name, reach, dry_run, yes)
    _change(one.maker("PUT", given), "CREATED", url, token, as_json)


def set_budget(
    database: DatabaseArgument,
    name: Name,
    words: Words = None,
    match: Match = None,
    each: Each = None,
    lasts: For = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Change some settings of a budget; --match and --each replace all of its rules."""
    from headgate.cli.lint import read_rules, read_settings

    given = read_settings(words or ())
    rules = read_rules(match or (), each or ())
    given |= {"rules": rules} if rules else {}
    given |= {"for": lasts} if lasts else {}
    if not given:
        raise typer.BadParameter("nothing to change: give a setting, such as rate=30%")
    reach = reach_of(fleet, region, cluster, shard, host)
    one = OneBudget(database, name, reach, dry_run, yes)
    _change(one.maker("PATCH", given), "CHANGED", url, token, as_json)


def mode(
    database: DatabaseArgument,
    words: Annotated[
        list[str], typer.Argument(metavar="[BUDGET] MODE", help="off, warn or enforce.")
    ],
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="No budget goes beyond MODE, whatever its own: off stops everything at once, "
            "enforce lifts that. With a reach, on every database in it.",
        ),
    ] = False,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Switch a budget, or all of them: off, warn, enforce.

    For example: headgate budget mode main etl enforce; headgate budget mode main off --all
    """
    wanted = 1 if every else 2
    if len(words) != wanted or words[-1] not in ("off", "warn", "enforce"):
        message = "say which and what: `mode main etl enforce`, or `mode main off --all`"
        raise typer.BadParameter(message)
    reach = reach_of(fleet, region, cluster, shard, host)
    if not every:
        one = OneBudget(database, words[0], reach, dry_run, yes)
        _change(one.maker("PATCH", {"mode": words[1]}), "CHANGED", url, token, as_json)
        return

    def cap(api: Api) -> Answered:
        path, body = policy_path(database), {"mode_cap": words[0]}
        if reach is None:
            return api.change("PATCH", path, body, etag=api.get(path).etag, dry_run=dry_run)
        change = partial(api.change, "PATCH", path, body, query={"reach": reach})
        return confirmed(change, reach, dry_run=dry_run, yes=yes)

    _check_meant(database, reach)
    _change(cap, "SWITCHED", url, token, as_json)


def delete(
    database: DatabaseArgument,
    name: Name,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Remove a budget; what ran under it runs without it."""
    reach = reach_of(fleet, region, cluster, shard, host)
    one = OneBudget(database, name, reach, dry_run, yes)
    _change(one.maker("DELETE", None), "DELETED", url, token, as_json)


def forgive(
    database: DatabaseArgument,
    name: Name,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Clear the debt of a budget's buckets."""

    def raise_epoch(api: Api) -> Answered:
        path = budget_path(database, name)
        return api.change("POST", f"{path}/forgive", etag=api.get(path).etag, dry_run=dry_run)

    _change(raise_epoch, "FORGIVEN", url, token, as_json)


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
    dry_run: bool
    yes: bool

    def maker(self, method: str, given: Mapping[str, Any] | None) -> Callable[[Api], Answered]:
        """Built on what was seen, a new one on there being none. With a reach, the command shows
        what the change reaches, and prompts."""
        _check_meant(self.database, self.reach)
        path = budget_path(self.database, self.name)
        query = {} if self.reach is None else {"reach": self.reach}

        def make(api: Api) -> Answered:
            new = method == "PUT"
            etag = None if new else api.get(path, **query).etag
            change = partial(api.change, method, path, given, etag=etag, query=query, new=new)
            return confirmed(change, self.reach, dry_run=self.dry_run, yes=self.yes)

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


def _change(
    make: Callable[[Api], Answered], done: str, url: str | None, token: str | None, as_json: bool
) -> None:
    from headgate.budgets.api import PolicyChangeDoc
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.exits import FAILED
    from headgate.cli.output import show_view
    from headgate.present.budgets import change_view

    changed = make(connect(url, token, timeout_s=FLEET_TIMEOUT_S))
    show_view(changed, as_json, PolicyChangeDoc, lambda change: change_view(change, done))
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
Last = Annotated[str, typer.Option(metavar="TIME", help="The last 10m, 1h, up to 24h.")]
By = Annotated[
    str,
    typer.Option(
        metavar="KEY,…",
        help="Tell clients apart by it: username, database, application_name, remote_address, "
        "query, tag.NAME.",
    ),
]


def replay(
    database: DatabaseArgument,
    path: ReplayFile = None,
    last: Last = "1h",
    by: By = "username",
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Play what statements did against another policy, and print what would have changed.

    By budget and client: what would have run, been warned of, waited or been blocked, beside
    what happened. Counts of statements that were drawn, and not all traced, are estimates.
    """
    from headgate.budgets.replay_api import BudgetReplayDoc
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budget_replay import replay_view

    body: dict[str, Any] = {"since_s": _seconds(last), "by": [k for k in by.split(",") if k]}
    if path is not None:
        body["policy"] = _document(path)
    api = connect(url, token, timeout_s=TIMEOUT_S)
    answered = api.change("POST", policy_path(database, "replay"), body)
    show_view(answered, as_json, BudgetReplayDoc, replay_view)


def _seconds(last: str) -> float:
    from headgate.base.declared import parse_for

    try:
        return float(parse_for(last))
    except ValueError as fault:
        raise typer.BadParameter(f"--last {fault}") from None


def _document(path: Path) -> Mapping[str, Any]:
    from headgate.budgets.parse import written
    from headgate.settings.document import load_policy

    return written(load_policy(path))


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
