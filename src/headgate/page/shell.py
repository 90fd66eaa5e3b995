"""What all pages share: a visit, the frame around each page, and how to answer.

PageSite ──Visit──► handler ──► page | part | moved ──► Response, made beside the loop
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from starlette.requests import Request
from starlette.responses import Response

from headgate.base.units import amount_text
from headgate.budgets.limits import amount_told
from headgate.check.reasons import limit_told
from headgate.http.documents import SECURITY_HEADERS
from headgate.page.api import ApiRejected, PageApi
from headgate.page.sessions import PageSession
from headgate.present.view import DASH
from headgate.present.words import age, told_quantity, told_share

if TYPE_CHECKING:
    from jinja2 import Environment


# --- templates and what they know.   documents ──► jinja2 ──► HTML -------------------------


def render(template: str, context: Mapping[str, Any]) -> str:
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    # Not every agent is looked at: the others do without.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": age,
        "quantity": told_quantity,
        "limit": lambda value, name: amount_told(name, value),
        "reading": lambda value, metric: DASH if value is None else limit_told(metric, value),
        "amount": amount,
        "share": told_share,
        "clock": clock,
        "minute": minute,
        "moment": moment,
        "day": day,
        "web": web_address,
        "count": "{:,}".format,
        "unbroken": unbroken,
        "pieces": lambda text: str(text).split("`"),
        "segment": lambda text: quote(str(text), safe=":"),
    }
    environment.globals["static"] = static_url
    return environment


# --- words and figures --------------------------------------------------------------------------


RULE_ID = re.compile(r"\b(r-[0-9a-f]{6,})\b")


def unbroken(text: str) -> str:
    """As HTML: no line ends at the hyphen of a rule's id."""
    from markupsafe import Markup

    whole, pieces = Markup('<span class="nowrap">{}</span>'), RULE_ID.split(text)
    return Markup().join(whole.format(p) if n % 2 else p for n, p in enumerate(pieces))


def amount(value: float, unit: str) -> str:
    """As a threshold of that unit is typed: `50ms`, `80`."""
    text = amount_text(value, unit)
    return text if isinstance(text, str) else f"{text:.15g}"


# --- times, in the browser's zone ---------------------------------------------------------------

ZONE_COOKIE = "headgate-zone"
_ZONE: ContextVar[tzinfo] = ContextVar("zone", default=UTC)


def zone() -> tzinfo:
    """Of the browser that is answered; UTC where it has not said."""
    return _ZONE.get()


def take_zone(request: Request) -> None:
    """As a script of ours has noted it in a cookie."""
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):
        _ZONE.set(ZoneInfo(unquote(request.cookies.get(ZONE_COOKIE, ""))[:64] or "UTC"))


def clock(iso: str | None) -> str:
    """`14:03:07`, with UTC to read where one points at it."""
    return _at(iso, "%H:%M:%S")


def minute(iso: str | None) -> str:
    return _at(iso, "%H:%M")


def moment(iso: str | None) -> str:
    """`18 Nov 14:03:07`."""
    return _at(iso, "%-d %b %H:%M:%S")


def day(iso: str | None) -> str:
    """`18 Nov 2026`."""
    return _at(iso, "%-d %b %Y")


def _at(iso: str | None, form: str) -> str:
    from markupsafe import Markup

    if iso is None:
        return DASH
    at = datetime.fromisoformat(iso)
    shown = at.astimezone(zone()).strftime(form)
    utc = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), utc, shown)


def in_zone(text: str) -> str:
    """A browser's date and time without a zone is in its own. In UTC, as the API has it;
    what is no such time is left as it is."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return text.strip()
    if at.tzinfo is None and len(text.strip()) > len("2026-03-01"):
        return at.replace(tzinfo=zone()).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return text.strip()


def web_address(url: str) -> str:
    """As it is where a browser may follow it, else empty: it may come from elsewhere."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.hostname else ""


# --- files --------------------------------------------------------------------------------------


@cache
def _template(name: str) -> str | None:
    try:
        return str((_folder("templates") / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


@cache
def static_file(name: str) -> tuple[bytes, str]:
    """What a file of static/ holds, and the mark of that; KeyError for one that is not there."""
    if name not in _static_names():
        raise KeyError(name)
    content = _folder("static").joinpath(*name.split("/")).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


@cache
def _static_names() -> frozenset[str]:
    """A closed list: no path of a request reaches the file system."""
    folder = _folder("static")
    own = {entry.name for entry in folder.iterdir() if entry.is_file()}
    vendored = (folder / "vendor").iterdir()
    return frozenset(own | {f"vendor/{entry.name}" for entry in vendored if entry.is_file()})


def static_url(name: str) -> str:
    """With the mark of its content, so that it may be kept for as long as one likes."""
    return f"/static/{name}?v={static_file(name)[1]}"


def _folder(name: str) -> Any:
    return resources.files("headgate.page") / name


# --- a visit and its frame -----------------------------------------------------------------


CSRF_HEADER = "x-headgate-csrf"
POLL_S = 2
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'{tour}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Tab:
    path: str
    name: str
    key: str
    """Pressed after `g`, it leads there."""


TABS = (
    Tab("/", "Overview", "o"),
    Tab("/clients", "Clients", "c"),
    Tab("/rules", "Rules", "r"),
    Tab("/budgets", "Budgets", "b"),
    Tab("/explain", "Explain", "e"),
    Tab("/audit", "Audit", "a"),
)
FLEET_TAB = Tab("/fleet", "Fleet", "f")


@dataclass(frozen=True, slots=True)
class Site:
    """What the agent is, as far as every page says it."""

    agent: str
    version: str
    has_fleet: bool
    has_operators: bool
    """Whether anybody could sign in who may change something."""
    tour: str | None


@dataclass(frozen=True, slots=True)
class Visit:
    """One request to the page, with who makes it."""

    request: Request
    api: PageApi
    session: PageSession | None
    site: Site
    form: Mapping[str, str]
    """Of a POST, after its CSRF token was found right; each field once, the last counts."""

    @property
    def may_change(self) -> bool:
        return self.session is not None and self.session.may_change

    @property
    def by_script(self) -> bool:
        """A request of htmx, for a part of a page."""
        return self.request.headers.get("hx-request") == "true"

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def path(self) -> Mapping[str, Any]:
        return self.request.path_params


def page(visit: Visit, template: str, *, status: int = 200, **context: Any) -> Response:
    """A whole page: `template` extends base.html."""
    return _html(visit, template, status, context)


def part(visit: Visit, template: str, *, status: int = 200, **context: Any) -> Response:
    """A part of one, for htmx to put in its place."""
    return _html(visit, template, status, context)


def moved(visit: Visit, path: str) -> Response:
    """After a change: see there. For a script, by a header."""
    headers = headers_of(visit.site)
    if visit.by_script:
        return Response(status_code=204, headers={**headers, "HX-Redirect": path})
    return Response(status_code=303, headers={**headers, "Location": path})


def rejection(visit: Visit, rejected: ApiRejected) -> Response:
    """Why not, in the frame of a page, or as a part of one."""
    template = "rejected_part.html" if visit.by_script else "rejected.html"
    # htmx shows what was answered whatever the code; 200 would be a lie to everybody else.
    return _html(visit, template, rejected.status, {"rejected": rejected})


def _html(visit: Visit, template: str, status: int, context: Mapping[str, Any]) -> Response:
    # It shows a page that stays open that its session is over.
    who = {"X-Headgate-Who": quote(visit.session.name if visit.session else "")}
    headers = {**headers_of(visit.site), **who}
    return _Shown(template, {**_frame(visit), **context}, status, headers)


class _Shown(Response):
    """Made beside the loop, once its handler has said all: checks do not wait for a page."""

    def __init__(
        self, template: str, context: Mapping[str, Any], status: int, headers: dict[str, str]
    ) -> None:
        super().__init__(status_code=status, headers=headers, media_type="text/html")
        self._template = template
        self._context = context

    async def made(self) -> Response:
        shown = await asyncio.to_thread(render, self._template, self._context)
        self.body = shown.encode()
        self.headers["content-length"] = str(len(self.body))
        return self


async def made(response: Response) -> Response:
    return await response.made() if isinstance(response, _Shown) else response


def _frame(visit: Visit) -> dict[str, Any]:
    site, session = visit.site, visit.session
    return {
        "site": site,
        "tabs": [*TABS, *([FLEET_TAB] if site.has_fleet else [])],
        "here": visit.request.scope["path"],
        "session": session,
        "csrf": session.csrf if session else "",
        "may_change": visit.may_change,
        "why_not": why_not(visit),
        "poll_s": POLL_S,
        "zone": str(zone()),
    }


def why_not(visit: Visit) -> str:
    """Why this person cannot change anything; empty: they can."""
    if visit.may_change:
        return ""
    if visit.session is not None:
        return f"{visit.session.name} may look, not change: sign in with the token of an operator"
    if visit.site.has_operators:
        return "sign in with the token of an operator to change something"
    return (
        "nobody can sign in yet: `headgate page` on this host makes a link, or add a token with "
        "`headgate token`"
    )


def headers_of(site: Site) -> dict[str, str]:
    return {
        **SECURITY_HEADERS,
        "Content-Security-Policy": _CSP.format(tour=f" {site.tour}" if site.tour else ""),
        "Referrer-Policy": "same-origin",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Vary": "HX-Request, Cookie",
    }
