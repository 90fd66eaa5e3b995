"""`headgate fleet reach`: what a reach applies to. `status` is in fleet_pages.py."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.options import FLEET_TIMEOUT_S, AgentOptions, ReachOptions


def reach(
    reach: ReachOptions,
    agent: AgentOptions,
    where: Annotated[
        str | None,
        typer.Argument(metavar="REACH", show_default=False, help="fleet, shard:commerce/* …"),
    ] = None,
) -> None:
    """Show which shards and hosts a reach applies to, unhealthy ones first.

    For example: headgate fleet reach --shard 'commerce/*'
    """
    from headgate.cli.output import show_view
    from headgate.fleet.reach_api import ReachedDoc
    from headgate.present.fleet import reach_view

    if (where is None) == (reach.said is None):
        raise typer.BadParameter("give one reach: `fleet`, `shard:commerce/*`, or --shard …")
    api = agent.connect(timeout_s=FLEET_TIMEOUT_S)
    answered = api.get("/v1/fleet/reach", reach=where or reach.said)
    show_view(answered, agent.as_json, ReachedDoc, reach_view)
