"""A clock that is wound by hand; probes, servers and other agents that say what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from headgate.core.activity import Activity
from headgate.core.exchange import Answer, Offer
from headgate.core.metrics import MetricSpec
from headgate.core.samples import Absent, Cause, Instant, Reading, Sample
from headgate.core.shard import Pull, Pulled
from headgate.core.topology import MemberReport, Role, RoleSeen
from headgate.errors import PeerFailed, ProbeFailed
from tests.builders import NOW

MOST_TURNS = 10_000


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

    def set_wall(self, by_s: float) -> None:
        """As an operator or NTP does."""
        self._now = Instant(self._now.mono_s, self._now.wall_s + by_s)

    def _step(self, seconds: float) -> None:
        self._now = Instant(self._now.mono_s + seconds, self._now.wall_s + seconds)


async def settle() -> None:
    """Let everything that can run, run: until the loop has nobody left to call."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(MOST_TURNS):
        await asyncio.sleep(0)
        if not ready:
            return
    raise AssertionError(f"something still runs after {MOST_TURNS} turns")


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


PRIMARY, REPLICA = Role.PRIMARY, Role.REPLICA


def primary(term: int | None = 1, **more: Any) -> RoleSeen:
    """Dated when it is read."""
    return RoleSeen(PRIMARY, 0.0, term=term, **more)


def replica(term: int | None = 1, **more: Any) -> RoleSeen:
    return RoleSeen(REPLICA, 0.0, term=term, **more)


@dataclass
class FakeRole:
    """A server that says what it is."""

    clock: HandClock
    says: RoleSeen | ProbeFailed | None = field(default_factory=primary)
    """None hangs."""
    reads: int = 0
    closed: int = 0
    _hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> RoleSeen:
        self.reads += 1
        self._hung_up.clear()
        said = self.says
        if said is None:
            await asyncio.Event().wait()
            raise AssertionError("it hangs")
        if isinstance(said, ProbeFailed):
            raise said
        return replace(said, taken_at=self.clock.now().mono_s)

    def hang_up(self) -> None:
        self._hung_up.set()

    async def lost(self) -> None:
        await self._hung_up.wait()

    async def close(self) -> None:
        self.closed += 1


UNREACHABLE = PeerFailed(Cause.UNREACHABLE, "connection refused")


@dataclass
class FakeAgent:
    """Another agent of the shard, at the far end of a link."""

    clock: HandClock
    name: str
    says: RoleSeen | None = field(default_factory=lambda: replica(term=None))
    values: dict[str, Reading | float] = field(default_factory=lambda: {"lag": 0.5})
    labels: Mapping[str, str] = field(default_factory=dict)
    asked_s_ago: float | None = None
    fault: PeerFailed | None = None
    hangs: bool = False
    url: str = ""
    """Told in its reports."""
    wall_ahead_s: float = 0.0
    news: bool = False
    """Never holds an answer back."""
    pulls: list[tuple[float, Pull]] = field(default_factory=list)
    wakes: int = 0
    closed: bool = False

    async def pull(self, ask: Pull, timeout_s: float) -> Pulled:
        self.pulls.append((self.clock.now().mono_s, ask))
        if self.hangs:
            await self.clock.sleep(timeout_s)
            raise PeerFailed(Cause.TIMED_OUT, f"no answer in {timeout_s:g} s")
        if self.fault is not None:
            raise self.fault
        if not self.news and ask.wait_s:
            await self.clock.sleep(ask.wait_s)
        if self.fault is not None:
            raise self.fault
        return Pulled(self.report(), self.wall_ahead_s, 0.001)

    def report(self) -> MemberReport:
        now = self.clock.now().mono_s
        readings: dict[str, Reading] = {
            metric: value if isinstance(value, Sample | Absent) else Sample(value, now)
            for metric, value in self.values.items()
        }
        return MemberReport(
            self.name,
            now,
            replace(self.says, taken_at=now) if self.says else None,
            None if self.says else Absent(Cause.FAILED, "server down", now),
            readings,
            self.labels,
            Activity.AWAKE,
            self.asked_s_ago,
            self.url,
        )


@dataclass
class FakeLink:
    url: str
    agent: FakeAgent
    closed: bool = False

    async def pull(self, ask: Pull, *, timeout_s: float) -> Pulled:
        return await self.agent.pull(ask, timeout_s)

    async def wake(self, shard: str, database: str, *, timeout_s: float) -> None:
        self.agent.wakes += 1
        if self.agent.fault is not None:
            raise self.agent.fault

    async def exchange(self, offer: Offer, *, timeout_s: float) -> Answer:
        raise PeerFailed(Cause.FAILED, "no exchange is scripted")

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        timeout_s: float,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        raise PeerFailed(Cause.FAILED, "nothing else is scripted")

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeWriter:
    """A heartbeat's: what it wrote, and what goes wrong."""

    beats: list[bool] = field(default_factory=list)
    """`resting` of each try."""
    fault: ProbeFailed | None = None
    hangs: bool = False
    is_primary: bool = True
    closed: bool = False

    async def beat(self, *, resting: bool = False) -> bool:
        self.beats.append(resting)
        if self.hangs:
            await asyncio.Event().wait()
        if self.fault is not None:
            raise self.fault
        return self.is_primary

    async def close(self) -> None:
        self.closed = True
