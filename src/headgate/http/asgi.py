"""Run an ASGI app for one whole request.   Connection ──Request──► AsgiBridge ──► Starlette

The request is complete and bounded before it gets here, so `receive` hands the body over at
once; the response may be one piece or a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from headgate.http.auth import Peer
from headgate.http.listener import Request

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]
Send = Callable[[bytes], Awaitable[None]]
_BODILESS = frozenset({204, 304})


class AsgiBridge:
    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def serve(self, request: Request, peer: Peer, send: Send) -> bool:
        """See listener.Handlers."""
        exchange = _AsgiExchange(request, send)
        await self._app(_scope(request, peer), exchange.receive, exchange.send)
        await exchange.finish()
        return exchange.keep_alive


class _AsgiExchange:
    """The state of one response."""

    def __init__(self, request: Request, send: Send) -> None:
        self._request = request
        self._send = send
        self._body_given = False
        self._chunked = False
        self._started = False
        self._ended = False
        self._head: bytes | None = None
        """Delayed until the first body, so that both leave in one write."""
        self.keep_alive = request.keep_alive

    async def receive(self) -> Message:
        if self._body_given:
            # Cancelled when the client hangs up; until then there is nothing more to tell.
            await asyncio.Event().wait()
        self._body_given = True
        return {"type": "http.request", "body": self._request.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self._body(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Any) -> None:
        self._started = True
        lines = [b"HTTP/1.1 %d \r\n" % status]
        names = set()
        for name, value in headers:
            names.add(bytes(name).lower())
            lines.append(b"%b: %b\r\n" % (name, value))
        # A client that keeps no connection, HTTP/1.0 among them, reads up to its end.
        if b"content-length" not in names and self.keep_alive and status not in _BODILESS:
            self._chunked = True
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"Connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    async def _body(self, body: bytes, *, more: bool) -> None:
        self._ended = not more
        data = self._take_head()
        if self._request.method != "HEAD":
            data += self._framed(body, more)
        if data:
            await self._send(data)

    def _framed(self, body: bytes, more: bool) -> bytes:
        if not self._chunked:
            return body
        framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return framed if more else framed + b"0\r\n\r\n"

    def _take_head(self) -> bytes:
        head, self._head = self._head or b"", None
        return head

    async def finish(self) -> None:
        if not self._started:
            raise RuntimeError("the app ended without a response")
        if not self._ended:
            self.keep_alive = False  # Cut short: only the end of the connection can tell.
        if self._head:
            await self._send(self._take_head())


def _scope(request: Request, peer: Peer) -> dict[str, Any]:
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers],
        "client": (peer.address, 0),
        "server": None,
        "state": {"peer": peer},
    }
