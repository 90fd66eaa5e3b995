"""View models on a terminal.   lines, notes, tables ──drawn──► rich

Never color alone: each state has its word. Never markup, never control characters: names and
messages come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from headgate.cli.bars import ASCII, bar, share_text, sparkline
from headgate.cli.render import Canvas, note_text, plain_table
from headgate.cli.words import STYLES, plain
from headgate.present.view import DASH, Block, Cell, Curve, Fill, Line, Note, Said, Table

BAR_CELLS = 10
MIN_CURVE_CELLS, MAX_CURVE_CELLS = 8, 60


def drawn(blocks: Iterable[Block], canvas: Canvas) -> RenderableType:
    return Group(*(part for block in blocks for part in _drawn(block, canvas)))


def _drawn(block: Block, canvas: Canvas) -> Iterator[RenderableType]:
    if isinstance(block, Table):
        yield _table(block, canvas)
    elif isinstance(block, Note):
        yield from note_lines(block)
    else:
        yield text_of(block, canvas)


def note_lines(note: Note) -> Iterator[Text]:
    yield note_text(note)
    for step in note.steps:
        first, *more = step.command.splitlines() or [""]
        yield Text(f"  {plain(step.why)}: ").append(plain(first), style="cyan")
        yield from (Text(f"    {plain(rest)}", style="cyan") for rest in more)


def _table(table: Table, canvas: Canvas) -> RichTable:
    shown = [column.fits(canvas.width) for column in table.columns]
    chosen = [column for column, is_shown in zip(table.columns, shown, strict=True) if is_shown]
    right = frozenset(column.name for column in chosen if column.is_right)
    drawn = plain_table(*(column.name for column in chosen), right=right)
    for row in table.rows:
        cells = zip(row, shown, strict=True)
        drawn.add_row(*(text_of(cell, canvas) for cell, is_shown in cells if is_shown))
    return drawn


def text_of(cell: Cell, canvas: Canvas) -> Text:
    match cell:
        case str():
            return Text(shown(cell, canvas))
        case Said(text, tone):
            return Text(shown(text, canvas), style=STYLES[tone])
        case Line(parts):
            return Text.assemble(*((shown(text, canvas), STYLES[tone]) for text, tone in parts))
        case Fill(share):
            return fill_cell(share, canvas)
        case Curve(values, threshold):
            cells = max(MIN_CURVE_CELLS, min(MAX_CURVE_CELLS, canvas.width - 60))
            return sparkline(values, threshold, cells, canvas.marks)


def shown(text: str, canvas: Canvas) -> str:
    """Fit for this terminal; a part of a line that is a line break is one."""
    if text == "\n":
        return text
    told = plain(text)
    return told if canvas.marks is not ASCII else told.translate(_ASCII)


_ASCII = str.maketrans({DASH: ASCII.dash, "·": ASCII.dot, "→": ASCII.arrow, "×": "x", "−": "-"})


def fill_cell(fill: float | None, canvas: Canvas) -> Text:
    if fill is None:
        return Text(canvas.marks.nothing)
    text = bar(fill, BAR_CELLS, canvas.marks, over=fill >= 1.0)
    return text.append(f" {share_text(fill):>4}")
