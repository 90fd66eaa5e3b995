"""The proxy's own API: looking and changing.   AsgiBridge ──► Starlette ──► Operations

Every caller may look; one that changes something is identified (a token's name, a user on the Unix
socket), and every change leaves a line in the log: set by, what, and how it ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.base import problems as wire_problems
from headgate.errors import HeadgateError, InvalidRequest, InvalidSettings
from headgate.proxy.metrics import render_metrics
from headgate.proxy.status import ProxyFacts, ProxyReadings, problems, status_document

log = structlog.get_logger()

Handler = Callable[[Request], Awaitable[Response]]
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
MAX_SESSIONS = 10_000


class Reloaded(NamedTuple):
    changed: tuple[str, ...]
    """Sections of the settings that are followed from now on."""
    waits_for_restart: tuple[str, ...]
    advice: tuple[str, ...] = ()


class Operations(Protocol):
    """What the API can request from the running proxy."""

    @property
    def facts(self) -> ProxyFacts: ...

    async def seen(self) -> ProxyReadings: ...

    def sessions(self, *, after: int, limit: int) -> dict[str, Any]: ...

    def kill(self, session: int) -> bool: ...

    async def reload(self) -> Reloaded:
        """Or InvalidSettings with every fault; then nothing has changed."""
        ...

    def drain(self) -> None:
        """Begin to stop: no more sessions, and the process ends with the last one."""
        ...

    async def restart(self) -> int:
        """Start the successor; its process id once it serves. HeadgateError if it does not."""
        ...


class WhoChanges(Protocol):
    def __call__(self, request: Request) -> str:
        """The name for the log, or InvalidRequest (401, 403)."""
        ...


class ProxyControl:
    def __init__(self, operations: Operations, who_changes: WhoChanges) -> None:
        self._operations = operations
        self._who_changes = who_changes
        self._under_way: set[asyncio.Future[Any]] = set()

    def app(self) -> Starlette:
        app = Starlette(
            routes=[
                Route(path, _guarded(getattr(self, name)), methods=[method])
                for method, path, name, _ in ROUTES
            ],
            exception_handlers={HTTPException: _http_problem, Exception: _server_problem},
        )
        app.router.redirect_slashes = False  # A redirect would repeat whatever Host was sent.
        return app

    # --- looking ---------------------------------------------------------------------------

    async def status(self, request: Request) -> Response:
        seen = await self._operations.seen()
        return _json(status_document(self._operations.facts, seen))

    async def sessions(self, request: Request) -> Response:
        after = _number(request, "after", 0, 2**63 - 1, 0)
        limit = _number(request, "limit", 1, MAX_SESSIONS, 1000)
        return _json(self._operations.sessions(after=after, limit=limit))

    async def metrics(self, request: Request) -> Response:
        seen = await self._operations.seen()
        body, content_type = await asyncio.to_thread(render_metrics, self._operations.facts, seen)
        return Response(body, headers={**HEADERS, "Content-Type": content_type})

    async def healthz(self, request: Request) -> Response:
        return _json({"state": self._operations.facts.state})

    async def readyz(self, request: Request) -> Response:
        """Whether new sessions are taken, and there is a server for them."""
        facts, seen = self._operations.facts, await self._operations.seen()
        has_server = any(target.primary or target.replica for target in seen.targets)
        ready = facts.state == "serving" and has_server
        found = problems(facts, seen)
        return _json(
            {"ready": ready, "state": facts.state, "problems": found}, 200 if ready else 503
        )

    # --- changing --------------------------------------------------------------------------

    async def kill(self, request: Request) -> Response:
        who = self._who_changes(request)
        session = request.path_params["session"]
        found = self._operations.kill(session)
        log.info("control.kill", by=who, session=session, found=found)
        if not found:
            raise InvalidRequest(f"there is no session {session}", status=404)
        return _json({"killed": session})

    async def reload(self, request: Request) -> Response:
        who = self._who_changes(request)
        try:
            done = await self._finish(self._operations.reload())
        except InvalidSettings:
            log.warning("control.reload", by=who, outcome="rejected")
            raise
        log.info("control.reload", by=who, outcome="done", **done._asdict())
        return _json(done._asdict())

    async def drain(self, request: Request) -> Response:
        who = self._who_changes(request)
        log.warning("control.drain", by=who)
        self._operations.drain()
        return _json({"state": self._operations.facts.state}, 202)

    async def restart(self, request: Request) -> Response:
        who = self._who_changes(request)
        log.warning("control.restart", by=who)
        pid = await self._finish(self._operations.restart())
        log.info("control.restarted", by=who, successor=pid)
        return _json({"successor": pid})

    async def _finish(self, change: Awaitable[Any]) -> Any:
        """Brought to its end, whether or not the client still listens."""
        task = asyncio.ensure_future(change)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)


ROUTES: tuple[tuple[str, str, str, str], ...] = (
    ("GET", "/v1/proxy/status", "status", "Everything that `headgate proxy status` shows."),
    ("GET", "/v1/proxy/sessions", "sessions", "Sessions by id: `after`, `limit`."),
    ("DELETE", "/v1/proxy/sessions/{session:int}", "kill", "Ends a session."),
    ("POST", "/v1/proxy/reload", "reload", "Reads the settings file again, all or nothing."),
    ("POST", "/v1/proxy/drain", "drain", "Takes no more sessions, and ends with the last one."),
    ("POST", "/v1/proxy/restart", "restart", "Starts a successor that takes over."),
    ("GET", "/metrics", "metrics", "Prometheus metrics."),
    ("GET", "/healthz", "healthz", "200 while the process serves its API."),
    ("GET", "/readyz", "readyz", "200 while new sessions are taken and there is a server."),
)
"""Method, path, handler, meaning."""


def _guarded(handler: Handler) -> Handler:
    """Our own errors as problems. What is not ours is logged, and becomes a 500, further out."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidRequest as error:
            return _problem(error.status, str(error), field=error.field)
        except InvalidSettings as error:
            faults = [str(fault) for fault in error.faults]
            return _problem(422, "these settings are invalid; nothing was changed", faults=faults)
        except HeadgateError as error:
            return _problem(409, str(error))

    return guarded


def _number(request: Request, name: str, low: int, high: int, default: int) -> int:
    raw = request.query_params.get(name)
    if raw is None:
        return default
    if not raw.isdecimal() or not low <= int(raw) <= high:
        raise InvalidRequest(f"{name} is {raw!r}, must be from {low} to {high}", field=name)
    return int(raw)


def _json(document: Any, status: int = 200) -> Response:
    body = json.dumps(document).encode()
    return Response(body, status_code=status, media_type="application/json", headers=HEADERS)


def _problem(
    status: int, detail: str, *, field: str | None = None, faults: list[str] | None = None
) -> Response:
    body = wire_problems.problem(status, detail, field=field, faults=faults)
    headers = {**HEADERS, "WWW-Authenticate": "Bearer"} if status == 401 else HEADERS
    media = wire_problems.CONTENT_TYPE
    return Response(body, status_code=status, media_type=media, headers=headers)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        known = ", ".join(f"{method} {path}" for method, path, *_ in ROUTES)
        return _problem(404, f"there is nothing at {request.scope['path']}; there is: {known}")
    response = _problem(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def _server_problem(request: Request, error: Exception) -> Response:
    return _problem(500, "this request failed inside the proxy; its log says how")
