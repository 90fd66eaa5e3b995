"""Forward checks of a shard to its primary's agent, if the settings say so.

A check that this agent cannot answer itself is forwarded unchanged, and so is the answer; the
primary's agent counts it. If that agent does not answer, the client gets its address, as
without forwarding. Everything else is answered here, as always.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headgate.base.ports import PeerLink
from headgate.check.board import Board
from headgate.check.decide import asks_shard
from headgate.check.routes import CheckRoutes
from headgate.errors import InvalidRequest, PeerFailed
from headgate.http.asgi import AsgiBridge
from headgate.http.auth import Peer
from headgate.http.documents import reply
from headgate.http.listener import Answer, Request
from headgate.shard.service import Shards

FORWARD_TIMEOUT_S = 0.5
FORWARDED = "x-headgate-forwarded"


class Forwarder:
    """Between the listener and the routes."""

    def __init__(
        self, routes: CheckRoutes, bridge: AsgiBridge, board: Board, shards: Shards
    ) -> None:
        self._routes = routes
        self._bridge = bridge
        self._board = board
        self._shards = shards

    def prepare(self, request: Request) -> Answer | bytes | None:
        """Never a repeatable answer: the agent to forward to may change with each check."""
        if self._is_for_primary(request):
            return None
        answer = self._routes.prepare(request)
        return answer() if callable(answer) else answer

    async def serve(
        self, request: Request, peer: Peer, send: Callable[[bytes], Awaitable[None]]
    ) -> bool:
        if not self._is_for_primary(request):
            return await self._bridge.serve(request, peer, send)
        await send(await self._forwarded(request) or self._answered_here(request))
        return request.keep_alive

    def _is_for_primary(self, request: Request) -> bool:
        if any(name.lower() == FORWARDED.encode() for name, _ in request.headers):
            return False  # Once is enough: two agents must not send a question to and fro.
        return self._link(request) is not None

    def _link(self, request: Request) -> PeerLink | None:
        check = self._routes.check_in(request)
        health = self._board.healths.get(check.database) if check else None
        if check is None or health is None or not asks_shard(check, health):
            return None
        return self._shards.primary_link(check.database)

    async def _forwarded(self, request: Request) -> bytes | None:
        link = self._link(request)
        if link is None:
            return None
        try:
            status, body, headers = await link.ask(
                "GET" if request.method == "HEAD" else request.method,
                request.target.decode("ascii"),
                request.body,
                {"content-type": "application/json", FORWARDED: "1"},
                timeout_s=FORWARD_TIMEOUT_S,
            )
        except (PeerFailed, InvalidRequest):
            return None
        return _relayed(status, body, headers.get("retry-after"), request)

    def _answered_here(self, request: Request) -> bytes:
        answer = self._routes.prepare(request)
        assert answer is not None, "only checks are forwarded"
        return answer() if callable(answer) else answer


def _relayed(status: int, body: bytes, retry_after: str | None, request: Request) -> bytes:
    wait_s = int(retry_after) if retry_after and retry_after.isdigit() else None
    return reply(status, body, retry_after_s=wait_s, head_only=request.method == "HEAD")
