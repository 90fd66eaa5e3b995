"""The terminal: entered, drawn on by what differs, asked for keys, and given back as it was.

bytes ──KeyReader──► names: `a`, `up`, `enter`, `esc`, `click 12 5`, … A lone Escape and the first
byte of an arrow key are the same: over a slow line only time tells them apart. A stop (Ctrl-Z)
gives the terminal back, too, and `fg` takes it again.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from rich.console import Console

from headgate.tui.paint import Line, difference, paint_for

ESCAPE_WAIT_S = 0.3
"""After which an Escape that nothing followed was the key itself."""
MAX_SEQUENCE_CHARS = 24
ESC = "\x1b"
_CONTROLS = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
    "\x03": "quit",
    "\x04": "quit",
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
_BUTTONS = {"0": "click", "64": "wheelup", "65": "wheeldown"}


class KeyReader:
    """Fed bytes as they come, cut anywhere. What it does not know is no key at all."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._pending = ""
        self._since_s = 0.0

    @property
    def waits(self) -> bool:
        """For more of what may be an arrow key, or for the time that makes it an Escape."""
        return bool(self._pending)

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
                name = _named(begun[1:] + char)
                if name is not None:
                    yield name


def _ends(begun: str, char: str) -> bool:
    """Of what `[` begins, a character from `@` on; of what `O` begins, any."""
    return len(begun) > 1 and (begun[1] == "O" or "@" <= char <= "~")


def _named(sequence: str) -> str | None:
    if not sequence.startswith("[<"):
        return _SEQUENCES.get(sequence)
    button, *at = sequence[2:-1].split(";")
    name = _BUTTONS.get(button)
    if name is None or len(at) != 2 or not all(one.isdecimal() for one in at):
        return None
    if name != "click":
        return name
    # A button that is let go of ends in a small m: pressing it was the click.
    return f"click {int(at[0]) - 1} {int(at[1]) - 1}" if sequence[-1] == "M" else None


class WakePipe:
    """Wakes the loop that waits for keys: a thread has news, or the terminal another size.

    Its pipe is never closed: a thread that is late would ring into whatever took its number.
    """

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        for fd in (self._read_fd, self._write_fd):
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        return self._read_fd

    def ring(self) -> None:
        with suppress(OSError):  # It rings already; or nobody listens any more.
            os.write(self._write_fd, b".")

    def wait(self, within_s: float) -> bool:
        rang = bool(select.select([self._read_fd], [], [], max(0.0, within_s))[0])
        if rang:
            self.hush()
        return rang

    def hush(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._read_fd, 4096)


# Its own page, no cursor, and no wrapping: the last cell must not scroll the page.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[0m\x1b[2J"
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[0m\x1b[2J"
MOUSE_ON, MOUSE_OFF = "\x1b[?1000h\x1b[?1006h", "\x1b[?1006l\x1b[?1000l"
MAX_COLUMNS, MAX_LINES = 500, 200
WRITE_WAIT_S = 0.5


class Terminal:
    """Where standard input is no terminal there are no keys, and waiting only waits."""

    def __init__(self, console: Console, bell: WakePipe) -> None:
        self._fd = console.file.fileno()
        self._key_fd = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._encoding = console.encoding
        self._paint = paint_for(console)
        self._bell = bell
        self._reader = KeyReader()
        self._saved: list[Any] | None = None
        self._shown: Sequence[Line] = ()
        self._size = (0, 0)
        self._handlers: dict[int, Any] = {}
        self._mouse = True

    # --- taken and given back ------------------------------------------------------------------

    def __enter__(self) -> Terminal:
        if self._key_fd is not None:
            self._saved = termios.tcgetattr(self._key_fd)
        self._take()
        for number, handler in (
            (signal.SIGTSTP, self._stop),
            (signal.SIGCONT, self._continue),
            (signal.SIGWINCH, self._resized),
        ):
            self._handlers[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._give_back()

    def _take(self) -> None:
        if self._key_fd is not None:
            with suppress(termios.error):  # It may have been hung up.
                tty.setcbreak(self._key_fd)
        self._write(ENTER + (MOUSE_ON if self._mouse else ""))
        self.forget()

    def _give_back(self) -> None:
        self._write(MOUSE_OFF + LEAVE)
        if self._key_fd is not None and self._saved is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._key_fd, termios.TCSADRAIN, self._saved)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continue(self, _number: int, _frame: FrameType | None) -> None:
        self._take()
        self._bell.ring()

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self._bell.ring()

    # --- drawing -------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        """(columns, lines), as they are now."""
        try:
            columns, lines = os.get_terminal_size(self._fd)
        except OSError:
            columns, lines = 80, 24
        return min(columns or 80, MAX_COLUMNS), min(lines or 24, MAX_LINES)

    def draw(self, lines: Sequence[Line], size: tuple[int, int]) -> None:
        text = ""
        if size != self._size:
            self._shown, self._size, text = (), size, CLEAR
        text += difference(self._shown, lines, size, self._paint)
        self._shown = lines
        self._write(text)

    def forget(self) -> None:
        """Whatever is on it: the next frame is drawn whole."""
        self._size = (0, 0)

    def use_mouse(self, wanted: bool) -> None:
        """Without it, the terminal's own selecting of text works as usual."""
        if wanted != self._mouse:
            self._mouse = wanted
            self._write(MOUSE_ON if wanted else MOUSE_OFF)

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                select.select([], [self._fd], [], WRITE_WAIT_S)
            except OSError:
                return  # The terminal has gone: the next key says so.

    # --- keys ----------------------------------------------------------------------------------

    def pressed(self, within_s: float) -> list[str]:
        """By name, in their order; `quit` as well where the terminal has gone. Back earlier where
        the bell rings."""
        wait_s = min(within_s, ESCAPE_WAIT_S) if self._reader.waits else within_s
        watched = [self._bell.fileno()] + ([] if self._key_fd is None else [self._key_fd])
        ready = select.select(watched, [], [], max(0.0, wait_s))[0]
        if self._bell.fileno() in ready:
            self._bell.hush()
        if self._key_fd is None or self._key_fd not in ready:
            return self._reader.settle(time.monotonic())
        try:
            data = os.read(self._key_fd, 1024)
        except OSError:
            data = b""  # A terminal that was hung up.
        return self._reader.feed(data, time.monotonic()) if data else ["quit"]


class BareKeys:
    """Keys of a terminal that frames are printed to, one after another: q leaves, as on the screen.

    Where standard input is no terminal, or at its end, there are none, and waiting only waits.
    """

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._saved: list[Any] | None = None

    def __enter__(self) -> BareKeys:
        if self._fd is not None:
            with suppress(termios.error):
                self._saved = termios.tcgetattr(self._fd)
                tty.setcbreak(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None and self._saved is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def quit_within(self, seconds: float) -> bool:
        ends_s = time.monotonic() + seconds
        while (left_s := ends_s - time.monotonic()) > 0:
            watched = [] if self._fd is None else [self._fd]
            if not select.select(watched, [], [], left_s)[0] or self._fd is None:
                continue
            try:
                data = os.read(self._fd, 1024)
            except OSError:
                return True  # The terminal has gone.
            if not data or data.strip().lower() in (b"q", b"\x04"):
                return True
        return False
