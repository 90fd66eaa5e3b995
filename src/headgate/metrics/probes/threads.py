"""Run what can only block in a thread, and none beside one that was given up.

Not asyncio.to_thread: its pool is shared, so that a few hung calls would stop everyone's,
and it keeps the process from ending until they return.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from headgate.errors import ProbeFailed
from headgate.metrics.probes.numbers import one_line
from headgate.metrics.samples import Cause

T = TypeVar("T")


# Calls that nobody waits for any more, by name and not by probe: a metric that is replaced
# again and again must not leave a hung thread each time.
_given_up: dict[str, set[OneThread[Any]]] = {}


class OneThread(Generic[T]):
    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = False

    @property
    def is_busy(self) -> bool:
        return self._busy

    async def run(self, call: Callable[[], T], abort: Callable[[], None] = lambda: None) -> T:
        """The answer of `call`. When cancelled, `abort` is called to make `call` return soon."""
        if self._busy or _still_at_work(self._name):
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
            _given_up.setdefault(self._name, set()).add(self)
            abort()
            raise

    def _work(
        self, call: Callable[[], T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T]
    ) -> None:
        deliver: Callable[[], None]
        try:
            value = call()
        except BaseException as error:  # the thread's supervisor: whatever it was, is handed over
            failure = _portable(error)
            deliver = lambda: answer.set_exception(failure)  # noqa: E731 -- bound to this failure
        else:
            deliver = lambda: answer.set_result(value)  # noqa: E731 -- bound to this value
        self._busy = False  # here: the loop may have been closed meanwhile
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_finish, answer, deliver)


def _finish(answer: asyncio.Future[T], deliver: Callable[[], None]) -> None:
    if not answer.done():
        deliver()


def _still_at_work(name: str) -> bool:
    busy = {thread for thread in _given_up.pop(name, ()) if thread.is_busy}
    if busy:
        _given_up[name] = busy
    return bool(busy)


def _portable(error: BaseException) -> Exception:
    """What would end a thread or a program must not end the loop; no future takes StopIteration."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return ProbeFailed(Cause.FAILED, f"raised {type(error).__name__}: {one_line(error)}")
