"""The pages, put together: who visits, whether they may, which page, and what went wrong.

Control ──► PageSite.routes ──► Starlette ──► _visited ──► a page's handler
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.base.ports import Clock
from headgate.base.problems import Problem
from headgate.errors import InvalidRequest
from headgate.http.asgi import AsgiApp
from headgate.http.auth import Gatekeeper, Peer, SignedIn, bare_name, is_known_name
from headgate.http.documents import problem_response
from headgate.page.api import ApiRejected, PageApi
from headgate.page.audit import AuditPage
from headgate.page.budgets import BudgetsPage
from headgate.page.changes import ChangesPage
from headgate.page.clients import ClientsPage
from headgate.page.explain import ExplainPage
from headgate.page.fleet import FleetPage
from headgate.page.overview import BannerPage, Hours, MemberChanges, MetricChanges, OverviewPage
from headgate.page.rules import RulesPage
from headgate.page.sessions import PageSession, PageSessions
from headgate.page.shell import (
    CSRF_HEADER,
    Site,
    Visit,
    headers_of,
    made,
    moved,
    page,
    rejection,
    static_file,
    take_zone,
)

# --- signing in and out, by an operator's or viewer's token, or by a link ------------------
# A token goes in a form's field, or behind the `#` of the address, which no server and no log gets
# to see: a script takes it from there.

MAX_TOKEN_CHARS = 512
SIGN_IN = "/sign-in"


def cookie_name(request: Request) -> str:
    """Of this very agent: all ports of a host share their cookies."""
    _, _, port = request.headers.get("host", "").rpartition(":")
    return f"headgate-{port if port.isdigit() else 'page'}"


class SigningPage:
    routes = (
        ("GET", SIGN_IN, "form"),
        ("POST", SIGN_IN, "sign_in"),
        ("POST", "/sign-out", "sign_out"),
    )

    def __init__(self, gatekeeper: Gatekeeper, sessions: PageSessions, *, secure: bool) -> None:
        self._gatekeeper = gatekeeper
        self._sessions = sessions
        self._secure = secure

    async def form(self, visit: Visit) -> Response:
        return page(visit, "sign_in.html", fault="", to=_own_path(visit.query.get("to", "/")))

    async def sign_in(self, visit: Visit) -> Response:
        to = _own_path(visit.form.get("to", "/"))
        try:
            session = self._session_for(visit.form.get("token", "").strip()[:MAX_TOKEN_CHARS])
        except InvalidRequest as error:
            return self._rejected(visit, error, to)
        if visit.session is not None:
            self._sessions.close(visit.session)
        headers = {**headers_of(visit.site), "Location": to}
        response = Response(status_code=303, headers=headers)
        self._set_cookie(visit.request, response, session)
        return response

    def _rejected(self, visit: Visit, error: InvalidRequest, to: str) -> Response:
        wait_s = self._sessions.wait_s
        if wait_s > 0:
            fault = f"too many wrong tokens were tried; wait {wait_s:.0f} s before the next guess"
            return page(visit, "sign_in.html", status=429, fault=fault, to=to)
        self._sessions.note_failure()
        return page(visit, "sign_in.html", status=error.status, fault=str(error), to=to)

    def _session_for(self, token: str) -> PageSession:
        if (session := self._sessions.redeem(token)) is not None:
            return session
        credential = self._gatekeeper.find(token)
        if credential.role == "peer":
            message = f"{credential.name} is an agent's token: people sign in with their own"
            raise InvalidRequest(message, status=403)
        may_change = credential.role == "operator"
        return self._sessions.open(credential.name, may_change=may_change, credential=credential)

    async def sign_out(self, visit: Visit) -> Response:
        if visit.session is not None:
            self._sessions.close(visit.session)
        response = moved(visit, "/")
        response.delete_cookie(cookie_name(visit.request), path="/", httponly=True)
        return response

    def _set_cookie(self, request: Request, response: Response, session: PageSession) -> None:
        response.set_cookie(
            cookie_name(request),
            session.key,
            max_age=int(self._sessions.lasts_s),
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="lax",  # A link in an alert or a runbook works without another sign-in.
        )


def _own_path(to: str) -> str:
    """Where to go afterwards: a path of this page, never another site."""
    plain = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable()
    return to if plain and to.isascii() and len(to) <= 1000 else "/"


# --- the site ------------------------------------------------------------------------------


MAX_FIELDS = 200
Handler = Callable[[Visit], Awaitable[Response]]
PageRoutes = Sequence[tuple[str, str, str]]


class PageOf(Protocol):
    """A page: handlers by route."""

    @property
    def routes(self) -> PageRoutes: ...


@dataclass(frozen=True, slots=True)
class PageSite:
    gatekeeper: Gatekeeper
    sessions: PageSessions
    site: Site
    secure: bool
    """The listener speaks TLS: cookies go nowhere else."""
    app: Callable[[], AsgiApp]
    clock: Clock
    names: frozenset[str]
    """What it may be called in a browser's address, besides numbers; lower case."""

    def routes(self) -> list[Route]:
        hours = Hours(self.clock)
        pages: list[PageOf] = [
            OverviewPage(self.clock, hours),
            MetricChanges(self.clock, hours),
            MemberChanges(self.clock, hours),
            ClientsPage(),
            RulesPage(),
            BudgetsPage(),
            ChangesPage(),
            ExplainPage(),
            AuditPage(),
            BannerPage(),
            FleetPage(),
            SigningPage(self.gatekeeper, self.sessions, secure=self.secure),
        ]
        own = [
            Route(path, self._visited(getattr(one, name)), methods=[method])
            for one in pages
            for method, path, name in one.routes
        ]
        return [*own, Route("/static/{file:path}", static, methods=["GET"])]

    def _visited(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            visit = self._visit(request)
            take_zone(request)
            try:
                _expect_known_name(request, self.names)
                if request.method == "POST":
                    visit = await self._posted(visit)
                return await handler(visit)
            except ApiRejected as rejected:
                return rejection(visit, rejected)
            except InvalidRequest as error:
                problem = Problem("about:blank", "", error.status, str(error), field=error.field)
                return rejection(visit, ApiRejected(error.status, problem))

        async def visited(request: Request) -> Response:
            return await made(await answered(request))

        return visited

    def _visit(self, request: Request) -> Visit:
        session = self._session(request)
        peer: Peer = request.state.peer
        # A browser cannot come by the Unix socket, but a program that carries no session can:
        # it has the API for what it wants to change.
        known = SignedIn(session.name, session.may_change) if session else _NOBODY
        as_them = Peer(peer.address, None, signed_in=known)
        return Visit(request, PageApi(self.app, as_them), session, self.site, {})

    def _session(self, request: Request) -> PageSession | None:
        session = self.sessions.find(request.cookies.get(cookie_name(request)))
        if session is None or session.credential is None:
            return session
        if self.gatekeeper.knows(session.credential):
            return session
        self.sessions.close(session)  # Its token is not in the settings any more.
        return None

    async def _posted(self, visit: Visit) -> Visit:
        """With its form, if that was sent by this very page."""
        request = visit.request
        _expect_own_origin(request)
        fields = _fields(request.headers.get("content-type", ""), await request.body())
        # Who signs in again may do so from a page of before; where it came from was looked at.
        if visit.session is not None and request.scope["path"] != SIGN_IN:
            _expect_csrf(visit.session, request.headers.get(CSRF_HEADER, fields.get("csrf", "")))
        return Visit(request, visit.api, visit.session, visit.site, fields)


def _fields(content_type: str, body: bytes) -> dict[str, str]:
    if content_type.split(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise InvalidRequest("send the form as application/x-www-form-urlencoded", status=415)
    try:
        told = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:  # Not UTF-8, or too many.
        raise InvalidRequest(f"the form cannot be read: {error}") from None
    return dict(told)


_NOBODY = SignedIn("", may_change=False)


def _expect_own_origin(request: Request) -> None:
    """Browsers say where a form was sent from; another site's is not ours to take."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin", "")
    own = not origin or _place(origin) == request.headers.get("host", "")
    if site not in ("same-origin", "none") or not own:
        raise InvalidRequest("this form was sent by another site; nothing was changed", status=403)


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # Such as a bracket that is not closed.
        return ""


def _expect_known_name(request: Request, names: frozenset[str]) -> None:
    """The listener has looked at what came in the clear; a browser's name is looked at over TLS,
    too."""
    host = request.headers.get("host", "")
    if not host or request.state.peer.unix_uid is not None or is_known_name(host, names):
        return
    raise InvalidRequest(
        f"this page is not known as {bare_name(host)[:100]!r}: add that name to `hosts` of [agent] "
        "in the agent's settings, or use the agent's address",
        status=421,
    )


def _expect_csrf(session: PageSession, told: str) -> None:
    if not hmac.compare_digest(session.csrf.encode(), told.encode()):
        message = "this form is of an earlier sign-in; nothing was changed: load the page again"
        raise InvalidRequest(message, status=403)


_TYPES = {
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"


async def static(request: Request) -> Response:
    name = request.path_params["file"]
    try:
        content, mark = static_file(name)
    except KeyError:
        return problem_response(404, f"the page has no file {name[:100]!r}")
    headers = {
        "ETag": f'"{mark}"',
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        # With the mark of its content in the address, it never changes.
        "Cache-Control": _FOR_EVER if request.query_params.get("v") == mark else "no-cache",
    }
    if request.headers.get("if-none-match") == f'"{mark}"':
        return Response(status_code=304, headers=headers)
    media_type = _TYPES.get(name.rpartition(".")[2], "text/plain")
    return Response(content, media_type=media_type, headers=headers)
