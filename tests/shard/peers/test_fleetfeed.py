"""Another agent's feed as a source: pages, changes, and what it may answer instead."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from headgate.base.keyvalue import Changes, KeyEvent, Listing
from headgate.changes.mirror import Mirror
from headgate.changes.model import HEAD
from headgate.changes.state import item_bytes
from headgate.errors import Compacted, StoreRejected, StoreUnavailable
from headgate.fleet.feed_reader import AgentReader
from tests.changes.fleetfakes import GONE, PREFIXES, FeedLink, item, set_items, wide
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_log import KeptInMemory

ALL = (HEAD, *PREFIXES)


def primary(*names: str, value: str = "") -> tuple[FeedLink, KeptInMemory]:
    kept, mirror = KeptInMemory(), Mirror(HandClock())
    for name in names:
        set_items(kept, item(name, value={"why": value}))
    mirror.adopt(kept.listing(ALL), PREFIXES)
    return FeedLink(mirror), kept


async def test_a_listing_of_many_pages_is_whole() -> None:
    link, kept = primary(*(f"f-{i:03}" for i in range(60)), value="x" * 10_000)
    listing = await AgentReader(link).list(PREFIXES)
    assert len(listing.entries) == 60
    assert listing == kept.listing(PREFIXES)
    assert link.asked > 5


async def test_an_agent_that_moves_on_between_pages_is_listed_again() -> None:
    link, kept = primary(*(f"f-{i:03}" for i in range(20)), value="x" * 10_000)

    class Moving(FeedLink):
        async def ask(self, method, target, *given, **more):  # type: ignore[no-untyped-def]
            if self.asked == 1:
                self.asked += 1
                return 410, b"{}", {}
            return await super().ask(method, target, *given, **more)

    moving = Moving(link.mirror)
    assert await AgentReader(moving).list(PREFIXES) == kept.listing(PREFIXES)


async def test_changes_go_on_from_the_last_ones() -> None:
    link, kept = primary("f-1")
    reader = AgentReader(link, wait_s=0.01)
    await reader.list((HEAD,))
    async with aclosing(reader.watch(PREFIXES, after_revision=1)) as watch:
        assert (await anext(watch)).events == ()
        set_items(kept, item("f-2"))
        link.mirror.adopt(kept.listing(ALL), PREFIXES)
        assert [event.key for event in (await anext(watch)).events] == [wide("f-2")]
        assert (await anext(watch)).events == ()


def put(name: str, revision: int) -> KeyEvent:
    return KeyEvent(wide(name), item_bytes(item(name)), revision)


async def test_of_a_commit_that_may_not_be_whole_all_comes_and_nothing_twice() -> None:
    """R84: its pieces come apart, and are handed down as they come."""
    link, _ = primary("f-1")
    reader = AgentReader(link, wait_s=0.01)
    begun = (await reader.list(ALL)).revision
    async with aclosing(reader.watch(PREFIXES, after_revision=begun)) as watch:
        link.mirror.apply(Changes((put("f-2", 9),), 8))
        assert await anext(watch) == Changes((put("f-2", 9),), 8)
        assert await anext(watch) == Changes((), 8)
        link.mirror.apply(Changes((put("f-3", 9),), 8))
        assert await anext(watch) == Changes((put("f-3", 9),), 8)
        link.mirror.apply(Changes((put("f-4", 10),), 9))
        assert await anext(watch) == Changes((put("f-4", 10),), 9)


async def test_a_follower_that_comes_back_gets_the_newest_commit_again() -> None:
    link, _ = primary("f-1")
    reader = AgentReader(link, wait_s=0.01)
    await reader.list(ALL)
    link.mirror.apply(Changes((put("f-2", 9), put("f-3", 9)), 8))
    await reader.list((HEAD,))  # As whoever resumes: of what lies between it says nothing.
    async with aclosing(reader.watch(PREFIXES, after_revision=8)) as watch:
        assert len((await anext(watch)).events) == 2
        assert (await anext(watch)).events == ()


async def test_an_agent_that_changed_stores_is_found_out() -> None:
    link, _ = primary("f-1")
    reader = AgentReader(link, wait_s=0.01)
    await reader.list((HEAD,))
    link.mirror.adopt(Listing((), 5, "new"), PREFIXES)
    async with aclosing(reader.watch(PREFIXES, after_revision=1)) as watch:
        with pytest.raises(Compacted):
            await anext(watch)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (410, Compacted, "not now"),
        (401, StoreRejected, "token_file"),
        (403, StoreRejected, "token_file"),
        (404, StoreUnavailable, "no \\[fleet\\]"),
        (503, StoreUnavailable, "answered 503: not now"),
    ],
)
async def test_what_is_rejected_says_what_to_do(
    status: int, kind: type[StoreUnavailable], words: str
) -> None:
    link, _ = primary()
    link.status = status
    with pytest.raises(kind, match=words):
        await AgentReader(link).list(PREFIXES)


async def test_an_agent_that_does_not_answer_is_away() -> None:
    link, _ = primary()
    link.fault = GONE
    reader = AgentReader(link)
    with pytest.raises(StoreUnavailable, match="agent http://primary:8087: cannot be reached"):
        await reader.list(PREFIXES)
    await reader.close()
    assert link.closed


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b"[" * 10_000])
async def test_garbage_is_no_feed(body: bytes) -> None:
    class Garbage(FeedLink):
        async def ask(self, *_, **__):  # type: ignore[no-untyped-def]
            return 200, body, {}

    link, _ = primary()
    reader = AgentReader(Garbage(link.mirror))
    with pytest.raises(StoreUnavailable):
        await reader.list(PREFIXES)
    with pytest.raises(StoreUnavailable):
        await anext(reader.watch(PREFIXES, after_revision=1))
