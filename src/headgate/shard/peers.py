"""The link to one other agent.   shard/shard ──Pull──► HttpPeerLink ──► POST /v1/peer/pull there

Errors give their cause; they name the agent and never a secret.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

import httptools
import msgspec

from headgate.base.problems import Problem
from headgate.changes import exchanged as exchange
from headgate.changes.exchange_api import decode_answer, encode_offer
from headgate.changes.exchanged import Offer
from headgate.errors import Fault, InvalidRequest, InvalidSettings, PeerFailed
from headgate.metrics.samples import Cause, Instant
from headgate.shard.model import Pull, Pulled
from headgate.shard.peers_api import (
    PeerUrl,
    Skew,
    decode_report,
    encode_pull,
    encode_wake,
    parse_peer_url,
)

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MAX_WORDS_CHARS = 300
_METHODS = frozenset({"GET", "POST"})
_TARGET = re.compile(r"/[\x21-\x7e]*")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
EXCHANGE = b"/v1/changes/exchange"
_LOST_ROUTE = "there is nothing at"
"""How an agent begins that does not know the route; see http/control.py."""

_decode_problem = msgspec.json.Decoder(Problem).decode


def open_link(
    url: str,
    access: PeerAccess,
    *,
    sender: str,
    now: Now,
    traceparent: Callable[[], str] | None = None,
) -> HttpPeerLink:
    """`sender`: the member that speaks; `now`: the agent's clock; `traceparent`: of what is under
    way, where that is traced. InvalidName for a bad URL."""
    link = HttpPeerLink(parse_peer_url(url), access, sender=sender, now=now)
    link.traceparent = traceparent
    return link


class HttpPeerLink:
    """Implements the port PeerLink, and forwards questions.

    Pulls have a line of their own, since they are held: a wake-up call does not queue behind
    one, nor does a question that a client waits for.
    """

    def __init__(self, url: PeerUrl, access: PeerAccess, *, sender: str, now: Now) -> None:
        self._url = url
        self._sender = sender
        tls = access.tls or host_trust() if url.tls else None
        self._pulls = PeerLine(url, tls, now)
        self._calls = PeerLine(url, tls, now)
        self._head = _head(url, access.token)
        self._pull_head = self._head.replace(b"METHOD TARGET", b"POST /v1/peer/pull") + _JSON
        self._wake_head = self._head.replace(b"METHOD TARGET", b"POST /v1/peer/wake") + _JSON
        self._exchange_head = self._head.replace(b"METHOD TARGET", b"POST " + EXCHANGE) + _JSON
        self._skew: Skew | None = None
        self.traceparent: Callable[[], str] | None = None

    @property
    def url(self) -> str:
        return self._url.text

    async def pull(self, ask: Pull, *, timeout_s: float) -> Pulled:
        def compose(now: Instant) -> bytes:
            body = encode_pull(ask, now=now, skew=self._skew)
            head = self._pull_head + self._trace()
            return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

        answer = await self._exchange(self._pulls, compose, timeout_s)
        self._expect_ok(answer)
        try:
            pulled = decode_report(answer.body, sent=answer.sent, received=answer.received)
        except PeerFailed as error:
            raise self._failed(error.cause, error.detail) from None
        self._skew = Skew(pulled.wall_ahead_s, pulled.error_s)
        return pulled

    async def wake(self, shard: str, database: str, *, timeout_s: float) -> None:
        body = encode_wake(shard, database, self._sender)
        head = self._wake_head + self._trace()
        request = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        self._expect_ok(await self._exchange(self._calls, lambda _: request, timeout_s))

    async def exchange(self, offer: Offer, *, timeout_s: float) -> exchange.ExchangeAnswer:
        body = encode_offer(offer)
        head = self._exchange_head + self._trace()
        request = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        answer = await self._exchange(self._calls, lambda _: request, timeout_s)
        self._expect_ok(answer)
        try:
            return decode_answer(answer.body)
        except PeerFailed as error:
            raise self._failed(error.cause, error.detail) from None

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        timeout_s: float,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Any other question, as it is (GET or POST): status, body and headers of the answer.

        Raises PeerFailed where there is none, InvalidRequest for what cannot be sent on.
        """
        request = self._forwarded(method, target, body, headers)
        answer = await self._exchange(self._calls, lambda _: request, timeout_s)
        return answer.status, answer.body, answer.headers

    async def close(self) -> None:
        await self._pulls.close()
        await self._calls.close()

    # --- out -------------------------------------------------------------------------------

    def _trace(self) -> bytes:
        traceparent = self.traceparent() if self.traceparent is not None else ""
        return f"traceparent: {traceparent}\r\n".encode() if traceparent else b""

    def _forwarded(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> bytes:
        fit = method in _METHODS and _TARGET.fullmatch(target)
        if not fit or not all(map(_HEADER.fullmatch, headers)):
            raise InvalidRequest("this request cannot be forwarded to another agent")
        if not all(map(_VALUE.fullmatch, headers.values())):
            raise InvalidRequest("a header of this request cannot be forwarded to another agent")
        head = self._head.replace(b"METHOD TARGET", f"{method} {target}".encode()) + self._trace()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, lines, len(body), body)

    async def _exchange(
        self, line: PeerLine, compose: Callable[[Instant], bytes], timeout_s: float
    ) -> PeerResponse:
        try:
            return await line.exchange(compose, timeout_s)
        except TimeoutError:
            message = f"no answer in {timeout_s:g} s (waited {line.doing or 'for its turn'})"
            raise self._failed(Cause.TIMED_OUT, message) from None
        except (OSError, HungUp, CutShort, Garbled, Crowded) as error:
            raise self._failed(*_told(error)) from None

    def _failed(self, cause: Cause, detail: str) -> PeerFailed:
        return PeerFailed(cause, f"{self.url}: {detail}")

    # --- in --------------------------------------------------------------------------------

    def _expect_ok(self, answer: PeerResponse) -> None:
        if answer.status != 200:
            raise self._failed(Cause.FAILED, _rejection(answer))


_JSON = b"Content-Type: application/json\r\n"


def _head(url: PeerUrl, token: str | None) -> bytes:
    lines = ["METHOD TARGET HTTP/1.1", f"Host: {url.authority}", "User-Agent: headgate"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def _told(error: Exception) -> tuple[Cause, str]:
    match error:
        case ssl.SSLCertVerificationError():
            detail = f"its certificate is not trusted: {error.verify_message}"
            return Cause.FAILED, f"{detail}; set ca of [peers] to the authority that signed it"
        case ssl.SSLError():
            return Cause.FAILED, f"TLS failed: {error.reason or _words(str(error))}"
        case Garbled():
            return Cause.INVALID, f"answered {_words(str(error))}"
        case Crowded():
            return Cause.FAILED, str(error)
        case CutShort():
            return Cause.UNREACHABLE, f"the connection ended {error}"
        case HungUp():
            return Cause.UNREACHABLE, _words(str(error)) or "the connection was closed"
        case socket.gaierror():
            return Cause.UNREACHABLE, f"the name cannot be resolved: {error.strerror}"
        case _:
            return Cause.UNREACHABLE, f"cannot be reached: {_words(_os_words(error))}"


def _os_words(error: Exception) -> str:
    """uvloop and asyncio word the same failure differently, and repeat the address."""
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset"
        case OSError(strerror=str(words)):
            return words
        case _:
            return str(error) or type(error).__name__


def _rejection(answer: PeerResponse) -> str:
    status, words = answer.status, _problem_words(answer)
    if status in (401, 403):
        remedy = (
            "set token_file (or cert and key) of [peers] here, and there [[tokens]] with the "
            'role "peer" (or tls_client_ca of [agent])'
        )
        return f"does not accept this agent as a peer ({status}{words and f': {words}'}); {remedy}"
    if status == 404 and (not words or words.startswith(_LOST_ROUTE)):
        return "answered 404: an agent without shards, or not an agent"
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed, give the agent's own address"
    return f"rejected the request with {status}: {words}" if words else f"answered {status}"


def _problem_words(answer: PeerResponse) -> str:
    try:
        return _words(_decode_problem(answer.body).detail)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _words(text: str) -> str:
    """On one line, and no longer than a message can be."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_WORDS_CHARS else line[: MAX_WORDS_CHARS - 1] + "…"


# --- one connection ------------------------------------------------------------------------------

# One connection to another agent, and one request at a time on it.
#
# HttpPeerLink ─request─► PeerLine ─► PeerConnection (asyncio.Protocol, llhttp) ──► its listener
#
# A PeerLine connects when it has something to say and finds no connection that is fit for it;
# whatever goes wrong with an exchange ends the connection, so that no answer can ever be taken
# for that of another request. Deadlines are the caller's: what is cancelled leaves nothing.

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


# --- who may speak -------------------------------------------------------------------------------

# How this agent authenticates to others of its shard, and which of them it trusts.

_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True, slots=True)
class PeerAccess:
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    """For https; None trusts what the host trusts, and shows no certificate."""


def load_access(
    *, token_file: Path | None, ca: Path | None, cert: Path | None, key: Path | None
) -> PeerAccess:
    """From the files that [peers] names, or InvalidSettings."""
    return PeerAccess(_token(token_file) if token_file else None, _context(ca, cert, key))


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        raise _fault("token_file", f"no token can be read from {path}") from None
    if not _TOKEN.fullmatch(token):
        message = f"the first line of {path} is no token: 1–512 visible characters of ASCII"
        raise _fault("token_file", message)
    return token


@cache
def host_trust() -> ssl.SSLContext:
    """What the host trusts: some hundred certificates, read once, and only for a peer with TLS."""
    return ssl.create_default_context()


def _context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise _fault("ca", f"{ca} cannot be used: {error}") from None
    if cert is None:
        return context
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise _fault("cert", f"{cert} and key {key} cannot be used: {error}") from None
    return context


def _fault(setting: str, message: str) -> InvalidSettings:
    return InvalidSettings([Fault(f"peers.{setting}", message)])
