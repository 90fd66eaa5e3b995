"""`headgate fleet status --watch`.   poller thread ──Sight──► screen

As `headgate top` does it: the agent is asked in a thread, so that a hung one hangs no key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.text import Text

from headgate.cli import views
from headgate.cli.output import canvas_of, console
from headgate.cli.words import plain
from headgate.errors import HeadgateError
from headgate.present.fleet import fleet_view
from headgate.wire.fleet_view import FleetDoc as Fleet
from headgate.wire.reasons import duration

KEY_SLICE_S = 0.1
REDRAW_S = 0.5
ANSWER_S = 15.0

Ask = Callable[[], Fleet]


@dataclass(frozen=True, slots=True)
class Sight:
    """What was last seen, and why nothing newer is."""

    fleet: Fleet | None = None
    seen_at_s: float = 0.0
    lost: str = ""


def next_sight(before: Sight, ask: Ask, now_s: float) -> Sight:
    try:
        return Sight(ask(), now_s)
    except HeadgateError as error:
        return replace(before, lost=str(error))


def drawn(
    sight: Sight, screen: Console, *, now_s: float, corner: str, shards_only: bool
) -> RenderableType:
    parts: list[RenderableType] = [Text(corner, style="dim")]
    if sight.lost:
        parts.append(Text(f"NOT TO BE SEEN: {plain(sight.lost)}", style="bold red"))
        if sight.fleet is not None:
            ago = duration(max(0.0, now_s - sight.seen_at_s))
            parts.append(Text(f"below is what was seen {ago} ago", style="red"))
    if sight.fleet is not None:
        parts.append(
            views.drawn(fleet_view(sight.fleet, shards_only=shards_only), canvas_of(screen))
        )
    return Group(*parts)


class SightPoller:
    def __init__(self, ask: Ask, interval_s: float) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self.sight = Sight()
        # A daemon: leaving does not wait for an agent that does not answer.
        self._thread = threading.Thread(target=self._run, name="headgate-fleet", daemon=True)

    def __enter__(self) -> SightPoller:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()

    def wait_for_next(self, within_s: float) -> None:
        with self._changed:
            self._changed.wait(within_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sight = next_sight(self.sight, self._ask, time.monotonic())
            with self._changed:
                self._changed.notify_all()
            self._stop.wait(self._interval_s)


def watch_fleet(ask: Ask, interval_s: float, *, shards_only: bool) -> None:
    screen = console()

    def picture(sight: Sight, hint: str = "") -> RenderableType:
        corner = f"{time.strftime('%H:%M:%S')}{hint}"
        now_s = time.monotonic()
        return drawn(sight, screen, now_s=now_s, corner=corner, shards_only=shards_only)

    with SightPoller(ask, interval_s) as poller:
        if screen.is_terminal and not screen.is_dumb_terminal:
            _live(screen, poller, picture)
        else:
            _scroll(screen, poller, picture, interval_s + ANSWER_S)


def _live(
    screen: Console, poller: SightPoller, picture: Callable[[Sight, str], RenderableType]
) -> None:
    from rich.live import Live

    from headgate.cli.keys import Keys
    from headgate.cli.signals import ending_on_signals

    live = Live(console=screen, screen=True, auto_refresh=False, redirect_stdout=False)
    with ending_on_signals(), suppress(KeyboardInterrupt), Keys() as keys, live:
        drawn_at_s, shown = 0.0, None
        while True:
            state = (poller.sight, screen.size)
            if state != shown or time.monotonic() - drawn_at_s >= REDRAW_S:
                live.update(picture(poller.sight, "  q leaves"), refresh=True)
                shown, drawn_at_s = state, time.monotonic()
            if keys.wants_to_leave(KEY_SLICE_S):
                return


def _scroll(
    screen: Console, poller: SightPoller, picture: Callable[[Sight], RenderableType], wait_s: float
) -> None:
    with suppress(KeyboardInterrupt):
        while True:
            poller.wait_for_next(wait_s)
            screen.print(picture(poller.sight))
            screen.print()
