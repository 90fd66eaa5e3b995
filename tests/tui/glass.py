"""What a terminal would show of the bytes that it was sent: as much of one as `top` needs."""

from __future__ import annotations

import re
import unicodedata

_PART = re.compile(
    r"\x1b\[(?P<args>[0-9;?]*)(?P<kind>[A-Za-z])|(?P<text>[^\x1b]+)|(?P<rest>\x1b.?)"
)


class Glass:
    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.overflowed: list[str] = []
        """What went beyond the last column, or line: a broken line."""
        self._clear()

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self._cells)

    def write(self, data: str) -> None:
        for part in _PART.finditer(data):
            if (text := part["text"]) is not None:
                self._put(text)
            elif part["kind"] is not None:
                self._control(part["kind"], part["args"])

    def _clear(self) -> None:
        self._cells = [[" "] * self.columns for _ in range(self.lines)]
        self._row = self._column = 0

    def _control(self, kind: str, args: str) -> None:
        if kind == "H":
            row, column = (int(number) for number in args.split(";"))
            self._row, self._column = row - 1, column - 1
        elif kind == "K":
            self._cells[self._row][self._column :] = [" "] * (self.columns - self._column)
        elif kind == "J" or (kind == "h" and args == "?1049"):
            self._clear()

    def _put(self, text: str) -> None:
        for char in text:
            wide = 2 if unicodedata.east_asian_width(char) in "WF" else 1
            if self._row >= self.lines or self._column + wide > self.columns:
                self.overflowed.append(char)
                continue
            self._cells[self._row][self._column] = char
            if wide == 2:
                self._cells[self._row][self._column + 1] = ""
            self._column += wide
