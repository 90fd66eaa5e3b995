"""Responses as bytes, for the answers that do not pass through the ASGI app."""

from __future__ import annotations

from http import HTTPStatus

from headgate.base import problems

JSON = b"application/json"
PROBLEM = problems.CONTENT_TYPE.encode()

_STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
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
