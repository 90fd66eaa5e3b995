"""The tour's own endpoint on loopback, for the strip on the agents' page.

    the page, of an agent's origin ──GET, POST /tour──► Tour

The requests come from a page in a browser, so access is decided by the two headers that a page
cannot forge: `Origin` must be one of the agents', and `Host` our own address (a name that was
made to resolve to loopback is not).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headgate.demo.servers import PortTaken, free_ports
from headgate.demo.tour import Tour, Whither

PATH = "/tour"
MAX_BODY_BYTES = 1024
MOST_REQUESTS = 16
REQUEST_TIMEOUT_S = 10.0
MAX_AGE_S = 600


class TourServer(ThreadingHTTPServer):
    """Serves nothing until it has a tour, and the origins of the pages that may use it."""

    daemon_threads = True
    request_queue_size = MOST_REQUESTS

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), TourRequest)
        self.tour: Tour | None = None
        self.origins: frozenset[str] = frozenset()
        self.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._room = threading.BoundedSemaphore(MOST_REQUESTS)
        self._thread = threading.Thread(target=self.serve_forever, name="tour's page", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def begin(self, tour: Tour) -> None:
        self.origins = frozenset(agent.url for agent in tour.stage.agents.values())
        self.tour = tour
        self._thread.start()

    def end(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hung up is nobody's business, and the screen is not a log."""


def open_server() -> TourServer:
    for port in free_ports():
        try:
            return TourServer(port)
        except OSError:
            continue
    raise PortTaken("no free port for the tour")


class TourRequest(BaseHTTPRequestHandler):
    server: TourServer
    timeout = REQUEST_TIMEOUT_S
    server_version = "headgate-demo"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve(lambda tour: (HTTPStatus.OK, tour.document()))

    def do_POST(self) -> None:
        self._serve(self._go)

    def do_OPTIONS(self) -> None:
        """A browser sends this before it posts JSON to another origin."""
        self._serve(lambda tour: (HTTPStatus.NO_CONTENT, None))

    def _serve(self, answer: Callable[[Tour], tuple[HTTPStatus, Any]]) -> None:
        tour = self.server.tour
        if fault := self._fault():
            self._send(HTTPStatus.FORBIDDEN, {"detail": fault})
        elif self.path != PATH or tour is None:
            self._send(HTTPStatus.NOT_FOUND, {"detail": f"here is {PATH} only"})
        else:
            self._send(*answer(tour))

    def _fault(self) -> str:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:
            return f"the request is for the host {host[:80]!r}, but this is {self.server.url}"
        if origin is not None and origin not in self.server.origins:
            return f"pages of {origin[:80]!r} may not: only those of the demo's agents"
        return ""

    def _go(self, tour: Tour) -> tuple[HTTPStatus, Any]:
        try:
            wanted = whither_in(self._body())
        except ValueError as error:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"detail": str(error)}
        return HTTPStatus.ACCEPTED, {"scene": tour.go(wanted)}

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise ValueError(f"a body of at most {MAX_BODY_BYTES} bytes is wanted")
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, document: Any) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        for name, value in self._headers():
            self.send_header(name, value)
        if body:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _headers(self) -> list[tuple[str, str]]:
        always = [("Vary", "Origin"), ("Cache-Control", "no-store")]
        origin = self.headers.get("Origin", "")
        if origin not in self.server.origins:
            return always
        return [
            *always,
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Methods", "GET, POST"),
            ("Access-Control-Allow-Headers", "Content-Type"),
            ("Access-Control-Max-Age", str(MAX_AGE_S)),
        ]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base's name
        """The screen is not a log."""


def whither_in(body: bytes) -> Whither:
    """Of `{"to": 3}` or `{"to": "next"}`; ValueError with what it should have been."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError('is not JSON; {"to": 3} is wanted') from None
    to = said.get("to") if isinstance(said, dict) else None
    if to in ("next", "back", "again"):
        return to  # type: ignore[no-any-return]
    if isinstance(to, int) and not isinstance(to, bool):
        return to
    raise ValueError('{"to": N} is wanted, or "next", "back" or "again" in place of the number')
