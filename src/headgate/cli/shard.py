"""Commands about shards: shard, shard skip, unskip, handover, take-back, add-peer, remove-peer, and
wake."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.options import (
    AgentOptions,
    DatabaseArgument,
    DryRun,
    MemberArgument,
    OnHost,
    ReachOptions,
    Yes,
    confirm,
    lasts_option,
)

if TYPE_CHECKING:
    from headgate.cli.api import Answered

For = Annotated[
    str, lasts_option("90s, 30m, 2h, 1d; 7d at most. It then counts again.", shown=True)
]
Reason = Annotated[
    str,
    typer.Option(
        "--reason", metavar="TEXT", help="Why. Shown in status and in answers.", show_default=False
    ),
]
HandoverFor = Annotated[
    str, lasts_option("30s, 5m; 1h at most. Then the primary's agent answers again.", shown=True)
]
PeerUrl = Annotated[
    str, typer.Argument(metavar="URL", help="Of the member's agent: https://host:port.")
]
PeerDatabase = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="The other agent's name for the database. Default: the same.",
    ),
]


def show(database: DatabaseArgument, *, agent: AgentOptions) -> None:
    """Draw the shard of a database, with every detail.

    `headgate shard DATABASE` is short for it.
    """
    from headgate.cli.api import database_path
    from headgate.cli.output import show_drawn
    from headgate.cli.pages import shard_page
    from headgate.shard.api import ShardDoc

    answered = agent.connect().get(database_path(database, "shard"))
    show_drawn(answered, agent.as_json, ShardDoc, shard_page)


def skip(
    database: DatabaseArgument,
    member: MemberArgument,
    reason: Reason,
    duration: For = "30m",
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    agent: AgentOptions,
) -> None:
    """Skip a replica in the rollup of its shard, for a while and for a reason.

    The rollup then leaves it out; every answer and `headgate status` say so. It is for the
    shard, so that a promotion keeps it. With --host and this agent's name it is for this agent
    alone, and works while the fleet's etcd is away. Skipping the last replica needs a yes: the
    rollup would have no value, and every check for the shard would be rejected.
    """
    from headgate.cli.api import database_path

    if not yes and _warned_of_last(agent, database, member) and not dry_run:
        confirm(f"Skip {member} all the same?")
    settings = {"for": duration, "reason": reason}
    reach = ReachOptions(host=host).said
    path = database_path(database, "shard", "skips", member)
    changed = agent.connect().change(
        "PUT", path, settings, query={} if reach is None else {"reach": reach}, dry_run=dry_run
    )
    told = f"{member} of {database} for {settings['for']}: {reason}"
    _show(changed, "WOULD SKIP" if dry_run else "SKIPPED", told, agent.as_json)


def _warned_of_last(agent: AgentOptions, database: str, member: str) -> bool:
    from headgate.cli.api import database_path
    from headgate.cli.documents import read
    from headgate.cli.output import canvas_of, console
    from headgate.cli.render import drawn
    from headgate.present.shard import last_replica
    from headgate.shard.api import ShardDoc

    doc = read(ShardDoc, agent.connect().get(database_path(database, "shard")).document)
    note = last_replica(doc, member)
    if note is not None:
        target = console(sys.stderr)
        target.print(drawn([note], canvas_of(target)))
    return note is not None


def unskip(
    database: DatabaseArgument,
    member: MemberArgument,
    dry_run: DryRun = False,
    *,
    agent: AgentOptions,
) -> None:
    """Count a skipped replica again, wherever it was skipped."""
    from headgate.cli.api import database_path

    path = database_path(database, "shard", "skips", member)
    changed = agent.connect().change("DELETE", path, dry_run=dry_run)
    done = "WOULD COUNT AGAIN" if dry_run else "COUNTS AGAIN"
    _show(changed, done, f"{member} of {database}", agent.as_json)


def handover(
    database: DatabaseArgument,
    duration: HandoverFor = "60s",
    reason: Reason = "",
    *,
    agent: AgentOptions,
) -> None:
    """Announce a planned switchover, before the primary steps down.

    Call it at the primary's agent, from the pre-hook of the orchestrator. When it returns, no check
    at shard scope is admitted any more by the view of that server. It ends when the server's role
    changes, with `take-back`, or when its time is over.
    """
    from headgate.cli.api import database_path

    settings = {"for": duration, "reason": reason}
    changed = agent.connect().change("POST", database_path(database, "shard", "handover"), settings)
    until = f"{settings['for']} or until the role changes"
    told = f"{database}: checks at shard scope are rejected for {until}"
    _show(changed, "HANDING OVER", told, agent.as_json)


def take_back(
    database: DatabaseArgument,
    *,
    agent: AgentOptions,
) -> None:
    """Cancel an announced switchover: the primary stays."""
    from headgate.cli.api import database_path

    changed = agent.connect().change("DELETE", database_path(database, "shard", "handover"))
    _show(changed, "TAKEN BACK", f"{database} stays the primary of its shard", agent.as_json)


def add_peer(
    database: DatabaseArgument,
    member: MemberArgument,
    peer_url: PeerUrl,
    peer_database: PeerDatabase = None,
    *,
    agent: AgentOptions,
) -> None:
    """Add a member to the shard of a database, without a restart."""
    from headgate.cli.api import database_path

    path = database_path(database, "shard", "peers", member)
    settings = {"url": peer_url, "database": peer_database or database}
    changed = agent.connect().change("PUT", path, settings)
    _show(changed, "ADDED", f"{member} at {peer_url} to the shard of {database}", agent.as_json)


def remove_peer(
    database: DatabaseArgument,
    member: MemberArgument,
    *,
    agent: AgentOptions,
) -> None:
    """Remove a member that was added at run time; it then counts nowhere."""
    from headgate.cli.api import database_path

    path = database_path(database, "shard", "peers", member)
    changed = agent.connect().change("DELETE", path)
    _show(changed, "REMOVED", f"{member} from the shard of {database}", agent.as_json)


def wake(database: DatabaseArgument, *, agent: AgentOptions) -> None:
    """Wake a database that hibernates, and its shard, as a client's check would."""
    from headgate.cli.api import database_path

    changed = agent.connect().change("POST", database_path(database, "wake"), {})
    _show(changed, "AWAKE", f"{database} is being measured", agent.as_json)


# --- steps -----------------------------------------------------------------------------------


def _show(changed: Answered, done: str, told: str, as_json: bool) -> None:
    from headgate.cli.options import copies_line, reached_line
    from headgate.cli.output import show_blocks, show_document
    from headgate.present.view import line, outcome

    whom = copies_line(changed.document) or reached_line(changed.document)
    if as_json:
        show_document(changed)
    else:
        show_blocks([outcome(done, told), *([line(whom)] if whom else [])])
