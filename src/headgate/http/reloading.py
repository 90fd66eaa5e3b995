"""What operators confirm.   POST /v1/reload, /v1/state/acknowledge ──► main.Agent

Follow the settings file, as SIGHUP does, with an answer; where it drops a database or ends like one
that was cut short, this is how an operator says that it is meant. And go on without a state that is
lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from headgate.core.reloading import Confirmed
from headgate.errors import InvalidRequest
from headgate.http.auth import Gatekeeper
from headgate.http.documents import UnderWay, expect_json, json_response
from headgate.http.views import Views
from headgate.wire.questions import DATABASE_SCHEMA
from headgate.wire.status import AcknowledgedDoc, ReloadedDoc

log = structlog.get_logger()
T = TypeVar("T")

Reload = Callable[[Confirmed], Awaitable[Sequence[str]]]
Acknowledge = Callable[[str], Awaitable[Sequence[str]]]
MAX_DROPPED = 1000
_Database = Annotated[str, msgspec.Meta(extra_json_schema=DATABASE_SCHEMA)]


class ReloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drop: Annotated[list[_Database], msgspec.Meta(max_length=MAX_DROPPED)] = []
    """Databases that the file no longer has, on purpose."""
    whole: bool = False
    """The file is whole, though it ends like one that was cut short."""


class AcknowledgeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{}`: there is nothing to say."""


_decode_reload = msgspec.json.Decoder(ReloadBody).decode
_decode_acknowledge = msgspec.json.Decoder(AcknowledgeBody).decode


class Reloading:
    """Handlers, as Control's."""

    def __init__(
        self,
        views: Views,
        gatekeeper: Gatekeeper,
        reload: Reload | None,
        acknowledge: Acknowledge | None,
    ) -> None:
        self._views = views
        self._gatekeeper = gatekeeper
        self._reload = reload
        self._acknowledge = acknowledge
        self._under_way = UnderWay()

    async def reload(self, request: Request) -> Response:
        who = self._operator(request)
        body = await _body(request, _decode_reload)
        if self._reload is None:
            raise InvalidRequest("this agent has no settings file to follow", status=404)
        log.info("settings.reload_asked", who=who, drop=sorted(body.drop), whole=body.whole)
        confirmed = Confirmed(frozenset(body.drop), whole=body.whole)
        waiting = await self._under_way.finish(self._reload(confirmed))
        databases = [plan.name for plan in self._views.parts.book.databases()]
        return json_response(ReloadedDoc(self._views.facts.settings, databases, list(waiting)))

    async def acknowledge(self, request: Request) -> Response:
        who = self._operator(request)
        await _body(request, _decode_acknowledge)
        if self._acknowledge is None:
            raise InvalidRequest("this agent keeps no state", status=404)
        moved = await self._under_way.finish(self._acknowledge(who))
        return json_response(AcknowledgedDoc(list(moved), list(self._views.parts.store.notes)))

    def _operator(self, request: Request) -> str:
        peer = request.state.peer
        return self._gatekeeper.who_changes(peer, request.headers.get("authorization"))


async def _body(request: Request, decode: Callable[[bytes], T]) -> T:
    expect_json(request)
    try:
        return decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body cannot be taken: {error}; nothing was changed") from None


RELOADING_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/v1/reload", "reload"),
    ("POST", "/v1/state/acknowledge", "acknowledge"),
)
