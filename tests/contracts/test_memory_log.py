"""The fleet's store in memory: its bounds, and several clients of one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from headgate.base.keyvalue import Put
from headgate.errors import Compacted
from tests.fixtures.memory_log import KeptInMemory, MemoryLog


async def test_the_log_is_bounded_and_says_so() -> None:
    store = MemoryLog(KeptInMemory(max_log_commits=3))
    revisions = [await store.commit([], [Put("a", b"%d" % i)]) for i in range(6)]
    with pytest.raises(Compacted, match="list again"):
        await anext(store.watch(["a"], after_revision=revisions[1]))
    async with aclosing(store.watch(["a"], after_revision=revisions[2])) as watch:
        changes = await anext(watch)
    assert [event.value for event in changes.events] == [b"3", b"4", b"5"]


async def test_clients_of_other_data_know_nothing_of_each_other() -> None:
    one, other = MemoryLog(), MemoryLog()
    await one.commit([], [Put("a", b"")])
    assert await other.count("") == 0
    assert (await one.list([])).store_id != (await other.list([])).store_id


async def test_a_watch_that_is_over_is_forgotten() -> None:
    kept = KeptInMemory()
    store = MemoryLog(kept)
    async with aclosing(store.watch(["a", "b/"], after_revision=0)) as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert len(kept._watches) == 2
        waiting.cancel()
        await asyncio.wait([waiting])
    assert not kept._watches
