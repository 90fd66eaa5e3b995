"""TLS as bytes: ciphertext out, ciphertext in. No sockets here.

    http1.exchange ──plaintext──► TlsSession.exchange ══ciphertext══► driver

Loaded for https:// only: importing ssl takes longer than all the rest of the SDK.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Generator, Iterator
from typing import NamedTuple

from headgate.client.http1 import BadResponse, Exchange, Response
from headgate.errors import Fault, InvalidSettings

PLAINTEXT_BYTES = 16 * 1024
# OpenSSL's codes for a certificate that is sound, but signed by nobody we know.
_UNKNOWN_ISSUER = frozenset({18, 19, 20, 21})
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"})


class TlsFailed(BadResponse):
    """Nothing that comes over this connection is to be believed. Never leaves client/."""


class Trust(NamedTuple):
    """Who may answer: `host`, with a certificate from those in `context`."""

    context: ssl.SSLContext
    host: str

    def session(self) -> TlsSession:
        return TlsSession(self.context, self.host)


def make_trust(host: str, ca: str | os.PathLike[str] | None) -> Trust:
    """The system's authorities, or the one in the file `ca` instead of them."""
    try:
        return Trust(ssl.create_default_context(cafile=ca), host)
    except OSError as fault:
        told = _reason(fault) if isinstance(fault, ssl.SSLError) else str(fault.strerror).lower()
        message = f"{os.fspath(ca or '')}: {told}; name a PEM file with the authority's certificate"
        raise InvalidSettings([Fault("tls_ca", message)]) from None


class TlsSession:
    """Of one connection, for as long as that is kept."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)

    def exchange(self, plain: Exchange) -> Exchange:
        """The same exchange, of ciphertext."""
        try:
            yield from self._handshake()
            return (yield from self._protected(plain))
        except ssl.SSLError as fault:
            raise TlsFailed(_told(fault)) from None

    def _handshake(self) -> Generator[bytes, bytes, None]:
        """Over at once where it was done for an earlier exchange."""
        while True:
            try:
                return self._tls.do_handshake()
            except ssl.SSLWantReadError:
                received = yield self._to_send.read()
            if not received:
                raise TlsFailed("the connection was closed in the TLS handshake; is it http://?")
            self._received.write(received)

    def _protected(self, plain: Exchange) -> Exchange:
        outgoing = next(plain)
        while True:
            received = yield self._sealed(outgoing)
            outgoing = b""
            for piece in self._opened(received):
                try:
                    outgoing += plain.send(piece)
                except StopIteration as end:
                    response: Response = end.value
                    return response

    def _sealed(self, plaintext: bytes) -> bytes:
        while plaintext:
            plaintext = plaintext[self._tls.write(plaintext) :]
        return self._to_send.read()

    def _opened(self, received: bytes) -> Iterator[bytes]:
        """All that can be read by now in one piece, and b"" behind it where that was the end."""
        if received:
            self._received.write(received)
        else:
            self._received.write_eof()
        plaintext, ended = self._read()
        if plaintext:
            yield plaintext
        if ended:
            yield b""

    def _read(self) -> tuple[bytes, bool]:
        plaintext = bytearray()
        try:
            while piece := self._tls.read(PLAINTEXT_BYTES):
                plaintext += piece
        except ssl.SSLWantReadError:
            return bytes(plaintext), False
        except ssl.SSLEOFError:
            pass  # without TLS's farewell: whether the answer is whole, its own framing tells
        return bytes(plaintext), True


def _told(fault: ssl.SSLError) -> str:
    if isinstance(fault, ssl.SSLCertVerificationError):
        advice = "; name its authority with tls_ca or SSL_CERT_FILE"
        told = fault.verify_message.rstrip(".")
        known = fault.verify_code not in _UNKNOWN_ISSUER
        return f"its certificate is not accepted: {told}{'' if known else advice}"
    if fault.reason in _NOT_TLS:
        return f"it does not speak TLS as it should ({_reason(fault)}); is it http://?"
    return f"TLS failed: {_reason(fault)}"


def _reason(fault: ssl.SSLError) -> str:
    return (fault.reason or str(fault)).lower().replace("_", " ")
