"""A rich table of Texts without a box, drawn line by line.

The live screen draws its tables every second: rich's own way, which renders each cell as if it
could be anything, takes four times as long for the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

GAP = 2


class PlainTable(Table):
    """Its cells are Texts, or strings; its columns stand two blanks apart."""

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

    def _row(
        self, cells: Sequence[Text], rooms: Sequence[int], console: Console
    ) -> Iterator[Segment]:
        folded = [
            _folded(cell, column, room, console)
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
                    yield from part.render(console)
                yield Segment(" " * (pad + (GAP if at < last else 0)))
            yield Segment.line()


def _folded(cell: Text, column: Column, room: int, console: Console) -> Iterable[Text]:
    """As many lines as it takes, or as one that is cut."""
    if "\n" not in cell.plain and cell.cell_len <= room:
        return (cell,)
    return cell.wrap(
        console, room, justify=column.justify, overflow=column.overflow, no_wrap=column.no_wrap
    )
