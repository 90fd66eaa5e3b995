"""Time that passes only when nothing is left to do: an event loop for the simulation.

Everything that is asyncio runs on it as it is; an hour takes as long as what happens in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from headgate.metrics.samples import Instant

T = TypeVar("T")
WALL_AT_START_S = 1_900_000_000.0


class Deadlock(RuntimeError):
    """Everybody waits, and for nothing that has a time."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """No sockets and no threads: what is ready runs, and then the time moves to the next timer.

    Timers lie in a heap of tuples, which costs a third of asyncio's own for 30,000 agents.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()

    def time(self) -> float:
        return self._now_s

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._order), timer))
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """At once and here: a thread's time would be real."""
        future: asyncio.Future[T] = self.create_future()
        future.set_result(func(*args))
        return future

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._move_on()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _move_on(self) -> None:
        """To the next timer; all of the same time become ready."""
        timers, ready = self._timers, self._ready
        while timers and (not ready or timers[0][0] <= self._now_s):
            when, _, timer = heappop(timers)
            if not timer._cancelled:
                self._now_s = max(self._now_s, when)
                ready.append(timer)
        if not ready:
            raise Deadlock("everybody waits, and nobody will wake anybody")


class VirtualClock:
    """The Clock port over such a loop. Wall clocks of agents differ by `wall_ahead_s`."""

    __slots__ = ("_loop", "_wall_zero_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, wall_ahead_s: float = 0.0) -> None:
        self._loop = loop
        self._wall_zero_s = WALL_AT_START_S + wall_ahead_s

    def now(self) -> Instant:
        mono_s = self._loop.time()
        return Instant(mono_s, self._wall_zero_s + mono_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
