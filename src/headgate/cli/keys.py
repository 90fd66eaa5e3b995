"""Single keys from a terminal, without Enter and without echo; the terminal as it was, after.

bytes ──KeyReader──► names: `a`, `up`, `enter`, `esc`, … A lone Escape and the beginning of an
arrow key are the same byte: over a slow line only time tells them apart.
"""

from __future__ import annotations

import codecs
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

# Not Escape: over a slow line an arrow key begins with what looks like one.
LEAVE = frozenset("qQ\x03\x04")
ESCAPE_WAIT_S = 0.3
"""After which an Escape that nothing followed was the key itself."""
MAX_SEQUENCE_CHARS = 16
ESC = "\x1b"
_CONTROLS = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
    "\x03": "leave",
    "\x04": "leave",
    "\x0c": "redraw",
    "\x0e": "down",
    "\x10": "up",
}
_ARROWS = ("up", "down", "right", "left", "home", "end")
_NUMBERED = {1: "home", 4: "end", 5: "pageup", 6: "pagedown", 7: "home", 8: "end"}
_SEQUENCES = {
    "[Z": "backtab",
    **{f"[{end}": name for end, name in zip("ABCDHF", _ARROWS, strict=True)},
    **{f"O{end}": name for end, name in zip("ABCDHF", _ARROWS, strict=True)},
    **{f"[{number}~": name for number, name in _NUMBERED.items()},
}


class KeyReader:
    """Fed bytes as they come, cut anywhere. What it does not know is no key at all."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._pending = ""
        self._since_s = 0.0

    def feed(self, data: bytes, now_s: float) -> list[str]:
        keys: list[str] = []
        for char in self._decoder.decode(data):
            keys += self._take(char, now_s)
        return keys

    def settle(self, now_s: float) -> list[str]:
        """Escape, where it was pressed alone, and long enough ago."""
        if not self._pending or now_s - self._since_s < ESCAPE_WAIT_S:
            return []
        alone = self._pending == ESC
        self._pending = ""
        return ["esc"] if alone else []

    def _take(self, char: str, now_s: float) -> Iterator[str]:
        if self._pending:
            yield from self._continue(char, now_s)
        elif char == ESC:
            self._pending, self._since_s = char, now_s
        elif char in _CONTROLS:
            yield _CONTROLS[char]
        elif char.isprintable():
            yield char

    def _continue(self, char: str, now_s: float) -> Iterator[str]:
        begun = self._pending
        if char == ESC:
            self._pending, self._since_s = char, now_s
            if begun == ESC:
                yield "esc"
        elif begun == ESC and char not in "[O":
            self._pending = ""
            yield "esc"
            yield from self._take(char, now_s)
        else:
            self._pending = (begun + char)[:MAX_SEQUENCE_CHARS]
            if _ends(begun, char):
                self._pending = ""
                name = _SEQUENCES.get(begun[1:] + char)
                if name is not None:
                    yield name


def _ends(begun: str, char: str) -> bool:
    """Of what `[` begins, a character from `@` on; of what `O` begins, any."""
    return len(begun) > 1 and (begun[1] == "O" or "@" <= char <= "~")


class Keys:
    """Where standard input is no terminal there are no keys, and waiting only waits."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._saved: list[Any] | None = None
        self._reader = KeyReader()

    def __enter__(self) -> Keys:
        if self._fd is not None:
            self._saved = termios.tcgetattr(self._fd)
            self.take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give_back()

    def take(self) -> None:
        """The terminal's keys, one by one; again, after a stop in between."""
        if self._fd is not None:
            with suppress(termios.error):  # It may have been hung up.
                tty.setcbreak(self._fd)

    def give_back(self) -> None:
        if self._fd is not None and self._saved is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def wants_to_leave(self, within_s: float) -> bool:
        """Wait for a key at most this long. A terminal that went away wants to leave, too."""
        pressed = self._read(within_s)
        if pressed is None:
            return False
        return not pressed or not LEAVE.isdisjoint(pressed.decode("ascii", "ignore"))

    def pressed(self, within_s: float) -> list[str]:
        """By name, in their order; `leave` as well where the terminal has gone."""
        data = self._read(within_s)
        if data is None:
            return self._reader.settle(time.monotonic())
        return self._reader.feed(data, time.monotonic()) if data else ["leave"]

    def _read(self, within_s: float) -> bytes | None:
        """None: nothing was pressed. Empty: there is nobody any more who could."""
        if self._fd is None:
            time.sleep(within_s)
            return None
        ready, _, _ = select.select([self._fd], [], [], within_s)
        try:
            return os.read(self._fd, 1024) if ready else None
        except OSError:
            return b""  # A terminal that was hung up.
