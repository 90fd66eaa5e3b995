"""Many who ask for the same at once are one look at the store, and nobody gets an old answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from headgate.errors import StoreUnavailable
from headgate.history.looking import SharedLook


class Slow:
    """Answers with how many looks were begun, when it is let."""

    def __init__(self) -> None:
        self.looks = 0
        self.let = asyncio.Event()
        self.fault: Exception | None = None

    async def look(self) -> int:
        self.looks += 1
        mine = self.looks
        await self.let.wait()
        if self.fault is not None:
            raise self.fault
        return mine


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_that_come_meanwhile_share_the_next_look() -> None:
    """It begins after they asked: they see what they changed before."""
    slow = Slow()
    shared = SharedLook(slow.look)
    first = asyncio.create_task(shared.look())
    await turns()
    others = [asyncio.create_task(shared.look()) for _ in range(30)]
    await turns()
    slow.let.set()
    assert await first == 1
    assert set(await asyncio.gather(*others)) == {2} and slow.looks == 2
    assert await shared.look() == 3


async def test_a_fault_goes_to_all_and_the_next_look_starts_again() -> None:
    slow = Slow()
    slow.fault = StoreUnavailable("away")
    slow.let.set()
    shared = SharedLook(slow.look)
    told = await asyncio.gather(shared.look(), shared.look(), return_exceptions=True)
    assert [str(one) for one in told] == ["away", "away"]
    slow.fault = None
    assert await shared.look() == 2


async def test_one_who_goes_away_takes_it_from_nobody() -> None:
    slow = Slow()
    shared = SharedLook(slow.look)
    gone, stays = (asyncio.create_task(shared.look()) for _ in range(2))
    await turns()
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    slow.let.set()
    assert await stays == 1


async def test_a_fault_that_nobody_waits_for_any_more_is_no_noise(
    recwarn: pytest.WarningsRecorder,
) -> None:
    slow = Slow()
    slow.fault = StoreUnavailable("away")
    shared = SharedLook(slow.look)
    gone = asyncio.create_task(shared.look())
    await turns()
    gone.cancel()
    slow.let.set()
    await turns()
    assert not recwarn.list and slow.looks == 1
