"""What statements a server runs, by its number of them: see budgets/statements.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

from headgate.errors import ProbeFailed
from headgate.metrics.probes.connections import Lane, S
from headgate.metrics.samples import Cause

MAX_ROWS = 500
StatementReader = Callable[[S, Sequence[int]], Awaitable[Sequence[tuple[int, str]]]]
"""Of what runs, and of those that are wanted; at most MAX_ROWS of each."""


class SqlStatementsProbe(Generic[S]):
    def __init__(self, lane: Lane[S], reader: StatementReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s

    async def read(self, wanted: Sequence[int]) -> Sequence[tuple[int, str]]:
        """Or ProbeFailed with the cause."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._reader(session, wanted)
        except TimeoutError:
            message = f"{self._lane.label}: did not list its statements in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None
