"""Who is signed in at the page.   Signing ──► PageSessions ◄── Site, with each request

In memory: a restart signs everybody out. Bounded in number and in time; a session whose token has
been taken out of the settings is over with its next request.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from headgate.base.ports import Clock
from headgate.errors import InvalidRequest
from headgate.http.auth import Credential, Gatekeeper
from headgate.http.documents import json_response
from headgate.http.routes import Caller, Plain, Route

MAX_SESSIONS = 1000
MAX_SESSIONS_EACH = 20
"""Of one name: nobody crowds out others."""
MAX_LINKS = 32
LINK_S = 120.0
MAX_FAILURES = 20
"""Of signing in, within `FAILURES_S`; beyond it wrong tokens are not even answered as such. Right
ones always are: tokens are too long to be guessed, and nobody is to lock out an operator."""
FAILURES_S = 60.0


@dataclass(frozen=True, slots=True)
class PageSession:
    key: str
    name: str
    may_change: bool
    csrf: str
    ends_at_mono_s: float
    credential: Credential | None
    """None: by a link that was made at the Unix socket."""

    def __repr__(self) -> str:
        return f"PageSession({self.name})"  # Never with its key.


class _Link(NamedTuple):
    name: str
    credential: Credential | None
    until_mono_s: float


class PageSessions:
    def __init__(self, clock: Clock, lasts_s: float) -> None:
        self._clock = clock
        self.lasts_s = lasts_s
        self._sessions: OrderedDict[str, PageSession] = OrderedDict()
        self._links: OrderedDict[str, _Link] = OrderedDict()
        self._failed_at: list[float] = []

    def open(self, name: str, *, may_change: bool, credential: Credential | None) -> PageSession:
        ends_at = self._clock.now().mono_s + self.lasts_s
        key, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = PageSession(key, name, may_change, csrf, ends_at, credential)
        own = [known for known in self._sessions.values() if known.name == name]
        for oldest in own[: max(0, len(own) - MAX_SESSIONS_EACH + 1)]:
            self.close(oldest)
        self._sessions[key] = session
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def find(self, key: str | None) -> PageSession | None:
        session = self._sessions.get(key) if key else None
        if session is not None and self._clock.now().mono_s >= session.ends_at_mono_s:
            self.close(session)
            return None
        return session

    def close(self, session: PageSession) -> None:
        self._sessions.pop(session.key, None)

    # --- links, each good for one sign-in ---------------------------------------------------

    def make_link(self, name: str, credential: Credential | None) -> str:
        """`credential`: the token it was made with; None: at the Unix socket."""
        code = secrets.token_urlsafe(24)
        self._links[code] = _Link(name, credential, self._clock.now().mono_s + LINK_S)
        while len(self._links) > MAX_LINKS:
            self._links.popitem(last=False)
        return code

    def redeem(self, code: str) -> PageSession | None:
        """A session for the one that the link was made for; once."""
        known = next((c for c in self._links if hmac.compare_digest(c.encode(), code.encode())), "")
        link = self._links.pop(known, None)
        if link is None or self._clock.now().mono_s >= link.until_mono_s:
            return None
        return self.open(link.name, may_change=True, credential=link.credential)

    # --- guessing ---------------------------------------------------------------------------

    def note_failure(self) -> None:
        self._failed_at = [*self._recent_failures(), self._clock.now().mono_s]

    @property
    def wait_s(self) -> float:
        """How long another wrong token is sent away, after many of them."""
        recent = self._recent_failures()
        if len(recent) < MAX_FAILURES:
            return 0.0
        return recent[0] + FAILURES_S - self._clock.now().mono_s

    def _recent_failures(self) -> list[float]:
        since = self._clock.now().mono_s - FAILURES_S
        return [at for at in self._failed_at if at > since][-MAX_FAILURES:]


class LinkDoc(msgspec.Struct, frozen=True):
    """A way in that is good once."""

    path: str
    """At the agent's address. What follows the `#` is a secret."""
    expires_in_s: float
    name: str
    """Their name in the audit."""
    listens: str | None = None
    """The agent's own address: `http://127.0.0.1:8087`; null: it has only its Unix socket, which
    no browser can reach."""


class PageLinks:
    """Handlers, as Control's. `sessions`: None where this agent serves no page."""

    def __init__(
        self, gatekeeper: Gatekeeper, sessions: PageSessions | None, listens: str | None = None
    ) -> None:
        self._gatekeeper = gatekeeper
        self._sessions = sessions
        self._listens = listens

    async def link(self, call: Plain) -> Response:
        if self._sessions is None:
            message = "this agent serves no page: set `enabled = true` in [page] of its settings"
            raise InvalidRequest(message, status=404)
        # The session ends with the token that it came by.
        told = call.request.headers.get("authorization")
        credential = None if told is None else self._gatekeeper.holder(told)
        code = self._sessions.make_link(call.who, credential)
        doc = LinkDoc(f"/sign-in#{code}", LINK_S, call.who, self._listens)
        return json_response(doc, status=201)


PAGE_LINK_ROUTES = (
    Route(
        "POST", "/v1/page/links", "link", "A link that signs in at the page, once", LinkDoc,
        role=Caller.OPERATOR, created=True,
        about="As the operator who asked for it: [the page](../howto/page.md).",
    ),
)  # fmt: skip
