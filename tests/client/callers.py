"""Both clients behind one set of awaitable names, so that one suite serves both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from headgate import Answer, AsyncClient, Client
from headgate.client.local_feed import FEEDS, Feed
from tests.client.faketime import FakeTime


class Caller(Protocol):
    time: FakeTime
    timeout_s: float

    async def check(self) -> Answer: ...
    async def check_read(self, threshold_s: float, metric: str = "lag") -> Answer: ...
    async def wait(self, deadline_s: float | None = None) -> Answer: ...
    async def chunks(self, items: Iterable[int], size: int) -> list[list[int]]: ...
    async def guarded(self) -> Answer: ...
    async def close(self) -> None: ...


class Patient:
    """Its timeout can be changed while it lives."""

    _client: Client | AsyncClient

    @property
    def timeout_s(self) -> float:
        return self._client._conversation.patience.timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        self._client._conversation.patience.timeout_s = seconds


class SyncCaller(Patient):
    """Each call in a thread, as a job would make it."""

    _client: Client

    def __init__(self, **settings: Any) -> None:
        self.time = FakeTime()
        faked = {"clock": self.time.clock, "sleep": self.time.sleep}
        self._client = Client("etl:nightly", **(faked | settings))

    async def check(self) -> Answer:
        return await asyncio.to_thread(self._client.check)

    async def check_read(self, threshold_s: float, metric: str = "lag") -> Answer:
        return await asyncio.to_thread(self._client.check_read, threshold_s, metric)

    async def wait(self, deadline_s: float | None = None) -> Answer:
        return await asyncio.to_thread(self._client.wait, deadline_s)

    async def chunks(self, items: Iterable[int], size: int) -> list[list[int]]:
        return await asyncio.to_thread(lambda: list(self._client.chunks(items, size)))

    async def guarded(self) -> Answer:
        def body() -> Answer:
            with self._client.guard() as answer:
                return answer

        return await asyncio.to_thread(body)

    async def close(self) -> None:
        self._client.close()


class AsyncCaller(Patient):
    _client: AsyncClient

    def __init__(self, **settings: Any) -> None:
        self.time = FakeTime()
        faked = {"clock": self.time.clock, "sleep": self.time.asleep}
        self._client = AsyncClient("etl:nightly", **(faked | settings))
        self.check = self._client.check
        self.wait = self._client.wait
        self.close = self._client.close

    async def check_read(self, threshold_s: float, metric: str = "lag") -> Answer:
        return await self._client.check_read(threshold_s, metric)

    async def chunks(self, items: Iterable[int], size: int) -> list[list[int]]:
        return [chunk async for chunk in self._client.chunks(items, size)]

    async def guarded(self) -> Answer:
        async with self._client.guard() as answer:
            return answer


CALLERS: dict[str, type[SyncCaller] | type[AsyncCaller]] = {
    "sync": SyncCaller,
    "async": AsyncCaller,
}


def feed_in_use() -> Feed:
    """The newest of this process that someone uses: those that were left stay for a while."""
    return [feed for feed in FEEDS._all() if feed.users][-1]
