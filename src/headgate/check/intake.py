"""Count what clients decided locally.   check/reporting ──► Intake ──► Recorder, Demand

Batches of one sender come in order, one at a time, and again if the answer was lost: a batch that
is not newer than the last one was already taken. Only the last number of each sender is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from headgate.base.ports import Clock
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.snapshot import Counted
from headgate.history.recorder import Recorder
from headgate.metrics.samples import Instant

MAX_SENDERS = 20_000
"""Beyond that, the longest silent sender is dropped. If it repeats a batch, that batch counts
twice."""
RECENT_S = 30.0
"""A decision older than this does not wake the database."""


class Intake:
    def __init__(
        self, recorder: Recorder, board: Board, clock: Clock, demands: Demands | None
    ) -> None:
        self._recorder = recorder
        self._healths = board.healths
        self._clock = clock
        self._demands = demands
        self._last: OrderedDict[str, int] = OrderedDict()
        self.batches_total = 0
        self.repeated_total = 0
        self.decisions_total = 0

    def take(self, sender: str, batch: int, rows: Sequence[Counted]) -> bool:
        """Whether it counts; False for what had been taken before."""
        if batch <= self._last.get(sender, 0):
            self.repeated_total += 1
            return False
        self._remember(sender, batch)
        now = self._clock.now()
        # Oldest first: the client is shown with its latest answer.
        for row in sorted(rows, key=lambda row: -row.last_s_ago):
            self._count(row, now)
        self.batches_total += 1
        return True

    def _remember(self, sender: str, batch: int) -> None:
        self._last[sender] = batch
        self._last.move_to_end(sender)
        if len(self._last) > MAX_SENDERS:
            self._last.popitem(last=False)

    def _count(self, row: Counted, now: Instant) -> None:
        health = self._healths.get(row.check.database)
        self.decisions_total += row.times
        self._recorder.merge(row, health, now)
        demands = self._demands.by_database if self._demands is not None else {}
        demand = demands.get(row.check.database)
        if demand is not None and row.last_s_ago < RECENT_S:
            demand.note(row.check, health, now.mono_s)
