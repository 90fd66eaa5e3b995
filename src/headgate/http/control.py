"""The control plane: looking and changing.   AsgiBridge ──► Starlette ──► views and MetricKeeper"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Served

from headgate.base.declared import settings_schema
from headgate.budgets.keeper import NoSuchBudget
from headgate.budgets.replay_routes import REPLAY_ROUTES, BudgetReplay
from headgate.budgets.routes import (
    BUDGET_ROUTES,
    PUBLISHING_ROUTES,
    Budgeting,
    BudgetLogs,
    Publishing,
)
from headgate.budgets.service import Budgets
from headgate.changes.book import NoSuchItem, StoppedMidway
from headgate.changes.exchange import Exchange
from headgate.changes.model import Change, ChangeKind
from headgate.changes.own import OwnBook
from headgate.changes.routes import CHANGE_ROUTES, EXCHANGE_ROUTES, ChangeRoutes, Exchanging
from headgate.changes.state import ChangeMade
from headgate.check.answers import AnswerDoc, BatchDoc, FrenoDoc
from headgate.check.api import (
    AuditsDoc,
    ClientsDoc,
    HistoryDoc,
    MetricsDoc,
    MetricView,
    ReadyDoc,
    RejectionsDoc,
    RemovedDoc,
    StatusDoc,
    WideMetricDoc,
)
from headgate.check.demand import Demands
from headgate.check.freno import FRENO_LOOKS, Freno
from headgate.check.questions import CheckQuery, CostQuery, ExplainQuery, ReadQuery, about, check_of
from headgate.check.reporting import REPORTING_ROUTES, Intake, Reporting
from headgate.check.streaming import STREAMING_ROUTES, Broadcasts, Snapshots, Streaming
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
from headgate.history.api import PastDoc
from headgate.history.looking import Turns, json_in_thread
from headgate.history.routes import (
    UNTHROTTLING_ROUTES,
    WATCHING_ROUTES,
    SinceQuery,
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
    UnderWay,
    etag,
    json_response,
    problem_response,
    seconds,
)
from headgate.http.exposition import Works, render_in_turns
from headgate.http.reloading import RELOADING_ROUTES, Acknowledge, Reload, Reloading
from headgate.http.routes import (
    Call,
    Caller,
    Plain,
    Reaching,
    Route,
    SettingsBody,
    Text,
    Thousand,
    Verdicts,
    of,
    read_call,
)
from headgate.metrics.routes import END_SETTINGS, FOR_TOLD, MetricReaching
from headgate.metrics.service import MetricKeeper, NoSuchMetric, Proposal
from headgate.metrics.settings import METRIC_SETTINGS
from headgate.page.sessions import PAGE_LINK_ROUTES, PageLinks, PageSessions
from headgate.page.shell import Site
from headgate.page.site import PageSite
from headgate.rules.api import ExplainDoc
from headgate.rules.routes import RULING_ROUTES, Ruling
from headgate.rules.service import NoSuchRule, RuleKeeper
from headgate.rules.settings import ONE_END, parse_kept
from headgate.shard.routes import PEERING_ROUTES, Peering, ShardsPort
from headgate.shard.service import NoSuchMember, NoSuchShard

Handler = Callable[[Request], Awaitable[Response]]


class MetricsQuery(msgspec.Struct, frozen=True):
    database: Annotated[str, about("Only this database.")] | None = None


class NewestQuery(msgspec.Struct, frozen=True):
    limit: Annotated[Thousand, about("At most this many.")] = 100


class RejectionsQuery(NewestQuery, frozen=True):
    app: Annotated[str, about("A client, or a level of its name.")] | None = None


class RemovalQuery(Reaching, frozen=True, rename={"for_": "for"}):
    for_: Annotated[str, about(FOR_TOLD)] | None = None


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
        self.peering = Peering(views, shards=shards, demands=demands)
        shared = None if fleet is None else fleet.book
        self.exchanging = Exchanging(exchange)
        self._reaching = MetricReaching(book, own, shared, exchange)
        self.ruling = Ruling(views, rules, own, shared, exchange)
        logs = BudgetLogs(own, shared, exchange)
        self.budget_replaying = BudgetReplay(budgets, views.parts.clock, logs)
        parts, turns = views.parts, Turns()  # One thread looks back, for all of them.
        self.budgeting = Budgeting(budgets, parts.store, parts.clock, logs, turns)
        self.publishing = Publishing(budgets)
        self.streaming = Streaming(broadcasts or _broadcasts(views), views.parts.clock)
        self.reporting = Reporting(intake or _intake(views))
        book_of_periods = unthrottled or UnthrottledBook(views.parts.store, views.parts.clock)
        self.unthrottling = Unthrottling(views, book_of_periods)
        self.watching = Watching(views, rules, turns)
        self.changing = ChangeRoutes(own, fleet, views.parts.clock, self._replayed)
        self.fleet = FleetRoutes(fleet, views.parts.clock)
        view = None if fleet is None else fleet.view
        self.fleet_viewing = FleetViewing(view, views.parts.clock, agent=views.agent_name)
        self.debugging = Debugging(views, inside or Inside(works=works))
        self.reloading = Reloading(views, reload, acknowledge)
        self.freno = Freno(views)
        self._page = page
        self._shows_fleet = view is not None
        sessions, listens = (None, None) if page is None else (page.sessions, page.listens)
        self.page_links = PageLinks(gatekeeper, sessions, listens)

    def app(self) -> Starlette:
        by_path: dict[str, dict[str, Handler]] = {}
        for route in ROUTES:
            if route.handler:
                by_path.setdefault(route.path, {})[route.method] = serving(
                    route, attrgetter(route.handler)(self), self._gatekeeper
                )
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

    async def status(self, call: Plain) -> Response:
        return json_response(self._views.status())

    async def metrics(self, call: Call[MetricsQuery, None]) -> Response:
        return json_response(self._views.metrics(call.query.database))

    async def metric(self, call: Plain) -> Response:
        view = self._views.metric(call.place("database"), call.place("metric"))
        return json_response(view, headers=etag(view.revision))

    async def explain(self, call: Call[ExplainQuery, None]) -> Response:
        if call.query.at:
            return await self.watching.explain_at(call, call.query.at)
        return json_response(self._views.explain(check_of(call.query)))

    async def clients(self, call: Plain) -> Response:
        return json_response(self._views.clients())

    async def history(self, call: Call[SinceQuery, None]) -> Response:
        async with self.watching.turns.look(call.request):
            found = await self._views.history(seconds(call.query.since), call.query.app)
            return await json_in_thread(lambda: found)

    async def rejections(self, call: Call[RejectionsQuery, None]) -> Response:
        return json_response(self._views.rejections(call.query.limit, call.query.app))

    async def audit(self, call: Call[NewestQuery, None]) -> Response:
        return json_response(await self._views.audit(call.query.limit))

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

    # --- changing --------------------------------------------------------------------------

    async def put_metric(self, call: Call[Reaching, dict[str, Any]]) -> Response:
        return await self._changed(call, "put", call.body)

    async def patch_metric(self, call: Call[Reaching, dict[str, Any]]) -> Response:
        return await self._changed(call, "patch", call.body)

    async def delete_metric(self, call: Call[RemovalQuery, None]) -> Response:
        end = {} if call.query.for_ is None else {"for": call.query.for_}
        return await self._changed(call, "remove", end=end)

    async def revert_metric(self, call: Call[Reaching, None]) -> Response:
        return await self._changed(call, "revert")

    async def _changed(
        self, call: Call[Any, Any], verb: str, *settings: dict[str, Any], **more: Any
    ) -> Response:
        """`verb`: of MetricKeeper, or of WideMetrics where it reaches further."""
        dry_run = call.query.dry_run
        database, metric = call.place("database"), call.place("metric")
        book = await self._reaching.target(call.query.reach, database)
        change = getattr(book, verb)(database, metric, *settings, **call.change, **more)
        made: Proposal | ChangeMade = await self._under_way.finish(change)
        if isinstance(made, ChangeMade):
            doc = self._reaching.doc(database, metric, made)
            if dry_run and (here := self._reaching.first_here(made.items[0])):
                doc = msgspec.structs.replace(doc, replay=await self._views.replayed(*here))
            return json_response(doc, headers=etag(doc.revision))
        if made.entry is None:
            return json_response(self._views.removed(database, metric, made))
        view = self._views.proposed(database, made, dry_run=dry_run)
        if dry_run:
            replay = await self._views.replayed(database, made.entry)
            view = msgspec.structs.replace(view, replay=replay)
        return json_response(view, headers=etag(made.entry.revision))

    async def _replayed(self, item: Change) -> str:
        """What a change that is only tried would have done to the last hour; empty: not known."""
        if item.value is None:
            return ""
        try:
            if item.kind == ChangeKind.RULE:
                return await self.watching.replayed(parse_kept(item.id, item.value, item.n))
            here = self._reaching.first_here(item) if item.kind == ChangeKind.METRIC else None
        except (InvalidSettings, StoreUnavailable):
            return ""  # A preview, and never a condition.
        found = None if here is None else await self._views.replayed(*here)
        return "" if found is None else found.says

    async def help(self, call: Plain) -> Response:
        """As freno does: a list of what can be asked for."""
        return json_response([f"{route.method} {route.path}" for route in ROUTES])


_METRIC = "/v1/databases/{database}/metrics/{metric}"
_FAULTS = "settings with faults, all of which are listed: a setting that this metric or this "
_FAULTS += "engine does not have; a probe that failed"


def _metric_schema() -> dict[str, Any]:
    rows = {**METRIC_SETTINGS, **END_SETTINGS}
    return {**settings_schema(rows, nullable=True), **ONE_END}


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
        "GET", "/v1/status", "status", "The agent and its databases", StatusDoc,
        about="With metrics, recent clients and the store's health.",
    ),
    Route(
        "GET", "/v1/metrics", "metrics", "Metrics with settings and values", MetricsDoc,
        query=MetricsQuery, errors=(404,), example={"database": "main"},
        about="Where they were set, and when a change at run time ends (`expires_at`).",
    ),
    Route("GET", _METRIC, "metric", "A metric", MetricView),
    Route(
        "PUT", _METRIC, "put_metric", "Add or replace a metric", (MetricView, WideMetricDoc),
        role=Caller.OPERATOR, query=Reaching, body=SettingsBody(_metric_schema), rejects=_FAULTS,
        example={"dry_run": "true"}, sends={"threshold": "5s", "for": "2h"},
        about="A change that is looser than the file "
        "[ends after 1 h](../howto/custom-metrics.md#changes-that-end) unless the body says "
        'otherwise: `"for": "2h"` or `"expires_at"`, `"never"` for none.',
    ),
    Route(
        "PATCH", _METRIC, "patch_metric", "Change some settings of a metric",
        (MetricView, WideMetricDoc), role=Caller.OPERATOR, query=Reaching,
        body=SettingsBody(_metric_schema), rejects=_FAULTS, example={"dry_run": "true"},
        sends={"threshold": "6s"},
        about="`null` restores a default. Its end stays, unless the body has a new one.",
    ),
    Route(
        "DELETE", _METRIC, "delete_metric", "Remove a metric",
        (RemovedDoc, WideMetricDoc), role=Caller.OPERATOR, query=RemovalQuery,
        rejects="an invalid end", example={"for": "2h", "dry_run": "true"},
        about="A metric of the settings file comes back after 1 h, or after `for`.",
    ),
    Route(
        "POST", f"{_METRIC}/revert", "revert_metric", "Drop what was changed at run time",
        (MetricView, RemovedDoc, WideMetricDoc), role=Caller.OPERATOR, query=Reaching,
        rejects="a change that can no longer be reverted",
        about="The metric is again as the file sets it, or is gone if the file does not have it.",
    ),
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
    Route(
        "GET", "/v1/explain", "explain", "What the answer to a check would be, and why",
        (ExplainDoc, PastDoc), query=ExplainQuery, errors=(404, 429, 503),
        rejects="an `at` that is not in the past, or comes with more than app and database; only "
        "one of `budget` and `cpu_s`",
        example={"app": "etl:nightly", "database": "main"},
        about="Not counted, and without chance: `odds` is the probability that a ratio rule lets "
        "the check reach the metrics. With `at`: what is known of a past minute.",
    ),
    Route("GET", "/v1/clients", "clients", "Recent clients with their counts", ClientsDoc),
    Route(
        "GET", "/v1/history", "history", "Decisions per minute", HistoryDoc,
        query=SinceQuery, errors=(429, 503), example={"since": "1h"},
    ),
    Route(
        "GET", "/v1/rejections", "rejections", "Recent rejections in full", RejectionsDoc,
        query=RejectionsQuery, example={"limit": "100", "app": "etl"},
        about="Newest first: each metric with value, threshold and age, the rule, the reason. At "
        "most one a second per client, 512 in all; counts in history are exact.",
    ),
    Route(
        "GET", "/v1/audit", "audit", "Who changed what, newest first", AuditsDoc,
        query=NewestQuery, errors=(503,), example={"limit": "100"},
    ),
    Route("GET", "/healthz", "healthz", "200 while the process serves", {"type": "object"}),
    Route(
        "GET", "/readyz", "readyz", "Whether the agent can decide", ReadyDoc,
        about="200 once every database's default metrics have been read, the store is writable and "
        "the state is known, else 503 with the same document. `notes` lists problems that do not "
        "make the agent unready, such as a fleet that does not answer.",
    ),
    Route("GET", "/metrics", "exposition", "Counters and gauges", Text("text/plain")),
    Route("GET", "/openapi.json", "openapi", "These routes, for programs", {"type": "object"}),
    *of("freno", FRENO_LOOKS),
    Route("GET", "/help", "help", ""),
)  # fmt: skip


def description() -> dict[str, Any]:
    """OpenAPI, of what has a description."""
    return openapi.document(tuple(route for route in ROUTES if route.answer is not None))


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


def serving(
    route: Route, handle: Callable[[Call[Any, Any]], Awaitable[Response]], gatekeeper: Gatekeeper
) -> Handler:
    """Our own errors as problems. What is not ours is logged, and becomes a 500, further out."""

    async def serve(request: Request) -> Response:
        try:
            return await handle(await read_call(route, request, gatekeeper))
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
