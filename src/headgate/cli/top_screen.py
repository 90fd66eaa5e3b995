"""The whole terminal as a screen: entered, drawn on by what differs, and given back.

A stop (Ctrl-Z) gives it back, too, and `fg` takes it again.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console

from headgate.cli.keys import Keys
from headgate.cli.top_paint import Line, difference, paint_for

# Its own page, no cursor, and no wrapping: the last cell must not scroll the page.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[0m\x1b[2J"
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[0m\x1b[2J"
MAX_COLUMNS, MAX_LINES = 500, 200
WRITE_WAIT_S = 0.5


class Screen:
    def __init__(self, console: Console, keys: Keys) -> None:
        self._fd = console.file.fileno()
        self._encoding = console.encoding
        self._paint = paint_for(console)
        self._keys = keys
        self._shown: Sequence[Line] = ()
        self._size = (0, 0)
        self._handlers: dict[int, Any] = {}
        self.bytes_total = 0

    @property
    def size(self) -> tuple[int, int]:
        """(columns, lines), as they are now."""
        try:
            columns, lines = os.get_terminal_size(self._fd)
        except OSError:
            columns, lines = 80, 24
        return min(columns or 80, MAX_COLUMNS), min(lines or 24, MAX_LINES)

    def draw(self, lines: Sequence[Line], size: tuple[int, int]) -> int:
        """How many bytes were sent."""
        text = ""
        if size != self._size:
            self._shown, self._size, text = (), size, CLEAR
        text += difference(self._shown, lines, size, self._paint)
        self._shown = lines
        return self._write(text)

    def forget(self) -> None:
        """Whatever is on it: the next frame is drawn whole."""
        self._size = (0, 0)

    def __enter__(self) -> Screen:
        self._write(ENTER)
        for number, handler in ((signal.SIGTSTP, self._stop), (signal.SIGCONT, self._continue)):
            self._handlers[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._write(LEAVE)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._write(LEAVE)
        self._keys.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continue(self, _number: int, _frame: FrameType | None) -> None:
        self._keys.take()
        self._write(ENTER)
        self.forget()

    def _write(self, text: str) -> int:
        data = text.encode(self._encoding, "replace")
        self.bytes_total += len(data)
        sent = 0
        while sent < len(data):
            try:
                sent += os.write(self._fd, data[sent:])
            except BlockingIOError:
                select.select([], [self._fd], [], WRITE_WAIT_S)
            except OSError:
                return sent  # The terminal has gone: the next key says so.
        return len(data)
