"""Documents in and out of the control plane: JSON bodies, answers, RFC 9457 problems."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.base import problems
from headgate.errors import InvalidRequest

# --- responses as bytes, for the answers that do not pass through the ASGI app -------------

JSON = b"application/json"
PROBLEM = problems.CONTENT_TYPE.encode()

_STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_JSON_STARTS: dict[int, bytes] = {
    status: line + b"Content-Type: " + JSON + b"\r\nContent-Length: "
    for status, line in _STATUS_LINES.items()
}


def reply(
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    retry_after_s: int | None = None,
    extra: bytes = b"",
    head_only: bool = False,
) -> bytes:
    """A whole response. A HEAD's carries no length: what GET would send is not rendered."""
    retry = b"Retry-After: %d\r\n" % retry_after_s if retry_after_s is not None else b""
    if head_only:
        return b"%b%b%b\r\n" % (_STATUS_LINES[status], retry, extra)
    if content_type is JSON:
        return b"%b%d\r\n%b%b\r\n%b" % (_JSON_STARTS[status], len(body), retry, extra, body)
    return b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (
        _STATUS_LINES[status],
        content_type,
        len(body),
        retry,
        extra,
        body,
    )


def problem_reply(
    status: int, detail: str, *, field: str | None = None, head_only: bool = False
) -> bytes:
    body = problems.problem(status, detail, field=field)
    return reply(status, body, content_type=PROBLEM, head_only=head_only)


def error_reply(status: int, detail: str) -> bytes:
    """The last thing said on a connection."""
    body = problems.problem(status, detail)
    return reply(status, body, content_type=PROBLEM, extra=b"Connection: close\r\n")


def closing(response: bytes) -> bytes:
    """The same response, which ends its connection."""
    return response.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def whole_seconds(retry_after_s: float | None) -> int | None:
    """Retry-After knows whole seconds only; rounding up keeps clients from coming too soon."""
    return None if retry_after_s is None else max(1, -int(-retry_after_s // 1))


# --- documents -----------------------------------------------------------------------------


SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_AGO = re.compile(r"[0-9]{1,6}[smhd]")
_DURATION = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SHORT = 4096
"""Bytes of a body that is parsed on the loop: about 0.1 ms."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_JSON_TYPES = frozenset({"application/json", "application/merge-patch+json"})


def expect_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type not in _JSON_TYPES:
        raise InvalidRequest("send the body as application/json", status=415)


async def strict_object(request: Request, *, is_struct: bool = False) -> dict[str, Any]:
    """A duplicate key is rejected, because it is unclear which value counts. A long body, such as
    a whole policy, is parsed in a thread. For a struct 12.0 is a whole number, as in JSON Schema;
    settings are kept as they were written."""
    expect_json(request)
    raw = await request.body()
    try:
        read = partial(_strictly, raw, _whole if is_struct else _finite)
        body = read() if len(raw) < SHORT else await asyncio.to_thread(read)
    except InvalidRequest:
        raise
    # Of both JSON and UTF-8, and of numbers that are longer than Python takes.
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be an object of settings")
    return body


def _strictly(raw: bytes, number: Callable[[str], float]) -> Any:
    body = json.loads(raw, object_pairs_hook=_once, parse_float=number, parse_constant=number)
    if _SURROGATE.search(raw):
        # Half of a pair is no text: neither kept nor answered could it be.
        json.dumps(body, ensure_ascii=False).encode()
    return body


def _whole(text: str) -> float:
    return int(value) if (value := _finite(text)).is_integer() else value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is not a number in JSON")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise InvalidRequest(
            f"the body has {twice!r} twice; give it once", field=ascii(twice)[1:-1]
        )
    return found


def seconds(text: str) -> float:
    """Of text that is a Span (http/routes.py)."""
    match = _DURATION.match(text)
    assert match is not None, text
    return float(int(match[1]) * _SECONDS[match[2]])


def past_instant(text: str, now_s: float) -> float:
    """`90m` ago, or an instant with its zone, as Unix time; the present minute at the latest."""
    wall_s = now_s - seconds(text) if _AGO.fullmatch(text) else _instant(text)
    if not 0 <= wall_s // 60 <= now_s // 60:
        message = f"at is {text!r}, which is not in the past; omit it to explain the present"
        raise InvalidRequest(message, status=422, field="at")
    return wall_s


def _instant(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        message = f"at is {text!r}, must read like 2026-03-01T07:10Z, with its zone, or like 90m"
        raise InvalidRequest(message, status=422, field="at")
    return at.timestamp()


def json_response(
    doc: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(doc),
        status_code=status,
        media_type="application/json",
        headers={**SECURITY_HEADERS, **(headers or {})},
    )


def etag(revision: int) -> dict[str, str]:
    return {"ETag": f'"{revision}"'}


def problem_response(
    status: int,
    detail: str,
    *,
    field: str | None = None,
    faults: list[str] | None = None,
    retry_after_s: float | None = None,
) -> Response:
    body = problems.problem(status, detail, field=field, faults=faults)
    headers = dict(SECURITY_HEADERS)
    if (seconds := whole_seconds(retry_after_s)) is not None:
        headers["Retry-After"] = str(seconds)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(body, status_code=status, media_type=problems.CONTENT_TYPE, headers=headers)
