"""A scripted agent: a real HTTP server in a thread that speaks the contract by rote."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fixtures.api import misfits


@dataclass(frozen=True)
class Reply:
    document: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Heard:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Any


@dataclass
class ScriptedAgent:
    """Replies by (method, path); a function is called with what was received."""

    replies: dict[tuple[str, str], Reply | Callable[[Heard], Reply]] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    """What was taken and is no request that the API's description has."""
    url: str = ""

    def says(self, path: str, document: Any, *, method: str = "GET", **more: Any) -> None:
        self.replies[method, path] = Reply(document, **more)

    def reply_to(self, heard: Heard) -> Reply:
        self.heard.append(heard)
        reply = self.replies.get((heard.method, heard.path))
        if reply is None:
            return problem(404, f"there is nothing at {heard.path}")
        said = reply(heard) if callable(reply) else reply
        if said.status < 400 and heard.path.startswith("/v1/"):
            self.misfits += misfits(heard.method, heard.path, heard.query, heard.body)
        return said

    @contextmanager
    def serving(self, socket_path: Path | None = None) -> Iterator[ScriptedAgent]:
        server = _server(self, socket_path)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def problem(status: int, detail: str, faults: list[str] | None = None) -> Reply:
    document = {"type": "about:blank", "title": "Problem", "status": status, "detail": detail}
    if faults is not None:
        document["faults"] = faults
    return Reply(document, status, {"Content-Type": "application/problem+json"})


def _server(agent: ScriptedAgent, socket_path: Path | None) -> socketserver.BaseServer:
    handler = _handler(agent)
    if socket_path is not None:
        agent.url = f"unix://{socket_path}"
        unix = socketserver.ThreadingUnixStreamServer(str(socket_path), handler)
        unix.daemon_threads = True
        return unix
    tcp = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    tcp.daemon_threads = True
    agent.url = f"http://127.0.0.1:{tcp.server_address[1]}"
    return tcp


def _handler(agent: ScriptedAgent) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            reply = agent.reply_to(self._heard())
            raw = reply.document if isinstance(reply.document, bytes) else _bytes(reply.document)
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def _heard(self) -> Heard:
            target = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {key: values[0] for key, values in parse_qs(target.query).items()}
            headers = {key.lower(): value for key, value in self.headers.items()}
            document = json.loads(body) if body else None
            return Heard(self.command, target.path, query, headers, document)

        def __getattr__(self, name: str) -> Any:
            """Every method is served alike: the base class looks for do_GET and so on."""
            if name.startswith("do_"):
                return self._serve
            raise AttributeError(name)

        def log_message(self, *args: Any) -> None:
            """Quiet: what was received is in `heard`."""

        def address_string(self) -> str:
            return "test"

    return Handler


def _bytes(document: Any) -> bytes:
    return json.dumps(document).encode()
