"""How a look back is taken, whatever it looks at: not in the way of checks, and not for long.

Sums are made by the store in a thread of its own; what is left to do in Python, documents and
their JSON included, is done in a thread as well. Two looks at a time, each with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import Response

from headgate.errors import StoreUnavailable
from headgate.http.documents import json_response

T = TypeVar("T")

MAX_S = 14.0
"""A little less than the command line waits, so that it is told why."""
MAX_AT_ONCE = 2


class Turns:
    """Takes turns at looking back."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    @asynccontextmanager
    async def look(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(MAX_S), self._free:
                yield
        except TimeoutError:
            raise StoreUnavailable(
                f"looking back took longer than {MAX_S:g} s, and was ended; ask for a shorter time "
                "(--since 1d), for one database, or for a level that fewer clients have"
            ) from None


class SharedLook(Generic[T]):
    """One look for all who ask for the same at once. Who asks while one is under way gets the
    next: it begins after they asked, so that they see what they themselves changed before."""

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


def iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, tz=UTC).isoformat().replace("+00:00", "Z")
