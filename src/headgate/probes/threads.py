"""Run what can only block in a thread, and never more than one at a time.

Not asyncio.to_thread: its pool is shared, so that a few hung calls would stop everyone's,
and it keeps the process from ending until they return.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed

T = TypeVar("T")


def _nothing() -> None:
    pass


class OneThread(Generic[T]):
    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = False

    async def run(self, call: Callable[[], T], abort: Callable[[], None] = _nothing) -> T:
        """The answer of `call`. When cancelled, `abort` is told to make `call` return soon."""
        if self._busy:
            message = f"{self._name}: the call before this one has not returned yet"
            raise ProbeFailed(Cause.TIMED_OUT, message)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._busy = True
        threading.Thread(
            target=self._work, args=(call, loop, answer), name=self._name, daemon=True
        ).start()
        try:
            return await answer
        except asyncio.CancelledError:
            abort()
            raise

    def _work(
        self, call: Callable[[], T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T]
    ) -> None:
        deliver: Callable[[], None]
        try:
            value = call()
        except Exception as error:  # the thread's supervisor: whatever it was, it is handed over
            failure = error
            deliver = lambda: answer.set_exception(failure)  # noqa: E731 -- bound to this failure
        else:
            deliver = lambda: answer.set_result(value)  # noqa: E731 -- bound to this value
        with suppress(RuntimeError):  # the loop may have been closed meanwhile
            loop.call_soon_threadsafe(self._finish, answer, deliver)

    def _finish(self, answer: asyncio.Future[T], deliver: Callable[[], None]) -> None:
        self._busy = False
        if not answer.done():
            deliver()
