"""The hot routes: checks, answered without awaiting anything.

Request ──prepare──► a closure that calls the Checker and renders ──► bytes

Parsing happens once, in `prepare`; the closure is what the listener may keep and call again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headgate.base import problems
from headgate.base.names import parse_identity
from headgate.check.answers import (
    FRENO_STATUS,
    STATUS,
    answer_doc,
    batch_doc,
    encode,
    freno_doc,
    retry_after_ms,
)
from headgate.check.checker import Checker
from headgate.check.health import Health
from headgate.check.model import Check, Decision, Verdict
from headgate.check.questions import (
    FRENO_ROUTES,
    parse_check_body,
    parse_check_query,
    parse_freno,
    parse_read_query,
)
from headgate.errors import InvalidName, InvalidRequest
from headgate.http.documents import problem_reply, reply, whole_seconds
from headgate.http.listener import Answer, NamedAnswer, Request
from headgate.rules.matching import Applied

GET_OR_HEAD = frozenset({"GET", "HEAD"})
_ALLOW = {
    "/v1/check": "GET, HEAD, POST",
    "/v1/check-read": "GET, HEAD",
}
Render = Callable[[Decision], bytes]


class CheckRoutes:
    def __init__(self, checker: Checker) -> None:
        self._checker = checker

    def prepare(self, request: Request) -> Answer | bytes | None:
        """See listener.Handlers."""
        try:
            target = request.target.decode("ascii")
        except UnicodeDecodeError:
            detail = "the request target is not ASCII; percent-encode it"
            return problem_reply(400, detail, head_only=request.method == "HEAD")
        path, _, query = target.partition("?")
        try:
            return self._route(request, path, query)
        except InvalidRequest as error:
            head_only = request.method == "HEAD"
            return problem_reply(error.status, str(error), field=error.field, head_only=head_only)

    def _route(self, request: Request, path: str, query: str) -> Answer | bytes | None:
        if path == "/v1/check":
            if request.method == "POST":
                return self._post(request)
            if request.method in GET_OR_HEAD:
                check, detail = parse_check_query(query)
                return self._native(check, detail, head_only=request.method == "HEAD")
        elif path == "/v1/check-read":
            if request.method in GET_OR_HEAD:
                check, detail = parse_read_query(query)
                return self._native(check, detail, head_only=request.method == "HEAD")
        else:
            return self._freno_route(request, path, query)
        return _wrong_method(_ALLOW[path])

    def _freno_route(self, request: Request, path: str, query: str) -> Answer | bytes | None:
        tree = path.removeprefix("/freno") if path.startswith("/freno/") else path
        parts = tree.removeprefix("/").split("/")
        if parts[0] not in FRENO_ROUTES:
            return None
        if request.method not in GET_OR_HEAD:
            return _wrong_method("GET, HEAD")
        return self._freno(parse_freno(parts, query), head_only=request.method == "HEAD")

    def check_in(self, request: Request) -> Check | None:
        """The one question of this request; None where it holds none, or several."""
        try:
            target = request.target.decode("ascii")
            path, _, query = target.partition("?")
            return _check_in(request, path, query)
        except (InvalidRequest, UnicodeDecodeError):
            return None

    def _native(self, check: Check, detail: bool, *, head_only: bool) -> Answer:
        if head_only:
            return self._answer(check, STATUS)
        body_of = partial(_native_body, detail=detail)
        return self._answer(check, STATUS, body_of, with_ages=detail)

    def _freno(self, check: Check, *, head_only: bool) -> Answer:
        return self._answer(check, FRENO_STATUS, None if head_only else _freno_body)

    def _answer(
        self,
        check: Check,
        statuses: dict[Verdict, int],
        body_of: Render | None = None,
        *,
        with_ages: bool = False,
    ) -> Answer:
        rendering = Rendering(statuses, body_of, with_ages=with_ages)
        return CheckAnswer(self._checker.check, check, rendering)

    def _post(self, request: Request) -> bytes:
        if not _is_json(request):
            return problem_reply(415, "send the check as application/json")
        checks, batch, detail = parse_check_body(request.body)
        decisions = [self._checker.check(check) for check in checks]
        if not all(decision.admitted for decision in decisions):
            # One piece of work: what some databases have let go of is not going anywhere.
            for decision in decisions:
                self._checker.give_back(decision)
        waits = [d.retry_after_s for d in decisions if d.retry_after_s is not None]
        first = next((d for d in decisions if not d.admitted), decisions[0])
        doc = (
            batch_doc(decisions, detail=detail)
            if batch
            else answer_doc(decisions[0], detail=detail)
        )
        return reply(
            STATUS[first.verdict],
            encode(doc),
            retry_after_s=whole_seconds(max(waits, default=None)),
        )


def _check_in(request: Request, path: str, query: str) -> Check | None:
    if path == "/v1/check" and request.method == "POST":
        checks, batch, _ = parse_check_body(request.body)
        return None if batch else checks[0]
    if request.method not in GET_OR_HEAD:
        return None
    if path == "/v1/check":
        return parse_check_query(query)[0]
    if path == "/v1/check-read":
        return parse_read_query(query)[0]
    parts = path.removeprefix("/freno").removeprefix("/").split("/")
    return parse_freno(parts, query) if parts[0] in FRENO_ROUTES else None


def _native_body(decision: Decision, *, detail: bool) -> bytes:
    return encode(answer_doc(decision, detail=detail))


def _freno_body(decision: Decision) -> bytes:
    return encode(freno_doc(decision))


def _wrong_method(allow: str) -> bytes:
    body = problems.problem(405, f"this route takes {allow}")
    extra = f"Allow: {allow}\r\n".encode()
    return reply(405, body, content_type=problems.CONTENT_TYPE.encode(), extra=extra)


def _is_json(request: Request) -> bool:
    for name, value in request.headers:
        if name.lower() == b"content-type":
            return value.split(b";")[0].strip().lower() == b"application/json"
    return False


# --- answers that are given again ----------------------------------------------------------

NAMED = re.compile(
    rb"(?:GET|HEAD) /(?:(?:freno/)?check(?:-read)?(?:-if-exists)?/|v1/check(?:-read)?\?app=)"
    rb"([A-Za-z0-9_.@~:-]{1,256})(?=[/& ])"
)
"""The client's name in a request, if none of its characters has a meaning in a URL."""
AGES_KEPT_S = 0.005
"""How long a rendered rejection is used again. So an age in it is up to 5 ms too low, and a
crowd of rejected clients costs the rendering of 200 rejections a second at most."""
_OK = Verdict.OK
_HOLES = re.compile(rb'(?<="app":")[^"]*|(?<="retry_after_ms":)\d+')


class CheckAnswer(NamedAnswer):
    """Every call is a decision of its own, with its own dice. Only the bytes of an admission
    are kept, for as long as the health and the rules they were rendered from."""

    __slots__ = ("_applied", "_ask", "_check", "_health", "_rendered", "_rendering")

    def __init__(
        self, ask: Callable[[Check], Decision], check: Check, rendering: Rendering
    ) -> None:
        self._ask = ask
        self._check = check
        self._rendering = rendering
        self._health: Health | None = None
        self._applied: Applied | None = None
        self._rendered = b""

    def __call__(self) -> bytes:
        decision = self._ask(self._check)
        if (
            decision.verdict is not _OK
            or decision.exempted
            or decision.turn is not None
            or decision.debit is not None
            or self._rendering.with_ages
        ):
            return self._rendering.of(decision)
        if decision.health is not self._health or decision.applied is not self._applied:
            self._rendered = self._rendering.of(decision)
            self._health, self._applied = decision.health, decision.applied
        return self._rendered

    def named(self, name: str) -> CheckAnswer | None:
        check = self._check_of(name)
        return None if check is None else CheckAnswer(self._ask, check, self._rendering)

    def once(self, name: str) -> bytes | None:
        check = self._check_of(name)
        return None if check is None else self._rendering.of(self._ask(check))

    def _check_of(self, name: str) -> Check | None:
        try:
            return Check._make((parse_identity(name), *self._check[1:]))
        except InvalidName:
            return None


class Rendering:
    """Decisions ──► responses. Clients that get the same answer share what was rendered of it:
    only the name and the time to wait are filled in."""

    __slots__ = ("_admission", "_body_of", "_rejection", "_statuses", "with_ages")

    def __init__(
        self, statuses: dict[Verdict, int], body_of: Render | None, *, with_ages: bool = False
    ) -> None:
        """`body_of`: None for HEAD. `with_ages`: in admissions, too."""
        self.with_ages = with_ages
        self._statuses = statuses
        self._body_of = body_of
        self._admission: Rendered | None = None
        self._rejection: Rendered | None = None

    def of(self, decision: Decision) -> bytes:
        kept = self._admission if decision.verdict is _OK else self._rejection
        # Where more than the name and the wait is the client's own, nothing is shared.
        own = decision.exempted or decision.turn is not None or decision.debit is not None
        if kept is not None and not own and kept.fits(decision):
            return kept.fill(decision)
        status, wait_s = self._statuses[decision.verdict], whole_seconds(decision.retry_after_s)
        if self._body_of is None:
            return reply(status, b"", retry_after_s=wait_s, head_only=True)
        body = self._body_of(decision)
        if not own:
            self._keep(decision, status, body)
        return reply(status, body, retry_after_s=wait_s)

    def _keep(self, decision: Decision, status: int, body: bytes) -> None:
        admitted = decision.verdict is _OK
        has_ages = self.with_ages or not admitted
        until = decision.at.mono_s + AGES_KEPT_S if has_ages else math.inf
        kept = Rendered(decision, status, _HOLES.split(body), until, {})
        if admitted:
            self._admission = kept
        else:
            self._rejection = kept


class Rendered(NamedTuple):
    """The response to one decision, to be filled in for others like it."""

    decision: Decision
    status: int
    parts: list[bytes]
    """Of the body, around the name, and around how long to wait."""
    until: float
    wholes: dict[int | None, bytes]
    """Where the body is the same for every client: all of the response, by Retry-After."""

    def fits(self, decision: Decision) -> bool:
        mine = self.decision
        return (
            decision.verdict is mine.verdict
            and decision.health is mine.health
            and decision.applied is mine.applied
            and decision.note == mine.note
            and decision.at.mono_s < self.until
            and (decision.retry_after_s is None) is (mine.retry_after_s is None)
        )

    def fill(self, decision: Decision) -> bytes:
        parts, wait_s = self.parts, whole_seconds(decision.retry_after_s)
        if len(parts) == 1:
            whole = self.wholes.get(wait_s)
            if whole is None:
                whole = self.wholes[wait_s] = reply(self.status, parts[0], retry_after_s=wait_s)
            return whole
        name, wait_ms = decision.check.identity.text.encode(), retry_after_ms(decision)
        if len(parts) == 2 or wait_ms is None:
            body = name.join(parts)
        else:
            body = b"%b%b%b%d%b" % (parts[0], name, parts[1], wait_ms, parts[2])
        return reply(self.status, body, retry_after_s=wait_s)
