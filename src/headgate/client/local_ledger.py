"""What was decided here and not yet reported.   LocalCheck ──► LocalLedger ──batch──► Reporter

Counts are exact, whatever threads do: what is counted without a lock is counted by
`itertools.count`, of which one call is one step. A batch keeps its number until it has been
taken, so that one whose answer was lost is not counted twice.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from headgate.base.names import OTHER, Identity, crowds_of
from headgate.check.model import Check, Verdict
from headgate.check.snapshot import Counted
from headgate.check.snapshot_api import encode_report, fitting

MAX_ROWS = 1000
"""Kinds of decisions kept apart; what would be one more is counted with its like."""
MAX_CROWD_ROWS = 100
"""Besides; then `other`. See base/names.py."""

Key = tuple[int, Check, Verdict, str]
"""(the agent's minute, question, verdict, the metric or rule that decided)"""


class LedgerRow:
    __slots__ = ("first_s", "last_s", "reason", "times")

    def __init__(self, now_s: float) -> None:
        self.times = 0
        self.first_s = now_s
        self.last_s = now_s
        self.reason = ""

    def counted(self, key: Key, now_s: float) -> Counted:
        _, check, verdict, by = key
        first_s_ago, last_s_ago = now_s - self.first_s, now_s - self.last_s
        return Counted(check, verdict, by, self.times, first_s_ago, last_s_ago, self.reason)


class Meter:
    """Counts admissions that are alike, by one call each."""

    __slots__ = ("_looks", "_steps", "_told", "tick")

    def __init__(self) -> None:
        self._steps = itertools.count()
        self.tick: Callable[[], int] = self._steps.__next__
        self._looks = 0
        """To look at the count is a step, too."""
        self._told = 0

    def take(self) -> int:
        """How many there were since the last call; under the ledger's lock."""
        counted = next(self._steps) - self._looks
        self._looks += 1
        times, self._told = counted - self._told, counted
        return times


class LedgerBatch(NamedTuple):
    number: int
    rows: tuple[tuple[Key, LedgerRow], ...]


class LocalLedger:
    """Of one agent and database. Its lock is replaced in a forked child, with all the rest."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A child's counts are its own: what its parent has counted, that one will tell."""
        self.instance = os.urandom(8).hex()
        self.lock = threading.Lock()
        self._rows: dict[Key, LedgerRow] = {}
        self._sent: LedgerBatch | None = None
        self._batches = 0

    @property
    def is_empty(self) -> bool:
        return not self._rows and self._sent is None

    def add(self, key: Key, now_s: float, times: int = 1, reason: str = "") -> None:
        with self.lock:
            self.add_locked(key, now_s, times, reason)

    def add_locked(self, key: Key, now_s: float, times: int, reason: str = "") -> None:
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                key = self._other(key)
            row = self._rows.setdefault(key, LedgerRow(now_s))
        row.times += times
        row.last_s = now_s
        row.reason = reason

    def _other(self, key: Key) -> Key:
        _, check, verdict, by = key
        minute = next(iter(self._rows))[0]
        for crowd in crowds_of(check.identity.text, lambda _: False):
            who = Identity(crowd, tuple(crowd.split(":")))
            wider = (minute, Check(who, check.database), verdict, by)
            if wider in self._rows or len(self._rows) < MAX_ROWS + MAX_CROWD_ROWS:
                return wider
        return minute, Check(Identity(OTHER, (OTHER,)), check.database), verdict, by and OTHER

    def batch(self, now_s: float) -> bytes | None:
        """The one that has not been taken yet, else the next; None: there is nothing to tell."""
        with self.lock:
            if self._sent is None:
                self._sent = self._next()
            sent = self._sent
        if sent is None:
            return None
        rows = [row.counted(key, now_s) for key, row in sent.rows]
        return encode_report(self.instance, sent.number, rows)

    def _next(self) -> LedgerBatch | None:
        if not self._rows:
            return None
        rows = list(self._rows.items())
        rows = rows[: fitting([row.counted(key, row.last_s) for key, row in rows])]
        for key, _ in rows:
            del self._rows[key]
        self._batches += 1
        return LedgerBatch(self._batches, tuple(rows))

    def taken(self) -> None:
        self._sent = None
