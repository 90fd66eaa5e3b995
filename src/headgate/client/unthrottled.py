"""Periods without a throttler, kept until an agent has accepted the report.

    Conversation ──piece, ended──► Periods ──Tell, in the background──► POST /v1/unthrottled

The report has an age, not a time: the agent dates a period by its own clock.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from headgate.client.circuit import Claim
from headgate.client.events import warn
from headgate.client.http1 import Response
from headgate.client.replies import NoAnswer

PATH = "/v1/unthrottled"
MAX_PENDING = 100
RETRY_AFTER_S = 30.0
# The agent wants no such report, and will not want it later: an older one, or a forbidden one.
_UNWANTED = frozenset({400, 401, 403, 404, 405, 413, 415, 422})


class Period(NamedTuple):
    id: str
    """Of the report: sent twice, it counts once."""
    started_s: float
    """Monotonic: when the first piece of work started without a check."""
    ended_s: float
    """And when an agent answered again."""
    pieces: int

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.started_s


class _Going(NamedTuple):
    started_s: float
    pieces: Iterator[int]


class Periods:
    """Shared by threads without a lock: each change is one operation on a dict or a deque."""

    def __init__(self) -> None:
        self.pending: deque[Period] = deque(maxlen=MAX_PENDING)
        """To be reported; if there are too many, the oldest are dropped."""
        self._going: dict[str, _Going] = {}
        self._claim = Claim()
        self._retry_at_s = 0.0
        self._pid = os.getpid()

    @property
    def is_going(self) -> bool:
        return bool(self._going)

    def piece(self, now_s: float) -> bool:
        """One piece of work goes ahead; True for the first of a period."""
        self._leave_to_the_parent()
        going = self._going.setdefault("now", _Going(now_s, count()))
        return next(going.pieces) == 0

    def ended(self, now_s: float) -> Period | None:
        """An agent answers: the period that this ends, if there was one."""
        if not self._going:
            return None
        self._leave_to_the_parent()
        going = self._going.pop("now", None)
        if going is None:
            return None
        period = Period(os.urandom(16).hex(), going.started_s, now_s, next(going.pieces))
        self.pending.append(period)
        return period

    def due(self, now_s: float) -> tuple[Period, ...]:
        """What is to be reported now; the caller that gets it here sends it."""
        self._leave_to_the_parent()
        if not self.pending or now_s < self._retry_at_s or not self._claim.win():
            return ()
        return tuple(self.pending)

    def told(self, periods: tuple[Period, ...], reply: Response | NoAnswer, now_s: float) -> None:
        status = reply.status if isinstance(reply, Response) else None
        if status is not None and (status in _UNWANTED or 200 <= status < 300):
            if status in _UNWANTED:
                warn("the agent rejected the report of %d periods without a throttler (status %d); "
                     "they are in this log alone", len(periods), status)  # fmt: skip
            for period in periods:
                if period in self.pending:
                    self.pending.remove(period)
        else:
            self._retry_at_s = now_s + RETRY_AFTER_S
        self._claim = Claim()

    def _leave_to_the_parent(self) -> None:
        """A period from before a fork is reported by the process that it happened in."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.pending.clear()
            self._going = {}
            self._claim = Claim()


def report_body(
    app: str, databases: tuple[str, ...], periods: tuple[Period, ...], now_s: float
) -> bytes:
    told = [
        {
            "id": period.id,
            "ended_ago_ms": _ms(now_s - period.ended_s),
            "duration_ms": _ms(period.duration_s),
            "pieces": period.pieces,
        }
        for period in periods
    ]
    return json.dumps({"app": app, "databases": list(databases), "periods": told}).encode()


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
