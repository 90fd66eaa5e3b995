"""A Postgres client of ready-made bytes: what it does between two statements is next to nothing.

Enough of the protocol for a look-up over a Unix socket with trust: connect, prepare, ask, read.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

PROTOCOL = 196608
ANSWER_S = 30.0
MAX_ANSWER_BYTES = 65536
READY = b"Z\x00\x00\x00\x05"


class WireFailed(RuntimeError):
    """The server answered with an error, or not at all."""


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


SYNC = _message(b"S", b"")
EXECUTE = _message(b"E", b"\x00" + struct.pack("!I", 0))


def simple(statement: str) -> bytes:
    return _message(b"Q", statement.encode() + b"\x00")


def bound(name: str, number: int) -> bytes:
    """Bind one number to a prepared statement, execute, and be done."""
    text = str(number).encode()
    head = b"\x00" + name.encode() + b"\x00" + struct.pack("!HHI", 0, 1, len(text))
    return _message(b"B", head + text + struct.pack("!H", 0)) + EXECUTE + SYNC


class Wire:
    """One connection."""

    def __init__(self, path: Path, **parameters: str) -> None:
        pairs = b"".join(
            f"{key}\x00{value}\x00".encode() for key, value in parameters.items() if value
        )
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line.settimeout(ANSWER_S)
        self._line.connect(str(path))
        self.ask(_message(b"", struct.pack("!I", PROTOCOL) + pairs + b"\x00"))
        self.pid = int(self.value("SELECT pg_backend_pid()"))

    def prepare(self, name: str, statement: str) -> None:
        body = f"{name}\x00{statement}\x00".encode() + struct.pack("!H", 0)
        self.ask(_message(b"P", body) + SYNC)

    def ask(self, message: bytes) -> bytes:
        """Send, and read until the server is ready again; an error is raised."""
        self._line.sendall(message)
        answer = self._line.recv(MAX_ANSWER_BYTES)
        while answer[-6:-1] != READY:
            more = self._line.recv(MAX_ANSWER_BYTES)
            if not more or len(answer) > MAX_ANSWER_BYTES:
                raise WireFailed(f"the server hung up or never ends: {answer[-300:]!r}")
            answer += more
        if (fault := _fault(answer)) is not None:
            raise WireFailed(fault)
        return answer

    def value(self, statement: str) -> str:
        """The only column of the only row."""
        for kind, body in _messages(self.ask(simple(statement))):
            if kind == b"D":
                return body[6:].decode()
        raise WireFailed(f"no row: {statement}")

    def close(self) -> None:
        self._line.close()


def _messages(answer: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 0
    while at < len(answer):
        (length,) = struct.unpack_from("!I", answer, at + 1)
        found.append((answer[at : at + 1], answer[at + 5 : at + 1 + length]))
        at += 1 + length
    return found


def _fault(answer: bytes) -> str | None:
    # Of a look-up's answer the first byte tells: an error comes first, or after "bind complete".
    if answer[:1] not in b"E2":
        return None
    for kind, body in _messages(answer):
        if kind == b"E":
            return " · ".join(
                part[1:].decode(errors="replace") for part in body.split(b"\x00")[1:4]
            )
    return None
