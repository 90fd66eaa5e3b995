"""`headgate.AsyncClient`: the same names, awaited."""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from headgate.client.answers import Answer
from headgate.client.gate import Gate
from headgate.client.runs import (
    CursorLike,
    Plan,
    Position,
    ProgressLike,
    Run,
    cursor_of,
    range_plan,
    sizes_of,
)

Item = TypeVar("Item")
Chunk = TypeVar("Chunk", bound=Sequence[Any])
Params = ParamSpec("Params")
Result = TypeVar("Result")


class AsyncClient(Gate[Callable[[float], Awaitable[None]]]):
    __doc__ = Gate.__doc__

    def _start(self, sleep: Callable[[float], Awaitable[None]] | None) -> None:
        import asyncio  # here: see client/__init__.py

        from headgate.client.drivers.aio import AsyncDriver

        self._driver = AsyncDriver(self._target, sleep or asyncio.sleep)

    async def check(
        self,
        *,
        cost: float | None = None,
        budget: str | None = None,
        cpu_s: float | None = None,
    ) -> Answer:
        """Check once. A rejection is an answer; ThrottlerUnavailable if no agent answers.

        With `budget`, the agent charges `cpu_s` seconds of CPU to that budget of the database,
        once nothing else rejects the check; OVER_BUDGET if the budget has no room. For work that
        the server does not see as statements of its own under that budget."""
        debit = self._debit(budget, cpu_s) if budget is not None or cpu_s is not None else None
        if self._only is not None and debit is None:
            if cost is not None:
                self._checked(cost)
            answer = self._only.quick()
            if answer is not None:
                if monotonic() >= self._driver.give_way_at_s:
                    await self._driver.give_way()
                return answer
        return await self._driver.run(self._checking(cost, debit))

    async def check_read(
        self, threshold_s: float, metric: str = "lag", *, database: str | None = None
    ) -> Answer:
        """Is `metric` below the caller's own threshold? Never a permission to write."""
        if self._reads is not None:
            answer = self._reads.read((threshold_s, metric, database))
            if answer is not None:
                if monotonic() >= self._driver.give_way_at_s:
                    await self._driver.give_way()
                return answer
        return await self._driver.run(self._checking_read(threshold_s, metric, database))

    async def wait(
        self,
        deadline_s: float | None = None,
        *,
        cost: float | None = None,
        budget: str | None = None,
        cpu_s: float | None = None,
    ) -> Answer:
        """Check until admitted; WaitedTooLong after `deadline_s` (by default `max_wait_s`).
        `budget` and `cpu_s` as for `check`."""
        debit = self._debit(budget, cpu_s) if budget is not None or cpu_s is not None else None
        if self._only is not None and debit is None:
            if cost is not None or deadline_s is not None:
                self._checked(cost, deadline_s)
            answer = self._only.passed()
            if answer is not None:
                if monotonic() >= self._driver.give_way_at_s:
                    await self._driver.give_way()
                return answer
        return await self._driver.run(self._waiting(deadline_s, cost, debit))

    def chunks(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        size: int | None = None,
        *,
        min_size: int | None = None,
        max_size: int | None = None,
        target_s: float | None = None,
        progress: ProgressLike = False,
        cursor: CursorLike | None = None,
        key: Callable[[Item], Position] | None = None,
        items_cost: bool = False,
    ) -> AsyncIterator[list[Item]]:
        """Lists of items; each list is admitted before it is handed out. As Client.chunks.

        The items may come from an asynchronous source, and what a cursor returns is awaited
        where it can be.
        """
        sizes = sizes_of(size, min_size, max_size, target_s)
        return self._chunks(items, Plan(sizes, progress, cursor_of(cursor), key, items_cost))

    def ranges(
        self,
        first: int,
        last: int,
        size: int | None = None,
        *,
        min_size: int | None = None,
        max_size: int | None = None,
        target_s: float | None = None,
        progress: ProgressLike = False,
        cursor: CursorLike | None = None,
        items_cost: bool = False,
    ) -> AsyncIterator[range]:
        """The ids from `first` to `last`, both included, as ranges; as Client.ranges."""
        sizes = sizes_of(size, min_size, max_size, target_s)
        return self._ranges(first, last, range_plan(sizes, progress, cursor_of(cursor), items_cost))

    async def _chunks(
        self, items: Iterable[Item] | AsyncIterable[Item], plan: Plan[Item]
    ) -> AsyncIterator[list[Item]]:
        run = await self._run(plan, items)
        source = _iterated(items, run)

        async def take(size: int) -> list[Item]:
            read: list[Item] = []
            while len(read) < run.to_read(size):
                try:
                    read.append(await anext(source))
                except StopAsyncIteration:
                    break
            return run.cut(size, read)

        async with aclosing(source), aclosing(self._each(plan, run, take)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _ranges(self, first: int, last: int, plan: Plan[int]) -> AsyncIterator[range]:
        ids = range(first, last + 1)
        run = await self._run(plan, ids)
        left = run.left_of(ids)

        async def take(size: int) -> range:
            return left.take(size)

        async with aclosing(self._each(plan, run, take)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _run(self, plan: Plan[Item], items: object) -> Run[Item]:
        position = None if plan.cursor is None else await _settled(plan.cursor.load())
        return Run(plan, self._asker.app, items, position, self._clock())

    async def _each(
        self, plan: Plan[Item], run: Run[Item], take: Callable[[int], Awaitable[Chunk]]
    ) -> AsyncGenerator[Chunk, None]:
        try:
            while chunk := await take(run.size):
                await self._driver.run(self._pausing(run.pause_s))
                cost = float(len(chunk)) if plan.items_cost else None
                run.begins(await self.wait(cost=cost), self._clock())
                yield chunk
                run.ends(chunk, self._clock())
                if plan.cursor is not None and run.position is not None:
                    await _settled(plan.cursor.save(run.position))
                run.shows(len(chunk), self._clock())
            if plan.cursor is not None:
                await _settled(plan.cursor.save(run.finish(plan.cursor)))
        finally:
            run.shown.close()

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
        """Lets go of its connections. What is left to be reported is sent first, for at most
        `timeout_s`."""
        if self._locally is not None:
            self._locally.close(flush_s=0.0)  # A thread sends the rest: the loop does not wait.
        for member in self._members:
            await self._driver.run(member.conversation.farewell())
        await self._driver.finish()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _iterated(
    items: Iterable[Item] | AsyncIterable[Item], run: Run[Item]
) -> AsyncGenerator[Item, None]:
    """Without those that an earlier run has done."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            if not (run.skips_any and run.skips(item)):
                yield item
        return
    for item in items:
        if not (run.skips_any and run.skips(item)):
            yield item


async def _settled(value: object) -> Any:
    return await value if isinstance(value, Awaitable) else value
