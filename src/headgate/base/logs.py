"""Logs: events with fields, for people on a terminal and for programs elsewhere.

A line marks a change of state, so there are few. Where one fault occurs again and again (a defect
that fails every check), Flood keeps it from filling a disk; counts are exact in /metrics.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

FLOOD_LINES, FLOOD_S = 50, 10.0
TROUBLE = frozenset({"warning", "error", "exception", "critical"})


class Flood:
    """Of each event that tells of trouble so many lines in a while; the first one after it says
    how many were `left_out`."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._begun: dict[str, float] = {}
        """By event, which is a word of the code's own: there are not many."""
        self._lines: dict[str, int] = {}

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if method in TROUBLE and (left_out := self._count(str(event["event"]))):
            event["left_out"] = left_out
        return event

    def _count(self, name: str) -> int:
        """How many were left out before this one; DropEvent if this one is left out, too."""
        now_s, left_out = self._monotonic_s(), 0
        if now_s - self._begun.get(name, float("-inf")) >= FLOOD_S:
            left_out = max(0, self._lines.get(name, 0) - FLOOD_LINES)
            self._begun[name], self._lines[name] = now_s, 0
        self._lines[name] += 1
        if self._lines[name] > FLOOD_LINES:
            raise structlog.DropEvent
        return left_out


class Unfailing:
    """A stream that nobody may read any more, or whose disk is full: what runs goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure_logs(form: str) -> None:
    """`console` for people, `json` for programs, `auto` by whether there is a terminal."""
    renderer: structlog.typing.Processor
    if form == "console" or (form == "auto" and sys.stderr.isatty()):
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            Flood(),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
