"""`headgate top`, and what a live screen is to show. The screen itself is tui/'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import typer

from headgate.cli.options import INTERVAL, AgentOptions, Interval

if TYPE_CHECKING:
    from headgate.cli.api import Api

VIEW_NAMES = ("overview", "shard", "clients", "rules", "budgets", "past", "explain", "fleet")

Once = Annotated[bool, typer.Option("--once", help="Print one frame and exit.")]
Snapshot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Write one frame to a .svg, .html or text file, or everything to a .json, and exit.",
    ),
]
ViewName = Annotated[
    str,
    typer.Option(
        "--view",
        metavar="NAME",
        help=f"The view to begin with: {', '.join(VIEW_NAMES)}, or its number.",
    ),
]
Wake = Annotated[
    bool,
    typer.Option("--wake", help="Keep its databases awake while this runs, as a check would."),
]


class TopOptions(NamedTuple):
    """Which view of which agent."""

    view: str
    interval_s: float
    agent: AgentOptions
    database: str | None = None
    """Of the budgets, this one's alone."""
    fleet: Mapping[str, str | None] = {}
    """Of the fleet, these shards."""
    once: bool = False
    snapshot: Path | None = None
    wake: bool = False
    proxy: Api | None = None
    """A proxy instead of an agent."""


class Screen(Protocol):
    def watch(self, wanted: TopOptions) -> None: ...


def watch(context: typer.Context, wanted: TopOptions) -> None:
    """The screen is beyond this ring: __main__.py hands it in, as the context's object."""
    screen: Screen = context.obj
    screen.watch(wanted)


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """One frame instead of a live screen."""

    once: Once = False
    snapshot: Snapshot = None


def top(
    context: typer.Context,
    frame: FrameOptions,
    agent: AgentOptions,
    interval: Interval = INTERVAL,
    view: ViewName = "overview",
    wake: Wake = False,
) -> None:
    """Watch what is unhealthy, who is throttled, by what, and what to do; q quits.

    Eight views, switched by the keys 1 to 8 or the mouse; ? shows all keys. Rules can be lifted
    and extended, clients held: each change is tried and shown first. Looking wakes no database
    that hibernates; the key w does, or --wake. A bar's end is the threshold; beyond it the bar is
    red. On a terminal without cursor control, and into a pipe, frames are printed one after
    another.
    """
    one: dict[str, Any] = {"once": frame.once, "snapshot": frame.snapshot}
    watch(context, TopOptions(view, interval, agent, wake=wake, **one))
