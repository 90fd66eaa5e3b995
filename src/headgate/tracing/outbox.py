"""What waits to be sent.   span ends ──► Outbox (bounded) ══thread══► Collector

Ending a span never waits and never fails: when too many spans wait, further ones are dropped and
counted. A collector that is away is logged once and tried again after pauses that double. Each
batch is given up after a few tries, because newer spans are worth more.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import structlog

from headgate.tracing.collector import BatchRejected, Later, Outcome, Taken

log = structlog.get_logger()

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
                self._deliver(self._next_batch())

    def _next_batch(self) -> list[T]:
        return [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]

    def _deliver(self, batch: list[T]) -> None:
        try:
            body = self._encode(batch)
        # Whatever a span holds that cannot be written: traces must not end with it.
        except Exception as error:
            self._lost(f"a batch cannot be encoded: {type(error).__name__}", len(batch))
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

    def _lost(self, detail: str, count: int) -> None:
        self._tell(detail)
        self.outcomes[UNDELIVERED] += count

    def _tell(self, detail: str) -> None:
        """Once, until it works again: a collector away for a night must not fill the log."""
        if self.fault is None:
            log.error("tracing.not_taken", collector=self._post.label, detail=detail)
        self.fault = detail
