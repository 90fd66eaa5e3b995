"""The fleet over HTTP, page by page.   Control ──► FleetViewing ──► FleetView

People look at the same document: page/fleet.py shows it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from starlette.responses import Response

from headgate.base.ports import Clock
from headgate.check.questions import about
from headgate.errors import InvalidRequest
from headgate.fleet.picture import FleetView, Looked
from headgate.fleet.view import ShardFilter
from headgate.fleet.view_api import MAX_PER_PAGE, FleetDoc, FleetSelection, fleet_doc
from headgate.http.documents import json_response
from headgate.http.routes import NAME, Call, Route

PER_PAGE = 100
MAX_PAGE = 1_000_000
MAX_AT_ONCE = 4
WITHIN_S = 10.0
_Pattern = Annotated[
    str,
    msgspec.Meta(
        pattern=f"^({NAME})?$",
        description="Only those that match it.",
        examples=["eu-*", "commerce/*"],
    ),
]
_Page = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]


class FleetQuery(msgspec.Struct, frozen=True):
    unhealthy: Annotated[bool, about("`true`: only shards that are unhealthy or silent.")] = False
    behind: Annotated[bool, about("`true`: only shards with agents that are behind.")] = False
    region: _Pattern = ""
    cluster: _Pattern = ""
    shard: _Pattern = ""
    page: Annotated[_Page, about("Page of the shards.")] = 1
    rules_page: Annotated[_Page, about("Page of the fleet's rules and budgets.")] = 1
    per_page: Annotated[
        int, msgspec.Meta(ge=1, le=MAX_PER_PAGE, description="Shards per page.")
    ] = PER_PAGE

    @property
    def asked(self) -> FleetSelection:
        look = ShardFilter(self.unhealthy, self.behind, self.region, self.cluster, self.shard)
        return FleetSelection(look, self.page, self.per_page, self.rules_page)


class FleetViewing:
    """Handlers, as Control's. `view`: None where this agent has not been given the role."""

    def __init__(self, view: FleetView | None, clock: Clock, *, agent: str) -> None:
        self._view = view
        self._clock = clock
        self._agent = agent
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def document(self, call: Call[FleetQuery, None]) -> Response:
        return json_response(msgspec.Raw(await self._made(call.query.asked)))

    async def _made(self, asked: FleetSelection) -> bytes:
        """Beside the loop: it may be ten thousand shards."""
        view = self._view
        if view is None:
            raise InvalidRequest(_NO_ROLE, status=404)
        try:
            async with asyncio.timeout(WITHIN_S), self._free:
                looked = await view.look()
                return await asyncio.to_thread(self._make, looked, asked)
        except TimeoutError:
            message = f"no data of the fleet within {WITHIN_S:g} s: this agent is very busy"
            raise InvalidRequest(message, status=503) from None

    def _make(self, looked: Looked, asked: FleetSelection) -> bytes:
        picture, holders, link = looked.picture, looked.holders, looked.link
        wall_s = looked.at.wall_s
        try:
            doc = fleet_doc(picture, holders, link, asked, agent=self._agent, wall_s=wall_s)
        except ValueError as error:
            raise InvalidRequest(f"a pattern {error}") from None
        return msgspec.json.encode(doc)


_NO_ROLE = (
    "this agent does not show the fleet: set `view = true` in [fleet] of its settings and restart "
    "it, or use an agent that does"
)
FLEET_VIEW_ROUTES = (
    Route(
        "GET", "/v1/fleet", "document", "The whole fleet, unhealthy shards first", FleetDoc,
        query=FleetQuery, errors=(404, 503), example={"unhealthy": "true", "region": "eu-*"},
        about="In pages, at an agent with `view = true`.",
    ),
)  # fmt: skip
