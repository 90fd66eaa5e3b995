"""Documents in and out of the control plane: JSON bodies, answers, RFC 9457 problems."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.errors import InvalidRequest
from headgate.wire import problems

T = TypeVar("T")
SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_DURATION = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_JSON_TYPES = frozenset({"application/json", "application/merge-patch+json"})


def expect_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type not in _JSON_TYPES:
        raise InvalidRequest("send the body as application/json", status=415)


async def json_object(request: Request) -> dict[str, Any]:
    expect_json(request)
    try:
        body = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be an object of settings")
    return body


def parse_duration(text: str, field: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{field} is {text!r}, must read like 30m, 1h or 7d", field=field)
    return float(int(match[1]) * _SECONDS[match[2]])


def json_response(
    doc: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(doc),
        status_code=status,
        media_type="application/json",
        headers={**SECURITY_HEADERS, **(headers or {})},
    )


def problem_response(
    status: int, detail: str, *, field: str | None = None, faults: list[str] | None = None
) -> Response:
    body = problems.problem(status, detail, field=field, faults=faults)
    headers = dict(SECURITY_HEADERS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(body, status_code=status, media_type=problems.CONTENT_TYPE, headers=headers)


class UnderWay:
    """Changes that are brought to their end, whether or not their client still listens: one
    that hangs up half-way must not leave a change kept but not in force."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    async def finish(self, change: Awaitable[T]) -> T:
        task = asyncio.ensure_future(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)
