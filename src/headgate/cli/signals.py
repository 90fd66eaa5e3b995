"""Signals, whatever the parent process made of them: at the start, and for a full-screen view."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

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
