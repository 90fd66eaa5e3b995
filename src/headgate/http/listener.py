"""The door.   socket ──► Connection ◄─► RequestReader; requests ──► hot answers, or the ASGI app

A check is answered inside the read callback: no task, no await, no queue. Everything else
is handed, whole and bounded, to the ASGI app, one request of a connection at a time.

Two things make checks cheap. llhttp (httptools) does the parsing; and since HTTP parsing is
a pure function of the bytes between two messages, a request that arrives as exactly the bytes
of an earlier one is not parsed again: pollers repeat themselves byte for byte. Of one that
differs from an earlier one in the client's name alone, only the name is parsed.
"""

from __future__ import annotations

import asyncio
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, cast

import httptools
import structlog

from headgate.http.auth import KnownHosts, Peer, peer_of
from headgate.http.documents import closing, error_reply

log = structlog.get_logger()

MAX_HEADER_BYTES = 16 * 1024
MAX_MEMO_BYTES = 1024
MAX_MEMO_ENTRIES = 4096
MAX_FORMS = 256
MAX_PIPELINED = 64
MAX_TARGET_BYTES = 8 * 1024
SLICE_BYTES = 16 * 1024
"""Bytes parsed at a time: between two slices the agent checks whether the other side reads."""
CHUNK_OVERHEAD = 8
"""Bytes on the wire per byte of a chunked body: `1 CRLF x CRLF` is the worst, plus trailers."""
LINGER_S = 1.0
DRAIN_S = 0.2
KEPT_SEATS = 16
MAX_TURNED_AWAY = 64
HEARD = -1.0
"""Means "just now" on the hot path, which reads no clock; `tend` sets the time."""

_HEAD_TOO_LARGE = f"the header section exceeds {MAX_HEADER_BYTES} bytes"
_SCHEME_AND_HOST = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_BODY_TOO_LARGE = "the body is too large, at most {} bytes are accepted"
_FAILED = "this request failed inside the agent; see the agent's log"

Answer = Callable[[], bytes]
"""A check that is parsed and can be answered (again)."""


class NamedAnswer(ABC):
    """An Answer to the client whose name is in the request."""

    __slots__ = ()

    @abstractmethod
    def __call__(self) -> bytes: ...

    @abstractmethod
    def once(self, name: str) -> bytes | None:
        """What `named` would answer now, if nothing of it is to be kept."""

    @abstractmethod
    def named(self, name: str) -> Answer | None:
        """The answer to the same request of another client; None if that is no name."""


class Request(NamedTuple):
    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    keep_alive: bool


class Limits(NamedTuple):
    max_connections: int
    max_body_bytes: int
    request_timeout_s: float
    idle_timeout_s: float


class Handlers(NamedTuple):
    prepare: Callable[[Request], Answer | bytes | None]
    """A hot request as a repeatable answer (GET, HEAD), as bytes (POST), or None: not hot."""
    serve: Callable[[Request, Peer, Callable[[bytes], Awaitable[None]]], Awaitable[bool]]
    """Serve any other request through `send`; True keeps the connection."""
    named: re.Pattern[bytes] | None = None
    """Finds the client's name in a hot request: its first group."""


class Repeats:
    """Requests that were understood before, and their answers: these bytes are not parsed again."""

    def __init__(self, named: re.Pattern[bytes] | None) -> None:
        self._named = named
        self.memo: dict[bytes, Answer] = {}
        self.forms: dict[tuple[bytes, bytes], NamedAnswer] = {}
        """Requests that were parsed, as the bytes before and after the client's name."""
        self._once: set[bytes] = set()
        """Requests that came once; names that are used once must not drive out the pollers."""

    def remember(self, raw: bytes, answer: Answer) -> None:
        if len(self.memo) >= MAX_MEMO_ENTRIES:
            self.memo.clear()  # Rare: that many distinct pollers. They are parsed once more.
        self.memo[raw] = answer
        named = self._named
        found = named.match(raw) if named is not None else None
        if found is not None and isinstance(answer, NamedAnswer):
            if len(self.forms) >= MAX_FORMS:
                self.forms.clear()
            self.forms[raw[: found.start(1)], raw[found.end(1) :]] = answer

    def recall(self, raw: bytes) -> bytes | None:
        """The answer to a request that is like an earlier one, but for the client's name."""
        named = self._named
        found = named.match(raw) if named is not None else None
        if found is None:
            return None
        start, end = found.span(1)
        form = self.forms.get((raw[:start], raw[end:]))
        if form is None:
            return None
        name = raw[start:end].decode("ascii")
        if raw in self._once:
            answer = form.named(name)
            if answer is None:
                return None
            self.remember(raw, answer)
            return answer()
        if len(self._once) >= MAX_MEMO_ENTRIES:
            self._once.clear()
        self._once.add(raw)
        return form.once(name)

    def forget(self) -> None:
        """What requests mean has changed (reload)."""
        self.memo.clear()
        self.forms.clear()
        self._once.clear()


class Listener:
    """Accepts on any number of sockets; one per agent."""

    def __init__(self, handlers: Handlers, limits: Limits, hosts: KnownHosts | None = None) -> None:
        """`hosts`: the names that requests over plain TCP may use; None for any."""
        self.handlers = handlers
        self.limits = limits
        self.hosts = hosts
        self.repeats = Repeats(handlers.named)
        self.connections: set[Connection] = set()
        self.turned_away: set[Connection] = set()
        """Connections that got 503, with a moment to read it; they use no seat."""
        self.silent: dict[Connection, None] = {}
        """Of `connections`, those over TCP without a request yet, in the order they came."""
        self.stopping = False
        self.rejected_connections = 0
        self.shed_connections = 0
        self._tended_at = math.inf
        self._was_away = False
        self._servers: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._empty.set()

    def __call__(self) -> Connection:
        return Connection(self)

    def add(self, server: asyncio.Server) -> None:
        self._servers.append(server)

    async def start(self) -> None:
        for server in self._servers:
            await server.start_serving()

    @property
    def ports(self) -> list[int]:
        names = [sock.getsockname() for server in self._servers for sock in server.sockets]
        return [name[1] for name in names if isinstance(name, tuple)]

    def admit(self, connection: Connection, *, local: bool) -> bool:
        """Whether it is served. One that is not gets a 503, unless there are too many of these.

        Some seats are reserved for the Unix socket: clients that crowd the TCP port cannot stop
        the operator on the host from looking and changing. If all seats are taken, the connection
        that has waited longest without a request is closed.
        """
        most = self.limits.max_connections
        seats = most if local else most - min(KEPT_SEATS, most // 8)
        if not self.stopping and len(self.connections) >= seats:
            self.shed(1)
        if not self.stopping and len(self.connections) < seats:
            self.connections.add(connection)
            if not local:
                self.silent[connection] = None
            self._empty.clear()
            return True
        self.rejected_connections += 1
        if len(self.turned_away) < min(most, MAX_TURNED_AWAY):
            self.turned_away.add(connection)
            self._empty.clear()
        return False

    def shed(self, count: int) -> int:
        """Close this many that never sent a request, the oldest first; how many there were."""
        oldest = list(islice(self.silent, count))
        for connection in oldest:
            self.connections.discard(connection)
            del self.silent[connection]
            connection.abort()
        self.shed_connections += len(oldest)
        return len(oldest)

    def release(self, connection: Connection) -> None:
        self.silent.pop(connection, None)
        self.connections.discard(connection)
        self.turned_away.discard(connection)
        if not self.connections and not self.turned_away:
            self._empty.set()

    def tend(self, now: float) -> None:
        """Close connections whose request is overdue or that are idle. Called once a second."""
        last, self._tended_at = self._tended_at, now
        if not self._was_away and now - last > self.limits.request_timeout_s / 2:
            self._was_away = True  # The loop was stopped: read what came meanwhile first.
            return
        self._was_away = False
        for connection in [*self.connections, *self.turned_away]:
            connection.tend(now)

    async def stop(self, grace_s: float) -> None:
        """Take no new connection, end each after what it has under way, then close the rest."""
        self.stopping = True
        for server in self._servers:
            server.close()
        for connection in [*self.connections, *self.turned_away]:
            connection.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        for connection in [*self.connections, *self.turned_away]:
            connection.abort()


class Connection(asyncio.Protocol):
    """One client's bytes, in and out."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._repeats: Repeats | None = listener.repeats
        """None: not even what was understood before."""
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._reader: RequestReader | None = None
        """None until there are bytes to parse: who repeats others' requests needs none."""
        self._queue: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closing = False
        """Read and drop further data."""
        self._finishing = False
        """One more answer, and the connection closes."""
        self._last_words: bytes | None = None
        """Sent after the pending answers: answers keep the order of the requests."""
        self._replied = False
        self._active_at = 0.0
        self._stalled_at: float | None = None
        """Since when the other side does not read."""
        self._unparsed = b""
        """The client sent several requests at once and does not read the answers."""
        self._asked = False
        """A complete request has arrived."""

    # --- bytes in --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._active_at = asyncio.get_running_loop().time()
        local = not isinstance(transport.get_extra_info("peername"), tuple)
        if self._listener.admit(self, local=local):
            return
        if self in self._listener.turned_away:
            self.reject(503, "too many connections, or the agent is stopping; try again later")
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        # Between messages, and nothing under way: exactly these bytes were understood before.
        reader = self._reader
        between = reader is None or reader.begun_at is None
        if between and self._task is None and not self._unparsed:
            repeats, answer = self._repeats, None
            if repeats is not None:
                known = repeats.memo.get(data)
                answer = repeats.recall(data) if known is None else known()
            if answer is not None:
                self._active_at = HEARD
                if not self._asked:
                    self._asked = True
                    self._listener.silent.pop(self, None)
                self._transport.write(answer)
                return
        self._parse(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._writable.set()
        self._listener.release(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not read its answers: stop reading, so that they do not pile up."""
        self._writable.clear()
        self._stalled_at = asyncio.get_running_loop().time()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        self._stalled_at = None
        if self._unparsed:
            # Not from here: a transport that is closed while it calls this ends twice.
            asyncio.get_running_loop().call_soon(self._parse_rest)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _parse_rest(self) -> None:
        if not self._writable.is_set():
            return
        unparsed, self._unparsed = self._unparsed, b""
        self._parse(unparsed)
        if self._writable.is_set() and not self._transport.is_closing():
            self._transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Slice by slice, for as long as the answers leave."""
        if self._unparsed or not self._writable.is_set():
            self._unparsed += data
            return
        if self._reader is None:
            self._reader = RequestReader(self, self._listener, self._transport)
        for start in range(0, len(data), SLICE_BYTES):
            if not self._writable.is_set():
                self._unparsed = data[start:]
                return
            self._reader.read(data[start : start + SLICE_BYTES])

    def tend(self, now: float) -> None:
        limits, reader = self._listener.limits, self._reader
        begun_at = None if reader is None else reader.begun_at
        if self._active_at == HEARD:
            self._active_at = now
        if self._stalled_at is None and self._transport.is_closing():
            self._stalled_at = now  # Closed here, yet what was said last has not left.
        if self._stalled_at is not None:
            if reader is not None and begun_at is not None:
                reader.begun_at = now  # We did not read: its request is not late.
            if now - self._stalled_at > limits.idle_timeout_s:
                self.abort()
        elif begun_at is not None and now - begun_at > limits.request_timeout_s:
            self.reject(408, f"the request did not arrive within {limits.request_timeout_s:g} s")
        elif not self._asked and now - self._active_at > limits.request_timeout_s:
            self._close()  # In silence: it has said nothing, and expects no answer.
        elif self._task is None and now - self._active_at > limits.idle_timeout_s:
            self._close()

    def finish(self) -> None:
        """End after the request that is under way, or after one that is on its way here: a
        poller's next question may have been sent before it could know."""
        self._finishing = True
        self._repeats = None
        self._queue.clear()

        def close_if_idle() -> None:
            if self._task is None:
                self._close()

        if self._task is None:
            asyncio.get_running_loop().call_later(DRAIN_S, close_if_idle)

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    # --- requests, as the reader finds them ------------------------------------------------

    def invite_body(self, expect: bytes) -> None:
        idle = not self.closing and self._task is None and not self._queue
        if idle and expect.lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def take(self, request: Request, raw: bytes | None) -> None:
        """`raw`: its bytes, if they were exactly this request."""
        self._active_at = HEARD
        if not self._asked:
            self._asked = True
            self._listener.silent.pop(self, None)
        if self._task is None and not self._queue:
            self._answer(request, raw)
        elif len(self._queue) < MAX_PIPELINED:
            self._queue.append(request)
        else:
            self.reject(429, f"more than {MAX_PIPELINED} requests are waiting on this connection")

    def reject(self, status: int, detail: str) -> None:
        """Hang up, and say why; after the answers to what came before."""
        if self.closing or self._transport.is_closing():
            return
        self.closing = True
        self._repeats = None
        self._last_words = error_reply(status, detail)
        if self._task is None:
            self._hang_up()

    # --- answers ---------------------------------------------------------------------------

    def _answer(self, request: Request, raw: bytes | None) -> None:
        answer = self._listener.handlers.prepare(request)
        if answer is None:
            self._task = asyncio.ensure_future(self._serve(request))
            return
        if isinstance(answer, bytes):
            data = answer
        else:
            if raw is not None and request.keep_alive and _may_come_again(raw):
                self._listener.repeats.remember(raw, answer)
            data = answer()
        keep = request.keep_alive and not self._finishing
        self._transport.write(data if keep else closing(data))
        if not keep:
            self._close()

    async def _serve(self, request: Request) -> None:
        keep, self._replied = False, False
        try:
            peer = peer_of(self._transport)
            keep = await self._listener.handlers.serve(request, peer, self._send)
        except ConnectionAbortedError:
            self._transport.abort()  # A stream's client that does not read: no word reaches it.
        except Exception:
            if not self._transport.is_closing():  # A client that hung up is no fault of ours.
                log.exception("http.request_failed", target=request.target[:200])
                # A second reply would be taken for the next request's.
                if not self._replied:
                    self._transport.write(error_reply(500, _FAILED))
        finally:
            self._task = None
        self._go_on(keep=keep and request.keep_alive)

    def _go_on(self, *, keep: bool) -> None:
        """With what came in the meantime, or to the end of the connection."""
        if not keep or self._finishing:
            self._close()
            return
        self._active_at = asyncio.get_running_loop().time()
        while self._queue and self._task is None:
            self._answer(self._queue.popleft(), None)
        if self.closing and self._task is None:
            self._hang_up()

    async def _send(self, data: bytes) -> None:
        """Write, and wait while the other side does not read."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._replied = True
        self._transport.write(data)
        await self._writable.wait()

    def _hang_up(self) -> None:
        """What is still coming is drained for a moment, so that a reset does not overtake
        the last words."""
        if self._last_words is None or self._transport.is_closing():
            self._close()
            return
        self._transport.write(self._last_words)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)

    def _close(self) -> None:
        self.closing = True
        self._queue.clear()
        if not self._transport.is_closing():  # Closed twice, TLS of Python 3.11.2 aborts no more.
            self._transport.close()


class RequestReader:
    """Bytes of one connection ──► requests, each of a bounded size."""

    def __init__(
        self, connection: Connection, listener: Listener, transport: asyncio.Transport
    ) -> None:
        self._connection = connection
        self._listener = listener
        is_tcp = isinstance(transport.get_extra_info("peername"), tuple)
        self._in_the_clear = is_tcp and transport.get_extra_info("sslcontext") is None
        """Plain TCP."""
        self.begun_at: float | None = None
        """When the first byte of the current request arrived; None between two requests."""
        self._parser = httptools.HttpRequestParser(self)
        self._unfinished_bytes = 0
        self._completed = False
        """Whether a message ended in the bytes that are being parsed."""
        self._raw: bytes | None = None
        self._reset()

    def read(self, data: bytes) -> None:
        if self._connection.closing:
            return
        self._raw = data if self.begun_at is None and len(data) <= MAX_MEMO_BYTES else None
        self._completed = False
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError:
            log.exception("http.check_failed", target=self._target[:200])
            self._connection.reject(500, _FAILED)
        except httptools.HttpParserError as error:
            self._connection.reject(400, f"these bytes are not HTTP: {error}")
        else:
            self._bound(0 if self._completed else len(data))

    def _feed(self, data: bytes | memoryview) -> None:
        """An offer to upgrade is not taken up: what follows it is HTTP/1.1, as before."""
        while data and not self._connection.closing:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = memoryview(data)[offer.args[0] :]
            else:
                return

    def _bound(self, fed_bytes: int) -> None:
        """The parser keeps an unfinished line: what it has been fed is what it may hold."""
        if self.begun_at is None or self._completed:
            self._unfinished_bytes = 0
            return
        self._unfinished_bytes += fed_bytes
        most = self._listener.limits.max_body_bytes
        if not self._headers_done:
            if self._unfinished_bytes > MAX_HEADER_BYTES:
                self._connection.reject(431, _HEAD_TOO_LARGE)
        elif self._unfinished_bytes > MAX_HEADER_BYTES + CHUNK_OVERHEAD * most:
            self._connection.reject(413, _BODY_TOO_LARGE.format(most))

    def _reset(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._header_bytes = 0
        self._body_bytes = 0
        self._headers_done = False

    # --- as llhttp calls them --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reset()
        self.begun_at = asyncio.get_running_loop().time()

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > MAX_TARGET_BYTES:
            message = f"the request target exceeds {MAX_TARGET_BYTES} bytes"
            self._connection.reject(414, message)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + len(b": \r\n")
        if self._header_bytes > MAX_HEADER_BYTES:
            self._connection.reject(431, _HEAD_TOO_LARGE)
        elif not self._headers_done:  # Trailers are counted, and mean nothing.
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._headers_done = True
        parser, reject = self._parser, self._connection.reject
        head = {name.lower(): value for name, value in self._headers}
        version = parser.get_http_version()
        chunked = b"transfer-encoding" in head
        body_bytes = int(head.get(b"content-length", b"0"))
        most = self._listener.limits.max_body_bytes
        if version not in ("1.0", "1.1"):
            reject(505, f"this server speaks HTTP/1.1, not HTTP/{version}")
        elif version == "1.0" and chunked:
            reject(400, "HTTP/1.0 has no Transfer-Encoding")
        elif parser.should_upgrade() and (
            chunked or body_bytes or parser.get_method() == b"CONNECT"
        ):
            # The parser takes the body of such a request for what comes after it.
            reject(400, "this server speaks HTTP/1.1 and supports no upgrade")
        elif body_bytes > most:
            reject(413, f"the body has {body_bytes} bytes, at most {most} are accepted")
        elif (fault := self._host_fault(head)) is not None:
            if self._in_the_clear:
                reject(421, fault)
            self._raw = None  # Understood here, and not on every connection.
        elif version == "1.1" and (chunked or body_bytes):
            self._connection.invite_body(head.get(b"expect", b""))

    def _host_fault(self, head: dict[bytes, bytes]) -> str | None:
        """Whether a request over plain TCP may use the name; a browser may have been redirected
        here from another site."""
        hosts, host = self._listener.hosts, head.get(b"host")
        if hosts is None or host is None:
            return None
        return hosts.fault(host, head.get(b"authorization"))

    def on_body(self, body: bytes) -> None:
        if self._connection.closing:
            return
        most = self._listener.limits.max_body_bytes
        self._body_bytes += len(body)
        if self._body_bytes > most:
            self._connection.reject(413, _BODY_TOO_LARGE.format(most))
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._connection.closing:
            return
        parser = self._parser
        self.begun_at = None
        self._completed = True
        request = Request(
            parser.get_method().decode("latin-1"),
            _origin_form(self._target),
            tuple(self._headers),
            b"".join(self._body),
            parser.should_keep_alive(),
        )
        self._connection.take(request, self._raw)


def _origin_form(target: bytes) -> bytes:
    """A target in the form for proxies, `http://host/path?query`, without the host."""
    host = None if target.startswith(b"/") else _SCHEME_AND_HOST.match(target)
    if host is None:
        return target
    path = target[host.end() :]
    return path if path.startswith(b"/") else b"/" + path


def _may_come_again(raw: bytes) -> bool:
    """Whether these bytes are one request without a body, and nothing else; and not one of a
    trace, which is never the same twice and would drive out the pollers."""
    is_one_head = raw.endswith(b"\r\n\r\n") and raw.count(b"\r\n\r\n") == 1
    return is_one_head and b"\r\ntraceparent:" not in raw
