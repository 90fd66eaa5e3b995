"""The sessions a server lists, by user, program and host, whether their clients check or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

from headgate.errors import ProbeFailed
from headgate.history.sessions import MAX_GROUPS, SessionGroup
from headgate.metrics.probes.connections import Lane, S
from headgate.metrics.samples import Cause

MAX_NAME_CHARS = 128
SessionReader = Callable[[S], Awaitable[Sequence[SessionGroup]]]
"""At most MAX_GROUPS, the most active first, without our own."""


class SqlSessionsProbe(Generic[S]):
    def __init__(self, lane: Lane[S], reader: SessionReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s

    async def read(self) -> Sequence[SessionGroup]:
        """Or ProbeFailed with the cause."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._reader(session)
        except TimeoutError:
            message = f"{self._lane.label}: did not list its sessions in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None

    async def close(self) -> None:
        """Nothing of its own: the connections belong to the lane."""


def group_of(
    user: object, application: object, host: object, sessions: object, active: object
) -> SessionGroup:
    return SessionGroup(
        _name(user), _name(application), _name(host), int(str(sessions)), int(str(active))
    )


def _name(told: object) -> str:
    return str(told or "")[:MAX_NAME_CHARS]


__all__ = ["MAX_GROUPS", "SessionReader", "SqlSessionsProbe", "group_of"]
