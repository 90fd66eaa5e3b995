"""Electors over a store in memory, with clocks that drift, answers that are lost, and naps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Any, TypeVar

from headgate.base.keyvalue import Changes, Compare, Lease, Listing, Put
from headgate.errors import OutcomeUnknown, StoreUnavailable
from headgate.metrics.samples import Instant
from headgate.shard.election import Candidate, Elector, Office
from headgate.shard.model import ServedDatabase
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_log import KeptInMemory, MemoryLog

T = TypeVar("T")
TTL_S = 9.0


class DriftingClock:
    """An agent's own clock: `rate` of its seconds in one true second; asleep while it naps."""

    def __init__(self, true: HandClock, rate: float = 1.0) -> None:
        self._true = true
        self._rate = rate
        self.naps_until = 0.0

    def now(self) -> Instant:
        true = self._true.now()
        return Instant(true.mono_s * self._rate, true.wall_s)

    async def sleep(self, seconds: float) -> None:
        await self._true.sleep(seconds / self._rate)
        await self.wake()

    async def wake(self) -> None:
        """A process that was stopped goes on where it was."""
        while (left_s := self.naps_until - self._true.now().mono_s) > 0:
            await self._true.sleep(left_s)


class RoughStore:
    """One agent's way to the store: slow, away, and sometimes the answer alone is lost."""

    name = "rough"

    def __init__(self, kept: KeptInMemory, true: HandClock, clock: DriftingClock) -> None:
        self._store = MemoryLog(kept)
        self._true = true
        self._clock = clock
        self.away = False
        self.loses_answers = 0.0
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.roll: Callable[[], float] = lambda: 1.0
        self.calls = 0
        self.is_silent = False
        """Its watches stay open, and tell nothing any more."""

    async def _ask(self, answer: Callable[[], T]) -> T:
        self.calls += 1
        await self._pass()
        if self.away:
            raise StoreUnavailable("rough: away")
        found = answer()
        await self._pass()
        await self._clock.wake()
        if self.roll() < self.loses_answers:
            raise OutcomeUnknown("rough: the answer was lost")
        return found

    async def _pass(self) -> None:
        if (delay_s := self.delay_s()) > 0:
            await self._true.sleep(delay_s)

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        return await self._ask(lambda: self._store.kept.listing(prefixes))

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put], **more: Any) -> int:
        return await self._ask(lambda: self._store.kept.commit(compares, puts))

    async def count(self, prefix: str) -> int:
        return await self._ask(lambda: self._store.kept.count(prefix))

    async def grant(self, ttl_s: float) -> Lease:
        return await self._ask(lambda: self._store.kept.grant(ttl_s))

    async def renew(self, lease_id: int) -> Lease:
        return await self._ask(lambda: self._store.kept.renew(lease_id))

    async def revoke(self, lease_id: int) -> None:
        await self._ask(lambda: self._store.kept.revoke(lease_id))

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        if self.away:
            raise StoreUnavailable("rough: away")
        changes = self._store.watch(prefixes, after_revision=after_revision)
        try:
            async for change in changes:
                if not self.is_silent:
                    yield change
        finally:
            await changes.aclose()

    async def close(self) -> None:
        await self._store.close()


class Pair:
    def __init__(
        self, *names: str, rates: Sequence[float] = (), store_rate: float = 1.0, seed: int = 1
    ) -> None:
        self.true = HandClock()
        self.random = Random(seed)
        self.kept = KeptInMemory(mono_s=lambda: self.true.now().mono_s * store_rate)
        self.stores: dict[str, RoughStore] = {}
        self.clocks: dict[str, DriftingClock] = {}
        self.electors: dict[str, Elector] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.answers: dict[str, dict[str, ServedDatabase]] = {}
        for at, name in enumerate(names or ("a", "b")):
            self.add(name, rates[at] if rates else 1.0)

    def answer_for(self, name: str, **databases: ServedDatabase) -> None:
        self.answers[name] = databases

    def twin(self, name: str, called: str) -> None:
        """Another agent of the same name and address."""
        self.add(called, me=name)

    def other(self, name: str) -> str:
        return next(each for each in self.electors if each != name)

    def add(self, name: str, rate: float = 1.0, *, me: str = "") -> None:
        clock = self.clocks[name] = DriftingClock(self.true, rate)
        store = self.stores[name] = RoughStore(self.kept, self.true, clock)
        store.roll = self.random.random
        self.electors[name] = Elector(
            store,
            clock,
            self.random.random,
            Candidate(
                "pair",
                me or name,
                f"http://{me or name}:8087",
                TTL_S,
                among=("http://{host}:8087",),
            ),
            answers=lambda: self.answers.get(name, {}),
        )
        self.start(name)

    def start(self, name: str) -> None:
        self.tasks[name] = asyncio.create_task(self.electors[name].run())

    async def kill(self, name: str) -> None:
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def offices(self) -> dict[str, Office]:
        """Of those that are awake: one that is stopped does nothing with what it believes."""
        return {name: elector.office() for name, elector in self.electors.items()}

    def leaders(self) -> list[str]:
        return [name for name, office in self.offices().items() if office is Office.LEADING]

    def set_away(self, away: bool) -> None:
        for store in self.stores.values():
            store.away = away

    async def close(self) -> None:
        for name in list(self.tasks):
            await self.kill(name)
