"""`headgate fleet reach`: what a reach applies to; `headgate fleet status`: the fleet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from headgate.cli.options import FLEET_TIMEOUT_S, AgentOptions, Duration, Interval, ReachOptions


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
    from headgate.fleet.api import ReachedDoc
    from headgate.present.fleet import reach_view

    if (where is None) == (reach.said is None):
        raise typer.BadParameter("give one reach: `fleet`, `shard:commerce/*`, or --shard …")
    api = agent.connect(timeout_s=FLEET_TIMEOUT_S)
    answered = api.get("/v1/fleet/reach", reach=where or reach.said)
    show_view(answered, agent.as_json, ReachedDoc, reach_view)


# --- status --------------------------------------------------------------------------------------

# `headgate fleet status`: the fleet on a terminal, once or live.   FleetDoc ──► present/fleet

PATH = "/v1/fleet"
TIMEOUT_S = 15.0
"""A picture of ten thousand shards may take a while on a busy host."""

Unhealthy = Annotated[
    bool, typer.Option("--unhealthy", help="Only shards that are unhealthy, or silent.")
]
Behind = Annotated[bool, typer.Option("--behind", help="Only shards with agents that lag behind.")]
Pattern = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", show_default=False, help="Only these; * matches any."),
]
PageNumber = Annotated[int, typer.Option("--page", min=1, help="Which page of the shards.")]
PerPage = Annotated[int, typer.Option(min=1, max=500, help="Shards on a page.")]
RulesPage = Annotated[int, typer.Option(min=1, help="Which page of the rules.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Live, as the view `fleet` of `headgate top`; q quits.")
]
EVERY = Duration("5s")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Which shards and rules of the fleet; by the names of the route's query."""

    unhealthy: Unhealthy = False
    behind: Behind = False
    region: Pattern = None
    cluster: Pattern = None
    shard: Pattern = None
    page: PageNumber = 1
    per_page: PerPage = 50
    rules_page: RulesPage = 1

    @property
    def query(self) -> dict[str, str | None]:
        return {
            name: ("true" if value else None) if isinstance(value, bool) else value and str(value)
            for name, value in asdict(self).items()
        }


def status(
    context: typer.Context,
    wanted: FleetOptions,
    watch: Watch = False,
    interval: Interval = EVERY,
    *,
    agent: AgentOptions,
) -> None:
    """Show the fleet: unhealthy shards first, rules and who has them, agents that lag behind.

    Reads it from an agent that shows the fleet (`view = true` in [fleet] of its settings).
    """
    from headgate.cli.output import show_view
    from headgate.fleet.view_api import FleetDoc
    from headgate.present.fleet import fleet_view

    if watch and agent.as_json:
        raise typer.BadParameter("--watch draws pages; for programs use --json without it")
    if watch:
        from headgate.cli.top import TopOptions
        from headgate.cli.top import watch as show_live

        show_live(context, TopOptions("fleet", interval, agent, fleet=wanted.query))
        return
    answered = agent.connect(timeout_s=TIMEOUT_S).get(PATH, **wanted.query)
    part = wanted.unhealthy or wanted.behind
    show_view(answered, agent.as_json, FleetDoc, lambda fleet: fleet_view(fleet, shards_only=part))
