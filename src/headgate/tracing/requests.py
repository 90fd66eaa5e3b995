"""Requests with a span around them.   Listener ──► TracedDoor ──► checks, control plane

Put between only where traces are wanted. A check is traced where its caller traces it, and says
so with `traceparent`; all others go the way that they went before. What machines repeat by the
second (scrapes, pulls, polls) is traced for a caller that wants it, too, and else not at all.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec

from headgate.base.ports import Fact, Span, Tracer
from headgate.base.traceparent import parse_traceparent
from headgate.check.model import PASSING, Check
from headgate.check.questions import FRENO_ROUTES
from headgate.http.auth import Peer
from headgate.http.listener import Answer, Handlers, Request

Facts = dict[str, Fact]
Send = Callable[[bytes], Awaitable[None]]
CheckIn = Callable[[Request], Check | None]
"""The one check in a request."""

QUIET = re.compile(
    r"/(healthz|readyz|metrics|lb-check|_ping|status|leader-check|hostname"
    r"|v1/(peer|policies|reports|snapshot|unthrottled|fleet/feed)(/.*)?|static/.*)"
)
_CHECKS = frozenset({"/v1/check", "/v1/check-read"})
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3})")
_SERVER_FAULT = 500
_PASSING = frozenset(state.value for state in PASSING)


class TracedDoor:
    """Implements what listener.Handlers asks for."""

    def __init__(
        self,
        handlers: Handlers,
        tracer: Tracer,
        check_in: CheckIn,
        routes: Iterable[str],
    ) -> None:
        self._inner = handlers
        self._tracer = tracer
        self._check_in = check_in
        self._routes = [(_pattern(path), path) for path in dict.fromkeys(routes)]

    def handlers(self) -> Handlers:
        return self._inner._replace(prepare=self.prepare, serve=self.serve)

    def prepare(self, request: Request) -> Answer | bytes | None:
        traceparent = _header(request, b"traceparent")
        if not traceparent or not _is_check(request):
            return self._inner.prepare(request)
        caller = parse_traceparent(traceparent)
        if caller is None or not caller.sampled:
            return _asked(self._inner.prepare(request))
        with self._tracer.request("check", traceparent, self._asks(request)) as span:
            reply = _asked(self._inner.prepare(request))
            span.note({"headgate.forwarded": True} if reply is None else _told(reply))
        return reply

    async def serve(self, request: Request, peer: Peer, send: Send) -> bool:
        path, traceparent = _path(request), _header(request, b"traceparent")
        # The page polls automatically, every other second.
        is_poll = request.method == "GET" and _header(request, b"hx-request")
        if not traceparent and (QUIET.fullmatch(path) or is_poll):
            return await self._inner.serve(request, peer, send)
        route = self._route(path)
        facts: Facts = {
            "http.request.method": request.method,
            "http.route": route,
            "client.address": peer.address,
        }
        with self._tracer.request(f"{request.method} {route}", traceparent, facts) as span:
            return await self._inner.serve(request, peer, _noting(send, span))

    def _asks(self, request: Request) -> Facts:
        check = self._check_in(request)
        if check is None:
            return {}
        return {"headgate.client": check.identity.text, "headgate.database": check.database}

    def _route(self, path: str) -> str:
        """With names in the place of what differs: bounded, and without anybody's data."""
        found = (route for pattern, route in self._routes if pattern.fullmatch(path))
        return next(found, "unknown")


def _pattern(route: str) -> re.Pattern[str]:
    pieces = re.split(r"\{[^}]*\}", route)
    inner = ".+" if ":path}" in route else "[^/]+"
    return re.compile(inner.join(map(re.escape, pieces)))


def _asked(answer: Answer | bytes | None) -> bytes | None:
    """Never a repeatable answer: these very bytes do not come again."""
    return answer() if callable(answer) else answer


def _noting(send: Send, span: Span) -> Send:
    is_first = True

    async def sent(data: bytes) -> None:
        nonlocal is_first
        match = _STATUS.match(data) if is_first else None
        is_first = False
        if match is not None:
            status = int(match[1])
            span.note({"http.response.status_code": status})
            if status >= _SERVER_FAULT:
                span.fault(f"answered {status}")
        await send(data)

    return sent


def _told(reply: bytes) -> Facts:
    """Of the answer to a check: its status, and what decided."""
    match = _STATUS.match(reply)
    facts: Facts = {} if match is None else {"http.response.status_code": int(match[1])}
    return facts | dict(_verdict(reply.partition(b"\r\n\r\n")[2]))


class _Metric(msgspec.Struct):
    metric: str
    scope: str
    state: str


class _Judged(msgspec.Struct):
    """What a span tells of an answer."""

    verdict: str = ""
    rule: str | None = None
    metrics: list[_Metric] = []


def _verdict(body: bytes) -> Iterator[tuple[str, Fact]]:
    try:
        judged = msgspec.json.decode(body, type=_Judged)
    except msgspec.DecodeError:
        return
    yield "headgate.verdict", judged.verdict
    if judged.rule:
        yield "headgate.rule", judged.rule
    failing = [f"{m.scope}/{m.metric}" for m in judged.metrics if m.state not in _PASSING]
    if failing:
        yield "headgate.metric", ",".join(failing)


def _is_check(request: Request) -> bool:
    path = _path(request)
    if path in _CHECKS:
        return True
    return path.removeprefix("/freno").removeprefix("/").partition("/")[0] in FRENO_ROUTES


def _path(request: Request) -> str:
    return request.target.partition(b"?")[0].decode("latin-1")


def _header(request: Request, wanted: bytes) -> str:
    for name, value in request.headers:
        if name.lower() == wanted:
            return value.decode("latin-1")
    return ""
