"""SIGTERM and SIGHUP as an orderly end, so that a full-screen view gives the terminal back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def ending_on_signals() -> Iterator[None]:
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
