"""A whole frame of `top`: head, what is wrong, the view or a panel over it, keys. Pure.

State + Scene + size ──compose──► lines, and what of them can be moved within
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from headgate.cli.bars import Marks
from headgate.cli.frame import head, lost_line
from headgate.cli.render import Canvas
from headgate.cli.top_feed import Scene
from headgate.cli.top_help import footer
from headgate.cli.top_layout import Cursor, Extent, Page, laid_out
from headgate.cli.top_paint import Line, Lines, Ruler, dimmed
from headgate.cli.top_state import Flash, State
from headgate.cli.top_views import VIEWS, Ask
from headgate.cli.words import plain

MIN_COLUMNS, MIN_LINES = 20, 4
MAX_LOST_LINES = 3


@dataclass(frozen=True, slots=True)
class Moment:
    """When it is drawn."""

    mono_s: float
    wall: datetime

    @property
    def clock(self) -> str:
        return f"{self.wall:%H:%M:%S}"


@dataclass(frozen=True, slots=True)
class Frame:
    lines: Sequence[Line]
    extent: Extent


def compose(state: State, scene: Scene, size: tuple[int, int], marks: Marks, at: Moment) -> Frame:
    """Exactly as many lines as the screen has, the last of them the keys."""
    width, height = max(MIN_COLUMNS, size[0]), max(MIN_LINES, size[1])
    canvas, ruler = Canvas(width, marks), Ruler(width)
    above = _above(state, scene, canvas, ruler, at)
    below = _below(state, ruler, width)
    room = max(1, height - len(above) - len(below))
    body, extent = _body(state, scene, canvas, room, at)
    if scene.view.lost is not None and state.panel is None:
        body = dimmed(body)
    body = [*body[:room], *([()] * (room - len(body)))]
    return Frame([*above, *body, *below][:height], extent)


def still(view: str, scene: Scene, canvas: Canvas, height: int, at: Moment) -> list[RenderableType]:
    """One frame without keys, no longer than it has to be: for a pipe, a file, `--once`."""
    state = State(view)
    ruler = Ruler(canvas.width)
    above = _above(state, scene, canvas, ruler, at)
    body, _ = _body(state, scene, canvas, max(1, height - len(above)), at, chooses=False)
    return [Lines([*above, *(dimmed(body) if scene.view.lost is not None else body)])]


# --- above and below ---------------------------------------------------------------------------


def _above(state: State, scene: Scene, canvas: Canvas, ruler: Ruler, at: Moment) -> list[Line]:
    corner = f"PAUSED since {state.paused_at}" if state.paused is not None else at.clock
    lines = ruler.lines(head(scene.view, canvas, corner))[:1]
    if scene.view.lost is not None:
        told = ruler.lines(lost_line(scene.view, at.mono_s))
        # Its last line dates the picture below.
        lines += told if len(told) <= MAX_LOST_LINES else [*told[: MAX_LOST_LINES - 1], told[-1]]
    return lines


def _below(state: State, ruler: Ruler, width: int) -> list[Line]:
    lines: list[Line] = []
    if state.prompt is not None:
        return [_prompt_line(state.prompt.label, state.prompt.text, ruler)]
    if state.panel is not None:
        return [*_flash(state.flash, ruler), *_panel_keys(state, ruler)]
    lines += _flash(state.flash, ruler)
    if state.busy:
        lines += ruler.lines(_one_line(f"{plain(state.busy)} ...", "bold yellow"))
    return [*lines, *ruler.lines(footer(state.view, width))]


def _flash(flash: Flash | None, ruler: Ruler) -> list[Line]:
    if flash is None:
        return []
    style = "bold red" if flash.is_bad else "bold green"
    return ruler.lines(Text(plain(flash.text), style=style))[:3]


def _prompt_line(label: str, text: str, ruler: Ruler) -> Line:
    """The end of what is typed stays to be seen."""
    room = max(1, ruler.width - len(label) - 1)
    line = Text(no_wrap=True, overflow="crop", end="").append(plain(label), style="bold")
    line.append(plain(text[-room:])).append(" ", style="reverse")
    return ruler.lines(line)[0]


def _panel_keys(state: State, ruler: Ruler) -> list[Line]:
    assert state.panel is not None
    if state.panel.prepared is None:
        return ruler.lines(_one_line("Esc back  j k move", "dim"))
    question = Text(plain(state.panel.prepared.question), style="bold yellow")
    return ruler.lines(question.append(" y/N", style="bold reverse"))


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="")


# --- between -----------------------------------------------------------------------------------


def _body(
    state: State, scene: Scene, canvas: Canvas, room: int, at: Moment, *, chooses: bool = True
) -> tuple[list[Line], Extent]:
    mark = ">"
    if state.panel is not None:
        page = _panel_page(state, canvas)
        return laid_out(page, Cursor("", state.panel_at), (canvas.width, room))
    ask = Ask(canvas, room, at.mono_s, at.wall, state.wanted, state.tab, state.explained)
    page = VIEWS[state.view].draw(scene, ask)
    if not chooses:
        return _everything(page, canvas, room), Extent()
    first = state.firsts.get(state.view, 0)
    return laid_out(page, state.cursor, (canvas.width, room), first=first, mark=mark)


def _panel_page(state: State, canvas: Canvas) -> Page:
    assert state.panel is not None
    title = Text(plain(state.panel.title), style="bold", no_wrap=True, overflow="ellipsis")
    lines = Ruler(canvas.width).lines(state.panel.page(canvas))
    # What is asked back stands below, where the answer goes.
    return Page([] if state.panel.prepared is not None else [title, Text()], lines=lines)


def _everything(page: Page, canvas: Canvas, room: int) -> list[Line]:
    """Nobody chooses anything here, and nobody scrolls."""
    ruler = Ruler(canvas.width)
    fixed = ruler.lines(*page.fixed)
    room = max(1, room - len(fixed))
    rows = [ruler.lines(Text("  ").append_text(one.draw()))[0] for one in page.rows[:room]]
    left = len(page.rows) - len(rows)
    more = ruler.lines(Text(f"  and {left:,} more", style="dim")) if left > 0 else []
    lines = list(page.lines[:room])
    return [*fixed, *rows, *lines, *more]


def with_window(state: State, extent: Extent) -> State:
    """Remember where the list stood, so that the next frame's does not jump."""
    if state.firsts.get(state.view) == extent.first:
        return state
    return replace(state, firsts={**state.firsts, state.view: extent.first})
