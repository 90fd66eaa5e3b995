"""What operators confirm.   POST /v1/reload, /v1/state/acknowledge ──► main.Agent

Follow the settings file, as SIGHUP does, with an answer; where it drops a database or ends like one
that was cut short, this is how an operator says that it is meant. And go on without a state that is
lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import structlog
from starlette.responses import Response

from headgate.check.api import AcknowledgedDoc, ReloadedDoc
from headgate.check.questions import Database
from headgate.check.views import Views
from headgate.errors import Fault, InvalidRequest
from headgate.http.documents import json_response
from headgate.http.routes import Call, Caller, Route

# --- is the file whole? --------------------------------------------------------------------
# Whether a settings file that is read again may replace the current one. Pure.
#
# A file is often cut short or empty for a moment while something writes it, and stays so when a
# disk is full. To follow such a file would open the gate: nothing decides checks about a
# database that is gone.


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What an operator says that the file does on purpose."""

    drop: frozenset[str] = frozenset()
    """Databases that the file may drop."""
    whole: bool = False
    """The file is complete, although it ends like one that was cut short."""


NOTHING = Confirmed()


Judged = Mapping[str, object]
"""What decides checks: for each database, everything that the file says about it."""


def reload_faults(
    judged: Judged,
    content: str,
    new_judged: Judged,
    new_content: str,
    confirmed: Confirmed = NOTHING,
) -> list[Fault]:
    """Why not, and how it is confirmed; of the file in force, and of the new one."""
    lost = sorted(set(judged) - set(new_judged) - confirmed.drop)
    faults = [
        Fault(
            f"databases.{name}",
            f"is no longer in the file. If that is intended: `headgate reload --drop {name}`, "
            "or restart the agent",
        )
        for name in lost
    ]
    cut = _ends_within_a_line(content, new_content)
    if not lost and new_content != content and content.startswith(new_content):
        cut = cut or any(new_judged.get(name) != said for name, said in judged.items())
    if cut and not confirmed.whole:
        message = (
            "ends like a file that was cut short while it was written. Write the complete file; if "
            "it is complete: `headgate reload --whole`, or restart the agent"
        )
        faults.append(Fault("", message))
    return faults


def _ends_within_a_line(content: str, new_content: str) -> bool:
    return content.endswith("\n") and not new_content.endswith("\n")


# --- the routes ----------------------------------------------------------------------------

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

    async def reload(self, call: Call[None, ReloadBody]) -> Response:
        body = call.body
        if self._reload is None:
            raise InvalidRequest("this agent has no settings file", status=404)
        log.info("settings.reload_asked", who=call.who, drop=sorted(body.drop), whole=body.whole)
        confirmed = Confirmed(frozenset(body.drop), whole=body.whole)
        waiting = await self._reload(confirmed)
        databases = [plan.name for plan in self._views.parts.book.databases()]
        return json_response(ReloadedDoc(self._views.facts.settings, databases, list(waiting)))

    async def acknowledge(self, call: Call[None, AcknowledgeBody]) -> Response:
        if self._acknowledge is None:
            raise InvalidRequest("this agent has no state file", status=404)
        moved = await self._acknowledge(call.who)
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
