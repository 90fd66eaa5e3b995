"""How far something is to reach: --fleet, --region, --cluster, --shard, --host; and the preview.

A change with a reach is shown first: what it does, whom it reaches, and then it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from headgate.cli.api import Answered

FLEET_TIMEOUT_S = 20.0
"""The fleet's store may be slow, or one of its members gone: the agent tries several times."""


def _option(name: str, about: str) -> Any:
    return typer.Option(name, metavar="PATTERN", show_default=False, help=about)


_FOR_ALL = "For the whole fleet. Without any of these: this agent, or the shard that it leads."
FleetWide: TypeAlias = Annotated[
    bool,
    typer.Option("--fleet", help=_FOR_ALL),
]
InRegion: TypeAlias = Annotated[
    str | None, _option("--region", "For agents of these regions; * stands for any characters.")
]
InCluster: TypeAlias = Annotated[str | None, _option("--cluster", "For those of these clusters.")]
InShard: TypeAlias = Annotated[
    str | None, _option("--shard", "For those of these shards: 'commerce/*'.")
]
OnHost: TypeAlias = Annotated[
    str | None, _option("--host", "For these agents, by their names: 'db-1*'.")
]


def reach_of(
    fleet: bool, region: str | None, cluster: str | None, shard: str | None, host: str | None
) -> str | None:
    """As the agent takes it; None: nothing was said of it, and the agent knows what is meant."""
    said = {"region": region, "cluster": cluster, "shard": shard, "host": host}
    given = [f"{level}:{pattern}" for level, pattern in said.items() if pattern is not None]
    given += ["fleet"] if fleet else []
    if len(given) > 1:
        options = ", ".join(f"--{one.partition(':')[0]}" for one in given)
        raise typer.BadParameter(f"{options}: give one of them; two reaches are two changes")
    return checked(given[0]) if given else None


def checked(reach: str) -> str:
    from headgate.core.reach import parse_reach

    try:
        return str(parse_reach(reach))
    except ValueError as error:
        level = reach.partition(":")[0]
        raise typer.BadParameter(f"--{level} {error}") from None


def preview_line(document: Mapping[str, Any]) -> str:
    """Of a dry run's answer: `reaches 37 shards, 111 hosts; commerce/-80, …`."""
    from headgate.cli.render import plain

    reached = document.get("reached")
    told = reached.get("says") if isinstance(reached, Mapping) else None
    return plain(told) if isinstance(told, str) else "whom it reaches was not told"


def reached_line(document: Mapping[str, Any]) -> str:
    """Of the answer to a change of something of the fleet's; empty of the agent's own. Told after
    every such change: a script has seen no preview, and a name that was mistyped reaches nobody."""
    from headgate.cli.render import plain

    reached = document.get("reached")
    if not isinstance(reached, Mapping):
        return ""
    nobody = reached.get("hosts") == 0 and reached.get("shards") == 0
    told = f"{plain(str(reached.get('reach')))}: {preview_line(document)}"
    return f"NOBODY  {told}" if nobody else told


def copies_line(document: Mapping[str, Any]) -> str:
    """Of the answer to a change for a shard: which of its agents have it; else empty."""
    from headgate.cli.render import plain

    copies = document.get("copies")
    told = copies.get("says") if isinstance(copies, Mapping) else None
    return plain(told) if isinstance(told, str) else ""


def confirmed(
    change: Callable[..., Answered], reach: str | None, *, dry_run: bool, yes: bool
) -> Answered:
    """What has a reach is tried first; it is told whom it reaches, and asked for on standard error,
    so that --json stays a document. What is of the agent's own log is not asked for: it reaches no
    further than the agent's own shard."""
    from headgate.cli.confirm import confirm

    if reach is not None and not dry_run and not yes:
        tried = change(dry_run=True).document
        if tried.get("reached") is not None:
            print(f"{reach}: {preview_line(tried)}", file=sys.stderr)
            confirm(f"Change it for {reach}?")
    return change(dry_run=dry_run)
