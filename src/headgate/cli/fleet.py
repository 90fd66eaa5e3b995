"""`headgate fleet reach`: whom something with a reach would meet. `status` is in fleet_pages.py."""

from __future__ import annotations

from typing import Annotated

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
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.fleet import reach_view
    from headgate.wire.fleet_reach import ReachedDoc

    given = reach_of(fleet, region, cluster, shard, host)
    if (where is None) == (given is None):
        raise typer.BadParameter("say once how far: `fleet`, `shard:commerce/*`, or --shard …")
    api = connect(url, token, timeout_s=FLEET_TIMEOUT_S)
    answered = api.get("/v1/fleet/reach", reach=where or given)
    show_view(answered, as_json, ReachedDoc, reach_view)
