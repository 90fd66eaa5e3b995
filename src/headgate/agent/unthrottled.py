"""Who went without a throttler, when, and how much work it did (R55).

    client, once it is answered again ──► POST /v1/unthrottled ──► UnthrottledBook ──► Store

Kept by client, and bounded: its newest periods, and the clients that were heard of last. What
the store does not take is not taken here either: the client tells it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headgate.agent.ports import Clock, Store
from headgate.core.records import AuditEntry, Record

UNTHROTTLED = "unthrottled"
MAX_CLIENTS = 1000
MAX_PERIODS = 100
"""Of each client; also of one report, so that one that is repeated is known by its ids."""


@dataclass(frozen=True, slots=True)
class Told:
    """A period as a client tells it: by ages, since clocks of two hosts are not compared."""

    id: str
    ended_ago_s: float
    duration_s: float
    pieces: int


@dataclass(frozen=True, slots=True)
class Period:
    id: str
    databases: tuple[str, ...]
    started_at: float
    """Wall clock, of this agent."""
    duration_s: float
    pieces: int

    @property
    def ended_at(self) -> float:
        return self.started_at + self.duration_s


@dataclass(frozen=True, slots=True)
class _Kept:
    periods: tuple[Period, ...]
    revision: int

    @property
    def newest_at(self) -> float:
        return max((period.ended_at for period in self.periods), default=0.0)


class UnthrottledBook:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._turn = asyncio.Lock()

    def load(self, records: Sequence[Record]) -> None:
        self._kept = {
            record.key: _Kept(_periods(record.value), record.revision)
            for record in records
            if record.value is not None
        }

    def since(self, wall_s: float) -> list[tuple[str, Period]]:
        """With the client's name; those that ended last come first."""
        found = [
            (client, period)
            for client, kept in self._kept.items()
            for period in kept.periods
            if period.ended_at >= wall_s
        ]
        return sorted(found, key=lambda item: -item[1].ended_at)

    async def take(self, client: str, databases: Sequence[str], told: Sequence[Told]) -> int:
        """How many were new. StoreUnavailable: none was taken."""
        async with self._turn:
            known = self._kept.get(client, _Kept((), 0))
            seen = {period.id for period in known.periods}
            now_s = self._clock.now().wall_s
            fresh = [_dated(one, databases, now_s) for one in told if one.id not in seen]
            if not fresh:
                return 0
            await self._make_room_for(client)
            await self._keep(client, known, fresh)
            return len(fresh)

    async def _keep(self, client: str, known: _Kept, fresh: list[Period]) -> None:
        periods = (*known.periods, *fresh)[-MAX_PERIODS:]
        value = {"periods": [asdict(period) for period in periods]}
        record = Record(UNTHROTTLED, client, value, known.revision)
        after = {"periods": [asdict(period) for period in fresh]}
        kept = await self._store.put_record(record, self._audit("reported", client, after))
        self._kept[client] = _Kept(periods, kept.revision)

    async def _make_room_for(self, client: str) -> None:
        if client in self._kept or len(self._kept) < MAX_CLIENTS:
            return
        oldest = min(self._kept, key=lambda name: self._kept[name].newest_at)
        record = Record(UNTHROTTLED, oldest, None, self._kept[oldest].revision)
        await self._store.put_record(record, self._audit("forgotten", oldest, None))
        del self._kept[oldest]

    def _audit(self, what: str, client: str, after: Any) -> AuditEntry:
        now_s = self._clock.now().wall_s
        return AuditEntry(now_s, f"client:{client}", f"unthrottled.{what}", client, None, after)


def _dated(told: Told, databases: Sequence[str], now_s: float) -> Period:
    started_at = now_s - told.ended_ago_s - told.duration_s
    return Period(told.id, tuple(databases), started_at, told.duration_s, told.pieces)


def _periods(value: Mapping[str, Any]) -> tuple[Period, ...]:
    return tuple(
        Period(**{**period, "databases": tuple(period["databases"])}) for period in value["periods"]
    )
