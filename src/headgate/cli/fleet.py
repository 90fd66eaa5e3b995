"""`headgate fleet reach`: whom something with a reach would meet. `status` is in fleet_pages.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
    from rich.console import RenderableType

    from headgate.cli.render import Canvas


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
    from rich.console import Group
    from rich.text import Text

    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.words import plain
    from headgate.wire.fleet_reach import ReachedDoc

    given = reach_of(fleet, region, cluster, shard, host)
    if (where is None) == (given is None):
        raise typer.BadParameter("say once how far: `fleet`, `shard:commerce/*`, or --shard …")
    api = connect(url, token, timeout_s=FLEET_TIMEOUT_S)
    answered = api.get("/v1/fleet/reach", reach=where or given)

    def page(_: Canvas) -> RenderableType:
        reached = read(ReachedDoc, answered.document)
        line = Text().append(plain(reached.reach), style="cyan").append(f": {plain(reached.says)}")
        return Group(line, *(Text(f"  {plain(name)}") for name in reached.sample))

    show(answered, as_json, page)
