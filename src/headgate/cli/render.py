"""View models on a terminal: lines, notes, tables ──drawn──► rich.   Also bars, curves and marks.

Never color alone: each state has its word. Never markup, never control characters: names and
messages come from elsewhere, and every cell is a Text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import groupby, pairwise, zip_longest
from operator import itemgetter

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from headgate.cli.documents import plain
from headgate.present import view
from headgate.present.view import (
    DASH,
    Block,
    Cell,
    Curve,
    Fill,
    Line,
    Note,
    Readings,
    Said,
    Step,
    Tone,
)
from headgate.present.words import share_text

STYLES: Mapping[Tone, str] = {
    "": "",
    "good": "green",
    "warned": "yellow",
    "bad": "bold red",
    "unknown": "bold magenta",
    "quiet": "dim",
    "strong": "bold",
    "info": "cyan",
}
"""How a tone looks on a terminal; never alone: each state has its word."""


def local_time(text: str, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """By this machine's clock; what is no time is shown as it came."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime(form)
    except ValueError:
        return plain(text)


def in_local_time(text: str) -> str:
    """Times that the agent wrote into a sentence, which it writes in UTC."""
    return _UTC.sub(lambda found: local_time(found[0]), text)


_UTC = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


# --- bars and curves ---------------------------------------------------------------------------

NEAR = 0.75
"""Share of a threshold from which on a bar is shown as close to it."""


@dataclass(frozen=True, slots=True)
class Marks:
    full: str
    parts: str
    """Partial cells, ascending; may be empty."""
    track: str
    levels: str
    gap: str
    nothing: str
    dot: str
    dash: str
    arrow: str
    branch: str
    """Of a tree: a child with another one below it."""
    last: str
    """The last child."""
    trunk: str
    """Beside what hangs under a child that was not the last."""
    good: str
    bad: str
    away: str


UNICODE = Marks(
    *("█", "▏▎▍▌▋▊▉", "·", "▁▂▃▄▅▆▇█", " ", "–", "·", "–", "→"),
    *("├─ ", "└─ ", "│  ", "●", "✖", "○"),
)
ASCII = Marks(
    *("#", "", ".", "_.:-=+*#", " ", "-", "-", "-", "->"), *("|- ", "`- ", "|  ", "*", "x", "o")
)


def marks_for(encoding: str) -> Marks:
    return UNICODE if encoding.lower().startswith("utf") else ASCII


def bar(share: float, cells: int, marks: Marks, *, over: bool) -> Text:
    """The bar's end is the threshold. Beyond it the bar is full, red, and says how far."""
    if over:
        return Text().append(marks.full * cells, style="bold red")
    units = max(1, len(marks.parts) + 1)
    filled = round(min(max(share, 0.0), 1.0) * cells * units)
    whole, part = divmod(filled, units)
    drawn = marks.full * whole + (marks.parts[part - 1] if part else "")
    text = Text().append(drawn, style="yellow" if share >= NEAR else "green")
    return text.append(marks.track * (cells - len(drawn)), style="dim")


def sparkline(
    values: Sequence[float | None], threshold: float | None, cells: int, marks: Marks
) -> Text:
    """The newest values, from 0 to the threshold or what went beyond it, up to twice as far: one
    that went far beyond does not flatten the others. A gap is a gap."""
    shown = list(values)[-cells:]
    known = [value for value in shown if value is not None]
    top = max([threshold or 0.0, *known]) or 1.0
    if threshold:
        top = min(top, 2 * threshold)
    return runs(
        (marks.gap, "cyan")
        if value is None
        else (
            marks.levels[round(min(max(value / top, 0.0), 1.0) * (len(marks.levels) - 1))],
            "bold red" if threshold is not None and value > threshold else "cyan",
        )
        for value in shown
    )


def runs(marks: Iterable[tuple[str, str]]) -> Text:
    """Marks and their styles; neighbors of one style are one piece."""
    text = Text()
    for style, same in groupby(marks, itemgetter(1)):
        text.append("".join(mark for mark, _ in same), style=style)
    return text


# --- lines -------------------------------------------------------------------------------------


def segments(text: Text) -> list[Segment]:
    """Of one line, as rich draws it, in a third of the time: the live screen draws every second."""
    shown, base, spans = text.plain, text.style, text.spans
    if not spans:
        return [Segment(shown, _style(base))]
    bounds = sorted({0, len(shown), *(one.start for one in spans), *(one.end for one in spans)})
    return [
        Segment(
            shown[a:b], _style(base, *(one.style for one in spans if one.start <= a < b <= one.end))
        )
        for a, b in pairwise(bounds)
    ]


@lru_cache(maxsize=1024)
def _style(*styles: str | Style) -> Style:
    return Style.combine(one if isinstance(one, Style) else Style.parse(one) for one in styles)


@dataclass(frozen=True, slots=True)
class Canvas:
    width: int = 100
    marks: Marks = UNICODE


# --- tables ------------------------------------------------------------------------------------

GAP = 2


class PlainTable(Table):
    """Without a box, two blanks between columns, of Texts or strings, drawn line by line.

    The live screen draws its tables every second: rich's own way, which renders each cell as if it
    could be anything, takes four times as long for the same lines.
    """

    def __init__(self) -> None:
        super().__init__(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.columns:
            return
        # With the gap that follows each; what is last has none.
        widths = self._calculate_column_widths(console, options)
        rooms = [width - GAP for width in widths[:-1]] + widths[-1:]
        names = [Text(str(column.header), style="dim") for column in self.columns]
        if any(name.cell_len > room for name, room in zip(names, rooms, strict=True)):
            yield from super().__rich_console__(console, options)  # No room for its own head.
            return
        rows = zip(*(column.cells for column in self.columns), strict=True)
        for cells in (names, *rows):
            texts = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells]
            yield from self._row(texts, rooms, console)

    def _measure_column(
        self, console: Console, options: ConsoleOptions, column: Column
    ) -> Measurement:
        """Of its head and its Texts; rich would measure each cell as if it could be anything."""
        width = options.max_width
        texts = [str(column.header), *(str(cell) for cell in column.cells)]
        gap = GAP if column is not self.columns[-1] else 0
        if column.width is not None or width <= gap:
            return super()._measure_column(console, options, column)
        least = max(cell_len(word) for text in texts for word in text.split() or ("",)) + gap
        most = max(cell_len(line) for text in texts for line in text.splitlines() or ("",)) + gap
        return (
            Measurement(least, most)
            .with_maximum(width)
            .clamp(
                None if column.min_width is None else column.min_width + gap,
                None if column.max_width is None else column.max_width + gap,
            )
        )

    def _row(
        self, cells: Sequence[Text], rooms: Sequence[int], console: Console
    ) -> Iterator[Segment]:
        """Each cell as many lines as it takes, or as one that is cut."""
        folded: list[Iterable[Text]] = [
            (cell,)
            if "\n" not in cell.plain and cell.cell_len <= room
            else cell.wrap(
                console,
                room,
                justify=column.justify,
                overflow=column.overflow,
                no_wrap=column.no_wrap,
            )
            for cell, column, room in zip(cells, self.columns, rooms, strict=True)
        ]
        last = len(cells) - 1
        for line in zip_longest(*folded):
            for at, (part, column, room) in enumerate(zip(line, self.columns, rooms, strict=True)):
                pad = room - (part.cell_len if part is not None else 0)
                if part is not None and column.justify == "right":
                    yield Segment(" " * pad)
                    pad = 0
                if part is not None:
                    yield from segments(part)
                yield Segment(" " * (pad + (GAP if at < last else 0)))
            yield Segment.line()


def plain_table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """A table of these columns; the last one takes the long words."""
    table = PlainTable()
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    return table


# --- view models -------------------------------------------------------------------------------

BAR_CELLS = 10
MIN_CURVE_CELLS, MAX_CURVE_CELLS = 8, 60


def drawn(blocks: Iterable[Block], canvas: Canvas) -> RenderableType:
    return Group(*(part for block in blocks for part in _drawn(block, canvas)))


def _drawn(block: Block, canvas: Canvas) -> Iterator[RenderableType]:
    if isinstance(block, view.Table):
        yield _table(block, canvas)
    elif isinstance(block, Note):
        yield from note_lines(block)
    elif isinstance(block, Readings):
        from headgate.cli.readings import metric_table

        yield metric_table(block.metrics, canvas)
    else:
        yield text_of(block, canvas)


def note_lines(note: Note) -> Iterator[Text]:
    yield note_text(note)
    for step in note.steps:
        yield from step_lines(step)


def step_lines(step: Step) -> Iterator[Text]:
    first, *more = step.command.splitlines() or [""]
    between = ": " if first else ""
    yield Text(f"  {plain(step.why)}{between}").append(plain(first), style="cyan")
    yield from (Text(f"    {plain(rest)}", style="cyan") for rest in more)


def note_text(note: Note) -> Text:
    """Its word and its sentence; what is wrong is in capitals."""
    word = plain(note.word)
    shown = word.upper() if note.tone in ("good", "warned", "bad", "unknown") else word
    head = Text().append(shown, style=STYLES[note.tone] or "yellow")
    return head.append(f"  {plain(in_local_time(note.says))}" if note.says else "")


def _table(table: view.Table, canvas: Canvas) -> Table:
    shown = [column.fits(canvas.width) for column in table.columns]
    chosen = [column for column, is_shown in zip(table.columns, shown, strict=True) if is_shown]
    right = frozenset(column.name for column in chosen if column.is_right)
    drawn = plain_table(*(column.name for column in chosen), right=right)
    for column, made in zip(chosen, drawn.columns, strict=True):
        made.no_wrap = column.is_right
        if column.is_whole:
            made.no_wrap, made.overflow = True, "ellipsis"
            made.max_width = max(20, canvas.width // 2)
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
        case Fill(share, is_bad):
            return fill_cell(share, canvas, is_bad=is_bad)
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


def fill_cell(fill: float | None, canvas: Canvas, *, is_bad: bool = False) -> Text:
    if fill is None:
        return Text(canvas.marks.nothing)
    text = bar(fill, BAR_CELLS, canvas.marks, over=fill >= 1.0)
    text.append(f" {share_text(fill):>4}")
    if is_bad:
        text.stylize("bold red")
    return text
