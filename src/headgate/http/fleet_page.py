"""The fleet over HTTP, for programs and for people.   Control ──► FleetViewing ──► FleetView

The page is made here, whole, and works without a script: it asks for itself again every few
seconds. What it shows comes from other agents, through the store: nothing of it is trusted to be
more than text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.fleetview import FleetView, Looked
from headgate.agent.ports import Clock
from headgate.core.fleet_view import Look
from headgate.errors import InvalidRequest
from headgate.http.documents import SECURITY_HEADERS, json_response
from headgate.wire.fleet_view import MAX_PER_PAGE, Asked, FleetDoc, fleet_doc
from headgate.wire.reasons import duration, quantity, share_of

if TYPE_CHECKING:
    from jinja2 import Template

PAGE_ROWS = 50
MAX_PAGE = 1_000_000
MAX_PATTERN_CHARS = 127
REFRESHES_S = (0, 5, 10, 30, 60)
DEFAULT_REFRESH_S = 10
MAX_AT_ONCE = 4
WITHIN_S = 10.0
_DEFAULTS: Mapping[str, object] = {
    "unhealthy": False,
    "behind": False,
    "region": "",
    "cluster": "",
    "shard": "",
    "page": 1,
    "rules_page": 1,
    "refresh": DEFAULT_REFRESH_S,
}
_KNOWN = frozenset({*_DEFAULTS, "per_page"} - {"refresh"})
# No script, no frame, nothing from elsewhere; one sheet of style, from here.
PAGE_HEADERS = {
    **SECURITY_HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


class FleetViewing:
    """Handlers, as Control's. `view`: None where this agent has not been given the role."""

    def __init__(self, view: FleetView | None, clock: Clock, *, agent: str) -> None:
        self._view = view
        self._clock = clock
        self._agent = agent
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def document(self, request: Request) -> Response:
        asked = asked_of(request.query_params, _KNOWN, per_page=100)
        body = await self._made(asked, msgspec.json.encode)
        return json_response(msgspec.Raw(body))

    async def page(self, request: Request) -> Response:
        try:
            return await self._page(request.query_params)
        except InvalidRequest as error:
            if error.status != 400:
                raise
            # A word in the form that cannot be a pattern: a person is shown the page all the same.
            return await self._page({}, fault=str(error))

    async def _page(self, params: Mapping[str, str], fault: str = "") -> Response:
        asked = asked_of(params, _KNOWN | {"refresh"}, per_page=PAGE_ROWS)
        refresh_s = 0 if fault else _refresh(params.get("refresh", ""))
        body = await self._made(asked, lambda doc: rendered(doc, asked, refresh_s, fault))
        status = 400 if fault else 200
        return Response(body, status_code=status, media_type="text/html", headers=PAGE_HEADERS)

    async def style(self, request: Request) -> Response:
        headers = {**PAGE_HEADERS, "Cache-Control": "public, max-age=3600"}
        return Response(_text("fleet.css"), media_type="text/css", headers=headers)

    async def _made(self, asked: Asked, make: Callable[[FleetDoc], bytes]) -> bytes:
        """Beside the loop: it may be ten thousand shards."""
        view = self._view
        if view is None:
            raise InvalidRequest(_NO_ROLE, status=404)
        try:
            async with asyncio.timeout(WITHIN_S), self._free:
                looked = await view.look()
                return await asyncio.to_thread(self._make, looked, asked, make)
        except TimeoutError:
            message = f"no picture of the fleet within {WITHIN_S:g} s: this agent is very busy"
            raise InvalidRequest(message, status=503) from None

    def _make(self, looked: Looked, asked: Asked, make: Callable[[FleetDoc], bytes]) -> bytes:
        picture, holders, link = looked.picture, looked.holders, looked.link
        wall_s = looked.at.wall_s
        try:
            doc = fleet_doc(picture, holders, link, asked, agent=self._agent, wall_s=wall_s)
        except ValueError as error:
            raise InvalidRequest(f"a pattern {error}") from None
        return make(doc)


_NO_ROLE = (
    "this agent does not show the fleet: set `view = true` in [fleet] of its settings and restart "
    "it, or ask one that does"
)
FLEET_VIEW_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", "/v1/fleet", "document"),
    ("GET", "/fleet", "page"),
    ("GET", "/fleet.css", "style"),
)


# --- what is asked for --------------------------------------------------------------------------


def asked_of(params: Mapping[str, str], known: frozenset[str], *, per_page: int) -> Asked:
    if unknown := sorted(set(params) - known):
        told = ", ".join(sorted(known))
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
        per_page=_whole(params, "per_page", per_page, MAX_PER_PAGE),
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


def _refresh(value: str) -> int:
    if not value:
        return DEFAULT_REFRESH_S
    if value not in map(str, REFRESHES_S):
        told = ", ".join(map(str, REFRESHES_S))
        raise InvalidRequest(f"refresh is {value!r}, must be one of {told}", field="refresh")
    return int(value)


# --- the page -----------------------------------------------------------------------------------


def rendered(doc: FleetDoc, asked: Asked, refresh_s: int, fault: str = "") -> bytes:
    here = _query_of(asked, refresh_s)
    text = _template().render(
        doc=doc,
        look=asked.look,
        fault=fault,
        refresh_s=refresh_s,
        refreshes_s=REFRESHES_S,
        link=lambda **changed: _link({**here, **changed}),
    )
    return text.encode()


def _query_of(asked: Asked, refresh_s: int) -> dict[str, object]:
    look = asked.look
    return {
        "unhealthy": look.unhealthy,
        "behind": look.behind,
        "region": look.region,
        "cluster": look.cluster,
        "shard": look.shard,
        "page": asked.page,
        "rules_page": asked.items_page,
        "refresh": refresh_s,
    }


def _link(query: Mapping[str, object]) -> str:
    """Without what is so anyway."""
    told = {
        key: "true" if value is True else str(value)
        for key, value in query.items()
        if value != _DEFAULTS[key]
    }
    return f"/fleet?{urlencode(told)}" if told else "/fleet"


@cache
def _template() -> Template:
    # Not every agent shows a page: the others do without.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": _age,
        "quantity": _quantity,
        "share": share_of,
        "web": _web_address,
        "count": "{:,}".format,
        "pieces": lambda text: str(text).split("`"),
    }
    return environment.get_template("fleet.html")


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 1:
        return "now"
    if 10 <= seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 86400:.0f} d" if seconds >= 48 * 3600 else duration(seconds)


def _quantity(value: float | None, unit: str = "") -> str:
    return "–" if value is None else quantity(value, unit)


def _web_address(url: str) -> str:
    """As it is where a browser may follow it, else empty: it came from the store."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.hostname else ""


@cache
def _text(name: str) -> str:
    return (resources.files("headgate.http") / "pages" / name).read_text(encoding="utf-8")
