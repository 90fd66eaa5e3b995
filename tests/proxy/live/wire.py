"""The Postgres protocol by hand: for what no driver would send, or in an order none would."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

TIMEOUT_S = 60.0


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def startup(names: Mapping[str, str], *, minor: int = 0) -> bytes:
    body = struct.pack("!HH", 3, minor)
    for name, value in names.items():
        body += name.encode() + b"\0" + value.encode() + b"\0"
    return struct.pack("!i", len(body) + 5) + body + b"\0"


def query(text: str) -> bytes:
    return message(b"Q", text.encode() + b"\0")


def parse(text: str, name: str = "") -> bytes:
    return message(b"P", name.encode() + b"\0" + text.encode() + b"\0" + b"\0\0")


def bind(statement: str = "", portal: str = "") -> bytes:
    return message(b"B", portal.encode() + b"\0" + statement.encode() + b"\0" + b"\0" * 6)


def execute(portal: str = "", rows: int = 0) -> bytes:
    return message(b"E", portal.encode() + b"\0" + struct.pack("!i", rows))


SYNC, FLUSH, TERMINATE = message(b"S"), message(b"H"), message(b"X")


class Peer:
    """A socket that speaks whole messages; every wait has an end."""

    def __init__(self, port: int, *, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._left = b""

    def log_in(self, user: str = "postgres", database: str = "parity", **more: str) -> None:
        self.send(startup({"user": user, "database": database, **more}))
        self.messages_until(b"Z")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, count: int) -> bytes:
        while len(self._left) < count:
            got = self.socket.recv(65536)
            if not got:
                raise EOFError(f"closed after {self._left!r}")
            self._left += got
        data, self._left = self._left[:count], self._left[count:]
        return data

    def receive_all(self) -> bytes:
        """Until the other end closes."""
        data = self._left
        self._left = b""
        try:
            while got := self.socket.recv(65536):
                data += got
        except ConnectionResetError:
            pass
        return data

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            head = self.receive(5)
            [length] = struct.unpack("!i", head[1:])
            yield head[:1], self.receive(length - 4)

    def messages_until(self, last: bytes) -> list[tuple[bytes, bytes]]:
        found = []
        for kind, body in self.messages():
            found.append((kind, body))
            if kind == last:
                break
        return found

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def fields(body: bytes) -> dict[str, str]:
    """Of an ErrorResponse or a NoticeResponse."""
    parts = (part for part in body.split(b"\0") if part)
    return {chr(part[0]): part[1:].decode() for part in parts}


def reset_on_close(sock: socket.socket) -> None:
    """Its close() is then an RST, not a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
