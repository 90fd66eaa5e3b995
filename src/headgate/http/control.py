"""The control plane: looking and changing.   AsgiBridge ──► Starlette ──► views and MetricKeeper"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.agent.budgets import Budgets
from headgate.agent.changebook import NoSuchItem, OwnBook, StoppedMidway
from headgate.agent.demand import Demands
from headgate.agent.exchange import Exchange
from headgate.agent.intake import Intake
from headgate.agent.metrickeeper import MetricKeeper, NoSuchMetric, Proposal
from headgate.agent.policykeeper import NoSuchBudget
from headgate.agent.rulekeeper import NoSuchRule, RuleKeeper
from headgate.agent.shards import NoSuchMember, NoSuchShard
from headgate.agent.snapshots import Snapshots
from headgate.agent.unthrottled import UnthrottledBook
from headgate.core.change_log import ChangeMade
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
from headgate.http import openapi
from headgate.http.asgi import AsgiApp
from headgate.http.auth import Gatekeeper
from headgate.http.budget_replay import REPLAY_ROUTES, BudgetReplay
from headgate.http.budgets import BUDGET_ROUTES, Budgeting
from headgate.http.changes import etag, expected_revision, is_dry_run
from headgate.http.changes_routes import CHANGE_ROUTES, ChangeRoutes
from headgate.http.debugging import DEBUG_ROUTES, Debugging, Inside
from headgate.http.documents import (
    SECURITY_HEADERS,
    UnderWay,
    json_object,
    json_response,
    parse_duration,
    problem_response,
)
from headgate.http.exchange import EXCHANGE_ROUTES, Exchanging
from headgate.http.exposition import Works, render_in_turns
from headgate.http.fleet import FLEET_ROUTES, Fleet, FleetRoutes
from headgate.http.fleet_page import FLEET_VIEW_ROUTES, FleetViewing
from headgate.http.freno import FRENO_LOOKS, Freno
from headgate.http.looking import Turns, json_in_thread
from headgate.http.metric_reaching import REACH, MetricReaching
from headgate.http.page.linking import PAGE_LINK_ROUTES, PageLinks
from headgate.http.page.sessions import Sessions
from headgate.http.page.shell import Site
from headgate.http.page.site import PageSite
from headgate.http.peering import PEERING_ROUTES, Peering, ShardsPort
from headgate.http.publishing import PUBLISHING_ROUTES, Publishing
from headgate.http.reloading import RELOADING_ROUTES, Acknowledge, Reload, Reloading
from headgate.http.reporting import REPORTING_ROUTES, Reporting
from headgate.http.ruling import RULING_ROUTES, Ruling
from headgate.http.streaming import STREAMING_ROUTES, Broadcasts, Streaming
from headgate.http.unthrottling import UNTHROTTLING_ROUTES, Unthrottling
from headgate.http.views import Views
from headgate.http.watching import WATCHING_ROUTES, Watching
from headgate.wire.questions import parse_check_query

Handler = Callable[[Request], Awaitable[Response]]
_LIMIT = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class PageGiven:
    """What the page needs besides the API."""

    sessions: Sessions
    secure: bool = False
    """The listener speaks TLS."""
    tour: str | None = None
    listens: str | None = None
    """Where: `http://127.0.0.1:8087`; None: on the Unix socket alone."""
    names: frozenset[str] = frozenset()
    """What it may be called, besides its address and `localhost`; lower case."""


class Control:
    """Handlers by route. Each takes a request and returns a document."""

    def __init__(
        self,
        views: Views,
        book: MetricKeeper,
        gatekeeper: Gatekeeper,
        *,
        shards: ShardsPort | None = None,
        demands: Demands | None = None,
        rules: RuleKeeper | None = None,
        own: OwnBook | None = None,
        exchange: Exchange | None = None,
        broadcasts: Broadcasts | None = None,
        intake: Intake | None = None,
        unthrottled: UnthrottledBook | None = None,
        budgets: Budgets | None = None,
        fleet: Fleet | None = None,
        page: PageGiven | None = None,
        works: Works | None = None,
        inside: Inside | None = None,
        reload: Reload | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> None:
        self._views = views
        self._works = works
        self._book = book
        self._gatekeeper = gatekeeper
        self._under_way = UnderWay()
        self.peering = Peering(views, gatekeeper, shards=shards, demands=demands)
        fleet_book = None if fleet is None else fleet.book
        self.exchanging = Exchanging(exchange, gatekeeper)
        self._reaching = MetricReaching(book, own, fleet_book, exchange)
        self.ruling = Ruling(views, gatekeeper, rules, own, fleet_book, exchange)
        self.budget_replaying = BudgetReplay(budgets, views.parts.clock)
        parts, turns = views.parts, Turns()  # One thread looks back, for all of them.
        self.budgeting = Budgeting(budgets, parts.store, parts.clock, gatekeeper, fleet_book, turns)
        self.publishing = Publishing(budgets)
        self.streaming = Streaming(broadcasts or _broadcasts(views), views.parts.clock)
        self.reporting = Reporting(intake or _intake(views))
        book_of_periods = unthrottled or UnthrottledBook(views.parts.store, views.parts.clock)
        self.unthrottling = Unthrottling(views, book_of_periods)
        self.watching = Watching(views, rules, turns)
        self.changing = ChangeRoutes(own, fleet, views.parts.clock, gatekeeper)
        self.fleet = FleetRoutes(fleet, views.parts.clock, gatekeeper)
        view = None if fleet is None else fleet.view
        self.fleet_viewing = FleetViewing(view, views.parts.clock, agent=views.agent_name)
        self.debugging = Debugging(views, gatekeeper, inside or Inside(works=works))
        self.reloading = Reloading(views, gatekeeper, reload, acknowledge)
        self.freno = Freno(views)
        self._page = page
        self._shows_fleet = view is not None
        sessions, listens = (None, None) if page is None else (page.sessions, page.listens)
        self.page_links = PageLinks(gatekeeper, sessions, listens)

    def app(self) -> Starlette:
        by_path: dict[str, dict[str, Handler]] = {}
        for method, path, name in ROUTES:
            by_path.setdefault(path, {})[method] = _guarded(attrgetter(name)(self))
        routes = [
            Route(path, _by_method(handlers), methods=list(handlers))
            for path, handlers in by_path.items()
        ]
        app = Starlette(
            routes=[*routes, *self._page_routes(lambda: app)],
            exception_handlers={HTTPException: _http_problem, Exception: _server_problem},
        )
        app.router.redirect_slashes = False  # A redirect would repeat whatever Host was sent.
        return app

    def _page_routes(self, app: Callable[[], AsgiApp]) -> list[Route]:
        given, facts = self._page, self._views.facts
        if given is None:
            return []
        site = Site(
            agent=facts.name,
            version=facts.version,
            has_fleet=self._shows_fleet,
            has_operators=self._gatekeeper.has_operators,
            tour=given.tour,
        )
        return PageSite(
            self._gatekeeper,
            given.sessions,
            site,
            given.secure,
            app,
            self._views.parts.clock,
            given.names | {"localhost"},
        ).routes()

    # --- looking ---------------------------------------------------------------------------

    async def status(self, request: Request) -> Response:
        return json_response(self._views.status())

    async def metrics(self, request: Request) -> Response:
        return json_response(self._views.metrics(request.query_params.get("database")))

    async def metric(self, request: Request) -> Response:
        database, metric = _path(request)
        view = self._views.metric(database, metric)
        return json_response(view, headers=etag(view.revision))

    async def explain(self, request: Request) -> Response:
        if "at" in request.query_params:
            return await self.watching.explain_at(request)
        check, _ = parse_check_query(request.scope["query_string"].decode("latin-1"))
        return json_response(self._views.explain(check))

    async def clients(self, request: Request) -> Response:
        return json_response(self._views.clients())

    async def history(self, request: Request) -> Response:
        since_s = parse_duration(request.query_params.get("since", "1h"), "since")
        async with self.watching.turns.look(request):
            found = await self._views.history(since_s, request.query_params.get("app"))
            return await json_in_thread(lambda: found)

    async def refusals(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", "100"))
        return json_response(self._views.refusals(limit, request.query_params.get("app")))

    async def audit(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", "100"))
        return json_response(await self._views.audit(limit))

    async def healthz(self, request: Request) -> Response:
        return json_response({"serving": True})

    async def readyz(self, request: Request) -> Response:
        doc = self._views.ready()
        return json_response(doc, status=200 if doc.ready else 503)

    async def exposition(self, request: Request) -> Response:
        text, content_type = await render_in_turns(self._views, self._works)
        return Response(text, media_type=content_type, headers=SECURITY_HEADERS)

    async def openapi(self, request: Request) -> Response:
        return json_response(openapi.document())

    # --- changing --------------------------------------------------------------------------

    async def put_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        body = await json_object(request)
        return await self._changed(
            request, lambda book, **kw: book.put(database, metric, body, **kw)
        )

    async def patch_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        body = await json_object(request)
        return await self._changed(
            request, lambda book, **kw: book.patch(database, metric, body, **kw)
        )

    async def delete_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        end = {"for": request.query_params["for"]} if "for" in request.query_params else {}
        return await self._changed(
            request, lambda book, **kw: book.remove(database, metric, end=end, **kw), "for"
        )

    async def revert_metric(self, request: Request) -> Response:
        database, metric = _path(request)
        return await self._changed(request, lambda book, **kw: book.revert(database, metric, **kw))

    async def _changed(
        self,
        request: Request,
        change: Callable[..., Awaitable[Proposal | ChangeMade]],
        *others: str,
    ) -> Response:
        """`others`: parameters that it takes besides dry_run and reach."""
        peer = request.state.peer
        who = self._gatekeeper.who_changes(peer, request.headers.get("authorization"))
        dry_run = is_dry_run(request, REACH, *others)
        database, metric = _path(request)
        book = await self._reaching.target(request, database)
        made = await self._under_way.finish(
            change(book, who=who, expect=expected_revision(request), dry_run=dry_run)
        )
        if isinstance(made, ChangeMade):
            doc = self._reaching.doc(database, metric, made)
            return json_response(doc, headers=etag(doc.revision))
        if made.entry is None:
            return json_response(self._views.removed(database, metric, made))
        view = self._views.proposed(database, made, dry_run=dry_run)
        if dry_run:
            replay = await self._views.replayed(database, made.entry)
            view = msgspec.structs.replace(view, replay=replay)
        return json_response(view, headers=etag(made.entry.revision))

    async def help(self, request: Request) -> Response:
        """As freno does: a list of what can be asked for."""
        return json_response([f"{method} {path}" for method, path in (*CHECKS, *_ROUTES_TOLD)])


_METRIC = "/v1/databases/{database}/metrics/{metric}"
ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", "/v1/status", "status"),
    ("GET", "/v1/metrics", "metrics"),
    ("GET", _METRIC, "metric"),
    ("PUT", _METRIC, "put_metric"),
    ("PATCH", _METRIC, "patch_metric"),
    ("DELETE", _METRIC, "delete_metric"),
    ("POST", f"{_METRIC}/revert", "revert_metric"),
    *((method, path, f"peering.{name}") for method, path, name in PEERING_ROUTES),
    *((method, path, f"exchanging.{name}") for method, path, name in EXCHANGE_ROUTES),
    *((method, path, f"ruling.{name}") for method, path, name in RULING_ROUTES),
    *((method, path, f"budget_replaying.{name}") for method, path, name in REPLAY_ROUTES),
    *((method, path, f"budgeting.{name}") for method, path, name in BUDGET_ROUTES),
    *((method, path, f"publishing.{name}") for method, path, name in PUBLISHING_ROUTES),
    *((method, path, f"streaming.{name}") for method, path, name in STREAMING_ROUTES),
    *((method, path, f"reporting.{name}") for method, path, name in REPORTING_ROUTES),
    *((method, path, f"unthrottling.{name}") for method, path, name in UNTHROTTLING_ROUTES),
    *((method, path, f"watching.{name}") for method, path, name in WATCHING_ROUTES),
    *((method, path, f"fleet_viewing.{name}") for method, path, name in FLEET_VIEW_ROUTES),
    *((method, path, f"changing.{name}") for method, path, name in CHANGE_ROUTES),
    *((method, path, f"fleet.{name}") for method, path, name in FLEET_ROUTES),
    *((method, path, f"page_links.{name}") for method, path, name in PAGE_LINK_ROUTES),
    *((method, path, f"debugging.{name}") for method, path, name in DEBUG_ROUTES),
    *((method, path, f"reloading.{name}") for method, path, name in RELOADING_ROUTES),
    ("GET", "/v1/explain", "explain"),
    ("GET", "/v1/clients", "clients"),
    ("GET", "/v1/history", "history"),
    ("GET", "/v1/refusals", "refusals"),
    ("GET", "/v1/audit", "audit"),
    ("GET", "/healthz", "healthz"),
    ("GET", "/readyz", "readyz"),
    ("GET", "/metrics", "exposition"),
    ("GET", "/openapi.json", "openapi"),
    *((method, path, f"freno.{name}") for method, path, name in FRENO_LOOKS),
    ("GET", "/help", "help"),
)
CHECKS: tuple[tuple[str, str], ...] = (
    ("GET", "/v1/check"),
    ("POST", "/v1/check"),
    ("GET", "/v1/check-read"),
    ("GET", "/check/{app}/{type}/{database}"),
    ("GET", "/check-if-exists/{app}/{type}/{database}"),
    ("GET", "/check-read/{app}/{type}/{database}/{threshold}"),
    ("GET", "/check-read-if-exists/{app}/{type}/{database}/{threshold}"),
)
"""Which the listener answers before anything comes here."""
_ROUTES_TOLD = tuple((method, path) for method, path, _ in ROUTES)


def _broadcasts(views: Views) -> Broadcasts:
    parts = views.parts
    return Broadcasts(Snapshots(parts.board, parts.checker, parts.demands), parts.clock)


def _intake(views: Views) -> Intake:
    parts = views.parts
    return Intake(parts.recorder, parts.board, parts.clock, parts.demands)


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
            return problem_response(
                error.status, str(error), field=error.field, retry_after_s=error.retry_after_s
            )
        except InvalidSettings as error:
            faults = [str(fault) for fault in error.faults]
            return problem_response(
                422, "these settings are refused; nothing was changed", faults=faults
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
            return problem_response(503, f"the store cannot be used{unchanged}: {error}")

    return guarded


_LOOKING = frozenset({"GET", "HEAD"})
_NOT_FOUND = (NoSuchMetric, NoSuchMember, NoSuchShard, NoSuchRule, NoSuchBudget, NoSuchItem)
_LOOK_FIRST = (
    "it may have been changed, or not: look first (`headgate changes history`; of the fleet's log "
    "with --fleet), and ask again then"
)


def _limit(text: str) -> int:
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= 1000:
        raise InvalidRequest(f"limit is {text!r}, must be from 1 to 1000", field="limit")
    return int(text)


def _path(request: Request) -> tuple[str, str]:
    return request.path_params["database"], request.path_params["metric"]


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        detail = f"there is nothing at {request.scope['path']}; GET /help lists the routes"
        return problem_response(404, detail)
    response = problem_response(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def _server_problem(request: Request, error: Exception) -> Response:
    return problem_response(500, "this request failed inside the agent; its log says how")
