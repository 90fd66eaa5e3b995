"""The fleet over HTTP, page by page.   Control ──► FleetViewing ──► FleetView

People look at the same document: page/fleet.py shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.picture import FleetView, Looked
from headgate.agent.ports import Clock
from headgate.core.fleet_view import Look
from headgate.errors import InvalidRequest
from headgate.http.documents import json_response
from headgate.wire.fleet_view import MAX_PER_PAGE, Asked, fleet_doc

PER_PAGE = 100
MAX_PAGE = 1_000_000
MAX_PATTERN_CHARS = 127
MAX_AT_ONCE = 4
WITHIN_S = 10.0
_KNOWN = frozenset(
    {"unhealthy", "behind", "region", "cluster", "shard", "page", "rules_page", "per_page"}
)


class FleetViewing:
    """Handlers, as Control's. `view`: None where this agent has not been given the role."""

    def __init__(self, view: FleetView | None, clock: Clock, *, agent: str) -> None:
        self._view = view
        self._clock = clock
        self._agent = agent
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def document(self, request: Request) -> Response:
        asked = asked_of(request.query_params)
        body = await self._made(asked)
        return json_response(msgspec.Raw(body))

    async def _made(self, asked: Asked) -> bytes:
        """Beside the loop: it may be ten thousand shards."""
        view = self._view
        if view is None:
            raise InvalidRequest(_NO_ROLE, status=404)
        try:
            async with asyncio.timeout(WITHIN_S), self._free:
                looked = await view.look()
                return await asyncio.to_thread(self._make, looked, asked)
        except TimeoutError:
            message = f"no picture of the fleet within {WITHIN_S:g} s: this agent is very busy"
            raise InvalidRequest(message, status=503) from None

    def _make(self, looked: Looked, asked: Asked) -> bytes:
        picture, holders, link = looked.picture, looked.holders, looked.link
        wall_s = looked.at.wall_s
        try:
            doc = fleet_doc(picture, holders, link, asked, agent=self._agent, wall_s=wall_s)
        except ValueError as error:
            raise InvalidRequest(f"a pattern {error}") from None
        return msgspec.json.encode(doc)


_NO_ROLE = (
    "this agent does not show the fleet: set `view = true` in [fleet] of its settings and restart "
    "it, or ask one that does"
)
FLEET_VIEW_ROUTES: tuple[tuple[str, str, str], ...] = (("GET", "/v1/fleet", "document"),)


# --- what is asked for --------------------------------------------------------------------------


def asked_of(params: Mapping[str, str]) -> Asked:
    if unknown := sorted(set(params) - _KNOWN):
        told = ", ".join(sorted(_KNOWN))
        raise InvalidRequest(f"unknown parameter {unknown[0]!r}; known: {told}", field=unknown[0])
    return Asked(
        look=Look(
            unhealthy=_flag(params, "unhealthy"),
            behind=_flag(params, "behind"),
            region=_pattern(params, "region"),
            cluster=_pattern(params, "cluster"),
            shard=_pattern(params, "shard"),
        ),
        page=_whole(params, "page", 1, MAX_PAGE),
        per_page=_whole(params, "per_page", PER_PAGE, MAX_PER_PAGE),
        items_page=_whole(params, "rules_page", 1, MAX_PAGE),
    )


def _flag(params: Mapping[str, str], name: str) -> bool:
    value = params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} is {value!r}, must be true or false", field=name)
    return value == "true"


def _pattern(params: Mapping[str, str], name: str) -> str:
    value = params.get(name, "").strip()
    if len(value) > MAX_PATTERN_CHARS:
        message = f"{name} has {len(value)} characters, must have at most {MAX_PATTERN_CHARS}"
        raise InvalidRequest(message, field=name)
    return value


def _whole(params: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = params.get(name, str(default))
    if not (value.isascii() and value.isdigit() and len(value) <= 7 and 1 <= int(value) <= most):
        raise InvalidRequest(f"{name} is {value!r}, must be from 1 to {most}", field=name)
    return int(value)
