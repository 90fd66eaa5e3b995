"""Links that sign somebody in at the page, once.   headgate page ──► POST /v1/page/links

Whoever may change things by the Unix socket or a token may have one: it lends nothing that they
have not got.
"""

from __future__ import annotations

from starlette.responses import Response

from headgate.errors import InvalidRequest
from headgate.http.auth import Gatekeeper
from headgate.http.documents import json_response
from headgate.http.page.sessions import LINK_S, Sessions
from headgate.http.routes import Plain, Role, Route
from headgate.wire.page import LinkDoc


class PageLinks:
    """Handlers, as Control's. `sessions`: None where this agent serves no page."""

    def __init__(
        self, gatekeeper: Gatekeeper, sessions: Sessions | None, listens: str | None = None
    ) -> None:
        self._gatekeeper = gatekeeper
        self._sessions = sessions
        self._listens = listens

    async def link(self, call: Plain) -> Response:
        if self._sessions is None:
            message = "this agent serves no page: set `enabled = true` in [page] of its settings"
            raise InvalidRequest(message, status=404)
        # The session ends with the token that it came by.
        told = call.request.headers.get("authorization")
        credential = None if told is None else self._gatekeeper.holder(told)
        code = self._sessions.make_link(call.who, credential)
        doc = LinkDoc(f"/sign-in#{code}", LINK_S, call.who, self._listens)
        return json_response(doc, status=201)


PAGE_LINK_ROUTES = (
    Route(
        "POST", "/v1/page/links", "link", "A link that signs in at the page, once", LinkDoc,
        role=Role.OPERATOR, created=True,
        about="As the operator who asked for it: [the page](../howto/page.md).",
    ),
)  # fmt: skip
