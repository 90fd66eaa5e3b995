"""What waits to be sent.   span ends ──► Outbox (bounded) ══thread══► Collector

Ending a span never waits and never fails: when too many spans wait, further ones are dropped and
counted. A collector that is away is logged once and tried again after pauses that double. Each
batch is given up after a few tries, because newer spans are worth more.
"""

from __future__ import annotations

import gzip
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import structlog

from headgate.client.drivers.sync import Deadline, connect, converse
from headgate.client.http1 import BadResponse, Response, ResponseReader
from headgate.client.target import DEFAULT_PORTS, Target
from headgate.client.tls import Trust

# --- the way to the collector: one batch of bytes, one answer ------------------------------
# OTLP over HTTP, by the client's own reader: every size and every wait is bounded, redirects are
# not followed (the headers may hold a key), and nothing of the environment is read.

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


log = structlog.get_logger()


# --- the outbox ----------------------------------------------------------------------------


BATCH = 100
"""Spans at a time: encoding them holds the interpreter, and checks are answered beside it."""
LINGER_S = 1.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
MAX_TRIES = 5
LAST_TRY_S = 1.0
CLOSE_TIMEOUT_S = 2.0
SENT, FULL, UNDELIVERED, REJECTED, BUSY = "sent", "full", "undelivered", "rejected", "busy"
OUTCOMES = (SENT, FULL, UNDELIVERED, REJECTED, BUSY)

T = TypeVar("T")


class PostBatch(Protocol):
    @property
    def label(self) -> str: ...

    def __call__(self, batch: bytes, *, at_most_s: float | None = None) -> Outcome: ...


class Outbox(Generic[T]):
    """`encode` makes bytes of some spans; ValueError where it cannot."""

    def __init__(self, encode: Callable[[Sequence[T]], bytes], post: PostBatch, most: int) -> None:
        self._encode = encode
        self._post = post
        self._most = most
        self._waiting: deque[T] = deque()
        self._stirred = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-traces", daemon=True)
        self._is_started = False
        self.fault: str | None = None
        """Why the last batch was not taken; None once one was."""
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def collector(self) -> str:
        return self._post.label

    def put(self, span: T) -> None:
        if len(self._waiting) >= self._most or self._closing.is_set():
            self.outcomes[FULL] += 1
            return
        self._waiting.append(span)
        if not self._is_started:  # Not before: a fork between would have left it behind.
            self._is_started = True
            self._thread.start()
        self._stirred.set()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """One more try for what waits, within that time."""
        self._closing.set()
        self._stirred.set()
        if self._is_started:
            with suppress(RuntimeError):
                self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._stirred.wait()
            self._stirred.clear()
            self._closing.wait(LINGER_S)  # So that what belongs together goes together.
            while self._waiting:
                most = min(BATCH, len(self._waiting))
                self._deliver([self._waiting.popleft() for _ in range(most)])

    def _deliver(self, batch: list[T]) -> None:
        try:
            body = self._encode(batch)
        # Whatever a span holds that cannot be written: traces must not end with it.
        except Exception as error:
            self._tell(f"a batch cannot be encoded: {type(error).__name__}")
            self.outcomes[UNDELIVERED] += len(batch)
            return
        pause_s = FIRST_PAUSE_S
        for _ in range(MAX_TRIES):
            outcome = self._tried(body)
            if isinstance(outcome, Taken):
                self._taken(len(batch), outcome.rejected)
                return
            self._tell(outcome.detail)
            if isinstance(outcome, BatchRejected) or self._closing.is_set():
                break
            self._closing.wait(outcome.after_s or pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        self.outcomes[UNDELIVERED] += len(batch)

    def _tried(self, body: bytes) -> Outcome:
        at_most_s = LAST_TRY_S if self._closing.is_set() else None
        try:
            return self._post(body, at_most_s=at_most_s)
        # A defect in here would end the thread, and tracing with it, in silence.
        except Exception as error:
            log.exception("tracing.send_crashed", collector=self._post.label)
            return Later(f"sending crashed: {type(error).__name__}")

    def _taken(self, count: int, rejected: int) -> None:
        rejected = min(count, max(0, rejected))
        self.outcomes[SENT] += count - rejected
        self.outcomes[REJECTED] += rejected
        if self.fault is not None:
            log.info("tracing.taken_again", collector=self._post.label)
        self.fault = None

    def _tell(self, detail: str) -> None:
        """Once, until it works again: a collector away for a night must not fill the log."""
        if self.fault is None:
            log.error("tracing.not_taken", collector=self._post.label, detail=detail)
        self.fault = detail
