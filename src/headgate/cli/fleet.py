"""Commands on what is set for a fleet: rules, export, diff, apply, history, rollback, reach,
restore. What they change is in force wherever its reach meets, whatever agent is asked.

A change that was shown before it is made is built on what was shown (If-Match).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeAlias

import typer

from headgate.cli.confirm import Yes
from headgate.cli.options import AsJson, Token, Url
from headgate.cli.reaching import (
    FLEET_TIMEOUT_S,
    FleetWide,
    InCluster,
    InRegion,
    InShard,
    OnHost,
    reach_of,
)

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api
    from headgate.cli.fleet_files import File
    from headgate.cli.fleet_items import FleetChanged

FLEET = "/v1/fleet"
S_PER_ITEM = 0.02
"""A hundred are one revision, and a store under load takes seconds for that."""
MANY_TIMEOUT_S = 240.0
"""Where nobody here knows how many it concerns: as many as a fleet may have."""

FleetFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML, or JSON if its name ends so.")
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Validate and show the difference; change nothing.")
]
Prune: TypeAlias = Annotated[
    bool, typer.Option("--prune", help="Take out what is set for the fleet and not in the file.")
]


# --- looking ---------------------------------------------------------------------------------


def rules(
    ended: Annotated[
        bool, typer.Option("--all", help="With what has ended, or was taken out, lately.")
    ] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List rules and budgets that are set for the fleet, and whom each reaches."""
    from headgate.cli.documents import read
    from headgate.cli.fleet_items import FleetItems, items_page
    from headgate.cli.output import show

    answered = _api(url, token).get(f"{FLEET}/items", all="true" if ended else None)
    show(answered, as_json, lambda canvas: items_page(read(FleetItems, answered.document), canvas))


def reach(
    where: Annotated[
        str | None,
        typer.Argument(metavar="REACH", show_default=False, help="fleet, shard:commerce/* …"),
    ] = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Tell whom a rule or budget with that reach would meet: shards, hosts, unhealthy ones first.

    For example: headgate fleet reach --shard 'commerce/*'
    """
    from headgate.cli.documents import read
    from headgate.cli.fleet_items import Reached, reach_page
    from headgate.cli.output import show

    given = reach_of(fleet, region, cluster, shard, host)
    if (where is None) == (given is None):
        raise typer.BadParameter("say once how far: `fleet`, `shard:commerce/*`, or --shard …")
    answered = _api(url, token).get(f"{FLEET}/reach", reach=where or given)
    show(answered, as_json, lambda _: reach_page(read(Reached, answered.document)))


def history(
    n: Annotated[
        int | None,
        typer.Argument(min=1, metavar="N", show_default=False, help="What this one did."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many, newest first.")] = 20,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the fleet's revisions: when, by whom, and what changed; or what one of them did."""
    from headgate.cli.documents import read, read_list
    from headgate.cli.fleet_items import (
        FleetRevision,
        FleetRevisionWhole,
        fleet_history_page,
        fleet_revision_page,
    )
    from headgate.cli.output import show

    if n is not None:
        one = _api(url, token).get(f"{FLEET}/history/{n}")
        show(one, as_json, lambda _: fleet_revision_page(read(FleetRevisionWhole, one.document)))
        return
    answered = _api(url, token).get(f"{FLEET}/history", limit=str(limit))
    show(
        answered,
        as_json,
        lambda _: fleet_history_page(read_list(FleetRevision, answered.document, "revisions")),
    )


# --- files -----------------------------------------------------------------------------------


def export(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Print what is set for the fleet as a file: TOML, or with --json as JSON.

    `headgate fleet apply` takes it; applied unchanged, it changes nothing.
    """
    from headgate.cli.fleet_files import exported
    from headgate.cli.output import show_json, show_toml
    from headgate.core.fleet_files import to_toml

    n, document = exported(_api(url, token).get(f"{FLEET}/export").document)
    if as_json:
        show_json(document)
        return
    show_toml(to_toml(document, [f"What is set for the fleet, at n {n}."]))


def diff(
    path: FleetFile,
    prune: Prune = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 where it would change anything.")
    ] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a file would change in what is set for the fleet, and whom that reaches."""
    from headgate.cli.fleet_files import load
    from headgate.cli.fleet_items import fleet_difference_page
    from headgate.cli.output import show

    file = load(path)
    tried = _applied(_api_for(file, url, token), file, prune=prune, dry_run=True)
    change = _read(tried)
    show(tried, as_json, lambda _: fleet_difference_page(change))
    if strict and change.changed:
        raise typer.Exit(1)


def apply(
    path: FleetFile,
    prune: Prune = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Set for the fleet what a file says: rules and budgets, each with its reach.

    What it does not name stays as it is, but for --prune, which takes it out.
    """
    from headgate.cli.fleet_files import load

    file = load(path)
    api = _api_for(file, url, token)

    def post(*, dry_run: bool, etag: str | None) -> Answered:
        return _applied(api, file, prune=prune, dry_run=dry_run, etag=etag)

    _make(post, "APPLIED", dry_run=dry_run, yes=yes, as_json=as_json)


def rollback(
    n: Annotated[int, typer.Argument(min=0, metavar="N", help="As it stood after this one.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Set everything for the fleet as it stood after a revision, as a new one.

    Rules that have ended since do not come back.
    """
    api = _api(url, token, timeout_s=MANY_TIMEOUT_S)

    def post(*, dry_run: bool, etag: str | None) -> Answered:
        path = f"{FLEET}/rollback"
        return api.change("POST", path, {"n": n}, dry_run=dry_run, etag=etag)

    _make(post, "ROLLED BACK", dry_run=dry_run, yes=yes, as_json=as_json)


def restore(
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Put back what the fleet's store has lost and the asked agent still knows.

    For a store that came back empty or from an old copy. An agent knows what reaches beyond one
    shard, and what is of its own: ask one of each shard that had rules of its own.
    """
    api = _api(url, token, timeout_s=MANY_TIMEOUT_S)

    def post(*, dry_run: bool, etag: str | None) -> Answered:
        return api.change("POST", f"{FLEET}/restore", dry_run=dry_run)

    _make(post, "RESTORED", dry_run=dry_run, yes=yes, as_json=as_json)


# --- steps -----------------------------------------------------------------------------------


def _api(url: str | None, token: str | None, *, timeout_s: float = FLEET_TIMEOUT_S) -> Api:
    from headgate.cli.api import connect

    return connect(url, token, timeout_s=timeout_s)


def _api_for(file: File, url: str | None, token: str | None) -> Api:
    return _api(url, token, timeout_s=FLEET_TIMEOUT_S + file.entries * S_PER_ITEM)


def _applied(
    api: Api,
    file: File,
    *,
    prune: bool,
    dry_run: bool,
    etag: str | None = None,
) -> Answered:
    query, path = {"prune": "true"} if prune else {}, f"{FLEET}/apply"
    with file.judged():
        return api.change("POST", path, file.document, etag=etag, dry_run=dry_run, query=query)


class Post(Protocol):
    """Makes one change, or tries it; `etag`: only if the fleet still is as it was then."""

    def __call__(self, *, dry_run: bool, etag: str | None) -> Answered: ...


def _make(post: Post, done: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Tried and shown, then asked for, and then made of just that; with --yes at once."""
    from headgate.cli.exits import AgentSilent
    from headgate.cli.fleet_items import fleet_change_page
    from headgate.cli.output import show

    etag = None
    if not dry_run and not yes:
        tried = post(dry_run=True, etag=None)
        if not _read(tried).changed:
            show(tried, as_json, lambda _: fleet_change_page(_read(tried), done))
            return
        _show_and_ask(tried, done)
        etag = tried.etag
    try:
        made = post(dry_run=dry_run, etag=etag)
    except AgentSilent as error:
        raise AgentSilent(f"{error}: `headgate fleet history` tells how far it came") from None
    show(made, as_json, lambda _: fleet_change_page(_read(made), done))


def _show_and_ask(tried: Answered, done: str) -> None:
    """On standard error, so that --json stays a document."""
    from rich.console import Console

    from headgate.cli.confirm import confirm
    from headgate.cli.fleet_items import fleet_change_page

    Console(stderr=True, highlight=False, markup=False, emoji=False).print(
        fleet_change_page(_read(tried), done)
    )
    confirm("Change it for the fleet?")


def _read(answered: Answered) -> FleetChanged:
    from headgate.cli.documents import read
    from headgate.cli.fleet_items import FleetChanged

    return read(FleetChanged, answered.document)
