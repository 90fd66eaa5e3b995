"""One connection to another agent, and one request at a time on it.

HttpPeerLink ─request─► PeerLine ─► PeerConnection (asyncio.Protocol, llhttp) ──► the other listener

A PeerLine connects when it has something to say and finds no connection that is fit for it;
whatever goes wrong with an exchange ends the connection, so that no answer can ever be taken
for that of another request. Deadlines are the caller's: what is cancelled leaves nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import httptools

from headgate.metrics.samples import Instant
from headgate.shard.peers_api import PeerUrl

Now = Callable[[], Instant]

MAX_ANSWER_BYTES = 256 * 1024
MAX_HEAD_BYTES = 16 * 1024
CHUNK_OVERHEAD = 8
"""Bytes on the wire per byte of a chunked body, at most."""
MAX_WAITING = 64
MAX_ADDRESSES = 8
RECONNECT_PAUSE_S = 0.2
HANDSHAKE_TIMEOUT_S = 10.0
GOODBYE_S = 1.0


class PeerResponse(NamedTuple):
    status: int
    raw_headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    sent: Instant
    """As the request left."""
    received: Instant

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; of repeated ones the last."""
        return {n.decode("latin-1").lower(): v.decode("latin-1") for n, v in self.raw_headers}


class HungUp(Exception):
    """The connection ended before the first byte of an answer."""


class CutShort(Exception):
    """It ended within an answer."""


class Garbled(Exception):
    """What came is no HTTP, or too much of it."""


class Crowded(Exception):
    """Too many wait for this line already."""


class PeerLine:
    def __init__(self, url: PeerUrl, tls: ssl.SSLContext | None, now: Now) -> None:
        self._url = url
        self._tls = tls
        self._now = now
        self._connection: PeerConnection | None = None
        self._turn = asyncio.Lock()
        self._asking = 0
        self._addresses = HostAddresses(url)
        self._not_before = 0.0
        self._closed = False
        self.doing = ""
        """What the exchange under way waits for, for the message of who gives up on it."""

    async def exchange(self, compose: Callable[[Instant], bytes], timeout_s: float) -> PeerResponse:
        """`compose` makes the request at the moment it leaves; it may be called twice."""
        if self._asking >= MAX_WAITING:
            raise Crowded(f"{self._asking} requests are waiting for it already")
        self._asking += 1
        began = asyncio.get_running_loop().time()
        try:
            kept = self._connection
            if kept is not None and kept.usable and self._asking == 1:
                # The common case, in few steps: a pull is made four times a second per member.
                with suppress(HungUp):
                    return await self._on(kept, compose, timeout_s)
                # It may have closed an idle connection as we spoke: that is no failure yet.
                timeout_s -= asyncio.get_running_loop().time() - began
            async with asyncio.timeout(timeout_s), self._turn:
                return await self._patiently(compose)
        finally:
            self._asking -= 1

    async def _on(
        self, kept: PeerConnection, compose: Callable[[Instant], bytes], timeout_s: float
    ) -> PeerResponse:
        await self._turn.acquire()  # At once: no other request is under way.
        self.doing = "for its answer"
        try:
            return await kept.ask(compose, timeout_s)
        finally:
            self._turn.release()

    async def _patiently(self, compose: Callable[[Instant], bytes]) -> PeerResponse:
        kept = self._connection
        if kept is not None and kept.usable:
            self.doing = "for its answer"
            with suppress(HungUp):
                return await kept.ask(compose)
        return await (await self._connect()).ask(compose)

    async def _connect(self) -> PeerConnection:
        self._expect_open()
        loop = asyncio.get_running_loop()
        self.doing = "to connect"
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        # Set beforehand: an attempt that is given up is one that failed, too.
        self._not_before = loop.time() + RECONNECT_PAUSE_S
        connection = await self._open(loop)
        try:
            self._expect_open()
        except HungUp:  # Meanwhile: nobody else would end it.
            await connection.close()
            raise
        self._connection = connection
        self._not_before = 0.0
        self.doing = "for its answer"
        return connection

    def _expect_open(self) -> None:
        if self._closed:
            raise HungUp("the link to it is closed")

    async def _open(self, loop: asyncio.AbstractEventLoop) -> PeerConnection:
        url, failure = self._url, OSError("the name has no address")
        for address in await self._addresses.look_up():
            try:
                _, connection = await loop.create_connection(
                    lambda: PeerConnection(self._now),
                    address,
                    url.port,
                    ssl=self._tls if url.tls else None,
                    server_hostname=url.host if url.tls else None,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if url.tls else None,
                    ssl_shutdown_timeout=GOODBYE_S if url.tls else None,
                )
            except OSError as error:
                failure = error
            else:
                self._addresses.answers(address)
                return connection
        raise failure

    async def close(self) -> None:
        self._closed = True
        self._addresses.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class HostAddresses:
    """Of one host. One look-up at a time: a resolver that hangs holds one thread, not many."""

    def __init__(self, url: PeerUrl) -> None:
        self._url = url
        self._looking: asyncio.Future[list[str]] | None = None
        self._answered = ""
        self._turn = 0

    async def look_up(self) -> list[str]:
        """The one that last answered first, else each in turn: an address that never answers,
        and so uses up all the time, must not hide the others."""
        if _is_literal(self._url.host):
            return [self._url.host]
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._resolve())
            self._looking.add_done_callback(self._looked)
        found = await self._looked_up(self._looking)
        first, self._answered = self._answered, ""
        if first in found:
            return [first, *(address for address in found if address != first)]
        self._turn += 1
        start = self._turn % len(found) if found else 0
        return found[start:] + found[:start]

    async def _looked_up(self, looking: asyncio.Future[list[str]]) -> list[str]:
        try:
            return await asyncio.shield(looking)
        except asyncio.CancelledError:
            if looking.cancelled():  # By `close`, not by the task that waits here.
                raise HungUp("the link to it is closed") from None
            raise

    def answers(self, address: str) -> None:
        self._answered = address

    async def _resolve(self) -> list[str]:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(
            self._url.host, self._url.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
        return list(dict.fromkeys(str(info[4][0]) for info in infos))[:MAX_ADDRESSES]

    def _looked(self, looking: asyncio.Future[list[str]]) -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()  # Seen, though nobody may be waiting any more.

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class PeerConnection(asyncio.Protocol):
    """The bytes of one exchange after another."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[PeerResponse] | None = None
        self._gone = asyncio.get_running_loop().create_future()
        self.usable = False
        self._sent = Instant(0.0, 0.0)
        self._fed_bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._headers_done = False

    # --- requests --------------------------------------------------------------------------

    async def ask(
        self, compose: Callable[[Instant], bytes], timeout_s: float | None = None
    ) -> PeerResponse:
        """A timer of our own costs a fraction of what asyncio.timeout does."""
        if not self.usable:
            raise HungUp
        loop, answer = asyncio.get_running_loop(), None
        self._answer = loop.create_future()
        timer = loop.call_later(timeout_s, self._fail, TimeoutError()) if timeout_s else None
        self._fed_bytes = 0
        self._begin()
        self._sent = self._now()
        try:
            self._transport.write(compose(self._sent))
            answer = await self._answer
        finally:
            self._answer = None
            if timer is not None:
                timer.cancel()
            # Else it may still come, and nobody must take it for the answer to the next one.
            if answer is None or not self.usable:
                self.abort()
        return answer

    def abort(self) -> None:
        self.usable = False
        self._transport.abort()

    async def close(self) -> None:
        """With TLS's close_notify where needed; a peer that does not reply is cut off."""
        self.usable = False
        self._fail(HungUp("this agent closed the connection"))
        if not self._transport.is_closing():  # Closed twice, TLS of Python 3.11.2 aborts no more.
            self._transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.shield(self._gone)
        if not self._gone.done():
            self._transport.abort()

    # --- bytes in --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # It sends data without a request.
            return
        self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Garbled(f"not HTTP: {error}"))
            self.abort()
        else:
            self._bound()

    def _bound(self) -> None:
        if self._answer is None or self._answer.done():
            return
        if not self._headers_done and self._fed_bytes > MAX_HEAD_BYTES:
            self._fail(Garbled(f"a header section beyond {MAX_HEAD_BYTES} bytes"))
        elif self._fed_bytes > MAX_HEAD_BYTES + CHUNK_OVERHEAD * MAX_ANSWER_BYTES:
            self._fail(Garbled(f"more than {MAX_ANSWER_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if not self._gone.done():
            self._gone.set_result(None)
        if isinstance(exc, ssl.SSLError):
            self._fail(exc)
        elif self._fed_bytes:
            self._fail(CutShort(f"{self._fed_bytes} bytes into its answer"))
        else:
            self._fail(HungUp(str(exc) if exc else "the connection was closed without an answer"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # --- llhttp's callbacks ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.usable = False  # A second answer to one question: this is no order of things.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headers_done:  # Trailers mean nothing.
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._headers_done = True

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_ANSWER_BYTES:
            self._fail(Garbled(f"more than {MAX_ANSWER_BYTES} bytes"))
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._answer is None or self._answer.done():
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._begin()  # An interim answer: the real one follows.
            return
        if not self._parser.should_keep_alive():
            self.usable = False
        body = b"".join(self._body)
        self._answer.set_result(PeerResponse(status, self._headers, body, self._sent, self._now()))
