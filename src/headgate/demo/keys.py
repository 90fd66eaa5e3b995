"""Single keys from a terminal, without Enter and without echo; the terminal as it was, after."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from contextlib import suppress
from types import TracebackType
from typing import Any

HANGUP = "\x04"


class Keys:
    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._saved: list[Any] = []

    def __enter__(self) -> Keys:
        self._saved = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(termios.error):  # A terminal that went away needs nothing back.
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def pressed(self, within_s: float) -> str:
        """One key in lower case, or nothing in that time; HANGUP where no more can come."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, within_s))
        if not ready:
            return ""
        try:
            # One at a time: what was typed ahead is not lost.
            return os.read(self._fd, 1).decode("ascii", "ignore").lower() or HANGUP
        except OSError:
            return HANGUP
