"""A real HTTP server, on loopback (TLS or not) or a Unix socket, that answers from a script."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import ssl
import struct
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.client import bodies


@dataclass(frozen=True)
class Play:
    """One answer: bytes as they go over the wire, and what happens to the connection."""

    wire: bytes
    close: bool = False
    hold: bool = False
    """Say nothing more until the server is stopped."""
    reset: bool = False
    """Drop the connection as a crashed host does, without a word of farewell."""


def answer(status: int, document: Any = None, *, body: bytes | None = None, **headers: str) -> Play:
    content = body if body is not None else bodies.encoded(document)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return Play("\r\n".join([*lines, "", ""]).encode() + content)


OK = answer(200, bodies.ok())
REJECTED = answer(429, bodies.rejection(retry_after_ms=10), Retry_After="1")


@dataclass(frozen=True)
class Heard:
    connection: int
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    plays: deque[Play]
    default: Play
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0
    live: set[socket.socket] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    def next_play(self, heard: Heard) -> Play:
        with self.lock:
            self.heard.append(heard)
            return self.plays.popleft() if self.plays else self.default


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Tcp | _Unix
    disable_nagle_algorithm = False

    def setup(self) -> None:
        super().setup()
        script = self.server.script
        with script.lock:
            script.connections += 1
            self.number = script.connections
            script.live.add(self.connection)

    def finish(self) -> None:
        with self.server.script.lock:
            self.server.script.live.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        script = self.server.script
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        heard = Heard(self.number, self.requestline, dict(self.headers.items()), body)
        play = script.next_play(heard)
        self.wfile.write(play.wire)
        if play.hold:
            script.stopping.wait()
        if play.reset:
            self._reset()
        self.close_connection = play.close or play.hold or play.reset

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    do_POST = do_GET  # noqa: N815 -- the name http.server looks for

    def handle(self) -> None:
        # The client, or stop(), may cut the connection: that is part of the script.
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- as http.server has it
        pass


class _Tcp(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128
    script: Script
    tls: ssl.SSLContext | None = None

    def get_request(self) -> tuple[socket.socket, Any]:
        raw, address = super().get_request()
        # As the agent's own listener has it: TLS's first words else hold up the answer.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            return raw, address
        # The handshake is left to the first read: it belongs into the connection's own thread.
        wrapped = self.tls.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        return wrapped, address


class _Unix(socketserver.ThreadingUnixStreamServer):
    request_queue_size = 128
    script: Script


class ScriptedAgent:
    """Started when made. `stop()` cuts all connections; `start()` listens there again."""

    def __init__(
        self,
        plays: Iterable[Play] = (),
        *,
        default: Play = OK,
        socket_path: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script = Script(deque(plays), default)
        self._socket_path = socket_path
        self._tls = tls
        self._port = 0
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        if self._socket_path is not None:
            return f"unix://{self._socket_path}"
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    @property
    def heard(self) -> list[Heard]:
        return self.script.heard

    def start(self) -> None:
        self._server: _Tcp | _Unix
        self.script.stopping.clear()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
            self._server = _Unix(str(self._socket_path), _Handler)
        else:
            self._server = _Tcp(("127.0.0.1", self._port), _Handler)
            self._port = self._server.server_address[1]
            self._server.tls = self._tls
        self._server.script = self.script
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        if self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._thread = None
        self.script.stopping.set()
        self.cut_connections()
        self._server.server_close()

    def cut_connections(self) -> None:
        """As a server does that has had enough of idle ones."""
        with self.script.lock:
            for connection in self.script.live:
                with contextlib.suppress(OSError):  # the client was faster
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS

    def __enter__(self) -> ScriptedAgent:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()
