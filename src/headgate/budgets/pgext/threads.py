"""Run what waits for a server's files in a thread, and never beside one that hangs.

Not asyncio.to_thread: its pool is everybody's. A file system that hangs would take a thread of it
each second, and with the last one the API, the kill switch included; and the process could not end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from headgate.errors import HeadgateError

T = TypeVar("T")

# By name and not by object: settings that are read again and again make new ones.
_at_work: set[str] = set()


class OneCall:
    """One call at a time, in a thread that nobody waits for at the end."""

    def __init__(self, name: str, busy: type[HeadgateError]) -> None:
        """`busy`: what is raised while an earlier call has not come back."""
        self._name = name
        self._busy = busy

    async def run(self, call: Callable[[], T]) -> T:
        if self._name in _at_work:
            raise self._busy(
                f"{self._name}: the call before this one has not come back; the disk may hang"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        _at_work.add(self._name)
        work = (self._name, call, loop, answer)
        threading.Thread(target=_work, args=work, name=self._name, daemon=True).start()
        return await answer


def _work(
    name: str,
    call: Callable[[], T],
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[T],
) -> None:
    deliver: Callable[[], None]
    try:
        value = call()
    except Exception as error:  # handed over to the task that waits for the answer
        failure = error
        deliver = lambda: answer.set_exception(failure)  # noqa: E731 -- bound to this failure
    else:
        deliver = lambda: answer.set_result(value)  # noqa: E731 -- bound to this value
    _at_work.discard(name)  # first: the task that gets the answer may start another call at once
    with suppress(RuntimeError):  # The loop was closed meanwhile.
        loop.call_soon_threadsafe(_settle, answer, deliver)


def _settle(answer: asyncio.Future[T], deliver: Callable[[], None]) -> None:
    if not answer.done():
        deliver()
