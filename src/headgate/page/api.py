"""The agent's own API, called in process.   a page's handler ──► PageApi ──► Starlette ──► document

Nothing is served that curl would not be given: the same routes, checks, roles and audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec

from headgate.base.problems import Problem
from headgate.http.asgi import AsgiApp
from headgate.http.auth import Peer

T = TypeVar("T")
Query = Mapping[str, str | int | float | bool | None]
NO_QUERY: Query = {}


class ApiRejected(Exception):
    """The API rejected the request: the page shows why."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.status = status
        self.detail = problem.detail
        self.faults = tuple(problem.faults or ())
        self.field = problem.field


class PageApi:
    """As one person: `peer` says who."""

    def __init__(self, app: Callable[[], AsgiApp], peer: Peer) -> None:
        self._app = app
        self._peer = peer

    async def get(self, path: str, kind: type[T], query: Query = NO_QUERY) -> T:
        """The document at `path`; an error of the API is raised."""
        return msgspec.json.decode(await self.ask("GET", path, query=query), type=kind)

    async def send(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Mapping[str, Any] | None = None,
        *,
        query: Query = NO_QUERY,
        revision: int | None = None,
        new: bool = False,
    ) -> T:
        """Change something, or read with a body. `revision`: what the person saw; another one is
        rejected with 412, as is one that is there already where it should be `new`."""
        told = await self.ask(method, path, body, query=query, revision=revision, new=new)
        return msgspec.json.decode(told, type=kind)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Query = NO_QUERY,
        revision: int | None = None,
        new: bool = False,
    ) -> bytes:
        headers = [(b"content-type", b"application/json")] if body is not None else []
        if revision is not None:
            headers.append((b"if-match", f'"{revision}"'.encode()))
        if new:
            headers.append((b"if-none-match", b"*"))
        exchange = _Exchange(b"" if body is None else msgspec.json.encode(body))
        said = {name: plain_text(value) for name, value in query.items() if value not in (None, "")}
        await self._app()(
            _scope(method, path, urlencode(said).encode(), headers, self._peer),
            exchange.receive,
            exchange.send,
        )
        return exchange.told()


def in_path(name: str) -> str:
    """A name as one segment of a path: a client may have slashes in its name."""
    return quote(name, safe=":")


class _Exchange:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._status = 500
        self._pieces: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body":
            self._pieces.append(message.get("body", b""))

    def told(self) -> bytes:
        body = b"".join(self._pieces)
        if self._status < 400:
            return body
        try:
            problem = msgspec.json.decode(body, type=Problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            problem = Problem("about:blank", "", self._status, f"answered {self._status}")
        raise ApiRejected(self._status, problem)


def plain_text(value: object) -> str:
    """As a query has it: `true` and not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scope(
    method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]], peer: Peer
) -> dict[str, Any]:

    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": (peer.address, 0),
        "server": None,
        "state": {"peer": peer},
    }
