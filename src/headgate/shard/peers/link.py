"""The link to one other agent.   shard/shard ──Pull──► HttpPeerLink ──► POST /v1/peer/pull there

Errors give their cause; they name the agent and never a secret.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from headgate.base.problems import Problem
from headgate.changes import exchanged as exchange
from headgate.changes.exchange_api import decode_answer, encode_offer
from headgate.changes.exchanged import Offer
from headgate.errors import InvalidRequest, PeerFailed
from headgate.metrics.samples import Cause, Instant
from headgate.shard.model import Pull, Pulled
from headgate.shard.peers.access import PeerAccess, host_trust
from headgate.shard.peers.line import (
    Crowded,
    CutShort,
    Garbled,
    HungUp,
    Now,
    PeerLine,
    PeerResponse,
)
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
