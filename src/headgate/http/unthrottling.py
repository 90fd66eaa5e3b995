"""Clients tell how long they went without an agent.   POST /v1/unthrottled ──► UnthrottledBook

Who may ask may tell: both go by a name that nobody vouches for (R69). So what is told is bounded,
by address and in all, and is no part of the audit.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.unthrottled import Told, UnthrottledBook
from headgate.core.names import parse_database, parse_identity
from headgate.errors import InvalidRequest
from headgate.http.documents import UnderWay, expect_json, json_response, parse_duration
from headgate.http.views import Views
from headgate.wire.unthrottled import TakenDoc, UnthrottledBody, UnthrottledsDoc

_decode = msgspec.json.Decoder(UnthrottledBody).decode


class Unthrottling:
    """Handlers, as Control's."""

    def __init__(self, views: Views, book: UnthrottledBook) -> None:
        self._views = views
        self._book = book
        self._under_way = UnderWay()

    async def report(self, request: Request) -> Response:
        expect_json(request)
        body = _decoded(await request.body())
        client = _client(body.app)
        databases = sorted({parse_database(name) for name in body.databases})
        told = [
            Told(one.id, one.ended_ago_ms / 1000, one.duration_ms / 1000, int(one.pieces))
            for one in body.periods
        ]
        origin = request.state.peer.address
        taken = await self._under_way.finish(
            self._book.take(client, databases, told, origin=origin)
        )
        return json_response(TakenDoc(taken))

    async def periods(self, request: Request) -> Response:
        since_s = parse_duration(request.query_params.get("since", "1h"), "since")
        app = request.query_params.get("app")
        return json_response(UnthrottledsDoc(self._views.unthrottled(self._book, since_s, app)))


def _client(app: str) -> str:
    if not app:
        raise InvalidRequest("app is empty: say who went without a throttler", field="app")
    return parse_identity(app).text


def _decoded(body: bytes) -> UnthrottledBody:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no report: {error}; nothing was kept") from None


UNTHROTTLING_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/v1/unthrottled", "report"),
    ("GET", "/v1/unthrottled", "periods"),
)
