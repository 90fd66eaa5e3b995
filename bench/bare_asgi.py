"""The yardstick: an ASGI function that answers a constant as long as freno's body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

BODY = b'{"StatusCode":200,"Value":1.5,"Threshold":5.0,"Message":""}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def app(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
