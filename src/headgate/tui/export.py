"""The live screen for files, pipes and programs: one frame, frame after frame, one document."""

from __future__ import annotations

import io
import json
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, RenderableType

from headgate.cli.api import Api
from headgate.cli.exits import UNREACHABLE
from headgate.cli.output import canvas_of, console, show_json
from headgate.cli.signals import ending_on_signals
from headgate.tui.layout import View
from headgate.tui.page import Moment, still
from headgate.tui.paint import Lines
from headgate.tui.poller import History, Poller, ViewFeed, Waker, look
from headgate.tui.sources import DOCUMENTS, Chosen, Scene, whole_document
from headgate.tui.terminal import BareKeys
from headgate.tui.trend import Trend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.tui.paint import Line

MAX_STRIPS = 40
PIPE_LINES = 500
"""Of a frame that nobody scrolls: whatever there is, within reason."""
LEAST_LINES = 24
PICTURE_COLUMNS, PICTURE_LINES = 110, 40
TITLE = "headgate top"


# --- one document ------------------------------------------------------------------------------


def document(api: Api, paths: Mapping[str, str] = DOCUMENTS) -> dict[str, Any]:
    return whole_document(api, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), paths)


def print_document(api: Api) -> None:
    found = document(api)
    show_json(found)
    if found["status"] is None:
        raise typer.Exit(UNREACHABLE)


def save_document(path: Path, api: Api, paths: Mapping[str, str] = DOCUMENTS) -> None:
    """A file that is there already is not overwritten."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(document(api, paths), file, indent=2, ensure_ascii=False)


# --- one frame ---------------------------------------------------------------------------------


def one_frame(
    api: Api, patient: Api, view: View, interval_s: float, *, chosen: Chosen,
    snapshot: Path | None, wake: bool,
) -> None:  # fmt: skip
    scene = _looked(api, patient, view, interval_s, chosen, wake=wake)
    if snapshot is None:
        screen = console()
        height = PIPE_LINES if not screen.is_terminal else max(LEAST_LINES, screen.height)
        screen.print(*_picture(scene, view, screen, height))
    else:
        screen = _recording(PICTURE_COLUMNS, PICTURE_LINES)
        screen.print(*_picture(scene, view, screen, screen.height))
        snapshot.write_text(_exported(screen, snapshot.suffix), encoding="utf-8")
    if scene.picture.lost is not None:
        raise typer.Exit(UNREACHABLE)
    if any(scene.of(name).value is None for name in view.sources):
        raise typer.Exit(1)


def _looked(
    api: Api, patient: Api, view: View, interval_s: float, chosen: Chosen, *, wake: bool
) -> Scene:
    trend, feed = Trend(api.url), ViewFeed(patient, chosen, lambda: None)
    if look(api, trend).lost is None:
        if wake:
            Waker(api).wake(trend.picture, time.monotonic())
        History(patient, trend).recall(time.monotonic())
        feed.ask_all(view.sources)
        time.sleep(interval_s)  # A rate needs a second look.
        look(api, trend)
        feed.ask_all((*view.sources, *view.extras))
        if view.name == "clients" and trend.picture.status is not None:
            held = sorted(trend.picture.status.clients, key=lambda c: -(c.rejected_for_s or 0.0))
            feed.ask_strips([one.client for one in held[:MAX_STRIPS]])
    return Scene(trend.picture, feed.told, feed.strips)


def scroll(screen: Console, poller: Poller, view: View, interval_s: float, within_s: float) -> None:
    """A frame for each look, one after another, until q, Ctrl-C or a signal."""
    poller.want((*view.sources, *view.extras))
    with suppress(KeyboardInterrupt), ending_on_signals(), BareKeys() as keys:
        while True:
            poller.bell.wait(within_s)
            height = max(LEAST_LINES, screen.height)
            screen.print(*_picture(poller.scene, view, screen, height))
            screen.print()
            if keys.quit_within(interval_s):
                return


def _picture(scene: Scene, view: View, screen: Console, height: int) -> list[RenderableType]:
    at = Moment(time.monotonic(), datetime.now().astimezone())
    return still(view, scene, canvas_of(screen), height, at)


# --- a picture ---------------------------------------------------------------------------------


def save_lines(path: Path, lines: Sequence[Line], size: tuple[int, int]) -> None:
    """What is on a screen of this size. A file that is there already is not overwritten."""
    screen = _recording(*size)
    screen.print(Lines(lines))
    with path.open("x", encoding="utf-8") as file:
        file.write(_exported(screen, path.suffix))


def _recording(width: int, height: int) -> Console:
    return Console(
        record=True, file=io.StringIO(), width=width, height=height, force_terminal=True,
        color_system="truecolor", no_color=False, markup=False, emoji=False, highlight=False,
    )  # fmt: skip


def _exported(screen: Console, suffix: str) -> str:
    if suffix != ".svg":
        return screen.export_html() if suffix in (".html", ".htm") else screen.export_text()
    from rich._export_format import CONSOLE_SVG_FORMAT

    # A picture loads no fonts: every viewer has a monospaced one.
    bare = re.sub(r"@font-face\s*{{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return screen.export_svg(title=TITLE, code_format=bare.replace("Fira Code, ", ""))
