"""A clock that is wound by hand, and probes that say what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.core.metrics import MetricSpec
from headgate.core.samples import Instant
from headgate.errors import ProbeFailed
from tests.builders import NOW


class HandClock:
    def __init__(self) -> None:
        self._now = NOW
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        return self._now

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now.mono_s + max(0.0, seconds), waiter))
        await waiter

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, waking each sleeper at its own instant."""
        await settle()
        end = self._now.mono_s + seconds
        while due := [s for s in self._sleepers if s[0] <= end]:
            when, waiter = min(due, key=lambda s: s[0])
            self._sleepers.remove((when, waiter))
            self._step(max(0.0, when - self._now.mono_s))
            if not waiter.done():
                waiter.set_result(None)
            await settle()
        self._step(end - self._now.mono_s)

    def _step(self, seconds: float) -> None:
        self._now = Instant(self._now.mono_s + seconds, self._now.wall_s + seconds)


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class FakeProbe:
    answer: Callable[[], float]
    reads: int = 0
    running: int = 0
    most_running: int = 0
    closed: bool = False

    async def read(self) -> float:
        self.reads += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            return self.answer()
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.closed = True


class HangingProbe(FakeProbe):
    async def read(self) -> float:
        self.reads += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.Event().wait()
        finally:
            self.running -= 1
        return 0.0


@dataclass
class FakeProbes:
    """One database's probes: metric → the number it reads now, or the failure."""

    values: dict[str, float | ProbeFailed] = field(default_factory=dict)
    opened: list[FakeProbe] = field(default_factory=list)
    closed: bool = False

    def probe_for(self, spec: MetricSpec) -> FakeProbe:
        probe = FakeProbe(lambda: self._value(spec.name))
        self.opened.append(probe)
        return probe

    def _value(self, name: str) -> float:
        value = self.values.get(name, 0.0)
        if isinstance(value, ProbeFailed):
            raise value
        return value

    async def close(self) -> None:
        self.closed = True
