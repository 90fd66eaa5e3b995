"""Frames as cells, and what differs between two of them.   lines ──cells──► changes ──► bytes

A line over ssh may be slow: of a frame only the cells that changed are sent, each run of them
with its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from headgate.cli.render import segments

Line = Sequence[Segment]
Cell = tuple[str, Style]
"""What is there, and how; the right half of a wide character is empty."""

PLAIN = Style()
BLANK: Cell = (" ", PLAIN)
JOIN_CELLS = 6
"""Two changes this near to each other are sent as one: going there would cost as much."""
_DEPTHS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


class Paint(Struct, frozen=True):
    """What the terminal can show."""

    depth: ColorSystem | None
    colourless: bool
    ascii_only: bool

    def of(self, text: str, style: Style) -> str:
        if self.ascii_only:
            text = in_ascii(text)
        return _styled(text, style, self)


def paint_for(console: Console) -> Paint:
    depth = _DEPTHS.get(console.color_system or "")
    ascii_only = not console.encoding.lower().startswith("utf")
    return Paint(depth, console.no_color, ascii_only)


_IN_ASCII = str.maketrans(
    {"…": "~", "–": "-", "—": "-", "·": "-", "→": ">", "’": "'", "“": '"', "”": '"', " ": " "}
)


def in_ascii(text: str) -> str:
    """As many cells as before: what has no likeness is a question mark."""
    if text.isascii():
        return text
    translated = text.translate(_IN_ASCII)
    return "".join(c if c.isascii() else "?" * get_character_cell_size(c) for c in translated)


def _styled(text: str, style: Style, paint: Paint) -> str:
    if paint.depth is None and not paint.colourless:
        return text
    shown = _without_colour(style) if paint.colourless else style
    return shown.render(text, color_system=paint.depth or ColorSystem.STANDARD)


@lru_cache(maxsize=1024)
def _without_colour(style: Style) -> Style:
    return style.without_color


# --- renderables as lines ----------------------------------------------------------------------


class Lines(Struct, frozen=True):
    """Lines that were drawn already, for whatever prints or saves them."""

    lines: Sequence[Line]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            yield from line
            yield Segment.line()


@lru_cache(maxsize=16)
def _console(width: int) -> Console:
    return Console(
        width=width, height=10_000, force_terminal=True, color_system="truecolor",
        markup=False, emoji=False, highlight=False, legacy_windows=False,
    )  # fmt: skip


class Ruler:
    """Draws renderables to lines of one width. No line is ever wider."""

    def __init__(self, width: int) -> None:
        self.width = max(1, width)
        self._console = _console(self.width)

    def lines(self, *parts: RenderableType) -> list[Line]:
        """What a view is mostly made of is drawn directly: rich would hand each piece of it through
        as many generators as it is deep."""
        drawn: list[Line] = []
        for part in parts:
            match part:
                case Group():
                    drawn += self.lines(*part.renderables)
                case Lines():
                    drawn += [self.cropped(line) for line in part.lines]
                case Padding(left=left, top=0, right=0, bottom=0) if left < self.width:
                    indent = Segment(" " * left)
                    found = Ruler(self.width - left).lines(part.renderable)
                    drawn += [[indent, *line] if line else line for line in found]
                case Text() if "\n" not in part.plain and part.cell_len <= self.width:
                    drawn.append(self.cropped(segments(part)))
                case _:
                    rendered = self._console.render(part, self._console.options)
                    drawn += map(self.cropped, Segment.split_lines(rendered))
        return drawn

    def cropped(self, line: Line) -> Line:
        """Neither wider than that, nor with blanks at its end that nobody sees."""
        if sum(segment.cell_length for segment in line) > self.width:
            line = Segment.adjust_line_length(list(line), self.width, pad=False)
        kept = len(line)
        while kept and not _is_seen(line[kept - 1]):
            kept -= 1
        return line[:kept]


def _is_seen(segment: Segment) -> bool:
    style = segment.style
    return bool(segment.text.strip() or (style and (style.reverse or style.bgcolor)))


def dimmed(lines: Iterable[Line]) -> list[Line]:
    style = Style(dim=True)
    return [list(Segment.apply_style(line, post_style=style)) for line in lines]


# --- what differs ------------------------------------------------------------------------------


def cells_of(line: Line, width: int) -> list[Cell]:
    cells: list[Cell] = []
    for text, style, control in line:
        if control:
            continue
        look = style or PLAIN
        if text.isascii():
            cells += [(char, look) for char in text]
        else:
            _add_wide(cells, text, look)
    del cells[width:]
    cells += [BLANK] * (width - len(cells))
    return cells


def _add_wide(cells: list[Cell], text: str, look: Style) -> None:
    for char in text:
        size = get_character_cell_size(char)
        if size == 0 and cells:
            before, style = cells[-1]
            cells[-1] = (before + char, style)
        elif size:
            cells += [(char, look), *([("", look)] * (size - 1))]


def changes(before: Line, after: Line, width: int) -> Iterator[tuple[int, list[Cell]]]:
    """(column from 0, cells) for each run that differs."""
    if before == after:
        return
    old, new = cells_of(before, width), cells_of(after, width)
    differing = [at for at in range(width) if old[at] != new[at]]
    start = last = -1
    for at in differing:
        if start >= 0 and at - last > JOIN_CELLS:
            yield _whole(new, start, last)
            start = at
        elif start < 0:
            start = at
        last = at
    if start >= 0:
        yield _whole(new, start, last)


def _whole(cells: list[Cell], start: int, last: int) -> tuple[int, list[Cell]]:
    """Not half a wide character, on neither side."""
    while start > 0 and cells[start][0] == "":
        start -= 1
    while last + 1 < len(cells) and cells[last + 1][0] == "":
        last += 1
    return start, cells[start : last + 1]


def painted(cells: Sequence[Cell], paint: Paint) -> str:
    parts: list[str] = []
    text, look = "", PLAIN
    for char, style in cells:
        if style is not look and style != look:
            parts.append(paint.of(text, look) if text else "")
            text, look = "", style
        text += char
    parts.append(paint.of(text, look) if text else "")
    return "".join(parts)


def difference(
    before: Sequence[Line], after: Sequence[Line], size: tuple[int, int], paint: Paint
) -> str:
    """What to write so that a screen of (columns, lines) that shows `before` shows `after`."""
    width, height = size
    parts: list[str] = []
    for row in range(height):
        old = before[row] if row < len(before) else ()
        new = after[row] if row < len(after) else ()
        for column, cells in changes(old, new, width):
            parts.append(f"\x1b[{row + 1};{column + 1}H{_run(cells, column, width, paint)}")
    return "".join(parts)


def _run(cells: list[Cell], column: int, width: int, paint: Paint) -> str:
    """Blanks up to the line's end are not sent one by one."""
    if column + len(cells) < width:
        return painted(cells, paint)
    kept = len(cells)
    while kept and cells[kept - 1] == BLANK:
        kept -= 1
    tail = "\x1b[K" if len(cells) - kept > 3 else " " * (len(cells) - kept)
    return painted(cells[:kept], paint) + tail
