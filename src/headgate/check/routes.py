"""The hot routes: checks, answered without awaiting anything.

Request ──prepare──► a closure that calls the Checker and renders ──► bytes

Parsing happens once, in `prepare`; the closure is what the listener may keep and call again.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.base import problems
from headgate.check.answers import (
    FRENO_STATUS,
    STATUS,
    answer_doc,
    batch_doc,
    encode,
    freno_doc,
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
from headgate.errors import InvalidRequest
from headgate.http.documents import problem_reply, reply, whole_seconds
from headgate.http.listener import Answer, Request
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
            return self._bare(check, STATUS)

        def render(decision: Decision) -> bytes:
            doc = answer_doc(decision, detail=detail)
            return _reply(decision, STATUS, encode(doc))

        # With detail, even an admission shows ages, which change from call to call.
        return self._always(check, render) if detail else self._admitting_at_once(check, render)

    def _freno(self, check: Check, *, head_only: bool) -> Answer:
        if head_only:
            return self._bare(check, FRENO_STATUS)

        def render(decision: Decision) -> bytes:
            return _reply(decision, FRENO_STATUS, encode(freno_doc(decision)))

        return self._admitting_at_once(check, render)

    def _bare(self, check: Check, statuses: dict[Verdict, int]) -> Answer:
        def render(decision: Decision) -> bytes:
            retry_after_s = whole_seconds(decision.retry_after_s)
            status = statuses[decision.verdict]
            return reply(status, b"", retry_after_s=retry_after_s, head_only=True)

        return self._admitting_at_once(check, render)

    def _always(self, check: Check, render: Render) -> Answer:
        ask = self._checker.check
        return lambda: render(ask(check))

    def _admitting_at_once(self, check: Check, render: Render) -> Answer:
        """Every call is a decision of its own, with its own dice. Only the bytes of an
        admission are kept, for as long as the health and the rules they were rendered from."""
        ask, ok = self._checker.check, Verdict.OK
        health: Health | None = None
        applied: Applied | None = None
        rendered = b""

        def answer() -> bytes:
            nonlocal health, applied, rendered
            decision = ask(check)
            if decision.verdict is not ok or decision.exempted or decision.turn is not None:
                return render(decision)
            if decision.debit is not None:
                return render(decision)
            if decision.health is not health or decision.applied is not applied:
                health, applied, rendered = decision.health, decision.applied, render(decision)
            return rendered

        return answer

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


def _reply(decision: Decision, statuses: dict[Verdict, int], body: bytes) -> bytes:
    retry_after_s = whole_seconds(decision.retry_after_s)
    return reply(statuses[decision.verdict], body, retry_after_s=retry_after_s)


def _wrong_method(allow: str) -> bytes:
    body = problems.problem(405, f"this route takes {allow}")
    extra = f"Allow: {allow}\r\n".encode()
    return reply(405, body, content_type=problems.CONTENT_TYPE.encode(), extra=extra)


def _is_json(request: Request) -> bool:
    for name, value in request.headers:
        if name.lower() == b"content-type":
            return value.split(b";")[0].strip().lower() == b"application/json"
    return False
