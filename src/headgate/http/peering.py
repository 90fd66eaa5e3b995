"""The shard over HTTP: other agents pull and wake, operators look, set aside and add members.

Control ──► Peering ──► Shards (answers, and keeps what operators set), Demands (wakes)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.demand import Demands
from headgate.agent.metrickeeper import NoSuchMetric
from headgate.core.change_log import ChangeMade
from headgate.core.names import parse_database
from headgate.core.shard import MAX_HANDOVER_S, MAX_SKIP_S, Handover, Pull
from headgate.core.topology import MemberReport
from headgate.errors import InvalidName, InvalidRequest
from headgate.http.auth import Gatekeeper
from headgate.http.documents import (
    UnderWay,
    expect_json,
    json_response,
    parse_duration,
)
from headgate.http.views import Views
from headgate.wire.exchange import copies_doc
from headgate.wire.peers import (
    URL_SCHEMA,
    decode_pull,
    decode_wake,
    encode_report,
    parse_peer_url,
)
from headgate.wire.questions import DATABASE_SCHEMA

MAX_REASON_CHARS = 500
FOR_SCHEMA = {"pattern": "^[0-9]{1,6}[smhd]$"}


class ShardsPort(Protocol):
    """As much of agent/shards.Shards as is reached from outside."""

    async def answer(self, pull: Pull) -> MemberReport: ...

    def woken(self, shard: str, database: str, by: str) -> None: ...

    async def skip(
        self, database: str, member: str, *, for_s: float, reason: str, who: str
    ) -> ChangeMade: ...

    async def unskip(self, database: str, member: str, *, who: str) -> ChangeMade: ...

    async def hand_over(
        self, database: str, *, for_s: float, reason: str, who: str
    ) -> Handover: ...

    async def take_back(self, database: str, *, who: str) -> None: ...

    async def add_peer(
        self, database: str, member: str, *, url: str, peer_database: str, who: str
    ) -> ChangeMade: ...

    async def remove_peer(self, database: str, member: str, *, who: str) -> ChangeMade: ...


class SkipBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    for_: Annotated[str, msgspec.Meta(extra_json_schema=FOR_SCHEMA)]
    """Such as 30m, 6h, 2d; at most 7d."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_REASON_CHARS)]


class HandoverBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    for_: Annotated[str, msgspec.Meta(extra_json_schema=FOR_SCHEMA)] = "60s"
    """Until when shard scope is refused at most, such as 60s, 5m; at most 1h."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)] = ""


class PeerBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(extra_json_schema=URL_SCHEMA)]
    """Of the agent beside that member."""
    database: Annotated[str, msgspec.Meta(extra_json_schema=DATABASE_SCHEMA)]
    """What that agent calls its database."""


class WokenDoc(msgspec.Struct, frozen=True):
    database: str
    activity: str


class WakeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{}`: there is nothing to say."""


_decode_wake = msgspec.json.Decoder(WakeBody).decode
_decode_skip = msgspec.json.Decoder(SkipBody).decode
_decode_handover = msgspec.json.Decoder(HandoverBody).decode
_decode_peer = msgspec.json.Decoder(PeerBody).decode


class Peering:
    """Handlers, as Control's."""

    def __init__(
        self,
        views: Views,
        gatekeeper: Gatekeeper,
        *,
        shards: ShardsPort | None,
        demands: Demands | None,
    ) -> None:
        self._views = views
        self._gatekeeper = gatekeeper
        self._given = shards
        self._demands = demands
        self._under_way = UnderWay()

    # --- for other agents ------------------------------------------------------------------

    async def pull(self, request: Request) -> Response:
        """Held for as long as the pull allows; cancelled when the other agent hangs up."""
        received = self._views.parts.clock.now()
        self._admit(request)
        pull = decode_pull(await request.body(), received=received)
        report = await self._shards.answer(pull)
        body = encode_report(report, received=received, now=self._views.parts.clock.now())
        return Response(body, media_type="application/json")

    async def peer_wake(self, request: Request) -> Response:
        self._admit(request)
        call = decode_wake(await request.body())
        self._shards.woken(call.shard, call.database, call.sender)
        return json_response(WokenDoc(call.database, self._activity(call.database)))

    def _admit(self, request: Request) -> None:
        self._gatekeeper.who_pulls(request.state.peer, request.headers.get("authorization"))
        expect_json(request)

    # --- for everybody ---------------------------------------------------------------------

    async def shard(self, request: Request) -> Response:
        return json_response(self._views.shard(request.path_params["database"]))

    async def wake(self, request: Request) -> Response:
        """What a check would do, without asking anything. It needs no token; a body in JSON is
        something that no web page can send here from another site."""
        await _body(request, _decode_wake)
        database = request.path_params["database"]
        known = [plan.name for plan in self._views.parts.book.databases()]
        if database not in known:
            raise NoSuchMetric(f"no database {database!r}; configured: {', '.join(known)}")
        if self._demands is not None and database in self._demands.by_database:
            self._demands.wake(database, self._views.parts.clock.now().mono_s)
        return json_response(WokenDoc(database, self._activity(database)))

    def _activity(self, database: str) -> str:
        return self._views.activity(database).value

    # --- for operators ---------------------------------------------------------------------

    async def skip(self, request: Request) -> Response:
        who = self._operator(request)
        body = await _body(request, _decode_skip)
        for_s = parse_duration(body.for_, "for")
        if not 0 < for_s <= MAX_SKIP_S:
            message = f"for is {body.for_!r}, must be above 0 and at most {MAX_SKIP_S / 86400:g}d"
            raise InvalidRequest(message, field="for")
        database, member = _places(request)
        reason = body.reason
        return await self._changed(
            request, self._shards.skip(database, member, for_s=for_s, reason=reason, who=who)
        )

    async def unskip(self, request: Request) -> Response:
        who = self._operator(request)
        database, member = _places(request)
        return await self._changed(request, self._shards.unskip(database, member, who=who))

    async def hand_over(self, request: Request) -> Response:
        """Once it is answered, no check at shard scope is admitted by the old primary's view."""
        who = self._operator(request)
        body = await _body(request, _decode_handover)
        for_s = parse_duration(body.for_, "for")
        if not 0 < for_s <= MAX_HANDOVER_S:
            message = (
                f"for is {body.for_!r}, must be above 0 and at most {MAX_HANDOVER_S / 3600:g}h"
            )
            raise InvalidRequest(message, field="for")
        database = request.path_params["database"]
        change = self._shards.hand_over(database, for_s=for_s, reason=body.reason, who=who)
        return await self._changed(request, change)

    async def take_back(self, request: Request) -> Response:
        who = self._operator(request)
        database = request.path_params["database"]
        return await self._changed(request, self._shards.take_back(database, who=who))

    async def add_peer(self, request: Request) -> Response:
        who = self._operator(request)
        body = await _body(request, _decode_peer)
        url, peer_database = parse_peer_url(body.url).text, parse_database(body.database)
        database, member = _places(request)
        change = self._shards.add_peer(
            database, member, url=url, peer_database=peer_database, who=who
        )
        return await self._changed(request, change)

    async def remove_peer(self, request: Request) -> Response:
        who = self._operator(request)
        database, member = _places(request)
        return await self._changed(request, self._shards.remove_peer(database, member, who=who))

    def _operator(self, request: Request) -> str:
        who = self._gatekeeper.who_changes(request.state.peer, request.headers.get("authorization"))
        if request.query_params:
            raise InvalidRequest("this change takes no parameters; nothing was changed")
        return who

    async def _changed(self, request: Request, change: Awaitable[Any]) -> Response:
        made = await self._under_way.finish(change)
        shard = self._views.shard(request.path_params["database"])
        if isinstance(made, ChangeMade):
            shard = msgspec.structs.replace(shard, copies=copies_doc(made.copies))
        return json_response(shard)

    @property
    def _shards(self) -> ShardsPort:
        if self._given is None:
            raise InvalidRequest("no database of this agent belongs to a shard", status=404)
        return self._given


_SHARD = "/v1/databases/{database}/shard"
PEERING_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", _SHARD, "shard"),
    ("PUT", f"{_SHARD}/skips/{{member}}", "skip"),
    ("DELETE", f"{_SHARD}/skips/{{member}}", "unskip"),
    ("POST", f"{_SHARD}/handover", "hand_over"),
    ("DELETE", f"{_SHARD}/handover", "take_back"),
    ("PUT", f"{_SHARD}/peers/{{member}}", "add_peer"),
    ("DELETE", f"{_SHARD}/peers/{{member}}", "remove_peer"),
    ("POST", "/v1/databases/{database}/wake", "wake"),
    ("POST", "/v1/peer/pull", "pull"),
    ("POST", "/v1/peer/wake", "peer_wake"),
)


async def _body(request: Request, decode: Callable[[bytes], Any]) -> Any:
    expect_json(request)
    try:
        return decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body cannot be taken: {error}; nothing was changed") from None


def _places(request: Request) -> tuple[str, str]:
    member = request.path_params["member"]
    try:
        parse_database(member)
    except InvalidName as error:
        raise InvalidName(str(error).replace("database name", "member name")) from None
    return request.path_params["database"], member
