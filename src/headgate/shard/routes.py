"""The shard over HTTP: other agents pull and wake, operators look, skip and add members.
A replica forwards checks of the shard to its primary.

Control ──► Peering ──► Shards (answers, and keeps what operators set), Demands (wakes)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol, Unpack

import msgspec
from starlette.responses import Response

from headgate.base.names import parse_database
from headgate.base.ports import PeerLink
from headgate.changes.exchange_api import copies_doc
from headgate.changes.items import By
from headgate.changes.logs import parsed_reach
from headgate.changes.reach import Reach
from headgate.changes.state import ChangeMade, Reached
from headgate.check.board import Board
from headgate.check.decide import asks_shard
from headgate.check.demand import Demands
from headgate.check.questions import DATABASE_SCHEMA, Span
from headgate.check.routes import CheckRoutes
from headgate.check.views import Views
from headgate.errors import InvalidName, InvalidRequest, PeerFailed
from headgate.fleet.api import reached_doc
from headgate.http.asgi import AsgiBridge
from headgate.http.auth import Peer
from headgate.http.documents import json_response, reply, seconds
from headgate.http.listener import Answer, Request
from headgate.http.routes import Call, Caller, DryRun, NoQuery, Plain, Reaching, Route, Unread
from headgate.metrics.service import NoSuchMetric
from headgate.shard.api import ShardDoc
from headgate.shard.model import MAX_HANDOVER_S, MAX_SKIP_S, Handover, Pull
from headgate.shard.peers_api import (
    URL_SCHEMA,
    PullDoc,
    ReportDoc,
    WakeDoc,
    decode_pull,
    decode_wake,
    encode_report,
    parse_peer_url,
)
from headgate.shard.service import Shards
from headgate.shard.topology import MemberReport

MAX_REASON_CHARS = 500


class ShardsPort(Protocol):
    """As much of shard/service.Shards as is reached from outside."""

    @property
    def keeper(self) -> MembersPort: ...

    async def answer(self, pull: Pull) -> MemberReport: ...

    def woken(self, shard: str, database: str, by: str) -> None: ...


class MembersPort(Protocol):
    """As much of shard/keeper.MemberKeeper."""

    async def skip(
        self,
        database: str,
        member: str,
        *,
        for_s: float,
        reason: str,
        reach: Reach | None = None,
        **by: Unpack[By],
    ) -> ChangeMade: ...

    async def unskip(self, database: str, member: str, **by: Unpack[By]) -> ChangeMade: ...

    async def hand_over(
        self, database: str, *, for_s: float, reason: str, who: str
    ) -> Handover: ...

    async def take_back(self, database: str, *, who: str) -> None: ...

    async def add_peer(
        self, database: str, member: str, *, url: str, peer_database: str, who: str
    ) -> ChangeMade: ...

    async def remove_peer(self, database: str, member: str, *, who: str) -> ChangeMade: ...


class SkipBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    for_: Span
    """Such as 30m, 6h, 2d; at most 7d."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_REASON_CHARS)]


class HandoverBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    for_: Span = "60s"
    """Longest time that shard scope is rejected, for example 60s, 5m; at most 1h."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)] = ""


class PeerBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(extra_json_schema=URL_SCHEMA)]
    """Address of the agent beside that member."""
    database: Annotated[str, msgspec.Meta(extra_json_schema=DATABASE_SCHEMA)]
    """That agent's name for the database."""


class WokenDoc(msgspec.Struct, frozen=True):
    database: str
    activity: str


class WakeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{}`: there is nothing to say."""


class Peering:
    """Handlers, as Control's."""

    def __init__(self, views: Views, *, shards: ShardsPort | None, demands: Demands | None) -> None:
        self._views = views
        self._given = shards
        self._demands = demands

    # --- for other agents ------------------------------------------------------------------

    async def pull(self, call: Plain) -> Response:
        """Held for as long as the pull allows; cancelled when the other agent hangs up."""
        received = self._views.parts.clock.now()
        pull = decode_pull(await call.request.body(), received=received)
        report = await self._shards.answer(pull)
        body = encode_report(report, received=received, now=self._views.parts.clock.now())
        return Response(body, media_type="application/json")

    async def peer_wake(self, call: Plain) -> Response:
        woken = decode_wake(await call.request.body())
        self._shards.woken(woken.shard, woken.database, woken.sender)
        return json_response(WokenDoc(woken.database, self._activity(woken.database)))

    # --- for everybody ---------------------------------------------------------------------

    async def shard(self, call: Plain) -> Response:
        return json_response(self._views.shard(call.place("database")))

    async def wake(self, call: Call[None, WakeBody]) -> Response:
        """Wakes the database as a check would, without a check. It needs no token; a JSON body
        cannot be sent here by a web page of another site."""
        database = call.place("database")
        known = [plan.name for plan in self._views.parts.book.databases()]
        if database not in known:
            raise NoSuchMetric(f"no database {database!r}; configured: {', '.join(known)}")
        if self._demands is not None and database in self._demands.by_database:
            self._demands.wake(database, self._views.parts.clock.now().mono_s)
        return json_response(WokenDoc(database, self._activity(database)))

    def _activity(self, database: str) -> str:
        return self._views.activity(database).value

    # --- for operators ---------------------------------------------------------------------

    async def skip(self, call: Call[Reaching, SkipBody]) -> Response:
        for_s = _for(call.body.for_, MAX_SKIP_S, f"{MAX_SKIP_S / 86400:g}d")
        database, member = _places(call)
        skip = self._shards.keeper.skip(
            database,
            member,
            for_s=for_s,
            reason=call.body.reason,
            reach=None if call.query.reach is None else parsed_reach(call.query.reach),
            who=call.who,
            dry_run=call.query.dry_run,
        )
        return await self._changed(call, skip)

    async def unskip(self, call: Call[DryRun, None]) -> Response:
        unskip = self._shards.keeper.unskip(
            *_places(call), who=call.who, dry_run=call.query.dry_run
        )
        return await self._changed(call, unskip)

    async def hand_over(self, call: Call[NoQuery, HandoverBody]) -> Response:
        """Once it is answered, no check at shard scope is admitted by the old primary's view."""
        for_s = _for(call.body.for_, MAX_HANDOVER_S, f"{MAX_HANDOVER_S / 3600:g}h")
        change = self._shards.keeper.hand_over(
            call.place("database"), for_s=for_s, reason=call.body.reason, who=call.who
        )
        return await self._changed(call, change)

    async def take_back(self, call: Plain) -> Response:
        change = self._shards.keeper.take_back(call.place("database"), who=call.who)
        return await self._changed(call, change)

    async def add_peer(self, call: Call[NoQuery, PeerBody]) -> Response:
        url = parse_peer_url(call.body.url).text
        peer_database = parse_database(call.body.database)
        database, member = _places(call)
        change = self._shards.keeper.add_peer(
            database, member, url=url, peer_database=peer_database, who=call.who
        )
        return await self._changed(call, change)

    async def remove_peer(self, call: Plain) -> Response:
        return await self._changed(
            call, self._shards.keeper.remove_peer(*_places(call), who=call.who)
        )

    async def _changed(self, call: Call[Any, Any], change: Awaitable[Any]) -> Response:
        made = await change
        shard = self._views.shard(call.place("database"))
        if isinstance(made, ChangeMade):
            reached = None if made.reached == Reached() else reached_doc(made.reached)
            copies = copies_doc(made.copies)
            shard = msgspec.structs.replace(shard, copies=copies, reached=reached)
        return json_response(shard)

    @property
    def _shards(self) -> ShardsPort:
        if self._given is None:
            raise InvalidRequest("no database of this agent belongs to a shard", status=404)
        return self._given


_SHARD = "/v1/databases/{database}/shard"
_SKIP, _PEER = f"{_SHARD}/skips/{{member}}", f"{_SHARD}/peers/{{member}}"
PEERING_ROUTES = (
    Route(
        "GET", _SHARD, "shard", "The shard of a database", ShardDoc,
        about="As this agent sees it: which agent leads, the members with role, readings, clocks "
        "and skips.",
    ),
    Route(
        "PUT", _SKIP, "skip", "Skip a replica for a while", ShardDoc,
        role=Caller.OPERATOR, query=Reaching, body=SkipBody,
        rejects="a time that is not above 0 and at most 7d; a reach beyond the shard",
        example={"dry_run": "true"}, sends={"for": "30m", "reason": "rebuild"},
        about="For the shard, unless `reach` is `host`. `reached` says which agents a fleet's log "
        "reaches, `copies` which agents of a shard without one have it.",
    ),
    Route(
        "DELETE", _SKIP, "unskip", "Count a skipped replica again", ShardDoc,
        role=Caller.OPERATOR, query=DryRun,
    ),
    Route(
        "POST", f"{_SHARD}/handover", "hand_over", "Announce a planned switchover", ShardDoc,
        role=Caller.OPERATOR, query=NoQuery, body=HandoverBody,
        rejects="a time that is not above 0 and at most 1h",
        sends={"for": "60s", "reason": "upgrade"},
        about="At the primary's agent; 409 at a replica's. Checks at shard scope are rejected from "
        "now on: [announce a switchover](shard.md#announce-a-planned-switchover).",
    ),
    Route(
        "DELETE", f"{_SHARD}/handover", "take_back", "Take the announcement back", ShardDoc,
        role=Caller.OPERATOR, query=NoQuery,
    ),
    Route(
        "PUT", _PEER, "add_peer", "Add a replica behind another agent", ShardDoc,
        role=Caller.OPERATOR, query=NoQuery, body=PeerBody,
        sends={"url": "https://db-c:8087", "database": "main"},
    ),
    Route(
        "DELETE", _PEER, "remove_peer", "Remove a replica that was added at run time", ShardDoc,
        role=Caller.OPERATOR, query=NoQuery,
    ),
    Route(
        "POST", "/v1/databases/{database}/wake", "wake", "Measure an idle database again",
        WokenDoc, body=WakeBody, sends={},
        about="As a check would. The body is `application/json`, which no web page of another site "
        "can send.",
    ),
    Route(
        "POST", "/v1/peer/pull", "pull", "Report a replica's role and readings", ReportDoc,
        role=Caller.PEER, body=Unread(PullDoc),
        about="For the primary's agent; the answer is delayed for `wait_s` while nothing changes.",
    ),
    Route(
        "POST", "/v1/peer/wake", "peer_wake", "Wake the primary's agent", WokenDoc,
        role=Caller.PEER, body=Unread(WakeDoc),
        about="A replica's agent requests that it measures again, and writes heartbeats.",
    ),
)  # fmt: skip


def _for(text: str, most_s: float, shown: str) -> float:
    if not 0 < (for_s := seconds(text)) <= most_s:
        message = f"for is {text!r}, must be above 0 and at most {shown}"
        raise InvalidRequest(message, status=422, field="for")
    return for_s


def _places(call: Call[Any, Any]) -> tuple[str, str]:
    member = call.place("member")
    try:
        parse_database(member)
    except InvalidName as error:
        raise InvalidName(str(error).replace("database name", "member name")) from None
    return call.place("database"), member


# --- forwarding ----------------------------------------------------------------------------------

# Forward checks of a shard to its primary's agent, if the settings say so.
#
# A check that this agent cannot answer itself is forwarded unchanged, and so is the answer; the
# primary's agent counts it. If that agent does not answer, the client gets its address, as
# without forwarding. Everything else is answered here, as always.

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
