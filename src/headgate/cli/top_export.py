"""`headgate top` for files, pipes and programs: one frame, frame after frame, one document."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console, RenderableType

from headgate.cli.api import Api
from headgate.cli.exits import UNREACHABLE
from headgate.cli.output import canvas_of, console, show_json
from headgate.cli.poller import Feed, History, Poller, Waker, look
from headgate.cli.snapshot import save
from headgate.cli.top_feed import Scene, whole_document
from headgate.cli.top_page import Moment, still
from headgate.cli.top_views import VIEWS
from headgate.cli.trend import Trend

MAX_STRIPS = 40
PIPE_LINES = 500
"""Of a frame that nobody scrolls: whatever there is, within reason."""
LEAST_LINES = 24


def print_document(api: Api) -> None:
    document = whole_document(api, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    show_json(document)
    if document["status"] is None:
        raise typer.Exit(UNREACHABLE)


def one_frame(
    api: Api, patient: Api, view: str, interval_s: float, *, snapshot: Path | None, wake: bool
) -> None:
    scene = _looked(api, patient, view, interval_s, wake=wake)
    if snapshot is None:
        screen = console()
        screen.print(*_picture(scene, view, screen, _lines_of(screen)))
    else:
        save(snapshot, lambda screen: _picture(scene, view, screen, screen.height)[0])
    if scene.view.lost is not None:
        raise typer.Exit(UNREACHABLE)


def _looked(api: Api, patient: Api, view: str, interval_s: float, *, wake: bool) -> Scene:
    trend, feed = Trend(api.url), Feed(patient, lambda: None)
    if look(api, trend).lost is None:
        if wake:
            Waker(api).wake(trend.view, time.monotonic())
        History(patient, trend).recall(time.monotonic())
        time.sleep(interval_s)  # A rate needs a second look.
        look(api, trend)
        feed.ask_all(VIEWS[view].sources)
        if view == "clients" and trend.view.status is not None:
            held = sorted(trend.view.status.clients, key=lambda c: -(c.refused_for_s or 0.0))
            feed.ask_strips([one.client for one in held[:MAX_STRIPS]])
    return Scene(trend.view, feed.told, feed.strips)


def scroll(screen: Console, poller: Poller, view: str, within_s: float) -> None:
    """A frame for each look, one after another."""
    poller.want(VIEWS[view].sources)
    with suppress(KeyboardInterrupt):
        while True:
            poller.wait_for_next(within_s)
            height = max(LEAST_LINES, screen.height)
            screen.print(*_picture(poller.scene, view, screen, height))
            screen.print()


def _lines_of(screen: Console) -> int:
    return PIPE_LINES if not screen.is_terminal else max(LEAST_LINES, screen.height)


def _picture(scene: Scene, view: str, screen: Console, height: int) -> list[RenderableType]:
    at = Moment(time.monotonic(), datetime.now().astimezone())
    return still(view, scene, canvas_of(screen), height, at)
