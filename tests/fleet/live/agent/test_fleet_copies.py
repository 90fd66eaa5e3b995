"""What is kept on disk of the fleet: when it is written, and what happens when it cannot be."""

from __future__ import annotations

import asyncio

from headgate.changes.copying import LogCopies
from headgate.changes.log_copy import LogCopy
from headgate.errors import StoreUnavailable
from tests.changes.fleetfakes import FakeReader, Follow, item, set_items, wide
from tests.fixtures.fakes import settle
from tests.fixtures.memory_log import KeptInMemory


class FakeFile:
    name = "fleet.copy"

    def __init__(self) -> None:
        self.copies: list[LogCopy] = []
        self.fault: StoreUnavailable | None = None

    async def load(self) -> LogCopy | None:
        if self.fault is not None:
            raise self.fault
        return self.copies[-1] if self.copies else None

    async def save(self, copy: LogCopy) -> None:
        if self.fault is not None:
            raise self.fault
        self.copies.append(copy)


class Keeping:
    def __init__(self, kept: KeptInMemory, file: FakeFile) -> None:
        self.kept = kept
        self.file = file
        self.etcd = FakeReader(kept)
        self.follow = Follow(self.etcd)
        self.copies = LogCopies(self.follow.follower, file, self.follow.clock)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Keeping:
        await self.copies.recall()
        await self.follow.__aenter__()
        self._task = asyncio.ensure_future(self.copies.run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.follow.__aexit__()


async def test_a_burst_of_changes_is_one_copy_within_a_second_or_so() -> None:
    async with Keeping(KeptInMemory(), FakeFile()) as keeping:
        await keeping.follow.pass_s(3.0)
        written = len(keeping.file.copies)
        for number in range(5):
            set_items(keeping.kept, item(f"f-{number}"))
            await settle()
        await keeping.follow.pass_s(1.5)
        assert len(keeping.file.copies) == written + 1
        assert keeping.file.copies[-1].n == 5


async def test_beats_alone_are_written_once_a_minute() -> None:
    async with Keeping(KeptInMemory(), FakeFile()) as keeping:
        await keeping.follow.beats(keeping.kept, 126)
        assert 1 <= len(keeping.file.copies) <= 3
        assert keeping.file.copies[-1].listing.revision > 0


async def test_an_agent_that_starts_alone_knows_its_rules_and_how_old_they_are() -> None:
    kept, file = KeptInMemory(), FakeFile()
    set_items(kept, item("f-1"))
    async with Keeping(kept, file) as keeping:
        await keeping.follow.pass_s(3.0)
    alone = Keeping(kept, file)
    alone.etcd.fault = StoreUnavailable("etcd: gone")
    async with alone:
        assert alone.follow.told == [{wide("f-1")}]
        await alone.follow.pass_s(10.0)
        state = alone.follow.follower.state()
        assert state.from_cache_of == file.copies[-1].wall_s
        assert state.stale_since == state.from_cache_of


async def test_a_copy_that_cannot_be_read_or_written_is_reported_and_stops_nothing() -> None:
    kept, file = KeptInMemory(), FakeFile()
    file.fault = StoreUnavailable("disk full")
    async with Keeping(kept, file) as keeping:
        assert keeping.copies.fault == "disk full"
        set_items(kept, item("f-1"))
        await keeping.follow.pass_s(3.0)
        assert keeping.copies.fault == "disk full"
        file.fault = None
        set_items(kept, item("f-2"))
        await keeping.follow.pass_s(3.0)
        assert keeping.copies.fault == ""
        assert file.copies[-1].n == 2


async def test_a_copy_that_failed_is_tried_again_though_nothing_changes() -> None:
    kept, file = KeptInMemory(), FakeFile()
    set_items(kept, item("f-1"))
    file.fault = StoreUnavailable("disk full")
    async with Keeping(kept, file) as keeping:
        await keeping.follow.pass_s(3.0)
        file.fault = None
        await keeping.follow.beats(kept, 70)
        assert file.copies


async def test_at_the_end_the_last_change_is_saved() -> None:
    kept, file = KeptInMemory(), FakeFile()
    async with Keeping(kept, file) as keeping:
        await keeping.follow.pass_s(3.0)
        set_items(kept, item("f-1"))
        await settle()
        await keeping.copies.save()
    assert file.copies[-1].n == 1


async def test_nothing_known_is_nothing_saved() -> None:
    file = FakeFile()
    keeping = Keeping(KeptInMemory(), file)
    await keeping.copies.save()
    assert file.copies == []


async def test_a_copy_that_failed_is_tried_again_though_the_store_is_away() -> None:
    """An acknowledged rule must outlive a restart, also where the disk was full when it came."""
    async with Keeping(KeptInMemory(), FakeFile()) as keeping:
        await keeping.follow.pass_s(3.0)
        keeping.file.fault = StoreUnavailable("no space left on device")
        set_items(keeping.kept, item("f-1"))
        await keeping.follow.pass_s(3.0)
        keeping.etcd.fault = StoreUnavailable("etcd: connection refused")
        keeping.etcd.silent = True
        await keeping.follow.pass_s(60.0)
        assert keeping.follow.follower.is_stale
        keeping.file.fault = None
        await keeping.follow.pass_s(12.0)
        assert wide("f-1") in {entry.key for entry in keeping.file.copies[-1].listing.entries}
        assert keeping.copies.fault == ""
