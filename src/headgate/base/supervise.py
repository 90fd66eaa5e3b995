"""Keep a loop running: the one place where any exception is caught, logged and survived. And keep
it free: long work goes beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import structlog

log = structlog.get_logger()

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LARGE = 500
"""Items; more are processed in a thread, so that checks have their turn."""

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed; the stdlib loop serves as well, slower."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


async def supervised(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run forever. A crash is logged, and the loop starts again after a pause that doubles."""
    pause_s = FIRST_PAUSE_S
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await run()
            return
        except Exception:
            log.exception("loop.crashed", loop=name, again_in_s=pause_s)
        if asyncio.get_running_loop().time() - started > LONGEST_PAUSE_S:
            pause_s = FIRST_PAUSE_S
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


async def beside(size: int, work: Callable[[], T]) -> T:
    """Work on many items is done in a thread."""
    return await asyncio.to_thread(work) if size > LARGE else work()
