"""Just enough of the protocol for what drivers hide: portals read in parts, pipelines cut short."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

READY, COMPLETE, SUSPENDED, ERROR = b"Z", b"C", b"s", b"E"
Message = tuple[bytes, bytes]


def _text(*words: str) -> bytes:
    return b"".join(word.encode() + b"\0" for word in words)


class RawSession:
    """Trust authentication, text format, no encryption."""

    def __init__(self, connection: socket.socket, user: str) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")
        body = struct.pack("!I", 196608) + _text("user", user, "database", "postgres", "")
        connection.sendall(struct.pack("!I", len(body) + 4) + body)
        self.until_ready()

    def __enter__(self) -> RawSession:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def send(self, *messages: Message) -> None:
        parts = (kind + struct.pack("!I", len(body) + 4) + body for kind, body in messages)
        self._connection.sendall(b"".join(parts))

    def next(self) -> Message:
        kind, length = struct.unpack("!cI", self._stream.read(5))
        return kind, self._stream.read(length - 4)

    def until(self, *kinds: bytes) -> list[Message]:
        heard = [self.next()]
        while heard[-1][0] not in kinds:
            heard.append(self.next())
        return heard

    def until_ready(self) -> list[Message]:
        return self.until(READY)

    def query(self, text: str) -> list[Message]:
        self.send((b"Q", _text(text)))
        return self.until_ready()


def prepare(text: str) -> Message:
    return b"P", _text("", text) + struct.pack("!H", 0)


def bind(portal: str = "") -> Message:
    return b"B", _text(portal, "") + struct.pack("!HHH", 0, 0, 0)


def execute(portal: str = "", rows: int = 0) -> Message:
    return b"E", _text(portal) + struct.pack("!I", rows)


SYNC: Message = (b"S", b"")
FLUSH: Message = (b"H", b"")


@contextmanager
def raw_session(port: int, user: str = "app") -> Iterator[RawSession]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        session = RawSession(connection, user)
        with session:
            yield session
