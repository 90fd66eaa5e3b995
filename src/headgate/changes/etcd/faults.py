"""What etcd and the way to it can answer instead, in our words and with what to do about it.

EtcdSilent   this member cannot help; another may. Stays inside this package.
NoToken    it does not know who we are; a new token helps. Stays inside this package.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress

import httpx2
import msgspec

from headgate.errors import (
    Compacted,
    HeadgateError,
    LeaseLost,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)

MAX_WORDS_CHARS = 200

INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED = 3, 5, 7
"""gRPC's codes."""

# A member says these before it has passed a request on: nothing was done.
_NOTHING_DONE = ("no leader", "too many requests", "not capable", "future revision")
_TOKEN_TROUBLE = ("invalid auth token", "revision of auth store is old", "user name is empty")


class ErrorAnswer(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 0
    grpc_code: int = 0
    """What 3.4 calls `code` in a stream."""
    http_code: int = 0


class _Nested(msgspec.Struct, frozen=True):
    error: ErrorAnswer | None = None


read_error = msgspec.json.Decoder(ErrorAnswer, strict=False).decode  # Numbers come as text.
read_nested = msgspec.json.Decoder(_Nested, strict=False).decode


class EtcdSilent(Exception):
    def __init__(self, words: str, *, sent: bool = True, rejected: bool = False) -> None:
        super().__init__(words)
        self.sent = sent
        """A change may have been made."""
        self.rejected = rejected
        """An operator has to fix it."""


class NoToken(Exception):
    pass


def given_up(troubles: Sequence[tuple[str, EtcdSilent]]) -> StoreUnavailable:
    """No member answered: what each of them had."""
    words = "; ".join(f"{where}: {trouble}" for where, trouble in troubles)
    rejected = all(trouble.rejected for _, trouble in troubles)
    return (StoreRejected if rejected else StoreUnavailable)(f"etcd: {words}")


def unknown(where: str, trouble: EtcdSilent) -> OutcomeUnknown:
    return OutcomeUnknown(f"etcd {where}: {trouble}; the change may or may not have been made")


# --- the way there ---------------------------------------------------------------------------


_IS_IT_ETCD = "(is it etcd? does it need https://?)"


def of_transport(error: Exception, waited_s: float, *, over_http: bool = False) -> EtcdSilent:
    """`over_http`: without TLS, and before any answer. A member that wants TLS says so and hangs
    up at once; the reset may overtake what it said."""
    tls = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
    if tls is not None:
        return of_tls(tls)
    match error:
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return EtcdSilent(f"no connection in {waited_s:.1f} s", sent=False)
        case httpx2.ConnectError():
            return EtcdSilent(f"cannot be reached: {_os_words(error)}", sent=False)
        case httpx2.TimeoutException():
            return EtcdSilent(f"no answer in {waited_s:.1f} s")
        case httpx2.ProtocolError() | httpx2.DecodingError():
            return EtcdSilent(f"{_short(str(error))} {_IS_IT_ETCD}")
        case _:
            ended = f"the connection ended: {_os_words(error)}"
            return EtcdSilent(f"{ended} {_IS_IT_ETCD}" if over_http else ended)


def _causes(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def of_tls(error: ssl.SSLError, *, sent: bool = False) -> EtcdSilent:
    """`sent`: only if it was found out afterwards, by a second connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "set ca of [fleet] to the CA that signed it, or renew the certificate"
        words = f"its certificate is not trusted: {error.verify_message}; {remedy}"
        return EtcdSilent(words, sent=sent, rejected=True)
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason and ("certificate" in reason or "unknown ca" in reason):
        remedy = "set cert and key of [fleet] to one that it trusts and that has not expired"
        words = f"it rejects our certificate ({reason}); {remedy}"
        return EtcdSilent(words, sent=sent, rejected=True)
    hint = " (does it need http://?)" if "eof" in reason or "version" in reason else ""
    return EtcdSilent(f"TLS failed: {reason}{hint}", sent=sent or "alert" in reason)


def _os_words(error: BaseException) -> str:
    """The kernel's, without what libraries put around them."""
    kernel = [c for c in _causes(error) if isinstance(c, OSError) and c.strerror]
    match kernel[-1] if kernel else None:
        case ConnectionRefusedError():
            return "connection refused"
        case OSError(strerror=str(words)):
            return _short(words)
        case _:
            return _short(str(error)) or type(error).__name__


def _short(words: str) -> str:
    flat = " ".join(words.split())
    return flat if len(flat) <= MAX_WORDS_CHARS else f"{flat[:MAX_WORDS_CHARS]}…"


# --- its answers -----------------------------------------------------------------------------


def of_answer(where: str, status: int, body: bytes) -> HeadgateError | EtcdSilent | NoToken:
    told = _told(body)
    return _of_stranger(where, status, body) if told is None else of_error(where, told)


def _told(body: bytes) -> ErrorAnswer | None:
    """Where a stream was asked for, the same lies one level deeper: but for `error`, which newer
    versions leave out, and which was text before."""
    with suppress(msgspec.DecodeError):
        if (told := read_nested(body).error) is not None:
            return told
    with suppress(msgspec.DecodeError):
        told = read_error(body)
        return told if told.message else None
    return None


def _of_stranger(where: str, status: int, body: bytes) -> HeadgateError | EtcdSilent:
    words = _short(body.decode(errors="replace"))
    if "CommonName" in words:
        return _named_certificate(where)
    if "HTTPS" in words:
        return EtcdSilent("it needs TLS: use https://, not http://", sent=False, rejected=True)
    if status == 404:
        message = "answered 404: not etcd, or one without its gateway (enable-grpc-gateway)"
        return EtcdSilent(message, sent=False, rejected=True)
    return EtcdSilent(f"answered {status}: {words}", sent=status != 429)


def _named_certificate(where: str) -> StoreRejected:
    return StoreRejected(
        f"etcd {where}: its gateway accepts no client certificate with a common name (CN): use one "
        "without for cert of [fleet], and username and password_file to log in"
    )


def of_error(where: str, told: ErrorAnswer) -> HeadgateError | EtcdSilent | NoToken:
    code, words = told.code or told.grpc_code, told.message.removeprefix("etcdserver: ")
    if any(trouble in words for trouble in _TOKEN_TROUBLE):
        return NoToken(words)
    if code == NOT_FOUND and "lease not found" in words:
        return LeaseLost(f"etcd {where}: the lease is gone: it expired, or was revoked")
    if "has been compacted" in words:
        return Compacted(f"etcd {where}: {words}")
    if rejection := _rejection(where, code, words):
        return rejection
    return EtcdSilent(_short(words), sent=not any(early in words for early in _NOTHING_DONE))


def of_reason(where: str, reason: str) -> HeadgateError | EtcdSilent | NoToken:
    """Of a watch that was ended: `rpc error: code = PermissionDenied desc = etcdserver: …`."""
    _, _, words = reason.rpartition("desc = ")
    code = PERMISSION_DENIED if "permission denied" in words else 0
    return of_error(where, ErrorAnswer(words or "ended the watch without a reason", code))


def _rejection(where: str, code: int, words: str) -> StoreRejected | None:
    if "CommonName" in words:
        return _named_certificate(where)
    if code == PERMISSION_DENIED:
        remedy = "grant its role readwrite on the prefix of [fleet] (etcdctl role grant-permission)"
        return StoreRejected(f"etcd {where}: {words}: {remedy}")
    if "space exceeded" in words:
        remedy = "compact and defragment it, then etcdctl alarm disarm"
        return StoreRejected(f"etcd {where} accepts no more changes: {words}; {remedy}")
    if code == INVALID_ARGUMENT:
        return StoreRejected(f"etcd {where}: {_short(words)}")
    return None
