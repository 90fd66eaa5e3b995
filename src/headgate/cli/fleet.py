"""`headgate fleet reach`: what a reach applies to; `headgate fleet status`: the fleet."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.options import (
    FLEET_TIMEOUT_S,
    AgentOptions,
    Duration,
    Interval,
    ReachOptions,
    query_flags,
    query_of,
)
from headgate.fleet.view_api import FleetQuery


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
    if (where is None) == (reach.said is None):
        raise typer.BadParameter("give one reach: `fleet`, `shard:commerce/*`, or --shard …")
    api = agent.connect(timeout_s=FLEET_TIMEOUT_S)
    answered = api.get("/v1/fleet/reach", reach=where or reach.said)
    agent.show(answered, "fleet.reach_view")


# --- status --------------------------------------------------------------------------------------

# `headgate fleet status`: the fleet on a terminal, once or live.   FleetDoc ──► present/fleet

PATH = "/v1/fleet"
TIMEOUT_S = 15.0
"""A picture of ten thousand shards may take a while on a busy host."""

Watch = Annotated[
    bool, typer.Option("--watch", help="Live, as the view `fleet` of `headgate top`; q quits.")
]
EVERY = Duration("5s")


def status(
    context: typer.Context,
    wanted: Any,
    watch: Watch = False,
    interval: Interval = EVERY,
    *,
    agent: AgentOptions,
) -> None:
    """Show the fleet: unhealthy shards first, rules and who has them, agents that lag behind.

    Reads it from an agent that shows the fleet (`view = true` in [fleet] of its settings).
    """
    query = query_of(wanted)
    if watch and agent.as_json:
        raise typer.BadParameter("--watch draws pages; for programs use --json without it")
    if watch:
        from headgate.cli.top import TopOptions
        from headgate.cli.top import watch as show_live

        show_live(context, TopOptions("fleet", interval, agent, fleet=query))
        return
    answered = agent.connect(timeout_s=TIMEOUT_S).get(PATH, **query)
    part = wanted.unhealthy or wanted.behind
    agent.show(answered, "fleet.fleet_view", shards_only=part)


status.__annotations__["wanted"] = query_flags(FleetQuery)
