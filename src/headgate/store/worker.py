"""One thread that does a store's blocking work in turn; the caller waits until a deadline.

await run(job) ──bounded queue──► thread: job(ticket) ──ticket.settle(value)──► the caller

A disk can hang for minutes, and a thread in the kernel cannot be interrupted. So the caller
leaves at its deadline, and the ticket decides, once and under a lock, whether the answer came
first or the caller left first: a job always knows whether its work was accepted.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from headgate.errors import StoreUnavailable

T = TypeVar("T")


class Ticket(Generic[T]):
    """The claim of one caller on one answer."""

    def __init__(self, until_mono_s: float) -> None:
        self.until_mono_s = until_mono_s
        self._lock = threading.Lock()
        self._abandoned = False
        self.future: Future[T] = Future()
        # From here on a cancelled wait cannot cancel the future: abandon() is the only way out.
        self.future.set_running_or_notify_cancel()

    def extend(self, seconds: float) -> None:
        """By the job, for what takes long by its nature: nobody leaves before."""
        self.until_mono_s = max(self.until_mono_s, time.monotonic() + seconds)

    def remaining_s(self) -> float:
        return max(0.0, self.until_mono_s - time.monotonic())

    def given_up(self) -> bool:
        return self._abandoned or time.monotonic() >= self.until_mono_s

    def settle(self, value: T) -> bool:
        """Answer; False if the caller has left, with the error that nothing was done."""
        with self._lock:
            if not self._abandoned and not self.future.done():
                self.future.set_result(value)
            return not self._abandoned

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self._abandoned and not self.future.done():
                self.future.set_exception(error)

    def abandon(self) -> bool:
        """Leave; False if the answer was there first."""
        with self._lock:
            self._abandoned = not self.future.done()
            return self._abandoned


Job = Callable[[Ticket[T]], None]


SLOW_DISK = "the disk may be slow or hang"


class Worker:
    def __init__(self, name: str, *, max_waiting: int = 64, advice: str = SLOW_DISK) -> None:
        """`advice`: appended to the error of a wait that timed out."""
        self._name = name
        self._advice = advice
        self._jobs: queue.Queue[tuple[Job[Any], Ticket[Any]] | None] = queue.Queue(max_waiting)
        self._stopping = False
        # A daemon: a thread that the disk holds must not hold the process.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def run(self, job: Job[T], *, until_mono_s: float) -> T:
        ticket: Ticket[T] = Ticket(until_mono_s)
        began_s = time.monotonic()
        self._enqueue(job, ticket)
        answer = asyncio.wrap_future(ticket.future)
        try:
            while (left_s := ticket.remaining_s()) > 0 and not answer.done():
                await asyncio.wait({answer}, timeout=left_s)
        except asyncio.CancelledError:
            ticket.abandon()
            answer.cancel()
            raise
        if answer.done():
            return answer.result()
        answer.cancel()
        if ticket.abandon():
            raise StoreUnavailable(
                f"{self._name}: no answer in {time.monotonic() - began_s:.2g} s, so nothing was "
                f"done; {self._advice}"
            )
        return ticket.future.result()

    def stop(self) -> None:
        """End the thread after its present job. Jobs that still wait are not begun."""
        self._stopping = True
        with suppress(queue.Full):
            self._jobs.put_nowait(None)

    def _enqueue(self, job: Job[T], ticket: Ticket[T]) -> None:
        try:
            self._jobs.put_nowait((job, ticket))
        except queue.Full:
            raise StoreUnavailable(
                f"{self._name}: {self._jobs.maxsize} operations are already waiting; {self._advice}"
            ) from None

    def _serve(self) -> None:
        while (item := self._jobs.get()) is not None and not self._stopping:
            job, ticket = item
            if ticket.given_up():
                continue
            try:
                job(ticket)
            except Exception as error:  # The thread goes on; the caller raises it.
                ticket.fail(error)
