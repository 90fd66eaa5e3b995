"""A plain socket, and the standard library's own reader of HTTP replies on top of it."""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from tests.fixtures.eventually import DEADLINE_S

Address = tuple[str, int] | str


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _Reader(io.BufferedReader):
    """Shared by all replies of a connection: one that has been read does not close it."""

    def close(self) -> None:
        pass


class _Stream:
    def __init__(self, sock: socket.socket) -> None:
        self.reader = _Reader(socket.SocketIO(sock, "rb"))

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return self.reader


class Talk:
    def __init__(self, address: Address, timeout_s: float = DEADLINE_S) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(timeout_s)
        try:
            self.sock.connect(address)
        except OSError:
            self.sock.close()
            raise
        if family is socket.AF_INET:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = _Stream(self.sock)

    def wrapped(self, context: ssl.SSLContext) -> Talk:
        """The same connection, with TLS on it."""
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        self._stream = _Stream(self.sock)
        return self

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *raised: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> Talk:
        self.sock.sendall(data)
        return self

    def send_what_goes(self, data: bytes) -> Talk:
        """The other side may hang up meanwhile."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)
        return self

    def reply(self, method: str = "GET") -> Reply:
        response = http.client.HTTPResponse(cast(socket.socket, self._stream), method=method)
        response.begin()
        return Reply(response.status, response.headers, response.read())

    def ask(self, method: str, target: str, *, body: bytes | None = None, **headers: str) -> Reply:
        return self.send(request(method, target, body=body, **headers)).reply(method)

    def all_at_once(self, requests: bytes) -> bytes:
        """Send while reading, up to the end of the connection; the last request closes it."""
        sender = threading.Thread(target=self.send, args=(requests,))
        sender.start()
        answers = self.rest()
        sender.join()
        return answers

    def rest(self) -> bytes:
        """Everything up to the end of the connection, reset or not."""
        parts = []
        try:
            while part := self._stream.reader.read1(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)

    def ended(self) -> bool:
        return self.rest() == b""

    def reset(self) -> None:
        """Leave as a crashed host does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def request(method: str, target: str, *, body: bytes | None = None, **headers: str) -> bytes:
    """`Content_Type="…"` is the header Content-Type."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {headers.pop('Host', 'agent')}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def get(target: str, **headers: str) -> bytes:
    return request("GET", target, body=None, **headers)
