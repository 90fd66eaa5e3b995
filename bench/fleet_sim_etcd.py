"""etcd as a model: three members in front of one MemoryLog, with what each piece costs.

agent's ModelClient ──network──► Member: a queue ──► KeptInMemory (compares, revisions, watches)

The costs are those measured of etcd 3.4 over its JSON gateway: a request some hundred
microseconds of a member's time, a change about 130 µs for each watch that it is told to, one
after the other; a commit waits for a majority and for its disk. A request that comes while a change
is told waits for that: with 1,500 watches, told within 175 to 630 ms, 110 to 560 ms. None waits for
a long listing: beside one of 40,000 entries, which took 2 s, small ones took 8 ms (p99 80 ms). So
listings take turns with each other, and nothing else waits for them.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.fixtures.memory_log import KeptInMemory, MemoryLog, _Watch

from bench.fleet_sim_net import Network, Rates, Traffic
from headgate.base.keyvalue import Changes, Compare, KeyEvent, Lease, Listing, Put
from headgate.changes.model import BEAT, ITEMS
from headgate.errors import Compacted, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")

REQUEST_COST_S = 0.0003
ENTRY_COST_S = 0.00001
TOLD_COST_S = 0.00013
COMMIT_S = 0.004
QUORUM = 2
LOG_COMMITS = 1_000_000
"""Nothing is compacted: a fleet that restarts writes 30,000, and all resume from before."""


@dataclass(eq=False, slots=True)
class Member:
    name: str
    at: Callable[[], float]
    alive: bool = True
    busy_until_s: float = 0.0
    busy_s: float = 0.0
    streams: dict[MemoryLog, None] = field(default_factory=dict)
    most_streams: int = 0
    longest_queue_s: float = 0.0
    """How long whoever came last had to wait, at the worst."""
    listings: int = 0
    """That are read out now."""

    def takes_s(self, cost_s: float) -> float:
        """Until it is done: one thing after the other."""
        now_s = self.at()
        self.busy_until_s = max(now_s, self.busy_until_s) + cost_s
        self.busy_s += cost_s
        self.longest_queue_s = max(self.longest_queue_s, self.busy_until_s - now_s)
        return self.busy_until_s - now_s

    async def work(self, cost_s: float) -> None:
        await asyncio.sleep(self.takes_s(cost_s))

    async def read_out(self, entries: int) -> None:
        """A listing, after its request: takes turns with the others."""
        cost_s = ENTRY_COST_S * entries
        self.busy_s += cost_s
        self.listings += 1
        try:
            await asyncio.sleep(cost_s * self.listings)
        finally:
            self.listings -= 1

    async def kill(self) -> None:
        self.alive = False
        for stream in list(self.streams):
            await stream.close()
        self.streams.clear()


class IndexedMemory(KeptInMemory):
    """With what was told by prefix: ten thousand that resume do not each read the log of all."""

    def __init__(self, mono_s: Callable[[], float]) -> None:
        super().__init__(mono_s=mono_s, max_log_commits=LOG_COMMITS)
        self._told: defaultdict[str, list[KeyEvent]] = defaultdict(list)

    def _tell(self, events: Sequence[KeyEvent]) -> None:
        for event in events:
            for prefix in _prefixes_of(event.key):
                self._told[prefix].append(event)
        super()._tell(events)

    def open_watch(self, prefixes: Sequence[str], after_revision: int) -> _Watch:
        if after_revision < self._known_after or any(map(_is_partial, prefixes)):
            return super().open_watch(prefixes, after_revision)
        watch = super().open_watch(prefixes, self.revision)
        missed = [event for prefix in prefixes for event in self._after(prefix, after_revision)]
        watch.lay(sorted(missed, key=lambda event: event.revision))
        return watch

    def _after(self, prefix: str, revision: int) -> Sequence[KeyEvent]:
        told = self._told.get(prefix, [])
        return told[bisect_right(told, revision, key=lambda event: event.revision) :]


def _prefixes_of(key: str) -> Iterator[str]:
    """Its folders, and itself."""
    yield key
    yield from (key[: at + 1] for at, character in enumerate(key) if character == "/")


def _is_partial(prefix: str) -> bool:
    return prefix != BEAT and not prefix.endswith("/")


class ModelEtcd:
    def __init__(self, net: Network, loop: asyncio.AbstractEventLoop) -> None:
        self.net = net
        self.kept = IndexedMemory(loop.time)
        self.members = [Member(name, loop.time) for name in ("etcd-1", "etcd-2", "etcd-3")]
        self.requests = Rates(loop.time)
        """At a member that lives, answered or not."""
        self.rejected = Rates(loop.time)
        """Connections that nobody took: their member is dead."""
        self.commits = Rates(loop.time)
        self.items_at: dict[str, float] = {}
        """When each item was committed last."""
        self.frames = 0
        """Of watches."""
        self.beats = 0
        self.unanswered = 0
        """Requests that were given up after their timeout."""

    @property
    def has_quorum(self) -> bool:
        return sum(member.alive for member in self.members) >= QUORUM

    async def lose_quorum(self) -> None:
        """Two of three die. The third answers what needs no majority; its watches are silent."""
        for member in self.members[:QUORUM]:
            await member.kill()

    def recover(self) -> None:
        for member in self.members:
            member.alive = True


class ModelClient:
    """One agent's way to it: as EtcdStore does, it goes on to the next member where one fails."""

    __slots__ = ("_at_member", "_bases_s", "_closed", "_etcd", "_timeout_s", "_traffic")

    def __init__(
        self,
        etcd: ModelEtcd,
        dice: random.Random,
        traffic: Traffic,
        bases_s: Sequence[float],
        *,
        timeout_s: float = 2.0,
    ) -> None:
        self._etcd = etcd
        self._traffic = traffic
        self._bases_s = tuple(bases_s)
        """One way to each member."""
        self._at_member = dice.randrange(len(etcd.members))
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return "etcd"

    @property
    def _kept(self) -> KeptInMemory:
        return self._etcd.kept

    # --- the port --------------------------------------------------------------------------

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        async def work(member: Member) -> Listing:
            listing = self._kept.listing(prefixes)
            await member.work(REQUEST_COST_S)
            await member.read_out(len(listing.entries))
            return listing

        return await self._asked(work, needs_quorum=not allow_stale)

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        member, base_s = await self._reached()
        await member.work(REQUEST_COST_S)
        handle = MemoryLog(self._kept)
        member.streams[handle] = None
        member.most_streams = max(member.most_streams, len(member.streams))
        stream = handle.watch(prefixes, after_revision=after_revision)
        try:
            async for changes in stream:
                told_s = member.takes_s(TOLD_COST_S * len(changes.events))
                await asyncio.sleep(told_s + self._etcd.net.delay_s(base_s))
                self._traffic.messages += 1
                self._etcd.frames += 1
                yield changes
        except Compacted:
            raise
        except StoreUnavailable:
            await self._etcd.net.travel(base_s)
            self._next()
            raise StoreUnavailable(f"{member.name}: connection lost") from None
        finally:
            member.streams.pop(handle, None)
            await stream.aclose()

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put], **more: Any) -> int:
        async def work(member: Member) -> int:
            await member.work(REQUEST_COST_S)
            await asyncio.sleep(COMMIT_S)
            self._etcd.commits.count()
            revision = self._kept.commit(compares, puts)
            self._etcd.beats += any(put.key == BEAT for put in puts)
            now_s = self._etcd.commits.at()
            self._etcd.items_at |= {put.key: now_s for put in puts if put.key.startswith(ITEMS)}
            return revision

        return await self._changed(work)

    async def count(self, prefix: str) -> int:
        async def work(member: Member) -> int:
            await member.work(REQUEST_COST_S)
            return self._kept.count(prefix)

        return await self._asked(work)

    async def grant(self, ttl_s: float) -> Lease:
        async def work(member: Member) -> Lease:
            await member.work(REQUEST_COST_S)
            await asyncio.sleep(COMMIT_S)
            return self._kept.grant(ttl_s)

        return await self._asked(work)

    async def renew(self, lease_id: int) -> Lease:
        async def work(member: Member) -> Lease:
            await member.work(REQUEST_COST_S)
            return self._kept.renew(lease_id)

        return await self._asked(work)

    async def revoke(self, lease_id: int) -> None:
        async def work(member: Member) -> None:
            await member.work(REQUEST_COST_S)
            await asyncio.sleep(COMMIT_S)
            self._kept.revoke(lease_id)

        await self._asked(work)

    async def close(self) -> None: ...

    # --- on the way ------------------------------------------------------------------------

    async def _asked(
        self, work: Callable[[Member], Awaitable[T]], *, needs_quorum: bool = True
    ) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                member, base_s = await self._reached()
                if needs_quorum and not self._etcd.has_quorum:
                    await asyncio.sleep(self._timeout_s)  # It would answer after seven.
                answer = await work(member)
                await self._etcd.net.travel(base_s)
        except TimeoutError:
            self._etcd.unanswered += 1
            self._next()
            message = f"etcd: no answer in {self._timeout_s:g} s"
            raise StoreUnavailable(message) from None
        self._traffic.messages += 1
        return answer

    async def _changed(self, work: Callable[[Member], Awaitable[T]]) -> T:
        sent = self._etcd.has_quorum
        try:
            return await self._asked(work)
        except StoreUnavailable as error:
            if sent and "no answer" in str(error):
                raise OutcomeUnknown(str(error)) from None
            raise

    async def _reached(self) -> tuple[Member, float]:
        """The first member that answers, each tried once."""
        for _ in self._etcd.members:
            member, base_s = self._etcd.members[self._at_member], self._bases_s[self._at_member]
            (self._etcd.requests if member.alive else self._etcd.rejected).count()
            self._traffic.to_store += 1
            self._traffic.messages += 1
            await self._etcd.net.travel(base_s)
            if member.alive:
                return member, base_s
            await self._etcd.net.travel(base_s)
            self._next()
        raise StoreUnavailable("etcd: connection refused by all of them")

    def _next(self) -> None:
        self._at_member = (self._at_member + 1) % len(self._etcd.members)
