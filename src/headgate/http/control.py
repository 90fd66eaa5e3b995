"""The control plane: looking and changing.   AsgiBridge ──► Starlette ──► views and MetricBook"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.agent.metricbook import MetricBook, NoSuchMetric, Proposal
from headgate.errors import (
    Conflict,
    InvalidName,
    InvalidRequest,
    InvalidSettings,
    StoreUnavailable,
)
from headgate.http import openapi
from headgate.http.auth import Gatekeeper
from headgate.http.exposition import render_metrics
from headgate.http.views import Views
from headgate.wire import problems
from headgate.wire.questions import parse_check_query
from headgate.wire.status import RemovedDoc

Handler = Callable[[Request], Awaitable[Response]]
_SINCE = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_LIMIT = re.compile(r"[0-9]{1,4}")
_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DRY_RUN = frozenset({("dry_run", "true"), ("dry_run", "false")})
_SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Control:
    """Handlers by route. Each takes a request and returns a document."""

    def __init__(self, views: Views, book: MetricBook, gatekeeper: Gatekeeper) -> None:
        self._views = views
        self._book = book
        self._gatekeeper = gatekeeper
        self._under_way: set[asyncio.Future[Proposal]] = set()

    def app(self) -> Starlette:
        by_path: dict[str, dict[str, Handler]] = {}
        for method, path, name in ROUTES:
            by_path.setdefault(path, {})[method] = _guarded(getattr(self, name))
        app = Starlette(
            routes=[
                Route(path, _by_method(handlers), methods=list(handlers))
                for path, handlers in by_path.items()
            ],
            exception_handlers={HTTPException: _http_problem, Exception: _server_problem},
        )
        app.router.redirect_slashes = False  # A redirect would repeat whatever Host was sent.
        return app

    # --- looking ---------------------------------------------------------------------------

    async def status(self, request: Request) -> Response:
        return _json(self._views.status())

    async def metrics(self, request: Request) -> Response:
        return _json(self._views.metrics(request.query_params.get("database")))

    async def metric(self, request: Request) -> Response:
        database, metric = _path(request)
        view = self._views.metric(database, metric)
        return _json(view, headers=_etag(view.revision))

    async def explain(self, request: Request) -> Response:
        check, _ = parse_check_query(request.scope["query_string"].decode("latin-1"))
        return _json(self._views.explain(check))

    async def clients(self, request: Request) -> Response:
        return _json(self._views.clients())

    async def history(self, request: Request) -> Response:
        since_s = parse_since(request.query_params.get("since", "1h"))
        return _json(await self._views.history(since_s, request.query_params.get("app")))

    async def refusals(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", "100"))
        return _json(self._views.refusals(limit, request.query_params.get("app")))

    async def audit(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", "100"))
        return _json(await self._views.audit(limit))

    async def healthz(self, request: Request) -> Response:
        return _json({"serving": True})

    async def readyz(self, request: Request) -> Response:
        doc = self._views.ready()
        return _json(doc, status=200 if doc.ready else 503)

    async def exposition(self, request: Request) -> Response:
        text, content_type = render_metrics(self._views)
        return Response(text, media_type=content_type, headers=_SECURITY_HEADERS)

    async def openapi(self, request: Request) -> Response:
        return _json(openapi.document())

    # --- changing --------------------------------------------------------------------------

    async def put_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        body = _settings(await _object(request))
        return await self._changed(
            request, lambda **kw: self._book.put(database, metric, body, **kw)
        )

    async def patch_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        body = await _object(request)
        return await self._changed(
            request, lambda **kw: self._book.patch(database, metric, body, **kw)
        )

    async def delete_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        return await self._changed(request, lambda **kw: self._book.remove(database, metric, **kw))

    async def revert_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        return await self._changed(request, lambda **kw: self._book.revert(database, metric, **kw))

    async def _changed(
        self, request: Request, change: Callable[..., Awaitable[Proposal]]
    ) -> Response:
        peer = request.state.peer
        who = self._gatekeeper.who_changes(peer, request.headers.get("authorization"))
        dry_run = _dry_run(request)
        proposal = await self._to_the_end(
            change(who=who, expect=_expected(request), dry_run=dry_run)
        )
        database, metric = _path(request)
        if proposal.entry is None:
            return _json(RemovedDoc(database, metric, removed=not dry_run))
        view = self._views.proposed(database, proposal, dry_run=dry_run)
        return _json(view, headers=_etag(proposal.entry.revision))

    async def _to_the_end(self, change: Awaitable[Proposal]) -> Proposal:
        """A client that hangs up half-way must not leave a change kept but not in force."""
        task = asyncio.ensure_future(change)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    # --- freno's read-only routes ----------------------------------------------------------

    async def alive(self, request: Request) -> Response:
        return Response("OK", media_type="text/plain")

    async def hostname(self, request: Request) -> Response:
        return Response(self._views.agent_name, media_type="text/plain")

    async def aggregated_metrics(self, request: Request) -> Response:
        return _json(self._views.aggregated_metrics())

    async def metrics_health(self, request: Request) -> Response:
        return _json(self._views.metrics_health())

    async def recent_apps(self, request: Request) -> Response:
        return _json(self._views.recent_apps())

    async def help(self, request: Request) -> Response:
        lines = [f"{method} {path}" for method, path, _ in ROUTES]
        return Response("\n".join(lines) + "\n", media_type="text/plain")


_METRIC = "/v1/databases/{database}/metrics/{metric}"
ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", "/v1/status", "status"),
    ("GET", "/v1/metrics", "metrics"),
    ("GET", _METRIC, "metric"),
    ("PUT", _METRIC, "put_metric"),
    ("PATCH", _METRIC, "patch_metric"),
    ("DELETE", _METRIC, "delete_metric"),
    ("POST", f"{_METRIC}/revert", "revert_metric"),
    ("GET", "/v1/explain", "explain"),
    ("GET", "/v1/clients", "clients"),
    ("GET", "/v1/history", "history"),
    ("GET", "/v1/refusals", "refusals"),
    ("GET", "/v1/audit", "audit"),
    ("GET", "/healthz", "healthz"),
    ("GET", "/readyz", "readyz"),
    ("GET", "/metrics", "exposition"),
    ("GET", "/openapi.json", "openapi"),
    ("GET", "/lb-check", "alive"),
    ("GET", "/_ping", "alive"),
    ("GET", "/status", "alive"),
    ("GET", "/leader-check", "alive"),
    ("GET", "/hostname", "hostname"),
    ("GET", "/aggregated-metrics", "aggregated_metrics"),
    ("GET", "/metrics-health", "metrics_health"),
    ("GET", "/recent-apps", "recent_apps"),
    ("GET", "/help", "help"),
)


def _by_method(handlers: dict[str, Handler]) -> Handler:
    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return dispatch


def _guarded(handler: Handler) -> Handler:
    """Our own errors as problems. What is not ours is logged, and becomes a 500, further out."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidRequest as error:
            return _problem(error.status, str(error), field=error.field)
        except InvalidSettings as error:
            faults = [str(fault) for fault in error.faults]
            return _problem(422, "these settings are refused; nothing was changed", faults=faults)
        except InvalidName as error:
            return _problem(400, str(error))
        except NoSuchMetric as error:
            return _problem(404, str(error))
        except Conflict as error:
            return _problem(412, str(error))
        except StoreUnavailable as error:
            return _problem(503, f"the store cannot be used; nothing was changed: {error}")

    return guarded


def parse_since(text: str) -> float:
    match = _SINCE.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"since is {text!r}, must read like 30m, 1h or 7d", field="since")
    return float(int(match[1]) * _SECONDS[match[2]])


def _limit(text: str) -> int:
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= 1000:
        raise InvalidRequest(f"limit is {text!r}, must be from 1 to 1000", field="limit")
    return int(text)


def _dry_run(request: Request) -> bool:
    """Read strictly: a misspelt wish for a dry run must not become a change."""
    given = request.query_params.multi_items()
    if any(item not in _DRY_RUN for item in given) or len(given) > 1:
        message = "a change takes the parameter dry_run=true or dry_run=false, and no other"
        raise InvalidRequest(message, field="dry_run")
    return ("dry_run", "true") in given


def _path(request: Request) -> tuple[str, str]:
    return request.path_params["database"], request.path_params["metric"]


async def _object(request: Request) -> dict[str, Any]:
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type not in ("application/json", "application/merge-patch+json"):
        raise InvalidRequest("send the settings as application/json", status=415)
    try:
        body = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be an object of settings")
    return body


def _settings(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _expected(request: Request) -> int | None:
    raw = request.headers.get("if-match")
    if raw is None or raw.strip() == "*":
        return None
    match = _ETAG.fullmatch(raw.strip())
    if match is None:
        raise InvalidRequest(f"If-Match is {raw!r}, must be an ETag this server gave", status=412)
    return int(match[1])


def _etag(revision: int) -> dict[str, str]:
    return {"ETag": f'"{revision}"'}


def _json(doc: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(doc),
        status_code=status,
        media_type="application/json",
        headers={**_SECURITY_HEADERS, **(headers or {})},
    )


def _problem(
    status: int, detail: str, *, field: str | None = None, faults: list[str] | None = None
) -> Response:
    body = problems.problem(status, detail, field=field, faults=faults)
    headers = dict(_SECURITY_HEADERS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(body, status_code=status, media_type=problems.CONTENT_TYPE, headers=headers)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        detail = f"there is nothing at {request.scope['path']}; GET /help lists the routes"
        return _problem(404, detail)
    response = _problem(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def _server_problem(request: Request, error: Exception) -> Response:
    return _problem(500, "this request failed inside the agent; its log says how")
