"""A few connections per database, shared by its probes.

    probe.read ──► Lane.session ──► idle connection, or a new one ──► back, or thrown away

Invariants: we hold at most `limit` connections and open one at a time; waiting for one and
opening one count against the deadline of the probe that waits (its caller cancels it); a
connection whose statement was cut short is never used again, and closing it does not wait, so
that a frozen server cannot hold up the agent. The server may see such a session for a little
longer: until it ends the statement by the limit set for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from headgate.errors import ProbeFailed
from headgate.metrics.samples import Cause, Number

LEAVE_WITHIN_S = 0.2


class Session(Protocol):
    def is_gone(self) -> bool:
        """Whether the server has hung up, as far as what has arrived tells."""
        ...

    def fileno(self) -> int:
        """Of the socket."""
        ...

    def has_hung_up(self) -> bool:
        """The same, after reading what a server sends on its own; not while a query runs."""
        ...

    async def limit(self, timeout_s: float) -> None:
        """Have the server itself end each later statement after `timeout_s`."""
        ...

    def discard(self) -> None:
        """Close now, without a word to the server."""
        ...

    async def leave(self) -> None:
        """Say goodbye and close."""
        ...


S = TypeVar("S", bound=Session)
Opened = TypeVar("Opened", bound=Session, covariant=True)
Reader = Callable[[S], Awaitable[Number]]
"""Reads one metric over a session. Where it raises ProbeFailed, it leaves no transaction open."""


class Connector(Protocol[Opened]):
    """How to reach one server."""

    @property
    def label(self) -> str:
        """For messages: which database, and where; without secrets."""
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    async def connect(self) -> Opened: ...

    def explain(self, error: Exception) -> ProbeFailed: ...


class Lane(Generic[S]):
    def __init__(self, connector: Connector[S], limit: int) -> None:
        self._connector = connector
        self._places = asyncio.Semaphore(limit)
        # One attempt at a time: a frozen server's queue must not fill up with ours.
        self._door = asyncio.Lock()
        self._idle: list[S] = []
        self._closed = False

    @property
    def label(self) -> str:
        return self._connector.label

    @asynccontextmanager
    async def session(self, timeout_s: float) -> AsyncIterator[S]:
        """A session whose statements the server ends after `timeout_s`."""
        async with self._places:
            session = await self._take()
            try:
                await session.limit(timeout_s)
                yield session
            except ProbeFailed as failure:
                # An answer that is no measurement is not the connection's fault.
                self._give_back(session)
                raise type(failure)(failure.cause, f"{self.label}: {failure.detail}") from None
            except self._connector.errors as error:
                session.discard()
                raise self._connector.explain(error) from None
            except BaseException:
                session.discard()
                raise
            self._give_back(session)

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(part(session) for session in idle))

    async def _take(self) -> S:
        if self._closed:
            raise ProbeFailed(Cause.FAILED, f"{self.label}: its probes have been closed")
        while self._idle:
            session = self._idle.pop()
            if not session.is_gone():
                return session
            session.discard()
        try:
            async with self._door:
                return await self._connector.connect()
        except self._connector.errors as error:
            raise self._connector.explain(error) from None

    def _give_back(self, session: S) -> None:
        if self._closed or session.is_gone():
            session.discard()
        else:
            self._idle.append(session)


async def part(session: Session) -> None:
    """Close, politely if that can be had at once."""
    try:
        async with asyncio.timeout(LEAVE_WITHIN_S):
            await session.leave()
    except (OSError, TimeoutError):
        session.discard()


class SessionProbe(Generic[S]):
    """A Reader with its lane and its deadline: what the agent calls a probe."""

    def __init__(self, lane: Lane[S], reader: Reader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s

    async def read(self) -> Number:
        async with self._lane.session(self._timeout_s) as session:
            return await self._reader(session)

    async def close(self) -> None:
        """Nothing of its own: the connections belong to the lane."""
