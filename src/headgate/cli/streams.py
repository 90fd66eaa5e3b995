"""Standard input, output and error, whatever the parent process made of them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Literal, TextIO


def open_streams() -> None:
    """All three are there, and none fails for a character that its encoding does not have. What
    comes in is UTF-8, as files are."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # Closed (`<&-`): the next file would get its number, and what is printed.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or _of_nobody(0, "r")
    sys.stdout = sys.stdout or _of_nobody(1, "w")
    sys.stderr = sys.stderr or _of_nobody(2, "w")
    _reconfigure(sys.stdin, encoding="utf-8", errors="replace")
    _reconfigure(sys.stdout, errors="replace")
    _reconfigure(sys.stderr, errors="backslashreplace")


def _of_nobody(fd: int, mode: Literal["r", "w"]) -> TextIO:
    return open(fd, mode, encoding="utf-8", closefd=False)


def _reconfigure(stream: object, **how: Any) -> None:
    with suppress(OSError):  # What was read from already stays as it is.
        getattr(stream, "reconfigure", lambda **_: None)(**how)


def flushed() -> bool:
    """Whether all of standard output has arrived. Where its reader has left (`| head -1`) the rest
    goes nowhere: Python would complain about it at its end. A log that nobody reads is no loss."""
    lost = []
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            lost.append(stream)
            _let_go(stream)
    return sys.stdout not in lost


def _let_go(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
