"""The whole fleet for people: an agent with this role follows what all other agents report.

follower of its own ──note──► FleetView ──in a thread──► FleetLedger ──► FleetPicture ──► page, CLI

It reads the fleet's store and never other agents, and no check needs it. It works outside the event
loop, when a person looks at the fleet and every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headgate.agent.ports import Clock
from headgate.agent.registry import FleetLedger, Noted
from headgate.core.change import BEAT, HEAD, ITEMS, MEMBERS, SHARDS
from headgate.core.fleet_holders import Holders
from headgate.core.fleet_view import Counts, FleetPicture, Link, grace_s
from headgate.core.keyvalue import Entry
from headgate.core.samples import Instant

VIEW_PREFIXES = (HEAD, BEAT, ITEMS, MEMBERS, SHARDS)
DIGEST_EVERY_S = 5.0
KEEP_EVERY_S = 60.0
FRESH_S = 1.0
"""A picture younger than this is shown again: several people may look at once."""


class Mirrored(Protocol):
    """As much of agent/logmirror.Mirror as is looked at."""

    def get(self, key: str) -> Entry | None: ...


class KeptRoster(Protocol):
    """On disk, beside the event loop. Neither raises: a view without it forgets, and goes on."""

    def recall(self) -> Mapping[str, float]: ...

    def keep(self, roster: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class Looked:
    picture: FleetPicture
    holders: Holders
    at: Instant
    link: Link


class FleetView:
    def __init__(
        self,
        mirror: Mirrored,
        clock: Clock,
        *,
        link: Callable[[], Link],
        spread_s: Callable[[], float],
        roster: KeptRoster | None = None,
    ) -> None:
        """`roster`: where the names of all shards are kept over a restart."""
        self._mirror = mirror
        self._clock = clock
        self._link = link
        self._spread_s = spread_s
        self._ledger = FleetLedger()
        self._roster = roster
        self._recalled = False
        self._kept_at: float | None = None
        self._noted: dict[str, Instant] = {}
        self._under_way: asyncio.Future[None] | None = None
        self._picture = FleetPicture(None)
        self._holders = Holders(self._picture)
        self._at: Instant | None = None

    @property
    def counts(self) -> Counts:
        """As of the last digest."""
        return self._picture.counts

    def note(self, keys: Iterable[str]) -> None:
        """Keys that changed in the mirror, or went. A callback of the follower; never waits."""
        now = self._clock.now()
        for key in keys:
            self._noted[key] = now

    async def run(self) -> None:
        while True:
            await self._digest()
            await self._clock.sleep(DIGEST_EVERY_S)

    async def look(self) -> Looked:
        now = self._clock.now()
        if self._at is None or now.mono_s - self._at.mono_s >= FRESH_S:
            await self._digest()
        return Looked(self._picture, self._holders, now, self._link())

    async def _digest(self) -> None:
        """One at a time, and to its end: a caller that gives up leaves a thread running."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.ensure_future(self._take())
        await asyncio.shield(self._under_way)

    async def _take(self) -> None:
        now = self._clock.now()
        keys, self._noted = self._noted, {}
        noted = [Noted(key, _value(self._mirror.get(key)), at) for key, at in keys.items()]
        late_s = grace_s(self._spread_s())
        self._picture = await asyncio.to_thread(self._read, noted, now, late_s)
        self._holders = Holders(self._picture)
        self._at = now

    def _read(self, noted: list[Noted], now: Instant, late_s: float) -> FleetPicture:
        self._ledger.take(noted)
        self._recalled = self._recalled or self._recall(noted, now)
        picture = self._ledger.picture(now, grace_s=late_s)
        due = self._kept_at is None or now.mono_s - self._kept_at >= KEEP_EVERY_S
        if self._roster is not None and self._recalled and due:
            self._kept_at = now.mono_s
            self._roster.keep(self._ledger.roster(now.wall_s))
        return picture

    def _recall(self, noted: list[Noted], now: Instant) -> bool:
        """Once the store has been read: before that everybody would be missing."""
        if noted and self._roster is not None:
            self._ledger.recall(self._roster.recall(), now)
        return bool(noted)


def _value(entry: Entry | None) -> bytes | None:
    return None if entry is None else entry.value


__all__ = ["VIEW_PREFIXES", "FleetView", "Link", "Looked"]
