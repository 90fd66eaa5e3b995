"""The hot routes: checks, answered without awaiting anything.

Request ──prepare──► a closure that calls the Checker and renders ──► bytes

Parsing happens once, in `prepare`; the closure is what the listener may keep and call again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from headgate.base import problems
from headgate.base.names import plain_identity
from headgate.check.answers import (
    FRENO_STATUS,
    STATUS,
    answer_doc,
    batch_doc,
    encode,
    freno_doc,
    in_ms,
)
from headgate.check.checker import Checker
from headgate.check.decide import Steady, steady_of
from headgate.check.health import FOREVER, steady_until
from headgate.check.model import Check, Decision, Verdict
from headgate.check.questions import (
    FRENO_ROUTES,
    parse_check_body,
    parse_check_query,
    parse_freno,
    parse_read_query,
)
from headgate.errors import InvalidName, InvalidRequest
from headgate.history.recorder import decided_by
from headgate.http.documents import problem_reply, reply, whole_seconds
from headgate.http.listener import Answer, NamedAnswer, Request

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
        return CheckAnswer(self._checker, check, rendering)

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
_made = tuple.__new__


class CheckAnswer(NamedAnswer):
    """Every call is a decision of its own, with its own dice. What checks like it came to last is
    not worked out again, as long as nothing but the client and the dice can make a difference."""

    __slots__ = ("_check", "_checker", "_rendered", "_rendered_by", "_rendering")

    def __init__(self, checker: Checker, check: Check, rendering: Rendering) -> None:
        self._checker = checker
        self._check = check
        self._rendering = rendering
        self._rendered = b""
        self._rendered_by: Rendered | None = None

    def __call__(self) -> bytes:
        last, check = self._rendering.steady, self._check
        if last is not None and last.steady is not None:
            wait_s = self._checker.again(check, last.steady, last.by)
            if wait_s is not None:
                if wait_s:
                    return last.fill(check, wait_s)
                if self._rendered_by is not last:
                    self._rendered, self._rendered_by = last.fill(check, None), last
                return self._rendered
        return self._rendering.of(self._checker.check(check))

    def named(self, name: str) -> CheckAnswer | None:
        check = self._check_of(name)
        return None if check is None else CheckAnswer(self._checker, check, self._rendering)

    def once(self, name: str) -> bytes | None:
        check, last = self._check_of(name), self._rendering.steady
        if check is None:
            return None
        if last is not None and last.steady is not None:
            wait_s = self._checker.again(check, last.steady, last.by)
            if wait_s is not None:
                return last.fill(check, wait_s or None)
        return self._rendering.of(self._checker.check(check))

    def _check_of(self, name: str) -> Check | None:
        try:
            return _made(Check, (plain_identity(name), *self._check[1:]))
        except InvalidName:
            return None


class Rendering:
    """Decisions ──► responses. Clients that get the same answer share what was rendered of it:
    only the name and the time to wait are filled in."""

    __slots__ = ("_admission", "_body_of", "_rejection", "_statuses", "steady", "with_ages")

    def __init__(
        self, statuses: dict[Verdict, int], body_of: Render | None, *, with_ages: bool = False
    ) -> None:
        """`body_of`: None for HEAD. `with_ages`: in admissions, too."""
        self.with_ages = with_ages
        self._statuses = statuses
        self._body_of = body_of
        self._admission: Rendered | None = None
        self._rejection: Rendered | None = None
        self.steady: Rendered | None = None
        """The one of them that came last and has a Steady: the same for most clients."""

    def of(self, decision: Decision) -> bytes:
        check, wait_s = decision.check, decision.retry_after_s
        # Where more than the name and the wait is the client's own, nothing is shared.
        own = decision.exempted or decision.turn is not None or decision.debit is not None
        kept = self._admission if decision.verdict is _OK else self._rejection
        if not own and kept is not None and kept.fits(decision):
            return kept.fill(check, wait_s)
        body = self._body_of(decision) if self._body_of is not None else b""
        status, head_only = self._statuses[decision.verdict], self._body_of is None
        has_ages = self.with_ages or decision.verdict is not _OK
        now_s, health = decision.at.mono_s, decision.health
        until = FOREVER if health is None else steady_until(health, now_s)
        if has_ages and not head_only:
            until = min(until, now_s + AGES_KEPT_S)
        rendered = Rendered(decision, status, body, until, head_only=head_only)
        if not own:
            self._keep(rendered, decision)
        return rendered.fill(check, wait_s)

    def _keep(self, rendered: Rendered, decision: Decision) -> None:
        if decision.verdict is _OK:
            self._admission = rendered
        else:
            self._rejection = rendered
        if rendered.steady is not None:
            self.steady = rendered


class Rendered:
    """The response to one decision, to be filled in for others like it."""

    __slots__ = (
        "_decision", "_head_only", "_parts", "_status", "_until", "_wholes", "by", "steady"
    )  # fmt: skip

    def __init__(
        self, decision: Decision, status: int, body: bytes, until: float, *, head_only: bool
    ) -> None:
        self._decision = decision
        self._status = status
        self._parts = _HOLES.split(body)
        """Of the body, around the name, and around how long to wait."""
        self._until = until
        self._head_only = head_only
        self._wholes: dict[int | None, bytes] = {}
        """Where the body is the same for every client: all of the response, by Retry-After."""
        self.by = decided_by(decision)
        self.steady: Steady | None = steady_of(decision, until)

    def fits(self, decision: Decision) -> bool:
        mine = self._decision
        return (
            decision.verdict is mine.verdict
            and decision.health is mine.health
            and decision.applied is mine.applied
            and decision.note == mine.note
            and decision.at.mono_s < self._until
            and (decision.retry_after_s is None) is (mine.retry_after_s is None)
        )

    def fill(self, check: Check, retry_after_s: float | None) -> bytes:
        parts, wait_s = self._parts, whole_seconds(retry_after_s)
        if len(parts) == 1:
            whole = self._wholes.get(wait_s)
            if whole is None:
                whole = self._wholes[wait_s] = reply(
                    self._status, parts[0], retry_after_s=wait_s, head_only=self._head_only
                )
            return whole
        name = check.identity.text.encode()
        if len(parts) == 2 or retry_after_s is None:
            body = name.join(parts)
        else:
            body = b"%b%b%b%d%b" % (parts[0], name, parts[1], in_ms(retry_after_s), parts[2])
        return reply(self._status, body, retry_after_s=wait_s)
