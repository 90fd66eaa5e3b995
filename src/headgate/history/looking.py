"""How a look back is taken, whatever it looks at: not in the way of checks, and not for long.

Sums are made by the store in a thread of its own; what is left to do in Python, documents and
their JSON included, is done in a thread as well. One look at a time, each with a deadline, and
addresses take turns: nobody needs a token to look, so nobody may keep the others from it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.http.auth import LOCAL, Peer
from headgate.http.documents import json_response

T = TypeVar("T")

MAX_S = 14.0
"""A little less than the command line waits, so that it still gets the reason."""
FAIR_S = 5.0
"""While another address waits: two turns and the wait for them fit into MAX_S."""
MAX_WAITING_EACH = 16
"""Queries of one address; further ones get status 429."""
MAX_WAITING = 256


class Turns:
    """Takes turns at looking back: the Unix socket first, then one address after the other."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By address; the next turn first."""
        self._looking: str | None = None
        self._limit: asyncio.Timeout | None = None
        self._begun_at = 0.0

    @asynccontextmanager
    async def look(self, request: Request) -> AsyncIterator[None]:
        peer: Peer = request.state.peer
        try:
            async with asyncio.timeout(MAX_S) as limit:
                await self._turn(peer.address)
                try:
                    self._begin(peer.address, limit)
                    yield
                finally:
                    self._end()
        except TimeoutError:
            raise StoreUnavailable(
                f"the history query took longer than {MAX_S:g} s ({FAIR_S:g} s while others wait) "
                "and was stopped; use a shorter time (--since 1d), one database, or a level that "
                "fewer clients have"
            ) from None

    async def _turn(self, address: str) -> None:
        """Until it is this address's."""
        if self._looking is None:
            self._looking = address
            return
        self._expect_room(address)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(mine)
        if address != self._looking:
            self._cut_short()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._end()  # It had just been given: the next one's.
            else:
                self._forget(address, mine)
            raise

    def _expect_room(self, address: str) -> None:
        waiting = sum(map(len, self._waiting.values()))
        mine = len(self._waiting.get(address, ()))
        if mine >= MAX_WAITING_EACH or waiting >= MAX_WAITING:
            message = f"{mine} history queries of yours are already waiting, {waiting} in all"
            raise InvalidRequest(
                f"{message}; try again in {FAIR_S:g} s", status=429, retry_after_s=FAIR_S
            )

    def _begin(self, address: str, limit: asyncio.Timeout) -> None:
        self._limit, self._begun_at = limit, asyncio.get_running_loop().time()
        if any(other != address for other in self._waiting):
            self._cut_short()

    def _cut_short(self) -> None:
        """Another address waits: the running query gets its fair time, and no more."""
        if self._limit is not None and not self._limit.expired():
            ends_at, fair = self._limit.when(), self._begun_at + FAIR_S
            self._limit.reschedule(fair if ends_at is None else min(ends_at, fair))

    def _end(self) -> None:
        last, self._looking, self._limit = self._looking, None, None
        if not self._waiting:
            return
        others = (address for address in self._waiting if address != last)
        address = LOCAL if LOCAL in self._waiting else next(others, last or "")
        queue = self._waiting.pop(address)
        queue.popleft().set_result(None)
        self._looking = address
        if queue:
            self._waiting[address] = queue  # Behind the others.

    def _forget(self, address: str, mine: asyncio.Future[None]) -> None:
        queue = self._waiting.get(address)
        if queue is not None and mine in queue:
            queue.remove(mine)
            if not queue:
                del self._waiting[address]


class SharedLook(Generic[T]):
    """One query for all clients that want the same at once. A client that comes while one runs
    gets the next: that starts after the client's request, so it includes the client's changes."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def look(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
            self._next.add_done_callback(_note_fault)
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None
        return await self._ask()


def _note_fault(done: asyncio.Task[T]) -> None:
    """All who waited may be gone: then nobody else looks at it."""
    if not done.cancelled():
        done.exception()


async def json_in_thread(make: Callable[[], Any]) -> Response:
    return json_response(msgspec.Raw(await encoded_in_thread(make)))


async def encoded_in_thread(make: Callable[[], Any]) -> bytes:
    """The document and its JSON are made beside the loop: large ones take a while."""
    return await asyncio.to_thread(lambda: msgspec.json.encode(make()))
