"""Requests to the gateway and its answers, as values.

In JSON: bytes are base64, numbers of 64 bits are text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import structlog

from headgate.base.keyvalue import Compare, Entry, KeyEvent, Put

log = structlog.get_logger()

MAX_STRANGERS = 100
"""Keys that no agent can have written, and that were logged."""

Op = dict[str, Any]
"""One operation of a transaction."""


class Header(msgspec.Struct, frozen=True):
    cluster_id: int = 0
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    """1: it did not exist before."""


class RangeAnswer(msgspec.Struct, frozen=True):
    kvs: tuple[KeyValue, ...] = ()
    count: int = 0
    """Of all in the range, including what the request left out."""
    more: bool = False


class OpAnswer(msgspec.Struct, frozen=True):
    response_range: RangeAnswer = RangeAnswer()


class TxnAnswer(msgspec.Struct, frozen=True):
    header: Header
    succeeded: bool = False
    responses: tuple[OpAnswer, ...] = ()

    @property
    def ranges(self) -> list[RangeAnswer]:
        return [answer.response_range for answer in self.responses]


class LeaseAnswer(msgspec.Struct, frozen=True):
    ID: int = 0
    TTL: int = 0
    """Seconds; 0: there is none."""


class KeepAliveAnswer(msgspec.Struct, frozen=True):
    result: LeaseAnswer


class TokenAnswer(msgspec.Struct, frozen=True):
    token: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 0
    grpc_code: int = 0
    """What 3.4 calls `code` in a stream."""
    http_code: int = 0


class EventAnswer(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"

    @property
    def is_gone(self) -> bool:
        return self.type == "DELETE"


class WatchAnswer(msgspec.Struct, frozen=True):
    header: Header
    watch_id: int = 0
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    fragment: bool = False
    """More of the same follows."""
    events: tuple[EventAnswer, ...] = ()


class StreamLine(msgspec.Struct, frozen=True):
    result: WatchAnswer | None = None
    error: ErrorAnswer | None = None


# Not strict: numbers come as text.
read_txn = msgspec.json.Decoder(TxnAnswer, strict=False).decode
read_lease = msgspec.json.Decoder(LeaseAnswer, strict=False).decode
read_keep_alive = msgspec.json.Decoder(KeepAliveAnswer, strict=False).decode
read_token = msgspec.json.Decoder(TokenAnswer, strict=False).decode
read_error = msgspec.json.Decoder(ErrorAnswer, strict=False).decode
read_line = msgspec.json.Decoder(StreamLine, strict=False).decode
written = msgspec.json.encode


class Keys:
    """Our keys, below a prefix of the store's: added in front and removed again.

    A key that is not text was written by another program, and is skipped: no page, no copy on disk
    and no other agent could hold it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._skipped_bytes = len(prefix.encode())
        self._strangers: set[bytes] = set()

    def outer(self, key: str) -> bytes:
        return (self.prefix + key).encode()

    def inner(self, key: bytes) -> str | None:
        """None: it is no text."""
        try:
            return key[self._skipped_bytes :].decode()
        except UnicodeDecodeError:
            self._tell(key)
            return None

    def _tell(self, key: bytes) -> None:
        if key in self._strangers or len(self._strangers) >= MAX_STRANGERS:
            return
        self._strangers.add(key)
        log.warning(
            "fleet.key_unreadable", key=repr(key[:200]), remedy="not UTF-8: delete it with etcdctl"
        )

    def span(self, prefix: str) -> Op:
        """All keys that begin so."""
        first = self.outer(prefix)
        return {"key": first or b"\0", "range_end": _behind(first)}

    def entries(self, kvs: Iterable[KeyValue]) -> list[Entry]:
        named = ((self.inner(kv.key), kv) for kv in kvs)
        return [Entry(key, kv.value, kv.mod_revision) for key, kv in named if key is not None]

    def events(self, answers: Iterable[EventAnswer]) -> list[KeyEvent]:
        named = ((self.inner(answer.kv.key), answer) for answer in answers)
        return [
            KeyEvent(key, None if one.is_gone else one.kv.value, one.kv.mod_revision)
            for key, one in named
            if key is not None
        ]

    def compare(self, compare: Compare) -> Op:
        return {
            "key": self.outer(compare.key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(compare.revision),
        }

    def put(self, put: Put) -> Op:
        key = self.outer(put.key)
        if put.value is None:
            return {"request_delete_range": {"key": key}}
        return {"request_put": {"key": key, "value": put.value, "lease": str(put.lease)}}


def _behind(first: bytes) -> bytes:
    """The first key after all with this prefix; 0 means the end of all keys."""
    cut = first.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else b"\0"


def range_op(span: Op, **options: Any) -> Op:
    return {"request_range": span | options}


def txn(success: Sequence[Op], *, compares: Sequence[Op] = (), failure: Sequence[Op] = ()) -> bytes:
    return written({"compare": compares, "success": success, "failure": failure})


def watches(spans: Sequence[Op], *, start_revision: int) -> bytes:
    """Several in one stream: one message each, one behind the other."""
    asked = {"start_revision": str(start_revision), "fragment": True, "progress_notify": True}
    return b"".join(written({"create_request": span | asked}) for span in spans)
