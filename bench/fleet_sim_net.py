"""The network of the simulation: who is how far from whom, and what is counted on the way.

A message that is lost is sent again by TCP: it comes a retransmission later, and not never.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.errors import PeerFailed
from headgate.metrics.samples import Cause

T = TypeVar("T")

RETRANSMITTED_AFTER_S = 0.2
SHARES_OF_JITTER = 0.2
BUCKETS_PER_S = 10


@dataclass(slots=True)
class Traffic:
    """What one agent sends and gets. A request, an answer and a watch's frame count one each."""

    messages: int = 0
    to_store: int = 0
    """Requests that this agent made to the fleet's store, whatever came of them."""


@dataclass(slots=True)
class Network:
    dice: random.Random
    loss: float = 0.001
    """Of all messages, those that have to be sent again."""
    messages: int = 0
    lost: int = 0

    def delay_s(self, base_s: float) -> float:
        """One way, this time."""
        self.messages += 1
        delay_s = base_s * (1.0 + self.dice.expovariate(1.0) * SHARES_OF_JITTER)
        wait_s = RETRANSMITTED_AFTER_S
        while self.dice.random() < self.loss:
            self.lost += 1
            delay_s += wait_s
            wait_s *= 2
        return delay_s

    async def travel(self, base_s: float) -> None:
        await asyncio.sleep(self.delay_s(base_s))


@dataclass(slots=True)
class Wire:
    """The way from one agent to another of its shard."""

    net: Network
    base_s: float
    mine: Traffic
    theirs: Traffic
    up: Callable[[], bool]
    """Whether anybody listens there."""

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        self.mine.messages += 1
        await self.net.travel(self.base_s)
        if not self.up():
            await self.net.travel(self.base_s)
            raise PeerFailed(Cause.UNREACHABLE, "connection refused")
        self.theirs.messages += 1
        answer = await work()
        if not self.up():
            raise PeerFailed(Cause.UNREACHABLE, "connection reset")
        self.theirs.messages += 1
        await self.net.travel(self.base_s)
        self.mine.messages += 1
        return answer


@dataclass(slots=True)
class Rates:
    """How often something happened, by the tenth of a second."""

    at: Callable[[], float]
    counts: Counter[int] = field(default_factory=Counter)

    def count(self) -> None:
        self.counts[int(self.at() * BUCKETS_PER_S)] += 1

    def between(self, begin_s: float, end_s: float) -> list[int]:
        """By the tenth of a second; never empty."""
        first, end = int(begin_s * BUCKETS_PER_S), int(end_s * BUCKETS_PER_S)
        return [self.counts[bucket] for bucket in range(first, max(end, first + 1))]
