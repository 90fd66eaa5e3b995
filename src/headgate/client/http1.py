"""HTTP/1.1 as bytes: one request out, one response in. No sockets here.

A driver sends what an Exchange yields, sends it what came back, in whatever pieces, and gets
a Response once it is whole.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from headgate.client.tls import TlsSession

MAX_HEAD_BYTES = 16 * 1024
MAX_BODY_BYTES = 1024 * 1024
MAX_INTERIM = 8
_BODYLESS = frozenset({204, 304})
_DIGITS = {10: frozenset("0123456789"), 16: frozenset("0123456789abcdefABCDEF")}
_FRAMING = frozenset({"content-length", "transfer-encoding"})


class BadResponse(Exception):
    """What came is no HTTP response, is too large, or ended early. Never leaves client/."""


class ClosedUnread(BadResponse):
    """The connection ended before the first byte of a response."""

    def __init__(self) -> None:
        super().__init__("the connection was closed without an answer")


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    keep_alive: bool
    """Whether the connection may carry another request."""


Exchange: TypeAlias = Generator[bytes, bytes, Response]
"""Yields what is to be sent, takes what then came (b"": the peer closed), returns the response."""


def exchange(request: bytes, reader: ResponseReader, tls: TlsSession | None = None) -> Exchange:
    """With `tls`, what is sent and what then came is encrypted."""
    plain = _exchange(request, reader)
    return plain if tls is None else tls.exchange(plain)


def _exchange(request: bytes, reader: ResponseReader) -> Exchange:
    received = yield request
    while received:
        response = reader.feed(received)
        if response is not None:
            return response
        received = yield b""
    return reader.end()


def encode_request(
    method: str,
    path: str,
    *,
    host: str,
    token: str | None = None,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Accept: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


class _ResponseHead(NamedTuple):
    version: str
    status: int
    headers: Mapping[str, str]


_Reading = Generator[None, None, Response]


class ResponseReader:
    """Reads one response, then is used up. Inside, a generator waits for more bytes."""

    def __init__(
        self, *, max_head_bytes: int = MAX_HEAD_BYTES, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._max_head_bytes = max_head_bytes
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        self._ended = False
        self.received_bytes = 0
        self._reading: _Reading = self._read()

    def feed(self, data: bytes) -> Response | None:
        """The response if `data` completes it; BadResponse if it never can be one."""
        self._buffer += data
        self.received_bytes += len(data)
        return self._advance()

    def end(self) -> Response:
        """The peer closed: the response, where closing is what ends it."""
        if not self.received_bytes:
            raise ClosedUnread
        self._ended = True
        response = self._advance()
        if response is None:
            message = f"the connection was closed {self.received_bytes} bytes into the answer"
            raise BadResponse(message)
        return response

    def _advance(self) -> Response | None:
        try:
            next(self._reading)
        except StopIteration as whole:
            response: Response = whole.value
            return response
        return None

    def _read(self) -> _Reading:
        head = yield from self._final_head()
        body, delimited = yield from self._body(head)
        wishes = {word.strip() for word in head.headers.get("connection", "").lower().split(",")}
        stays = "keep-alive" in wishes if head.version == "HTTP/1.0" else "close" not in wishes
        # Bytes behind the end answer no question of ours: the next one needs a new connection.
        keep_alive = delimited and not self._buffer and stays
        return Response(head.status, head.headers, body, keep_alive)

    def _final_head(self) -> Generator[None, None, _ResponseHead]:
        for _ in range(MAX_INTERIM):
            head = _parse_head((yield from self._until(b"\r\n\r\n")))
            if head.status >= 200:
                return head
        raise BadResponse(f"{MAX_INTERIM} interim answers and no final one")

    def _body(self, head: _ResponseHead) -> Generator[None, None, tuple[bytes, bool]]:
        if head.status in _BODYLESS:
            return b"", True
        coding = head.headers.get("transfer-encoding")
        length = head.headers.get("content-length")
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise BadResponse("its body is framed in a way that HTTP/1.1 does not know")
            return (yield from self._chunked()), True
        if length is not None:
            return (yield from self._take(self._checked(_number(length, 10)))), True
        while not self._ended:
            self._checked(len(self._buffer))
            yield
        return bytes(self._buffer), False

    def _chunked(self) -> Generator[None, None, bytes]:
        body = bytearray()
        while size := _chunk_size((yield from self._until(b"\r\n"))):
            self._checked(len(body) + size)
            chunk = yield from self._take(size + 2)
            if not chunk.endswith(b"\r\n"):
                raise BadResponse("a chunk of its body is not as long as it says")
            body += chunk[:-2]
        trailers_bytes = 0
        while line := (yield from self._until(b"\r\n")):
            trailers_bytes += len(line)
            if trailers_bytes > self._max_head_bytes:
                raise BadResponse(f"more than {self._max_head_bytes} bytes of trailers")
        return bytes(body)

    def _until(self, mark: bytes) -> Generator[None, None, bytes]:
        while (end := self._buffer.find(mark, 0, self._max_head_bytes)) < 0:
            if len(self._buffer) >= self._max_head_bytes:
                raise BadResponse(f"more than {self._max_head_bytes} bytes of header")
            yield
        found = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return found

    def _take(self, count: int) -> Generator[None, None, bytes]:
        while len(self._buffer) < count:
            yield
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _checked(self, body_bytes: int) -> int:
        if body_bytes > self._max_body_bytes:
            raise BadResponse(f"more than {self._max_body_bytes} bytes of body")
        return body_bytes


def _parse_head(head: bytes) -> _ResponseHead:
    status_line, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    code, _, _phrase = rest.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(code) != 3:
        raise BadResponse("the answer is not HTTP/1.1")
    status = _number(code, 10)
    if status < 100:
        raise BadResponse(f"the answer has no HTTP status: {code}")
    return _ResponseHead(version, status, _parse_headers(lines))


def _parse_headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key, value = name.lower(), value.strip(" \t")
        if not colon or not name or name != name.strip():
            raise BadResponse("a line of its header is not `name: value`")
        if key in headers:
            if key in _FRAMING:
                raise BadResponse(f"its header gives {key} twice")
            value = f"{headers[key]}, {value}"
        headers[key] = value
    return headers


def _chunk_size(line: bytes) -> int:
    size, _, _extensions = line.partition(b";")
    return _number(size.decode("latin-1"), 16)


def _number(text: str, base: int) -> int:
    """Digits only: int() would also take signs, spaces, underscores and other scripts."""
    if not 0 < len(text) <= 8 or not _DIGITS[base].issuperset(text):
        raise BadResponse(f"expected a number, found {text[:20]!r}")
    return int(text, base)
