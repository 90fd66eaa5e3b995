"""The control plane: all routes, and who handles each.   AsgiBridge ──► Control ──► a room"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Served

from headgate.budgets.keeper import NoSuchBudget
from headgate.budgets.replay_routes import REPLAY_ROUTES, BudgetReplay
from headgate.budgets.routes import (
    BUDGET_ROUTES,
    PUBLISHING_ROUTES,
    Budgeting,
    Publishing,
)
from headgate.changes.book import NoSuchItem, StoppedMidway
from headgate.changes.exchange import Exchange
from headgate.changes.logs import ChangeLogs
from headgate.changes.model import Change, ChangeKind
from headgate.changes.own import OwnBook
from headgate.changes.routes import CHANGE_ROUTES, EXCHANGE_ROUTES, ChangeRoutes, Exchanging
from headgate.changes.state import is_taken_out
from headgate.check.answer_api import AnswerDoc, BatchDoc, FrenoDoc
from headgate.check.api import (
    ReadyDoc,
    StatusDoc,
)
from headgate.check.client_routes import CLIENT_ROUTES, ClientRoutes
from headgate.check.demand import Demands
from headgate.check.freno import FRENO_LOOKS, Freno
from headgate.check.metric_routes import METRIC_ROUTES, MetricRoutes
from headgate.check.questions import CheckQuery, CostQuery, ReadQuery
from headgate.check.reporting import REPORTING_ROUTES, Reporting
from headgate.check.streaming import STREAMING_ROUTES, Streaming
from headgate.check.views import Views
from headgate.errors import (
    Compacted,
    Conflict,
    InvalidName,
    InvalidRequest,
    InvalidSettings,
    OutcomeUnknown,
    StoreUnavailable,
    WrongShard,
)
from headgate.fleet.routes import FLEET_ROUTES, FLEET_VIEW_ROUTES, Fleet, FleetRoutes, FleetViewing
from headgate.history.looking import Turns, json_in_thread
from headgate.history.routes import (
    UNTHROTTLING_ROUTES,
    WATCHING_ROUTES,
    Unthrottling,
    Watching,
)
from headgate.history.unthrottled import UnthrottledBook
from headgate.http import openapi
from headgate.http.asgi import AsgiApp
from headgate.http.auth import Gatekeeper
from headgate.http.debugging import DEBUG_ROUTES, Debugging, Inside
from headgate.http.documents import (
    SECURITY_HEADERS,
    json_response,
    problem_response,
)
from headgate.http.exposition import Works, render_in_turns
from headgate.http.reloading import RELOADING_ROUTES, Acknowledge, Reload, Reloading
from headgate.http.routes import (
    Call,
    Plain,
    Route,
    SettingsBody,
    Text,
    Verdicts,
    of,
    read_call,
)
from headgate.metrics.routes import MetricReaching
from headgate.metrics.service import NoSuchMetric
from headgate.page.sessions import PAGE_LINK_ROUTES, PageLinks, PageSessions
from headgate.page.shell import Site
from headgate.page.site import PageSite
from headgate.rules.routes import RULING_ROUTES, Ruling
from headgate.rules.service import NoSuchRule, RuleKeeper
from headgate.rules.settings import parse_kept
from headgate.shard.keeper import NoSuchMember, NoSuchShard
from headgate.shard.routes import PEERING_ROUTES, Peering, ShardsPort

log = structlog.get_logger()

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PageGiven:
    """What the page needs besides the API."""

    sessions: PageSessions
    secure: bool = False
    """The listener speaks TLS."""
    tour: str | None = None
    listens: str | None = None
    """Address: `http://127.0.0.1:8087`; None: on the Unix socket alone."""
    names: frozenset[str] = frozenset()
    """Its names, besides its address and `localhost`; lower case."""


@dataclass(frozen=True, slots=True)
class ControlParts:
    """What the handlers of the rooms are bound to."""

    views: Views
    gatekeeper: Gatekeeper
    shards: ShardsPort | None = None
    demands: Demands | None = None
    rules: RuleKeeper | None = None
    own: OwnBook | None = None
    exchange: Exchange | None = None
    fleet: Fleet | None = None
    page: PageGiven | None = None
    inside: Inside = field(default_factory=Inside)
    reload: Reload | None = None
    acknowledge: Acknowledge | None = None


class Control:
    """Routes each request to its room's handler, if its sender has the role for it."""

    def __init__(self, given: ControlParts) -> None:
        self._given = given
        self._handlers = handlers_of(given)

    def handler(self, route: Route) -> Callable[[Call[Any, Any]], Awaitable[Response]]:
        room, _, name = route.handler.partition(".")
        found: Callable[[Call[Any, Any]], Awaitable[Response]] = getattr(self._handlers[room], name)
        return found

    def app(self) -> Starlette:
        by_path: dict[str, dict[str, Handler]] = {}
        for route in ROUTES:
            if route.handler:
                serve = serving(route, self.handler(route), self._given.gatekeeper)
                by_path.setdefault(route.path, {})[route.method] = serve
        routes = [
            Served(path, _by_method(handlers), methods=list(handlers))
            for path, handlers in by_path.items()
        ]
        app = Starlette(
            routes=[*routes, *self._page_routes(lambda: app)],
            exception_handlers={HTTPException: _http_problem, Exception: _server_problem},
        )
        app.router.redirect_slashes = False  # A redirect would repeat whatever Host was sent.
        return app

    def _page_routes(self, app: Callable[[], AsgiApp]) -> list[Served]:
        given, page, views = self._given, self._given.page, self._given.views
        if page is None:
            return []
        site = Site(
            agent=views.facts.name,
            version=views.facts.version,
            has_fleet=given.fleet is not None and given.fleet.view is not None,
            has_operators=given.gatekeeper.has_operators,
            tour=page.tour,
        )
        names, clock = page.names | {"localhost"}, views.parts.clock
        return PageSite(
            given.gatekeeper, page.sessions, site, page.secure, app, clock, names
        ).routes()


def handlers_of(given: ControlParts) -> Mapping[str, object]:
    """By the names that ROUTES has for them."""
    views, own, exchange, fleet = given.views, given.own, given.exchange, given.fleet
    parts, turns = views.parts, Turns()  # One thread looks back, for all of them.
    clock, budgets, page = parts.clock, parts.budgets, given.page
    shared, view = (None, None) if fleet is None else (fleet.book, fleet.view)
    logs = ChangeLogs(own, shared, exchange)
    watching = Watching(views, given.rules, turns)
    metrics = MetricRoutes(views, MetricReaching(parts.book, logs))
    periods = parts.watchers.unthrottled or UnthrottledBook(parts.store, clock)
    sessions, listens = (None, None) if page is None else (page.sessions, page.listens)
    return {
        "agent": AgentRoutes(views, given.inside.works),
        "metrics": metrics,
        "peering": Peering(views, shards=given.shards, demands=given.demands),
        "exchanging": Exchanging(exchange),
        "ruling": Ruling(views, given.rules, logs),
        "budget_replaying": BudgetReplay(budgets, clock, logs),
        "budgeting": Budgeting(budgets, parts.store, clock, logs, turns),
        "publishing": Publishing(budgets),
        "streaming": Streaming(parts.local.broadcasts, clock),
        "reporting": Reporting(parts.local.intake),
        "unthrottling": Unthrottling(views, periods),
        "watching": watching,
        "fleet_viewing": FleetViewing(view, clock, agent=views.facts.name),
        "changing": ChangeRoutes(own, fleet, clock, partial(_replayed, watching, metrics)),
        "fleet": FleetRoutes(fleet, clock),
        "page_links": PageLinks(given.gatekeeper, sessions, listens),
        "debugging": Debugging(views, given.inside),
        "reloading": Reloading(views, given.reload, given.acknowledge),
        "clients": ClientRoutes(views, watching),
        "freno": Freno(views),
    }


async def _replayed(watching: Watching, metrics: MetricRoutes, item: Change) -> str:
    """What a change that is only tried would have done to the last hour; empty: not known."""
    try:
        if item.kind == ChangeKind.RULE:
            spec = None if is_taken_out(item) else parse_kept(item.id, item.value, item.n)
            return "" if spec is None else await watching.replayed(spec)
        found = await metrics.replayed_here(item) if item.kind == ChangeKind.METRIC else None
    except (InvalidSettings, StoreUnavailable):
        return ""  # A preview, and never a condition.
    return "" if found is None else found.says


class AgentRoutes:
    """The agent itself: its status, whether it is ready, and what it serves."""

    def __init__(self, views: Views, works: Works | None) -> None:
        self._views = views
        self._works = works

    async def status(self, call: Plain) -> Response:
        return json_response(self._views.status())

    async def healthz(self, call: Plain) -> Response:
        return json_response({"serving": True})

    async def readyz(self, call: Plain) -> Response:
        doc = self._views.ready()
        return json_response(doc, status=200 if doc.ready else 503)

    async def exposition(self, call: Plain) -> Response:
        text, content_type = await render_in_turns(self._views, self._works)
        return Response(text, media_type=content_type, headers=SECURITY_HEADERS)

    async def openapi(self, call: Plain) -> Response:
        return await json_in_thread(description)

    async def help(self, call: Plain) -> Response:
        """As freno does: a list of what can be asked for."""
        return json_response([f"{route.method} {route.path}" for route in ROUTES])


_FRENO = "{app}/{type}/{database}"
_NATIVE = Verdicts((AnswerDoc, BatchDoc))
ROUTES: tuple[Route, ...] = (
    Route(
        "GET", "/v1/check", "", "Check whether work may start now", Verdicts((AnswerDoc,)),
        query=CheckQuery, example={"app": "etl:nightly", "database": "main"},
        rejects="only one of `budget` and `cpu_s`: they go together",
        about="`HEAD` answers with the status alone.",
    ),
    Route(
        "POST", "/v1/check", "", "Check once, or several databases at once", _NATIVE,
        body=SettingsBody(openapi.check_schema),
        sends={"app": "etl:nightly", "checks": [{"database": "main"}, {"database": "other"}]},
    ),
    Route(
        "GET", "/v1/check-read", "", "Check before a read, against the caller's own threshold",
        Verdicts((AnswerDoc,)), query=ReadQuery,
        example={"app": "web", "database": "main", "threshold": "2.5"},
        about="Never a permission to write.",
    ),
    *(
        Route(
            "GET", f"/{name}/{_FRENO}", "", f"freno's check{told}", Verdicts((FrenoDoc,)),
            query=CostQuery, about="`HEAD` too; also under `/freno/`.",
        )
        for name, told in (
            ("check", ""), ("check-if-exists", ", where an unknown database answers 200"),
        )
    ),
    *(
        Route(
            "GET", f"/{name}/{_FRENO}/{{threshold}}", "", f"freno's read check{told}",
            Verdicts((FrenoDoc,)), about="On the metric `lag`.",
        )
        for name, told in (
            ("check-read", ""), ("check-read-if-exists", ", where an unknown database answers 200"),
        )
    ),
    Route(
        "GET", "/v1/status", "agent.status", "The agent and its databases", StatusDoc,
        about="With metrics, recent clients and the store's health.",
    ),
    *of("metrics", METRIC_ROUTES),
    *of("peering", PEERING_ROUTES),
    *of("exchanging", EXCHANGE_ROUTES),
    *of("ruling", RULING_ROUTES),
    *of("budget_replaying", REPLAY_ROUTES),
    *of("budgeting", BUDGET_ROUTES),
    *of("publishing", PUBLISHING_ROUTES),
    *of("streaming", STREAMING_ROUTES),
    *of("reporting", REPORTING_ROUTES),
    *of("unthrottling", UNTHROTTLING_ROUTES),
    *of("watching", WATCHING_ROUTES),
    *of("fleet_viewing", FLEET_VIEW_ROUTES),
    *of("changing", CHANGE_ROUTES),
    *of("fleet", FLEET_ROUTES),
    *of("page_links", PAGE_LINK_ROUTES),
    *of("debugging", DEBUG_ROUTES),
    *of("reloading", RELOADING_ROUTES),
    *of("clients", CLIENT_ROUTES),
    Route("GET", "/healthz", "agent.healthz", "200 while the process serves", {"type": "object"}),
    Route(
        "GET", "/readyz", "agent.readyz", "Whether the agent can decide", ReadyDoc,
        about="200 once every database's default metrics have been read, the store is writable and "
        "the state is known, else 503 with the same document. `notes` lists problems that do not "
        "make the agent unready, such as a fleet that does not answer.",
    ),
    Route("GET", "/metrics", "agent.exposition", "Counters and gauges", Text("text/plain")),
    Route(
        "GET", "/openapi.json", "agent.openapi", "These routes, for programs", {"type": "object"},
    ),
    *of("freno", FRENO_LOOKS),
    Route("GET", "/help", "agent.help", ""),
)  # fmt: skip


def description() -> dict[str, Any]:
    """OpenAPI, of what has a description."""
    return openapi.document(tuple(route for route in ROUTES if route.answer is not None))


def _by_method(handlers: dict[str, Handler]) -> Handler:
    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return dispatch


def serving(
    route: Route, handle: Callable[[Call[Any, Any]], Awaitable[Response]], gatekeeper: Gatekeeper
) -> Handler:
    """Our own errors as problems. What is not ours is logged, and becomes a 500, further out."""
    under_way = UnderWay()

    async def serve(request: Request) -> Response:
        try:
            call = await read_call(route, request, gatekeeper)
            return await (under_way.finish(handle(call)) if route.is_finished else handle(call))
        except InvalidRequest as error:
            return problem_response(
                error.status, str(error), field=error.field, retry_after_s=error.retry_after_s
            )
        except InvalidSettings as error:
            faults = [str(fault) for fault in error.faults]
            return problem_response(
                422, "these settings are not valid; nothing was changed", faults=faults
            )
        except InvalidName as error:
            return problem_response(400, str(error))
        except _NOT_FOUND as error:
            return problem_response(404, str(error))
        except WrongShard as error:
            return problem_response(409, str(error))
        except Conflict as error:
            return problem_response(412, str(error))
        except Compacted as error:
            return problem_response(410, str(error))
        except OutcomeUnknown as error:
            return problem_response(503, f"{error}; {_LOOK_FIRST}")
        except StoppedMidway as error:
            return problem_response(503, str(error))
        except StoreUnavailable as error:
            unchanged = "" if request.method in _LOOKING else "; nothing was changed"
            return problem_response(503, f"the store is unavailable{unchanged}: {error}")

    return serve


class UnderWay:
    """Requests that are completed even if their client disconnects (Route.is_finished). Then nobody
    gets the answer, so it is logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    async def finish(self, change: Awaitable[Response]) -> Response:
        task = asyncio.ensure_future(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_unheard)
            raise


def _log_unheard(change: asyncio.Future[Any]) -> None:
    if change.cancelled():
        log.error("change.cut_off", detail="the agent stopped before it was made")
    elif error := change.exception():
        log.error("change.failed_unheard", detail=str(error), kind=type(error).__name__)
    else:
        log.info("change.made_unheard", detail="the client that made it has disconnected")


_LOOKING = frozenset({"GET", "HEAD"})
_NOT_FOUND = (NoSuchMetric, NoSuchMember, NoSuchShard, NoSuchRule, NoSuchBudget, NoSuchItem)
_LOOK_FIRST = (
    "the change may or may not have been made: look at `headgate changes history` (--fleet for the "
    "fleet's log) before you try again"
)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        detail = f"there is nothing at {request.scope['path']}; GET /help lists the routes"
        return problem_response(404, detail)
    response = problem_response(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def _server_problem(request: Request, error: Exception) -> Response:
    return problem_response(500, "this request failed inside the agent; see the agent's log")
