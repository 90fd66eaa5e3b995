"""`headgate.AsyncClient`: the same names, awaited."""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
)
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from headgate.client.answers import Answer
from headgate.client.gate import DEFAULT_CHUNK_SIZE, Gate
from headgate.client.sync_client import checked_size

Item = TypeVar("Item")
Params = ParamSpec("Params")
Result = TypeVar("Result")


class AsyncClient(Gate[Callable[[float], Awaitable[None]]]):
    __doc__ = Gate.__doc__

    def _start(self, sleep: Callable[[float], Awaitable[None]] | None) -> None:
        import asyncio  # here: see client/__init__.py

        from headgate.client.drivers.aio import AsyncDriver

        self._driver = AsyncDriver(self._target, sleep or asyncio.sleep)

    async def check(self, *, cost: float | None = None) -> Answer:
        """Ask once. A refusal is an answer; ThrottlerUnavailable if nobody gives one."""
        return await self._driver.run(self._checking(cost))

    async def check_read(
        self, threshold_s: float, metric: str = "lag", *, database: str | None = None
    ) -> Answer:
        """Is `metric` below the caller's own threshold? Never a leave to write (R34)."""
        return await self._driver.run(self._checking_read(threshold_s, metric, database))

    async def wait(self, deadline_s: float | None = None, *, cost: float | None = None) -> Answer:
        """Ask until admitted; WaitedTooLong past `deadline_s` (by default `max_wait_s`)."""
        return await self._driver.run(self._waiting(deadline_s, cost))

    def chunks(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        size: int = DEFAULT_CHUNK_SIZE,
        *,
        items_cost: bool = False,
    ) -> AsyncIterator[list[Item]]:
        """Lists of `size` items, each asked for before it is handed out (R30). With
        `items_cost`, a list costs as much as it has items."""
        return self._chunks(items, checked_size(size), items_cost)

    async def _chunks(
        self, items: Iterable[Item] | AsyncIterable[Item], size: int, items_cost: bool
    ) -> AsyncIterator[list[Item]]:
        chunk: list[Item] = []
        async for item in _iterated(items):
            chunk.append(item)
            if len(chunk) == size:
                await self.wait(cost=size if items_cost else None)
                yield chunk
                chunk = []
        if chunk:
            await self.wait(cost=len(chunk) if items_cost else None)
            yield chunk

    @asynccontextmanager
    async def guard(self, deadline_s: float | None = None) -> AsyncIterator[Answer]:
        """`async with gate.guard(): …` runs its body once admitted."""
        yield await self.wait(deadline_s)

    def throttled(
        self, work: Callable[Params, Coroutine[Any, Any, Result]]
    ) -> Callable[Params, Coroutine[Any, Any, Result]]:
        """Each call of the coroutine function `work` waits to be admitted."""
        import inspect  # here: see client/__init__.py

        if not inspect.iscoroutinefunction(work):
            raise TypeError(f"{work!r} is not `async def` and cannot await: use headgate.Client")

        @functools.wraps(work)
        async def asking(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            await self.wait()
            return await work(*args, **kwargs)

        return asking

    async def close(self) -> None:
        self._driver.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _iterated(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterator[Item]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for item in items:
        yield item
