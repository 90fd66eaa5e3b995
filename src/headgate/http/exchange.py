"""A shard's changes over HTTP.   another agent ──► Exchanging ──► Exchange"""

from __future__ import annotations

from starlette.responses import Response

from headgate.agent.exchange import Exchange
from headgate.errors import InvalidRequest
from headgate.http.routes import Plain, Role, Route, Unread
from headgate.wire.exchange import ExchangedDoc, OfferDoc, decode_offer, encode_answer


class Exchanging:
    """Handlers, as Control's."""

    def __init__(self, exchange: Exchange | None) -> None:
        self._given = exchange

    async def exchange(self, call: Plain) -> Response:
        """Held for as long as the offer allows; cancelled when the other agent hangs up."""
        if self._given is None:
            raise InvalidRequest("no database of this agent belongs to a shard", status=404)
        answer = await self._given.answer(decode_offer(await call.request.body()))
        return Response(encode_answer(answer), media_type="application/json")


EXCHANGE_ROUTES = (
    Route(
        "POST", "/v1/changes/exchange", "exchange", "Exchange a shard's changes", ExchangedDoc,
        role=Role.PEER, body=Unread(OfferDoc),
        about="An agent sends its shard's changes to another one, and gets those that it lacks.",
    ),
)  # fmt: skip
