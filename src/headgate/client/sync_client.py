"""`headgate.Client`: for threads."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from headgate.client.answers import Answer
from headgate.client.gate import DEFAULT_CHUNK_SIZE, Gate
from headgate.errors import Fault, InvalidSettings

Item = TypeVar("Item")
Params = ParamSpec("Params")
Result = TypeVar("Result")


class Client(Gate[Callable[[float], None]]):
    __doc__ = Gate.__doc__

    def _start(self, sleep: Callable[[float], None] | None) -> None:
        from headgate.client.drivers.sync import SyncDriver  # here: see client/__init__.py

        self._driver = SyncDriver(self._target, sleep or time.sleep)

    def check(self, *, cost: float | None = None) -> Answer:
        """Ask once. A refusal is an answer; ThrottlerUnavailable if nobody gives one."""
        return self._driver.run(self._checking(cost))

    def check_read(
        self, threshold_s: float, metric: str = "lag", *, database: str | None = None
    ) -> Answer:
        """Is `metric` below the caller's own threshold? Never a leave to write (R34)."""
        return self._driver.run(self._checking_read(threshold_s, metric, database))

    def wait(self, deadline_s: float | None = None, *, cost: float | None = None) -> Answer:
        """Ask until admitted; WaitedTooLong past `deadline_s` (by default `max_wait_s`)."""
        return self._driver.run(self._waiting(deadline_s, cost))

    def chunks(
        self, items: Iterable[Item], size: int = DEFAULT_CHUNK_SIZE, *, items_cost: bool = False
    ) -> Iterator[list[Item]]:
        """Lists of `size` items, each asked for before it is handed out (R30). With
        `items_cost`, a list costs as much as it has items."""
        return self._chunks(iter(items), checked_size(size), items_cost)

    def _chunks(self, items: Iterator[Item], size: int, items_cost: bool) -> Iterator[list[Item]]:
        # Filled before asking: an OK is then neither spent on nothing nor old when used.
        while chunk := list(islice(items, size)):
            self.wait(cost=len(chunk) if items_cost else None)
            yield chunk

    @contextmanager
    def guard(self, deadline_s: float | None = None) -> Iterator[Answer]:
        """`with gate.guard(): …` runs its body once admitted."""
        yield self.wait(deadline_s)

    def throttled(self, work: Callable[Params, Result]) -> Callable[Params, Result]:
        """Each call of `work` waits to be admitted; a coroutine function waits on its loop."""
        import inspect  # here: see client/__init__.py

        if inspect.iscoroutinefunction(work):
            return self._throttled_coroutine(work)

        @functools.wraps(work)
        def asking(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            self.wait()
            return work(*args, **kwargs)

        return asking

    def _throttled_coroutine(self, work: Callable[Params, Any]) -> Callable[Params, Any]:
        import asyncio  # here: see client/__init__.py

        from headgate.client.drivers.aio import AsyncDriver

        @functools.wraps(work)
        async def asking(*args: Params.args, **kwargs: Params.kwargs) -> Any:
            # A connection of its own: it belongs to whichever loop this call runs on.
            driver = AsyncDriver(self._target, asyncio.sleep)
            try:
                await driver.run(self._waiting(None))
            finally:
                driver.close()
            return await work(*args, **kwargs)

        return cast(Callable[Params, Any], asking)

    def close(self) -> None:
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def checked_size(size: int) -> int:
    if size < 1:
        raise InvalidSettings([Fault("size", f"a chunk holds at least 1 item, not {size!r}")])
    return size
