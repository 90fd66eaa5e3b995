"""Signing in and out, by an operator's or viewer's token, or by a link.

A token goes in a form's field, or behind the `#` of the address, which no server and no log gets
to see: a script takes it from there.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headgate.errors import InvalidRequest
from headgate.http.auth import Gatekeeper
from headgate.page.sessions import PageSession, PageSessions
from headgate.page.shell import Visit, headers_of, moved, page

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
            samesite="lax",  # A link in an alert or a runbook finds whom it is for signed in.
        )


def _own_path(to: str) -> str:
    """Where to go afterwards: a path of this page, never another site."""
    plain = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable()
    return to if plain and to.isascii() and len(to) <= 1000 else "/"
