"""Have the agent follow its settings file.   POST /v1/reload ──► main.Agent.reload

As SIGHUP does, with an answer; and where the file drops a database or ends like one that was cut
short, this is how an operator says that it is meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

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
from headgate.wire.status import ReloadedDoc

log = structlog.get_logger()

Reload = Callable[[Confirmed], Awaitable[Sequence[str]]]
MAX_DROPPED = 1000
_Database = Annotated[str, msgspec.Meta(extra_json_schema=DATABASE_SCHEMA)]


class ReloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drop: Annotated[list[_Database], msgspec.Meta(max_length=MAX_DROPPED)] = []
    """Databases that the file no longer has, on purpose."""
    whole: bool = False
    """The file is whole, though it ends like one that was cut short."""


_decode = msgspec.json.Decoder(ReloadBody).decode


class Reloading:
    """Handlers, as Control's."""

    def __init__(self, views: Views, gatekeeper: Gatekeeper, reload: Reload | None) -> None:
        self._views = views
        self._gatekeeper = gatekeeper
        self._reload = reload
        self._under_way = UnderWay()

    async def reload(self, request: Request) -> Response:
        who = self._gatekeeper.who_changes(request.state.peer, request.headers.get("authorization"))
        expect_json(request)
        body = _decoded(await request.body())
        if self._reload is None:
            raise InvalidRequest("this agent has no settings file to follow", status=404)
        log.info("settings.reload_asked", who=who, drop=sorted(body.drop), whole=body.whole)
        confirmed = Confirmed(frozenset(body.drop), whole=body.whole)
        waiting = await self._under_way.finish(self._reload(confirmed))
        databases = [plan.name for plan in self._views.parts.book.databases()]
        return json_response(ReloadedDoc(self._views.facts.settings, databases, list(waiting)))


def _decoded(body: bytes) -> ReloadBody:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body cannot be taken: {error}; nothing was changed") from None


RELOADING_ROUTES: tuple[tuple[str, str, str], ...] = (("POST", "/v1/reload", "reload"),)
