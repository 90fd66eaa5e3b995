"""What operators confirm.   POST /v1/reload, /v1/state/acknowledge ──► main.Agent

Follow the settings file, as SIGHUP does, with an answer; where it drops a database or ends like one
that was cut short, this is how an operator says that it is meant. And go on without a state that is
lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
import structlog
from starlette.responses import Response

from headgate.base.reloading import Confirmed
from headgate.check.api import AcknowledgedDoc, ReloadedDoc
from headgate.check.questions import Database
from headgate.check.views import Views
from headgate.errors import InvalidRequest
from headgate.http.documents import UnderWay, json_response
from headgate.http.routes import Call, Caller, Route

log = structlog.get_logger()

Reload = Callable[[Confirmed], Awaitable[Sequence[str]]]
Acknowledge = Callable[[str], Awaitable[Sequence[str]]]
MAX_DROPPED = 1000


class ReloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drop: Annotated[list[Database], msgspec.Meta(max_length=MAX_DROPPED)] = []
    """Databases that were removed from the file on purpose."""
    whole: bool = False
    """The file is complete, although it ends like one that was cut short."""


class AcknowledgeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{}`: there is nothing to say."""


class Reloading:
    """Handlers, as Control's."""

    def __init__(
        self, views: Views, reload: Reload | None, acknowledge: Acknowledge | None
    ) -> None:
        self._views = views
        self._reload = reload
        self._acknowledge = acknowledge
        self._under_way = UnderWay()

    async def reload(self, call: Call[None, ReloadBody]) -> Response:
        body = call.body
        if self._reload is None:
            raise InvalidRequest("this agent has no settings file", status=404)
        log.info("settings.reload_asked", who=call.who, drop=sorted(body.drop), whole=body.whole)
        confirmed = Confirmed(frozenset(body.drop), whole=body.whole)
        waiting = await self._under_way.finish(self._reload(confirmed))
        databases = [plan.name for plan in self._views.parts.book.databases()]
        return json_response(ReloadedDoc(self._views.facts.settings, databases, list(waiting)))

    async def acknowledge(self, call: Call[None, AcknowledgeBody]) -> Response:
        if self._acknowledge is None:
            raise InvalidRequest("this agent has no state file", status=404)
        moved = await self._under_way.finish(self._acknowledge(call.who))
        return json_response(AcknowledgedDoc(list(moved), list(self._views.parts.store.notes)))


RELOADING_ROUTES = (
    Route(
        "POST", "/v1/reload", "reload", "Reload the settings file, as SIGHUP does", ReloadedDoc,
        role=Caller.OPERATOR, body=ReloadBody, sends={"drop": ["old"], "whole": False},
        rejects="a settings file with faults, all of which are listed",
        about="`drop` names databases that were removed from the file on purpose; `whole` says "
        "that the file is complete although it ends as if it were cut short.",
    ),
    Route(
        "POST", "/v1/state/acknowledge", "acknowledge", "Continue without a state that is lost",
        AcknowledgedDoc, role=Caller.OPERATOR, body=AcknowledgeBody, sends={},
        about="Renames the unusable state file and begins a new one, with the content of its copy "
        "or with nothing. 412 if the state can be used.",
    ),
)  # fmt: skip
