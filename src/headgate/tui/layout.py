"""A view, its page, and the part of that which is on the screen. Pure.

A view names the documents that it needs, draws a page of them, and has keys of its own. A page
has columns that fit, rows that can be chosen, or lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct
from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from headgate.check.reasons import duration
from headgate.cli.documents import plain
from headgate.cli.render import Canvas, segments
from headgate.tui.paint import Line, Lines, Ruler
from headgate.tui.sources import LastAnswer, Scene

Cells = Sequence[str | Text]
GAP = 2
PROSE_CELLS = 100
"""A column that may be so wide has sentences: it takes what the others leave."""


class ScreenColumn(NamedTuple):
    name: str
    least: int
    most: int
    rank: int
    """Which goes first where there is no room: the highest."""
    right: bool = False


class Fitted(NamedTuple):
    column: ScreenColumn
    at: int
    """Of its cell, among all cells of a row."""
    width: int


def needing(columns: Sequence[ScreenColumn], **cells: int) -> list[ScreenColumn]:
    """The same; these no wider than their cells."""
    return [
        one._replace(most=max(one.least, min(one.most, cells.get(one.name, one.most))))
        for one in columns
    ]


def longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def fit(columns: Sequence[ScreenColumn], width: int) -> list[Fitted]:
    """The most important at their least; what room is left, to them in that order."""
    ranked = sorted(range(len(columns)), key=lambda at: columns[at].rank)
    widths: dict[int, int] = {}
    room = width + GAP
    for at in ranked:
        least = columns[at].least
        if not widths or least + GAP <= room:
            widths[at] = min(least, max(1, room - GAP))
            room -= widths[at] + GAP
    for at in sorted(ranked, key=lambda at: columns[at].most >= PROSE_CELLS):
        if at in widths and room > 0:
            more = min(room, columns[at].most - widths[at])
            widths[at] += max(0, more)
            room -= max(0, more)
    return [Fitted(columns[at], at, widths[at]) for at in sorted(widths)]


def header(fitted: Sequence[Fitted], indent: int = 0) -> Lines:
    names = {one.at: Text(one.column.name, style="dim") for one in fitted}
    return Lines([[Segment(" " * indent), *row(fitted, names)]])


def row(fitted: Sequence[Fitted], cells: Cells | Mapping[int, Text]) -> list[Segment]:
    """Its cells as one line, each as wide as its column."""
    line: list[Segment] = []
    for one in fitted:
        given = cells[one.at]
        cell = Text(plain(given)) if isinstance(given, str) else given
        wide = cell.cell_len
        if wide > one.width:
            cell = cell.copy()
            cell.truncate(one.width, overflow="ellipsis")
            wide = cell.cell_len
        pad = " " * (one.width - wide)
        before, after = (pad, "") if one.column.right else ("", pad)
        gap = after + " " * GAP if one is not fitted[-1] else ""
        line += [Segment(before), *segments(cell), Segment(gap)]
    return line


# --- views and pages ---------------------------------------------------------------------------


Drawn = Callable[[Canvas], RenderableType]


class ViewRequest(Struct, frozen=True):
    """What a view is to show of the scene, and on what."""

    canvas: Canvas
    height: int
    now_s: float
    """Monotonic: for ages."""
    now: datetime
    filter: str = ""
    order: str = ""
    as_tree: bool = True
    chosen: str = ""
    tab: int = 0
    explained: Drawn | None = None


class View(Struct, frozen=True):
    key: str
    name: str
    about: str
    """For the help."""
    draw: Callable[[Scene, ViewRequest], ScreenPage]
    sources: tuple[str, ...] = ()
    """The documents that it cannot do without, besides the status."""
    extras: tuple[str, ...] = ()
    """Those that it shows where there are any."""
    hints: Sequence[str] = ()
    """For the line of keys."""
    is_own: bool = False
    """What it shows is not the agent's word, and stays fresh while that is away."""
    acts: Mapping[str, Any] = {}
    """Its own keys, and what they do: state.Act."""


class ScreenRow(NamedTuple):
    key: str
    """Its name; chosen by this, so that another order chooses nothing else."""
    draw: Callable[[], list[Segment]]


class ScreenPage(Struct, frozen=True):
    """Fixed lines, then what can be scrolled: rows to choose from, or lines."""

    fixed: Sequence[RenderableType] = ()
    rows: Sequence[ScreenRow] = ()
    lines: Sequence[Line] = ()
    tail: Sequence[RenderableType] = ()
    """About the chosen row; at most a third of the screen."""


class RowCursor(Struct, frozen=True):
    key: str = ""
    at: int = 0
    """Where the chosen row was; of lines, the first that is shown."""


class Button(NamedTuple):
    """A place on the screen that works as a key."""

    line: int
    begins: int
    ends: int
    """The column after its last."""
    key: str


class Extent(Struct, frozen=True):
    """What of a page was shown: what keys move within, and what a click hits."""

    keys: Sequence[str] = ()
    lines: int = 0
    room: int = 1
    at: int = 0
    first: int = 0
    shown: Sequence[str] = ()
    top: int = 0
    """The screen's line of the first row that is shown."""
    buttons: Sequence[Button] = ()


MARK_CELLS = 2


def listed(
    columns: Sequence[ScreenColumn], items: Sequence[tuple[str, Cells]], width: int
) -> tuple[Lines, list[ScreenRow]]:
    """A head, and a row for each key and its cells: columns are no wider than what is in them."""
    cells = zip(*(cells for _, cells in items), strict=True)
    needed = {
        column.name: max(cell_len(str(cell)) for cell in (column.name, *found))
        for column, found in zip(columns, cells, strict=False)
        if column.most < PROSE_CELLS
    }
    fitted = fit(needing(columns, **needed), width - MARK_CELLS)
    rows = [ScreenRow(key, partial(row, fitted, cells)) for key, cells in items]
    return header(fitted, MARK_CELLS), rows


def place(keys: Sequence[str], cursor: RowCursor) -> int:
    """Of the chosen one, wherever it is now; where it has gone, who took its place."""
    if cursor.key:
        for at, key in enumerate(keys):
            if key == cursor.key:
                return at
    return max(0, min(cursor.at, len(keys) - 1))


def window(at: int, count: int, room: int, first: int) -> int:
    """The first of `room` rows to be shown, so that row `at` is among them."""
    first = min(first, at)
    first = max(first, at - room + 1)
    return max(0, min(first, count - room))


def laid_out(
    page: ScreenPage, cursor: RowCursor, size: tuple[int, int], *, first: int = 0, mark: str = ">"
) -> tuple[list[Line], Extent]:
    """As many lines as there are, at most `size`'s, and what of them is to be scrolled."""
    width, height = size
    ruler = Ruler(width)
    fixed = ruler.lines(*page.fixed)[: max(0, height - 1)]
    room = height - len(fixed)
    if not page.rows:
        begin = max(0, min(cursor.at, len(page.lines) - room))
        extent = Extent((), len(page.lines), max(1, room), begin, begin)
        return [*fixed, *page.lines[begin : begin + room]], extent
    # The tail gets what the rows leave, and a third of the screen at least.
    tail = ruler.lines(*page.tail)[: max(room // 3, room - len(page.rows) - 1)] if room > 6 else []
    room -= len(tail) + bool(tail)
    keys = [one.key for one in page.rows]
    at = place(keys, cursor)
    begin = window(at, len(keys), max(1, room), first)
    shown = page.rows[begin : begin + max(1, room)]
    lines = [_drawn(one, begin + n == at, ruler, mark) for n, one in enumerate(shown)]
    below = [(), *tail] if tail else []
    drawn_keys = [one.key for one in shown]
    extent = Extent(keys, len(keys), max(1, room), at, begin, drawn_keys, len(fixed))
    return [*fixed, *lines, *below], extent


def _drawn(one: ScreenRow, chosen: bool, ruler: Ruler, mark: str) -> Line:
    if not chosen:
        return ruler.cropped([_UNMARKED, *one.draw()])
    line = [Segment(f"{mark} ", Style(bold=True)), *one.draw()]
    line.append(Segment(" " * (ruler.width - Segment.get_line_length(line))))
    return ruler.cropped(list(Segment.apply_style(line, post_style=Style(reverse=True))))


_UNMARKED = Segment(" " * MARK_CELLS)


# --- what every view says of its documents -------------------------------------------------------

STALE_S = 15.0
"""After so long without a newer answer a list is dated."""


def missing(told: LastAnswer, what: str) -> list[RenderableType]:
    if told.fault:
        return [Text(f"{what} cannot be shown: {plain(told.fault)}", style="bold yellow")]
    return [Text(f"asking for {what}", style="dim")]


def dated(told: LastAnswer, ask: ViewRequest) -> list[RenderableType]:
    """Where the last answer is not the newest there should be."""
    if not told.fault or ask.now_s - told.at_s < STALE_S:
        return []
    ago = duration(ask.now_s - told.at_s)
    return [Text(f"below is what was said {ago} ago: {plain(told.fault)}", style="bold yellow")]
