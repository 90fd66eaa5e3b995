"""`headgate.Client`: for threads."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ParamSpec, TypeVar, cast

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


class Client(Gate[Callable[[float], None]]):
    __doc__ = Gate.__doc__

    def _start(self, sleep: Callable[[float], None] | None) -> None:
        from headgate.client.drivers.sync import SyncDriver  # here: see client/__init__.py

        self._driver = SyncDriver(self._target, sleep or time.sleep)

    def check(
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
                return answer
        return self._driver.run(self._checking(cost, debit))

    def check_read(
        self, threshold_s: float, metric: str = "lag", *, database: str | None = None
    ) -> Answer:
        """Is `metric` below the caller's own threshold? Never a permission to write."""
        if self._reads is not None:
            answer = self._reads.read((threshold_s, metric, database))
            if answer is not None:
                return answer
        return self._driver.run(self._checking_read(threshold_s, metric, database))

    def wait(
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
                return answer
        return self._driver.run(self._waiting(deadline_s, cost, debit))

    def chunks(
        self,
        items: Iterable[Item],
        size: int | None = None,
        *,
        min_size: int | None = None,
        max_size: int | None = None,
        target_s: float | None = None,
        progress: ProgressLike = False,
        cursor: CursorLike | None = None,
        key: Callable[[Item], Position] | None = None,
        items_cost: bool = False,
    ) -> Iterator[list[Item]]:
        """Lists of items; each list is admitted before it is handed out.

        With `size` alone, all have that size. Else the size follows the database: it starts at
        `size` (100) and stays between `min_size` and `max_size`. A chunk takes about `target_s`
        (0.5 s) while the database is far from its threshold; from half of the threshold on,
        chunks get smaller.

        `progress` shows how far it is: True, or a function to call. `cursor` keeps the position,
        so that the next run resumes there: a path, (load, save), or an object with these methods;
        by count, or by `key` of items that come in its order (items of one key are repeated
        together). With `items_cost`, a chunk costs as much as it has items.
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
    ) -> Iterator[range]:
        """The ids from `first` to `last`, both included, as ranges; each asked for, as chunks are.

        `for ids in gate.ranges(1, 9_000_000): … WHERE id BETWEEN {ids[0]} AND {ids[-1]}`
        """
        sizes = sizes_of(size, min_size, max_size, target_s)
        return self._ranges(first, last, range_plan(sizes, progress, cursor_of(cursor), items_cost))

    def _chunks(self, items: Iterable[Item], plan: Plan[Item]) -> Iterator[list[Item]]:
        run = self._run(plan, items)
        left = (item for item in items if not run.skips(item)) if run.skips_any else iter(items)

        def take(size: int) -> list[Item]:
            # Filled before the check: an OK is then neither spent on nothing nor old when used.
            return run.cut(size, list(islice(left, run.to_read(size))))

        yield from self._each(plan, run, take)

    def _ranges(self, first: int, last: int, plan: Plan[int]) -> Iterator[range]:
        ids = range(first, last + 1)
        run = self._run(plan, ids)
        yield from self._each(plan, run, run.left_of(ids).take)

    def _run(self, plan: Plan[Item], items: object) -> Run[Item]:
        position = None if plan.cursor is None else plan.cursor.load()
        return Run(plan, self._asker.app, items, position, self._clock())

    def _each(
        self, plan: Plan[Item], run: Run[Item], take: Callable[[int], Chunk]
    ) -> Iterator[Chunk]:
        try:
            while chunk := take(run.size):
                self._driver.run(self._pausing(run.pause_s))
                cost = float(len(chunk)) if plan.items_cost else None
                run.begins(self.wait(cost=cost), self._clock())
                yield chunk
                run.ends(chunk, self._clock())
                if plan.cursor is not None and run.position is not None:
                    plan.cursor.save(run.position)
                run.shows(len(chunk), self._clock())
            if plan.cursor is not None:
                plan.cursor.save(run.finish(plan.cursor))
        finally:
            run.shown.close()

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
        """Lets go of its connections. What is left to be reported is sent first, for at most
        `timeout_s`."""
        if self._locally is not None:
            self._locally.close()
        for member in self._members:
            self._driver.run(member.conversation.farewell())
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
