"""A shard's changes over HTTP.   another agent ──► Exchanging ──► Exchange"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.exchange import Exchange
from headgate.errors import InvalidRequest
from headgate.http.auth import Gatekeeper
from headgate.http.documents import expect_json
from headgate.wire.exchange import decode_offer, encode_answer


class Exchanging:
    """Handlers, as Control's."""

    def __init__(self, exchange: Exchange | None, gatekeeper: Gatekeeper) -> None:
        self._given = exchange
        self._gatekeeper = gatekeeper

    async def exchange(self, request: Request) -> Response:
        """Held for as long as the offer allows; cancelled when the other agent hangs up."""
        self._gatekeeper.who_pulls(request.state.peer, request.headers.get("authorization"))
        expect_json(request)
        if self._given is None:
            raise InvalidRequest("no database of this agent belongs to a shard", status=404)
        answer = await self._given.answer(decode_offer(await request.body()))
        return Response(encode_answer(answer), media_type="application/json")


EXCHANGE_ROUTES: tuple[tuple[str, str, str], ...] = (("POST", "/v1/changes/exchange", "exchange"),)
