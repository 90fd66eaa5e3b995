"""Clients report how long they worked without an agent.   POST /v1/unthrottled ──► UnthrottledBook

A client that may check may report: both use a name that is not verified. So reports are limited,
by address and in all, and are no part of the audit.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.responses import Response

from headgate.base.names import parse_database, parse_identity
from headgate.check.questions import Span, about
from headgate.check.views import Views
from headgate.errors import InvalidRequest
from headgate.history.unthrottled import ReportedPeriod, UnthrottledBook
from headgate.history.unthrottled_api import TakenDoc, UnthrottledBody, UnthrottledsDoc
from headgate.http.documents import UnderWay, json_response, seconds
from headgate.http.routes import Call, Route


class SinceQuery(msgspec.Struct, frozen=True):
    since: Annotated[Span, about("How long ago it begins.")] = "1h"
    app: Annotated[str, about("A client, or a level of its name.")] | None = None


class Unthrottling:
    """Handlers, as Control's."""

    def __init__(self, views: Views, book: UnthrottledBook) -> None:
        self._views = views
        self._book = book
        self._under_way = UnderWay()

    async def report(self, call: Call[None, UnthrottledBody]) -> Response:
        body = call.body
        if not body.app:
            raise InvalidRequest("app is empty: give the client's name", field="app")
        databases = sorted({parse_database(name) for name in body.databases})
        told = [
            ReportedPeriod(one.id, one.ended_ago_ms / 1000, one.duration_ms / 1000, int(one.pieces))
            for one in body.periods
        ]
        origin, client = call.request.state.peer.address, parse_identity(body.app).text
        taken = await self._under_way.finish(
            self._book.take(client, databases, told, origin=origin)
        )
        return json_response(TakenDoc(taken))

    async def periods(self, call: Call[SinceQuery, None]) -> Response:
        since_s, app = seconds(call.query.since), call.query.app
        return json_response(UnthrottledsDoc(self._views.unthrottled(self._book, since_s, app)))


UNTHROTTLING_ROUTES = (
    Route(
        "POST", "/v1/unthrottled", "report", "Report work without a throttler", TakenDoc,
        body=UnthrottledBody, errors=(429, 503),
        sends={
            "app": "etl:nightly", "databases": ["main"],
            "periods": [
                {"id": "0" * 32, "ended_ago_ms": 1200, "duration_ms": 53000, "pieces": 421}
            ],
        },
        about="At most 100 periods. An `id` that was reported before counts once. 429 with "
        "`Retry-After` beyond 5 reports a second of one address, or 10 of all; 503 while the store "
        "is unavailable: report again later.",
    ),
    Route(
        "GET", "/v1/unthrottled", "periods", "Work without a throttler, by client", UnthrottledsDoc,
        query=SinceQuery, example={"since": "1h"},
        about="From when, for how long, and how many pieces of work the client started, as the "
        "clients reported. Also in `/v1/history` and, for the last hour, in the advice of "
        "`/v1/status`.",
    ),
)  # fmt: skip
