"""Commands on budgets: list, show, create, set, mode, delete, forgive, lint, compile, apply, diff,
export, history, rollback, violations, top, explain.

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
    Agent,
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

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api

BUDGETS = "/v1/budgets"
TAKEN_NAMES = frozenset({"history", "rollback", "violations", "state", "explain", "lint", "replay"})
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
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import policies_view, policy_view
    from headgate.wire.budgets import PoliciesDoc, PolicyDoc

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

    With a reach: as it is set for the fleet; DATABASE is `all` then.
    """
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import budget_view
    from headgate.wire.budgets import BudgetDoc

    if reach := reach_of(fleet, region, cluster, shard, host):
        every_database(database)
    answered = connect(url, token).get(budget_path(database, name), reach=reach)
    show_view(answered, as_json, BudgetDoc, budget_view)


def history(
    database: DatabaseArgument,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the policy's revisions: when, by whom, and what changed."""
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import history_view
    from headgate.wire.budgets import RevisionsDoc

    answered = connect(url, token).get(policy_path(database, "history"), limit=str(limit))
    show_view(answered, as_json, RevisionsDoc, history_view)


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
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import violations_view
    from headgate.wire.budgets import ViolationsDoc

    path = policy_path(database, "violations")
    answered = connect(url, token).get(path, since=since, budget=budget)
    show_view(answered, as_json, ViolationsDoc, violations_view)


def top(
    context: typer.Context,
    database: DatabaseArgument,
    agent: Agent,
    interval: Interval = INTERVAL,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
) -> None:
    """Watch a database's budgets live: fill, blocked a second, what to do; q quits.

    It is the view `budgets` of `headgate top`, of one database.
    """
    from headgate.cli.top import Watched, watch

    url, token, as_json = agent.url, agent.token, agent.as_json
    shown = Watched("budgets", interval, url, token, database, once=once, as_json=as_json)
    watch(context, shown)


def explain(
    database: DatabaseArgument,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The statement, or - for stdin.")],
    username: Annotated[str | None, _option("--user", metavar="NAME", about="Whose.")] = None,
    dbname: Annotated[
        str | None, _option("--dbname", metavar="NAME", about="In which database of the server.")
    ] = None,
    application_name: Annotated[
        str | None, _option("--application-name", metavar="NAME", about="Of the session.")
    ] = None,
    address: Annotated[
        str | None, _option("--address", metavar="IP", about="Where from; none: a Unix socket.")
    ] = None,
    query_id: Annotated[
        str | None, _option("--query-id", metavar="N", about="As the server numbers it.")
    ] = None,
    cost_ms: Annotated[
        float | None, _option("--cost-ms", metavar="MS", about="CPU it takes, if you know.")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Tell what would become of a statement now, by which rule and budget, and what would help."""
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.budgets import explained_view
    from headgate.wire.budgets import StatementExplainDoc

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
    """Make a budget; it starts in `warn` unless mode=enforce is said.

    For example: headgate budget create main etl rate=20% capacity=2s --match username=etl
    For a fleet: headgate budget create all etl rate=20% --match username=etl --shard 'commerce/*'
    """
    from headgate.cli.budget_files import read_rules, read_settings

    if name in TAKEN_NAMES:
        raise typer.BadParameter(f"{name} is a word of the API's own; give it another name")
    given = {key: value for key, value in read_settings(words or ()).items() if value is not None}
    rules = read_rules(match or (), each or ())
    given |= {"rules": rules} if rules else {}
    given |= {"for": lasts} if lasts else {}
    if reach := reach_of(fleet, region, cluster, shard, host):
        of_fleet = OfFleet(every_database(database), name, reach, dry_run, yes)
        _change(of_fleet.maker("PUT", given), "CREATED", url, token, as_json)
        return

    def put(api: Api) -> Answered:
        # Built on there being none: who was faster is not overwritten.
        seen = api.get(policy_path(database))
        if _has(seen, name):
            raise typer.BadParameter(f"{name} is there already: `headgate budget set` changes it")
        path = budget_path(database, name)
        return api.change("PUT", path, given, etag=seen.etag, dry_run=dry_run)

    _change(put, "CREATED", url, token, as_json)


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
    from headgate.cli.budget_files import read_rules, read_settings

    given = read_settings(words or ())
    rules = read_rules(match or (), each or ())
    given |= {"rules": rules} if rules else {}
    given |= {"for": lasts} if lasts else {}
    if not given:
        raise typer.BadParameter("nothing to change: give a setting, such as rate=30%")
    if reach := reach_of(fleet, region, cluster, shard, host):
        of_fleet = OfFleet(every_database(database), name, reach, dry_run, yes)
        _change(of_fleet.maker("PATCH", given), "CHANGED", url, token, as_json)
        return
    _patch(database, name, given, dry_run, url, token, as_json)


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
            "enforce lifts that.",
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
    if reach is not None and every:
        raise typer.BadParameter("--all is each agent's own switch; for a fleet name the budget")
    if reach is not None:
        of_fleet = OfFleet(every_database(database), words[0], reach, dry_run, yes)
        _change(of_fleet.maker("PATCH", {"mode": words[1]}), "CHANGED", url, token, as_json)
        return
    if not every:
        _patch(database, words[0], {"mode": words[1]}, dry_run, url, token, as_json)
        return

    def cap(api: Api) -> Answered:
        etag = api.get(policy_path(database)).etag
        body = {"mode_cap": words[0]}
        return api.change("PATCH", policy_path(database), body, etag=etag, dry_run=dry_run)

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
    if reach := reach_of(fleet, region, cluster, shard, host):
        of_fleet = OfFleet(every_database(database), name, reach, dry_run, yes)
        _change(of_fleet.maker("DELETE", None), "DELETED", url, token, as_json)
        return

    def remove(api: Api) -> Answered:
        path = budget_path(database, name)
        return api.change("DELETE", path, etag=api.get(path).etag, dry_run=dry_run)

    _change(remove, "DELETED", url, token, as_json)


def forgive(
    database: DatabaseArgument,
    name: Name,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Forget what a budget's buckets owe: it begins anew, empty."""

    def raise_epoch(api: Api) -> Answered:
        path = budget_path(database, name)
        return api.change("POST", f"{path}/forgive", etag=api.get(path).etag, dry_run=dry_run)

    _change(raise_epoch, "FORGIVEN", url, token, as_json)


def rollback(
    database: DatabaseArgument,
    revision: Annotated[int, typer.Argument(min=0, metavar="REVISION")],
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Put the policy back as it stood at a revision, as a new one.

    0 stands for no change at the agent: as the settings file and the fleet have it.
    """

    def back(api: Api) -> Answered:
        etag = api.get(policy_path(database)).etag
        path, body = policy_path(database, "rollback"), {"revision": revision}
        return api.change("POST", path, body, etag=etag, dry_run=dry_run)

    _change(back, "ROLLED BACK", url, token, as_json)


# --- files -----------------------------------------------------------------------------------


def lint(path: PolicyFile, strict: Strict = False, as_json: AsJson = False) -> None:
    """Judge a policy file, without an agent: faults with their lines, and advice.

    Exit code 1 for faults; with --strict for advice, too.
    """
    from headgate.cli.budget_files import notes_on_policy
    from headgate.cli.lint import show_notes

    notes = notes_on_policy(path)
    show_notes(path, notes, as_json=as_json)
    if any(note.level == "fault" for note in notes) or (strict and notes):
        raise typer.Exit(1)


def compile_file(path: PolicyFile, anyway: Anyway = False, as_json: AsJson = False) -> None:
    """Compile a policy file for the Postgres parameter pg_headgate.policy, without an agent.

    Prints the compiled policy as one line of base64. A policy with faults prints nothing.
    """
    from headgate.cli.budget_files import as_parameter

    compiled = as_parameter(path, anyway=anyway)
    if as_json:
        from headgate.cli.output import show_json

        show_json({"file": str(path), "parameter": "pg_headgate.policy", "value": compiled})
    else:
        print(compiled)


def apply(
    database: DatabaseArgument,
    path: PolicyFile,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Make a file the whole policy of a database: what is not in it is removed."""
    from headgate.settings.document import load_policy
    from headgate.traffic.parse import written

    document = written(load_policy(path))

    def put(api: Api) -> Answered:
        etag = api.get(policy_path(database)).etag
        return api.change("PUT", policy_path(database), document, etag=etag, dry_run=dry_run)

    _change(put, "APPLIED", url, token, as_json)
    if dry_run and not as_json:
        _tell_last_hour(database, document, url, token)


def diff(
    before: Annotated[
        str, typer.Argument(metavar="DATABASE|FILE", help="In force there, or a file.")
    ],
    path: PolicyFile,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 where they differ.")
    ] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a file would change: in a database's policy, or, without an agent, in a file's."""
    from headgate.cli.budget_files import compared, is_file
    from headgate.cli.documents import read_list
    from headgate.cli.output import show_blocks, show_json
    from headgate.present.budgets import difference_view
    from headgate.settings.document import load_policy
    from headgate.traffic.parse import parse_policy
    from headgate.wire.budgets import DifferenceDoc

    if is_file(before):
        old = load_policy(Path(before))
    else:
        from headgate.cli.api import connect

        old = parse_policy(connect(url, token).get(policy_path(before)).document["document"])
    document = compared(old, load_policy(path))
    if as_json:
        show_json(document)
    else:
        found = read_list(DifferenceDoc, document, "difference")
        show_blocks(difference_view(found, document["difference_total"]))
    if strict and document["difference"]:
        raise typer.Exit(1)


def export(
    database: DatabaseArgument, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Print the policy in force as a file: TOML, or with --json as JSON."""
    from headgate.cli.api import connect
    from headgate.cli.budget_files import to_toml
    from headgate.cli.output import show_json, show_toml

    answered = connect(url, token).get(policy_path(database)).document
    if as_json:
        show_json(answered["document"])
        return
    head = [f"Policy of {database}, revision {answered['revision']}."]
    if role := answered.get("own_role"):
        head.append(f"Exempt besides: {role} (the agent's own).")
    show_toml(to_toml(answered["document"], head))


# --- for a fleet -----------------------------------------------------------------------------

EVERY = "all"


def every_database(database: str) -> str:
    """A fleet's budget is for every database that its reach meets: who names one means less."""
    if database != EVERY:
        raise typer.BadParameter(
            f"with a reach a budget is for every database that it meets: write `{EVERY}` instead "
            f"of {database!r}; or leave the reach out, for {database} at this agent"
        )
    return database


class OfFleet(NamedTuple):
    """A budget that is set for a fleet, and how it is to be changed."""

    database: str
    name: str
    reach: str
    dry_run: bool
    yes: bool

    def maker(self, method: str, given: Mapping[str, Any] | None) -> Callable[[Api], Answered]:
        """Built on what was seen; shown with whom it reaches, and asked for."""
        path, query = budget_path(self.database, self.name), {"reach": self.reach}

        def make(api: Api) -> Answered:
            new = method == "PUT"
            etag = None if new else api.get(path, **query).etag
            change = partial(api.change, method, path, given, etag=etag, query=query, new=new)
            return confirmed(change, self.reach, dry_run=self.dry_run, yes=self.yes)

        return make


# --- steps -----------------------------------------------------------------------------------


def policy_path(database: str, *below: str) -> str:
    return "/".join((BUDGETS, *(quote(part, safe="") for part in (database, *below))))


def budget_path(database: str, name: str) -> str:
    return policy_path(database, name)


def _has(policy: Answered, name: str) -> bool:
    from headgate.errors import BadDocument

    listed = policy.document.get("budgets")
    if not isinstance(listed, list):
        raise BadDocument("budgets", "is no list")
    return any(isinstance(one, Mapping) and one.get("name") == name for one in listed)


def _tell_last_hour(
    database: str, document: Mapping[str, Any], url: str | None, token: str | None
) -> None:
    from headgate.cli.api import connect
    from headgate.cli.budget_replay import TIMEOUT_S, last_hour

    if told := last_hour(connect(url, token, timeout_s=TIMEOUT_S), database, document):
        print(told)


def _patch(
    database: str,
    name: str,
    given: Mapping[str, Any],
    dry_run: bool,
    url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    def patch(api: Api) -> Answered:
        path = budget_path(database, name)
        return api.change("PATCH", path, given, etag=api.get(path).etag, dry_run=dry_run)

    _change(patch, "CHANGED", url, token, as_json)


def _change(
    make: Callable[[Api], Answered], done: str, url: str | None, token: str | None, as_json: bool
) -> None:
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.exits import FAILED
    from headgate.cli.output import show_view
    from headgate.present.budgets import change_view
    from headgate.wire.budgets import PolicyChangeDoc

    changed = make(connect(url, token, timeout_s=FLEET_TIMEOUT_S))
    show_view(changed, as_json, PolicyChangeDoc, lambda change: change_view(change, done))
    change = read(PolicyChangeDoc, changed.document)
    if change.changed and not change.dry_run and any(one.fault for one in change.published):
        # Kept, and tried again; but a script must not take it for done.
        raise typer.Exit(FAILED)
