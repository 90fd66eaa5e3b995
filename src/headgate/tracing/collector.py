"""The way to the collector: one batch of bytes, one answer.   Outbox ──► Collector ──► POST

OTLP over HTTP, by the client's own reader: every size and every wait is bounded, redirects are not
followed (the headers may hold a key), and nothing of the environment is read.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from headgate.client.drivers.sync import Deadline, connect, converse
from headgate.client.http1 import BadResponse, Response, ResponseReader
from headgate.client.target import DEFAULT_PORTS, Target
from headgate.client.tls import Trust

MAX_REPLY_BYTES = 64 * 1024
GZIP_FROM_BYTES = 1024
GZIP_LEVEL = 1
LONGEST_ADVICE_S = 60.0
AGAIN = frozenset({429, 502, 503, 504})
"""What OTLP says may be sent once more."""


class Taken(NamedTuple):
    """With how many of them it did not want."""

    rejected: int = 0


class Later(NamedTuple):
    detail: str
    after_s: float | None = None


class BatchRejected(NamedTuple):
    detail: str


Outcome = Taken | Later | BatchRejected
Rejected = Callable[[bytes], int]
"""Of the body of an answer; ValueError if it is none."""


class Collector:
    def __init__(
        self,
        endpoint: str,
        rejected: Rejected,
        *,
        headers: Mapping[str, str],
        trust: Trust | None,
        timeout_s: float,
    ) -> None:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
        self._target = Target(endpoint, host=host, port=port, trust=trust)
        self._rejected = rejected
        self._timeout_s = timeout_s
        self._head = _head(parts.path, self._target.host_header, headers)
        self.label = parts.netloc

    def __call__(self, batch: bytes, *, at_most_s: float | None = None) -> Outcome:
        timeout_s = min(self._timeout_s, at_most_s or self._timeout_s)
        try:
            response = self._post(_request(self._head, batch), Deadline(timeout_s))
        except TimeoutError:
            return Later(f"no answer in {timeout_s:g} s")
        except OSError as error:
            return Later(f"cannot be reached: {(error.strerror or str(error)).lower()}")
        except BadResponse as error:
            return Later(str(error))
        return self._read(response)

    def _post(self, request: bytes, deadline: Deadline) -> Response:
        connection = connect(self._target, deadline)
        try:
            reader = ResponseReader(max_body_bytes=MAX_REPLY_BYTES)
            return converse(connection, request, reader, deadline)
        finally:
            connection.close()

    def _read(self, response: Response) -> Outcome:
        status = response.status
        if 200 <= status < 300:
            try:
                return Taken(self._rejected(response.body))
            except ValueError:
                return BatchRejected(f"answered {status} with what is no OTLP: is it a collector?")
        if status in AGAIN:
            return Later(f"answered {status}", _advice(response.headers.get("retry-after", "")))
        return BatchRejected(f"answered {status}{_REMEDIES.get(status, '')}")


_REMEDIES = {
    401: "; see headers_file of [tracing]",
    403: "; see headers_file of [tracing]",
    404: "; is the path of endpoint of [tracing] right?",
}


def _head(path: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: headgate",
        "Content-Type: application/x-protobuf",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def _request(head: bytes, batch: bytes) -> bytes:
    if len(batch) >= GZIP_FROM_BYTES:
        head, batch = head + b"Content-Encoding: gzip\r\n", gzip.compress(batch, GZIP_LEVEL)
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(batch), batch)


def _advice(retry_after: str) -> float | None:
    """Seconds alone: a date would have to be believed by a clock that may be wrong."""
    if not retry_after.isascii() or not retry_after.isdigit() or len(retry_after) > 6:
        return None
    return min(LONGEST_ADVICE_S, float(retry_after))
