"""Sources that fail when the test says, and another agent's feed without its HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

import msgspec

from headgate.base.keyvalue import Changes, Compare, Listing, Put
from headgate.base.problems import problem
from headgate.changes.follower import LogFollower
from headgate.changes.mirror import Mirror
from headgate.changes.model import BEAT, HEAD, WIDE, Change, ChangeKind, followed_prefixes, log_key
from headgate.changes.reach import EVERYWHERE, Reach
from headgate.changes.state import head_bytes, item_bytes, read_head
from headgate.errors import Compacted, PeerFailed, StoreUnavailable
from headgate.fleet.beat import Beat, FleetTiming, beat_bytes
from headgate.fleet.feed_api import FEED, encode_changes, feed_page
from headgate.metrics.samples import Cause
from tests.builders import NOW
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_log import KeptInMemory, MemoryLog

PREFIXES = followed_prefixes(["commerce/-80"])
AWAY = StoreUnavailable("etcd: connection refused")
RULE_VALUE = {"ratio": 0.5}


def item(
    name: str = "f-1",
    *,
    n: int = 1,
    reach: Reach = EVERYWHERE,
    value: Mapping[str, object] | None = MappingProxyType(RULE_VALUE),
    set_at: float = NOW.wall_s,
) -> Change:
    given = None if value is None else dict(value)
    return Change(ChangeKind.RULE, name, reach, given, n, set_at, "ops")


def wide(name: str) -> str:
    return f"{WIDE}rule/{name}"


def head_of(kept: KeptInMemory) -> tuple[int, int]:
    """n, and the head's revision."""
    entries = kept.listing([HEAD]).entries
    return (read_head(entries[0].value), entries[0].revision) if entries else (0, 0)


def set_items(kept: KeptInMemory, *items: Change) -> int:
    """One change of the fleet, as a book commits it; the n that it got."""
    n, revision = head_of(kept)
    n += 1
    puts = [Put(one.key, item_bytes(_at(one, n))) for one in items]
    kept.commit(
        [Compare(HEAD, revision)],
        [Put(HEAD, head_bytes(n)), Put(log_key(n), b"{}"), *puts],
    )
    return n


def _at(one: Change, n: int) -> Change:
    return Change(one.kind, one.id, one.reach, one.value, n, one.set_at, one.set_by)


def write_beat(kept: KeptInMemory, *, by: str = "other", shards: int = 0) -> None:
    kept.commit([], [Put(BEAT, beat_bytes(Beat(by, NOW.wall_s, shards, head_of(kept)[0])))])


class FakeReader:
    """A way to a store, which may be cut, reject, or go silent."""

    def __init__(self, kept: KeptInMemory, name: str = "etcd") -> None:
        self.store = MemoryLog(kept, name=name)
        self.name = name
        self.fault: StoreUnavailable | None = None
        self.silent = False
        self.halves = False
        """Of each commit only the first piece comes, and not the word that it is whole."""
        self.quorum = True
        self.lists: list[tuple[str, ...]] = []
        self.watched_after: list[int] = []
        self._cut: asyncio.Future[None] | None = None

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        self.lists.append(tuple(prefixes))
        if self.fault is not None and (self.quorum or not allow_stale):
            raise self.fault
        return await self.store.list(prefixes)

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        self.watched_after.append(after_revision)
        cut = self._cut = asyncio.get_running_loop().create_future()
        async with aclosing(self.store.watch(prefixes, after_revision=after_revision)) as watch:
            while True:
                news = asyncio.ensure_future(anext(watch))
                try:
                    await asyncio.wait({news, cut}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not news.done():
                        news.cancel()
                        await asyncio.wait({news})
                if cut.done():
                    cut.result()
                if not self.silent:
                    yield _half(news.result()) if self.halves else news.result()

    def cut(self, error: StoreUnavailable | None = None) -> None:
        if self._cut is not None and not self._cut.done():
            self._cut.set_exception(error or AWAY)

    async def close(self) -> None:
        await self.store.close()


def _half(changes: Changes) -> Changes:
    return Changes(changes.events[:1], changes.events[0].revision - 1)


class FeedLink:
    """To another agent whose mirror this is: all of the feed but the HTTP."""

    def __init__(self, mirror: Mirror, url: str = "http://primary:8087") -> None:
        self.mirror = mirror
        self.url = url
        self.fault: PeerFailed | None = None
        self.status: int | None = None
        self.asked = 0
        self.closed = False

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        timeout_s: float,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        if self.status is not None:
            return self.status, problem(self.status, "not now"), {}
        return await self._answered(target)

    async def _answered(self, target: str) -> tuple[int, bytes, Mapping[str, str]]:
        path, given = urlsplit(target).path, parse_qs(urlsplit(target).query)
        try:
            if path == FEED:
                listing = self.mirror.listing(given["prefix"])
                start, mark = given.get("from", [""])[0], self.mirror.feed.mark
                return 200, msgspec.json.encode(feed_page(listing, start=start, mark=mark)), {}
            changes = await self.mirror.changes_after(
                int(given["after"][0]),
                given["prefix"],
                float(given["wait_s"][0]),
                store_id=given.get("store_id", [""])[0],
                mark=int(given.get("mark", ["0"])[0]),
            )
        except Compacted:
            return 410, b"{}", {}
        except StoreUnavailable:
            return 503, b"{}", {}
        told = encode_changes(changes, self.mirror.store_id, mark=self.mirror.feed.mark)
        return (410, b"{}", {}) if told is None else (200, told, {})

    async def close(self) -> None:
        self.closed = True


GONE = PeerFailed(Cause.UNREACHABLE, "http://primary:8087: cannot be reached")


class Follow:
    """A follower with a clock that is wound by hand, running until the test ends."""

    def __init__(
        self,
        *sources: object,
        clock: HandClock | None = None,
        roll: Callable[[], float] = lambda: 0.5,
        timing: FleetTiming | None = None,
    ) -> None:
        self.clock = clock or HandClock()
        self.sources = list(sources)
        self.prefixes = PREFIXES
        self.mirror = Mirror(self.clock)
        self.told: list[frozenset[str]] = []
        self.follower = LogFollower(
            self.mirror,
            self.clock,
            roll,
            sources=lambda: self.sources,  # type: ignore[arg-type,return-value]
            prefixes=lambda: self.prefixes,
            timing=timing,
        )
        self.follower.watch(self.told.append)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Follow:
        self._task = asyncio.ensure_future(self.follower.run())
        await settle()
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def pass_s(self, seconds: float, *, step_s: float = 0.25) -> None:
        """In steps: what is woken may sleep again, and be woken again."""
        for _ in range(max(1, round(seconds / step_s))):
            await self.clock.advance(step_s)
            await settle()
            await settle()

    async def beats(self, kept: KeptInMemory, seconds: float, **beat: object) -> None:
        """Time passes, and someone beats every two seconds of it."""
        for _ in range(round(seconds / 2)):
            await self.pass_s(2.0)
            write_beat(kept, **beat)  # type: ignore[arg-type]
            await settle()
