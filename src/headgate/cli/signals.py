"""Signals and standard streams, whatever the parent process made of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal, NoReturn, TextIO

# Python ignores these itself, and gives them back to what it starts (restore_signals).
_OF_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})


def reset_signals() -> None:
    """Nothing is blocked, and nothing ignored but SIGHUP, where `nohup` asks for that.

    A shell script starts a command behind `&` with SIGINT ignored, and a CI runner may block or
    ignore others. Then Python installs no handler for Ctrl-C, and a job that we start inherits
    that it is deaf; with SIGCHLD ignored, nobody learns how a child ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # A program that calls us in a thread of its own keeps its signals.
    for number in signal.valid_signals() - _OF_PYTHON - {signal.SIGHUP}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def restore_signals() -> None:
    """As subprocess does it: what takes our place has these as if Python had not been here."""
    for number in _OF_PYTHON:
        signal.signal(number, signal.SIG_DFL)


def ignores_hangups() -> bool:
    """Started by `nohup`, which its user did so that the end of a terminal ends nothing."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP as an orderly end, so that a full-screen view gives the terminal back."""
    numbers = {signal.SIGTERM} if ignores_hangups() else {signal.SIGTERM, signal.SIGHUP}
    before = {number: signal.signal(number, _end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


# --- standard input, output and error ------------------------------------------------------------


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
