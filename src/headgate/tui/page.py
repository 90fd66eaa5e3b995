"""A whole frame: head, what is wrong, the view or a panel over it, keys. Pure.

ScreenState + Scene + size ──compose──► lines, and what of them can be moved within or clicked on
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli.render import Canvas, Marks, plain
from headgate.tui.layout import (
    Button,
    Drawn,
    Extent,
    RowCursor,
    ScreenPage,
    View,
    ViewRequest,
    laid_out,
)
from headgate.tui.overview import head, lost_line
from headgate.tui.paint import Line, Lines, Ruler, dimmed
from headgate.tui.sources import Scene
from headgate.tui.state import Flash, ScreenState

MIN_COLUMNS, MIN_LINES = 20, 4
MAX_LOST_LINES = 3
ALWAYS = ("? help", "q quit")


class Moment(Struct, frozen=True):
    """When it is drawn."""

    mono_s: float
    wall: datetime

    @property
    def clock(self) -> str:
        return f"{self.wall:%H:%M:%S}"


class ScreenFrame(Struct, frozen=True):
    lines: Sequence[Line]
    extent: Extent


class ScreenContext(Struct, frozen=True):
    """What is on every frame, whatever is known: the terminal's marks, the views, a strip."""

    views: Mapping[str, View]
    marks: Marks
    strip: Callable[[Canvas, int], Sequence[RenderableType]] | None = None
    """Above every view, in at most so many lines."""
    hints: Sequence[str] = ()
    """Keys of the guide, such as the demo."""


def compose(
    state: ScreenState, scene: Scene, size: tuple[int, int], around: ScreenContext, at: Moment
) -> ScreenFrame:
    """Exactly as many lines as the screen has, the last of them the keys."""
    width, height = max(MIN_COLUMNS, size[0]), max(MIN_LINES, size[1])
    canvas, ruler = Canvas(width, around.marks), Ruler(width)
    above = _above(state, scene, canvas, ruler, at)
    if around.strip is not None:
        above += ruler.lines(*around.strip(canvas, height // 3))[: height // 3]
    below, buttons = _below(state, around, ruler)
    room = max(1, height - len(above) - len(below))
    body, extent = _body(state, scene, around.views, canvas, room, at)
    is_own = state.panel is not None or around.views[state.view].is_own
    if scene.picture.lost is not None and not is_own:
        body = dimmed(body)
    body = [*body[:room], *([()] * (room - len(body)))]
    first = max(0, height - len(below))
    lines = [*[*above, *body][:first], *below][:height]
    extent = replace(extent, top=extent.top + len(above), buttons=_moved_down(buttons, first))
    return ScreenFrame(lines, extent)


def still(
    view: View, scene: Scene, canvas: Canvas, height: int, at: Moment
) -> list[RenderableType]:
    """One frame without keys, no longer than it has to be: for a pipe, a file, `--once`."""
    state = ScreenState(view.name)
    ruler = Ruler(canvas.width)
    above = _above(state, scene, canvas, ruler, at)
    ask = ViewRequest(canvas, max(1, height - len(above)), at.mono_s, at.wall, order=state.order)
    body = _everything(view.draw(scene, ask), canvas, ask.height)
    return [Lines([*above, *(dimmed(body) if scene.picture.lost is not None else body)])]


# --- above and below ---------------------------------------------------------------------------


def _above(
    state: ScreenState, scene: Scene, canvas: Canvas, ruler: Ruler, at: Moment
) -> list[Line]:
    corner = f"PAUSED since {state.paused_at}" if state.paused is not None else at.clock
    lines = ruler.lines(head(scene.picture, canvas, corner))[:1]
    if scene.picture.lost is not None:
        told = ruler.lines(lost_line(scene.picture, at.mono_s))
        # Its last line dates the picture below.
        lines += told if len(told) <= MAX_LOST_LINES else [*told[: MAX_LOST_LINES - 1], told[-1]]
    return lines


Buttons = list[Button]


def _moved_down(buttons: Buttons, lines: int) -> Buttons:
    return [one._replace(line=one.line + lines) for one in buttons]


def _below(state: ScreenState, around: ScreenContext, ruler: Ruler) -> tuple[list[Line], Buttons]:
    lines: list[Line] = []
    if state.prompt is not None:
        return [_prompt_line(state.prompt.label, state.prompt.text, ruler)], []
    if state.panel is not None:
        return [*_flash(state.flash, ruler), *_panel_keys(state, ruler)], []
    lines += _flash(state.flash, ruler)
    if state.busy:
        lines += ruler.lines(_one_line(f"{plain(state.busy)} ...", "bold yellow"))
    keys, buttons = footer(around.views, state.view, ruler.width, around.hints)
    drawn = ruler.lines(*keys)
    return [*lines, *drawn], _moved_down(buttons, len(lines))


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


def _panel_keys(state: ScreenState, ruler: Ruler) -> list[Line]:
    assert state.panel is not None
    if state.panel.prepared is None:
        return ruler.lines(_one_line("Esc back  j k move", "dim"))
    question = Text(plain(state.panel.prepared.question), style="bold yellow")
    return ruler.lines(question.append(" y/N", style="bold reverse"))


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="")


def footer(
    views: Mapping[str, View], opened: str, width: int, more: Sequence[str] = ()
) -> tuple[list[Text], Buttons]:
    """One line, and one for `more`: how to leave and where help is always; then what this view
    can, then names. With where to click."""
    hints = [*ALWAYS, *views[opened].hints, "space pause", "s save"]
    wanted = len("  ".join([*ALWAYS, *views[opened].hints])) + 2
    line, buttons = _names(views, opened, short=False)
    if line.cell_len + wanted > width:
        line, buttons = _names(views, opened, short=True)
    lines = [_hinted(line, hints, width, buttons)]
    if more:
        second = Text(no_wrap=True, overflow="crop", end="")
        buttons = _moved_down(buttons, 1)
        lines.insert(0, _hinted(second, more, width, buttons))
    return lines, buttons


def _hinted(line: Text, hints: Sequence[str], width: int, buttons: Buttons) -> Text:
    for index, hint in enumerate(hints):
        gap = "  " if index else ""
        if line.cell_len + len(gap) + len(hint) <= width or hint in ALWAYS:
            begins = line.cell_len + len(gap)
            line.append(gap + hint, style="dim")
            key = hint.partition(" ")[0].lower()
            key = {"space": " "}.get(key, key)
            buttons.append(Button(0, begins, begins + len(hint), key))
    return line


def _names(views: Mapping[str, View], opened: str, *, short: bool) -> tuple[Text, Buttons]:
    line, buttons = Text(no_wrap=True, overflow="crop", end=""), Buttons()
    for view in views.values():
        is_open = view.name == opened
        shown = f"{view.key} {view.name}" if is_open or not short else view.key
        buttons.append(Button(0, line.cell_len, line.cell_len + len(shown), view.key))
        line.append(shown, style="bold reverse" if is_open else "dim").append(" ")
    return line, buttons


# --- between -----------------------------------------------------------------------------------


def _body(
    state: ScreenState,
    scene: Scene,
    views: Mapping[str, View],
    canvas: Canvas,
    room: int,
    at: Moment,
) -> tuple[list[Line], Extent]:
    if state.panel is not None:
        page = _panel_page(state, canvas)
        return laid_out(page, RowCursor("", state.panel_at), (canvas.width, room))
    ask = ViewRequest(
        canvas, room, at.mono_s, at.wall, state.filter, state.order, state.as_tree,
        state.cursor.key, state.tab, state.explained,
    )  # fmt: skip
    page = views[state.view].draw(scene, ask)
    first = state.firsts.get(state.view, 0)
    return laid_out(page, state.cursor, (canvas.width, room), first=first)


def _panel_page(state: ScreenState, canvas: Canvas) -> ScreenPage:
    assert state.panel is not None
    title = Text(plain(state.panel.title), style="bold", no_wrap=True, overflow="ellipsis")
    lines = Ruler(canvas.width).lines(state.panel.page(canvas))
    # What is asked back stands below, where the answer goes.
    return ScreenPage([] if state.panel.prepared is not None else [title, Text()], lines=lines)


def _everything(page: ScreenPage, canvas: Canvas, room: int) -> list[Line]:
    """Nobody chooses anything here, and nobody scrolls."""
    ruler = Ruler(canvas.width)
    fixed = ruler.lines(*page.fixed)
    room = max(1, room - len(fixed))
    rows = [ruler.lines(Text("  ").append_text(one.draw()))[0] for one in page.rows[:room]]
    left = len(page.rows) - len(rows)
    more = ruler.lines(Text(f"  and {left:,} more", style="dim")) if left > 0 else []
    lines = list(page.lines[:room])
    return [*fixed, *rows, *lines, *more]


def with_window(state: ScreenState, extent: Extent) -> ScreenState:
    """Remember where the list was, so that the next frame's does not jump."""
    if state.firsts.get(state.view) == extent.first:
        return state
    return replace(state, firsts={**state.firsts, state.view: extent.first})


# --- help --------------------------------------------------------------------------------------

KEYS: tuple[tuple[str, str], ...] = (
    ("j k ↓ ↑", "move; PgUp PgDn g G and the mouse wheel as well"),
    ("Tab ← →", "the next view, the one before; in 6, Tab changes lists"),
    ("Enter", "in 3, the chosen client's own last hour; in 7, explain"),
    ("click", "choose a row, and open it by a second click; a view, below"),
    ("Esc", "back; clear the filter; end a pause"),
    ("/", "filter: names, databases, rules, what throttles, `throttled`"),
    ("o t", "in 3, another order; tree or list"),
    ("x", "explain: in 3, why the chosen client is answered as it is"),
    ("space", "hold the picture still, and go on"),
    ("s", "write what is on the screen to a file: .svg, .html, text; .json has everything"),
    ("m", "give the mouse to the terminal, to select text, and take it back"),
    ("w", "wake databases that are idle; looking alone wakes none"),
    ("l e", "in 4, lift or extend the chosen rule"),
    ("h", "in 3, hold the chosen client, or the whole level"),
    ("r", "in 7, explain again; elsewhere, draw again"),
    ("q", "quit; Ctrl-C as well"),
)
NOTES = (
    "A change is tried first: you see what it would do, and y does it. Every other key does not.",
    "A bar's end is the threshold; beyond it the bar is red. Curves: the worst of each quarter of",
    "a minute, the newest at the right. Last hour: blank did not check, a dot was admitted, and",
    "the higher the mark the more of its checks were rejected.",
)


def help_page(views: Mapping[str, View]) -> Drawn:
    def draw(canvas: Canvas) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column()
        for view in views.values():
            table.add_row(Text(view.key, style="bold"), Text(f"{view.name}: {view.about}"))
        table.add_row(Text(), Text())
        for keys, about in KEYS:
            table.add_row(Text(_plain(keys, canvas), style="bold"), Text(about))
        return Group(table, Text(), Text(" ".join(NOTES), style="dim"))

    return draw


def _plain(keys: str, canvas: Canvas) -> str:
    if canvas.marks.arrow == "->":
        return keys.replace("↓ ↑", "arrows").replace("← →", "arrows")
    return keys
