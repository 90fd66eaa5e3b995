"""`headgate top`: the agent's state, live.   poller thread ──view──► screen ──keys──► leave

The agent is asked in a thread, so that a hung agent hangs no key and no resize.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.options import Token, Url

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headgate.cli.api import Api
    from headgate.cli.poller import Poller
    from headgate.cli.trend import View

POLL_TIMEOUT_S = 2.0
KEY_SLICE_S = 0.1
REDRAW_S = 0.5
"""Redraw at least this often: ages grow although nothing was heard."""

Interval = Annotated[
    float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="Time between two looks.")
]
Once = Annotated[bool, typer.Option("--once", help="Print one frame and leave.")]
Snapshot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Write one frame to a .svg, .html or text file and leave.",
    ),
]


def top(
    interval: Interval = 0.5,
    once: Once = False,
    snapshot: Snapshot = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Watch databases, metrics and clients live; q leaves.

    Looking wakes databases that nobody asks about (`headgate status` does not). A bar's end is
    the threshold; beyond it the bar is red. On a terminal without cursor control, and into a
    pipe, frames are printed one after another.
    """
    from headgate.cli.api import connect
    from headgate.cli.output import console
    from headgate.cli.poller import Poller

    api = connect(url, token, timeout_s=POLL_TIMEOUT_S)
    if once or snapshot is not None:
        _one_frame(api, interval, snapshot)
        return
    screen = console()
    with Poller(api, interval) as poller:
        if screen.is_terminal and not screen.is_dumb_terminal:
            _live(screen, poller)
        else:
            _scroll(screen, poller, interval)


def picture(view: View, screen: Console, hint: str = "") -> RenderableType:
    from headgate.cli.frame import frame
    from headgate.cli.output import canvas_of

    corner = f"{time.strftime('%H:%M:%S')}{hint}"
    canvas = canvas_of(screen)
    return frame(view, canvas, screen.height, now_s=time.monotonic(), corner=corner)


def _live(screen: Console, poller: Poller) -> None:
    from contextlib import suppress

    from rich.live import Live

    from headgate.cli.keys import Keys
    from headgate.cli.signals import ending_on_signals

    live = Live(console=screen, screen=True, auto_refresh=False, redirect_stdout=False)
    with ending_on_signals(), suppress(KeyboardInterrupt), Keys() as keys, live:
        drawn = None
        drawn_at_s = 0.0
        while True:
            state = (poller.view, screen.size)
            if state != drawn or time.monotonic() - drawn_at_s >= REDRAW_S:
                live.update(picture(poller.view, screen, "  q leaves"), refresh=True)
                drawn, drawn_at_s = state, time.monotonic()
            if keys.wants_to_leave(KEY_SLICE_S):
                return


def _scroll(screen: Console, poller: Poller, interval_s: float) -> None:
    from contextlib import suppress

    with suppress(KeyboardInterrupt):
        while True:
            poller.wait_for_next(interval_s + POLL_TIMEOUT_S)
            screen.print(picture(poller.view, screen))
            screen.print()


def _one_frame(api: Api, interval_s: float, snapshot: Path | None) -> None:
    from headgate.cli.exits import UNREACHABLE
    from headgate.cli.output import console
    from headgate.cli.poller import Waker, look
    from headgate.cli.trend import Trend

    trend = Trend(api.url)
    if look(api, trend).lost is None:
        Waker(api).wake(trend.view, time.monotonic())
        time.sleep(interval_s)  # A rate needs a second look.
        look(api, trend)
    if snapshot is None:
        screen = console()
        screen.print(picture(trend.view, screen))
    else:
        from headgate.cli.snapshot import save

        save(snapshot, lambda screen: picture(trend.view, screen))
    if trend.view.lost is not None:
        raise typer.Exit(UNREACHABLE)
