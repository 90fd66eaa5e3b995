"""What a server is just now, and that its connection is gone, as soon as that is so.

    agent ──► SqlRoleProbe.read ──► Lane of one ──► the engine's RoleReader ──► RoleSeen
          └─► SqlRoleProbe.lost ◄── LossWatch ◄── the idle connection's socket

A role is only as good as the connection that reported it: between queries the event loop watches
the socket, and the end of the server is known without a query. While a query is under way
the watch is off, and the query itself fails.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic

from headgate.errors import ProbeFailed
from headgate.metrics.probes.connections import Lane, S, Session
from headgate.metrics.samples import Cause
from headgate.shard.topology import RoleSeen

RoleReader = Callable[[S], Awaitable[RoleSeen]]
FenceReader = Callable[[S], Awaitable[bool]]
"""True: the server takes writes."""


class SqlRoleProbe(Generic[S]):
    """Reads one at a time, on a connection of its own: a slow probe must not delay a role."""

    def __init__(self, lane: Lane[S], reader: RoleReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s
        self._lost = asyncio.Event()
        self._watch: LossWatch | None = None

    async def read(self) -> RoleSeen:
        self._unwatch()
        self._lost.clear()
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    seen = await self._reader(session)
        except TimeoutError:
            message = f"{self._lane.label}: did not report its role in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None
        self._watch_over(session)
        return seen

    async def lost(self) -> None:
        """Returns once the server has closed the connection; not while there is none yet."""
        await self._lost.wait()

    async def close(self) -> None:
        self._unwatch()
        await self._lane.close()

    def _watch_over(self, session: S) -> None:
        if session.is_gone():
            self._lost.set()
        else:
            self._watch = LossWatch(session, self._lost)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class SqlFenceProbe(Generic[S]):
    """Whether a server takes writes: one short statement, on a connection of its own."""

    def __init__(self, lane: Lane[S], reader: FenceReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s

    async def read(self) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._reader(session)
        except TimeoutError:
            message = f"{self._lane.label}: did not report read_only in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None

    async def close(self) -> None:
        await self._lane.close()


class LossWatch:
    """Sets `lost` when the server hangs up on an idle session."""

    def __init__(self, session: Session, lost: asyncio.Event) -> None:
        self._session = session
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        # A descriptor of our own: the driver adds and removes a reader of its own on the
        # other one, and uvloop lends out none that a transport uses.
        self._fd: int | None = os.dup(session.fileno())
        self._loop.add_reader(self._fd, self._look)

    def _look(self) -> None:
        # Called again while there is something to read, so nothing is missed if the driver's
        # own reader comes second.
        if self._session.has_hung_up():
            self.close()
            self._lost.set()

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


# --- two clocks compared -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clocks:
    """The agent's own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # noqa: TID251 -- what a server's clock is compared with

    def ask(self) -> RoundTrip:
        return RoundTrip(self, self.monotonic(), self.wall())


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A question under way: the server looked at its clock about half-way."""

    clocks: Clocks
    asked_at: float
    asked_wall_s: float

    def clock_ahead_s(self, server_wall_s: float) -> float:
        """To be called when the answer is there."""
        half_s = (self.clocks.monotonic() - self.asked_at) / 2
        return server_wall_s - (self.asked_wall_s + half_s)


HERE = Clocks()
