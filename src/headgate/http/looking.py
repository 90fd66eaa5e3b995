"""How a look back is taken, whatever it looks at: not in the way of checks, and not for long.

Sums are made by the store in a thread of its own; what is left to do in Python, documents and
their JSON included, is done in a thread as well. Two looks at a time, each with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from headgate.errors import StoreUnavailable
from headgate.http.documents import json_response

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


async def json_in_thread(make: Callable[[], Any]) -> Response:
    """The document and its JSON are made beside the loop: large ones take a while."""
    body = await asyncio.to_thread(lambda: msgspec.json.encode(make()))
    return json_response(msgspec.Raw(body))


def iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, tz=UTC).isoformat().replace("+00:00", "Z")
