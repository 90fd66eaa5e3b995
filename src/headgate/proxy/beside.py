"""Run what may hang in a thread of its own: a resolver, an agent behind a dead network.

Not asyncio.to_thread: its pool is everybody's, and is waited for at the end. Here a call that hangs
holds one thread, which nobody waits for; meanwhile the next call of its name fails at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class Beside:
    """One call at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = threading.Lock()

    async def run(self, call: Callable[[], T]) -> T:
        """What it returns or raises; OSError while the call before it has not come back."""
        if not self._busy.acquire(blocking=False):
            raise OSError(f"{self._name}: the call before this one still hangs")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            deliver = _outcome(call, answer)
            self._busy.release()  # first: the caller that gets the answer may call again at once
            with suppress(RuntimeError):  # The loop was closed meanwhile.
                loop.call_soon_threadsafe(deliver)

        try:
            threading.Thread(target=work, name=self._name, daemon=True).start()
        except RuntimeError as error:  # No thread is to be had.
            self._busy.release()
            raise OSError(f"{self._name}: {error}") from None
        return await answer


def _outcome(call: Callable[[], T], answer: asyncio.Future[T]) -> Callable[[], None]:
    try:
        value = call()
    except Exception as error:  # handed over to the task that waits for the answer
        failure = error
        return lambda: None if answer.done() else answer.set_exception(failure)
    return lambda: None if answer.done() else answer.set_result(value)
