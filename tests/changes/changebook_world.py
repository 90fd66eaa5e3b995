"""Books over one store in memory, and ways in which a store does not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from headgate.base.keyvalue import Compare, Listing, Put
from headgate.base.ports import SharedLog
from headgate.changes.book import ChangeBook, SharedBook
from headgate.changes.model import shard_key, shard_members
from headgate.changes.reach import Reach, parse_reach
from headgate.errors import OutcomeUnknown, StoreUnavailable
from headgate.metrics.samples import Instant
from headgate.rules.drafts import RuleDrafts
from headgate.rules.settings import KnownMetric, RuleLimits
from tests.builders import NOW
from tests.fixtures.memory_log import KeptInMemory, MemoryLog

FLEET = parse_reach("fleet")
COMMERCE = parse_reach("shard:commerce/*")
ONE_SHARD = parse_reach("shard:commerce/-80")
KNOWN = {"lag": KnownMetric(5.0, True), "loadavg": KnownMetric(4.0, True)}
HALF = {"id": "half", "target": "etl", "ratio": 0.5, "for": "2h"}
CAP = {"mode": "warn", "rate": 20, "rules": [{"match": {"username": "etl"}}]}
DAY_S = 86_400.0


class QuickClock:
    """Anyone who sleeps lets the time pass."""

    def __init__(self) -> None:
        self._now = NOW
        self.slept_s: list[float] = []

    def now(self) -> Instant:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.pass_s(seconds)
        await asyncio.sleep(0)

    def pass_s(self, seconds: float) -> None:
        self._now = Instant(self._now.mono_s + seconds, self._now.wall_s + seconds)


Deed = Callable[[], Awaitable[object]]


class FaultyStore(MemoryLog):
    """Does to each commit what the next of `fates` says; afterwards as ever."""

    def __init__(self, kept: KeptInMemory) -> None:
        super().__init__(kept, name="etcd 10.0.0.1:2379")
        self.fates: list[str | Deed] = []
        self.blind: int = 0
        """So many lists fail, once a fate other than `ok` came true."""
        self.commits = 0
        self._late: list[tuple[Sequence[Compare], Sequence[Put]]] = []
        self._is_bad = False

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put], **more: Any) -> int:
        self.commits += 1
        for late in self._late:
            await super().commit(*late)
        self._late = []
        fate = self.fates.pop(0) if self.fates else "ok"
        self._is_bad = self._is_bad or fate != "ok"
        if callable(fate):  # Somebody else is first.
            await fate()
            return await super().commit(compares, puts)
        if fate == "made, answer lost":
            await super().commit(compares, puts)
            raise OutcomeUnknown("no answer in 2 s")
        if fate == "made later":
            self._late.append((compares, puts))
            raise OutcomeUnknown("no answer in 2 s")
        if fate == "not made":
            raise OutcomeUnknown("no answer in 2 s")
        if fate == "away":
            raise StoreUnavailable("no endpoint answers")
        return await super().commit(compares, puts)

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        if self._is_bad and self.blind:
            self.blind -= 1
            raise StoreUnavailable("no endpoint answers")
        return await super().list(prefixes, allow_stale=allow_stale)


def known(database: str) -> Mapping[str, KnownMetric]:
    return KNOWN if database in ("", "main") else {}


def book_on(store: SharedLog, clock: Any, prefix: str = "f", **more: Any) -> ChangeBook:
    numbers, ops = count(1), count(1)
    return SharedBook(
        store,
        clock,
        lambda: 0.5,
        RuleDrafts(
            known,
            more.pop("limits", RuleLimits()),
            new_id=lambda: f"{prefix}-{next(numbers):06x}",
        ),
        new_op=lambda: f"{prefix}-op-{next(ops)}",
        **more,
    )


@dataclass
class BookWorld:
    clock: QuickClock = field(default_factory=QuickClock)
    limits: RuleLimits = field(default_factory=RuleLimits)

    def __post_init__(self) -> None:
        self.kept = KeptInMemory(mono_s=lambda: self.clock.now().mono_s)
        self.store = FaultyStore(self.kept)
        self.book = book_on(self.store, self.clock, limits=self.limits)
        self.other = book_on(MemoryLog(self.kept), self.clock, "g", limits=self.limits)
        """Another agent's, on the same data."""

    @property
    def wall_s(self) -> float:
        return self.clock.now().wall_s

    async def standing(self) -> dict[str, dict[str, Any]]:
        """By id: what each says, with its reach."""
        held = await self.other.items()
        items = held.standing(self.wall_s).values()
        return {item.id: {"reach": str(item.reach), **(item.value or {})} for item in items}

    async def tell_shard(self, shard: str, *hosts: str, **more: Any) -> None:
        """As the agents of a shard would."""
        document = {"shard": shard, "hosts": list(hosts), "healthy": True, **more}
        where = {key: more[key] for key in ("region", "cluster") if key in more}
        members = [
            Put(
                f"{shard_members(shard)}{host}",
                json.dumps({"host": host, "database": "main", **where}).encode(),
            )
            for host in hosts
        ]
        mine = Put(shard_key(shard), json.dumps(document).encode())
        await MemoryLog(self.kept).commit([], [mine, *members])


def file_of(rules: int, *, start: int = 0, ratio: float = 0.5) -> dict[str, Any]:
    return {
        "rules": [
            {"id": f"r{at}", "reach": "fleet", "target": f"job-{at}", "ratio": ratio, "for": "2h"}
            for at in range(start, start + rules)
        ]
    }


def reach(text: str) -> Reach:
    return parse_reach(text)
