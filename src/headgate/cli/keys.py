"""Single keys from a terminal, without Enter and without echo; the terminal as it was, after."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any

# Not Escape: over a slow line an arrow key begins with what looks like one.
LEAVE = frozenset("qQ\x03\x04")


class Keys:
    """Where standard input is no terminal there are no keys, and waiting only waits."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._saved: list[Any] | None = None

    def __enter__(self) -> Keys:
        if self._fd is not None:
            self._saved = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd is not None and self._saved is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def wants_to_leave(self, within_s: float) -> bool:
        """Wait for a key at most this long. A terminal that went away wants to leave, too."""
        if self._fd is None:
            time.sleep(within_s)
            return False
        ready, _, _ = select.select([self._fd], [], [], within_s)
        if not ready:
            return False
        pressed = os.read(self._fd, 64).decode("ascii", "ignore")
        return not pressed or not LEAVE.isdisjoint(pressed)
