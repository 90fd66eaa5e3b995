"""Which clients worked without a throttler, when, and how much work they did.

    client, once it is answered again ──► POST /v1/unthrottled ──► UnthrottledBook ──► Store

Any client that reaches the agent may report, under any name. So reports are separate from what
operators change, are no audit entries, and have limits: in rows, in bytes, and in how often one
address, and all of them, may report. When there is no room, the address that uses the most of it
loses reports. If the store rejects a report, so does the agent: the client reports it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.base.ports import Clock, Store
from headgate.errors import InvalidRequest
from headgate.history.records import Report

# --- quota ---------------------------------------------------------------------------------------

# How often something may be done: by each key, such as an address, and by all together. Pure but
# for what it remembers; time is an argument.

MAX_KEYS = 4096
ROUNDING_S = 1e-6
_TOGETHER = ""
"""Keys beyond MAX_KEYS share this one."""


class Rate(NamedTuple):
    per_s: float
    """Requests a second over a long time."""
    burst: int
    """Requests at once, after a pause."""


class Quota:
    def __init__(self, each: Rate, total: Rate, *, max_keys: int = MAX_KEYS) -> None:
        self._each = each
        self._total = total
        self._max_keys = max_keys
        self._paid_until: dict[str, float] = {}
        """Monotonic, by key: when what was taken is paid off. Keys in the past count as
        missing."""
        self._all_paid_until = 0.0

    def take(self, key: str, now_s: float) -> float:
        """0: granted and counted. Else the seconds to wait before the next try; nothing counted."""
        key = self._place(key, now_s)
        mine = max(now_s, self._paid_until.get(key, now_s))
        alls = max(now_s, self._all_paid_until)
        wait_s = max(_wait_s(self._each, mine, now_s), _wait_s(self._total, alls, now_s))
        if wait_s > 0:
            return wait_s
        self._paid_until[key] = mine + 1 / self._each.per_s
        self._all_paid_until = alls + 1 / self._total.per_s
        return 0.0

    def _place(self, key: str, now_s: float) -> str:
        if key in self._paid_until or len(self._paid_until) < self._max_keys:
            return key
        self._paid_until = {k: until for k, until in self._paid_until.items() if until > now_s}
        return key if len(self._paid_until) < self._max_keys else _TOGETHER


def _wait_s(rate: Rate, paid_until: float, now_s: float) -> float:
    wait_s = paid_until - now_s - (rate.burst - 1) / rate.per_s
    return wait_s if wait_s > ROUNDING_S else 0.0


MAX_ROWS = 1000
"""Clients, each counted once for every address that it reports from."""
MAX_BYTES = 2 * 1024 * 1024
MAX_PERIODS = 100
"""Per row; also per report, so that a repeated one is recognized by its ids."""
MAX_ROW_BYTES = 20 * 1024
"""Enough for a whole report, of 100 periods and 64 databases."""
EACH = Rate(per_s=5.0, burst=200)
"""Reports of one address. If many clients share one address, some have to retry, and they do:
the SDK reports again after half a minute."""
ALL = Rate(per_s=10.0, burst=400)


@dataclass(frozen=True, slots=True)
class ReportedPeriod:
    """A period as a client tells it: by ages, since clocks of two hosts are not compared."""

    id: str
    ended_ago_s: float
    duration_s: float
    pieces: int


@dataclass(frozen=True, slots=True)
class UnthrottledPeriod:
    id: str
    databases: tuple[str, ...]
    started_at: float
    """Wall clock of this agent."""
    duration_s: float
    pieces: int

    @property
    def ended_at(self) -> float:
        return self.started_at + self.duration_s


@dataclass(frozen=True, slots=True)
class _ClientPeriods:
    periods: tuple[UnthrottledPeriod, ...]
    heard_at: float
    """This agent's wall clock, not the client's."""
    size_bytes: int


class UnthrottledBook:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._rows: dict[tuple[str, str], _ClientPeriods] = {}
        """By client and origin: no address can displace what another reported for that client."""
        self._quota = Quota(EACH, ALL)
        self._turn = asyncio.Lock()

    def load(self, reports: Sequence[Report]) -> None:
        self._rows = {
            (one.client, one.origin): _row(_periods(one.value), one.wall_s) for one in reports
        }

    def since(self, wall_s: float) -> list[tuple[str, UnthrottledPeriod]]:
        """With the client's name; those that ended last come first."""
        found = [
            (client, period)
            for (client, _), row in self._rows.items()
            for period in row.periods
            if period.ended_at >= wall_s
        ]
        return sorted(found, key=lambda item: -item[1].ended_at)

    async def take(
        self,
        client: str,
        databases: Sequence[str],
        told: Sequence[ReportedPeriod],
        *,
        origin: str = "",
    ) -> int:
        """How many were new. InvalidRequest (429): too many reports. StoreUnavailable: none was
        taken."""
        self._expect_room_in_time(origin)
        async with self._turn:
            rows = [row for (name, _), row in self._rows.items() if name == client]
            seen = {period.id for row in rows for period in row.periods}
            now_s, of = self._clock.now().wall_s, tuple(databases)
            fresh = [
                UnthrottledPeriod(
                    one.id, of, now_s - one.ended_ago_s - one.duration_s, one.duration_s, one.pieces
                )
                for one in told
                if one.id not in seen
            ]
            if fresh:
                await self._keep((client, origin), fresh, now_s)
            return len(fresh)

    def _expect_room_in_time(self, origin: str) -> None:
        wait_s = self._quota.take(origin, self._clock.now().mono_s)
        if wait_s > 0:
            raise InvalidRequest(
                "too many reports of periods without a throttler; nothing was kept. "
                f"Report again in {wait_s:.1f} s",
                status=429,
                retry_after_s=wait_s,
            )

    async def _keep(
        self, key: tuple[str, str], fresh: list[UnthrottledPeriod], now_s: float
    ) -> None:
        before = self._rows.get(key)
        row = _fitting((*(before.periods if before else ()), *fresh)[-MAX_PERIODS:], now_s)
        forgotten = self._giving_way({**self._rows, key: row}, key)
        report = Report(*key, now_s, {"periods": list(_docs(row.periods))})
        forget = [Report(*old, 0.0, {}) for old in forgotten]
        await self._store.put_report(report, forget=forget)
        self._rows[key] = row
        for old in forgotten:
            del self._rows[old]

    def _giving_way(
        self, rows: dict[tuple[str, str], _ClientPeriods], new: tuple[str, str]
    ) -> list[tuple[str, str]]:
        """The oldest reports of the address with the most bytes; never `new`."""
        gone: list[tuple[str, str]] = []
        while len(rows) > MAX_ROWS or sum(row.size_bytes for row in rows.values()) > MAX_BYTES:
            by_origin: dict[str, int] = {}
            for (_, origin), row in rows.items():
                by_origin[origin] = by_origin.get(origin, 0) + row.size_bytes
            # The new one's own address gives way only if it has anything else to give.
            candidates = [key for key in rows if key != new]
            oldest = min(candidates, key=lambda key: (-by_origin[key[1]], rows[key].heard_at))
            del rows[oldest]
            gone.append(oldest)
        return gone


def _fitting(periods: tuple[UnthrottledPeriod, ...], heard_at: float) -> _ClientPeriods:
    """Without its oldest, where they take too much room."""
    row = _row(periods, heard_at)
    while row.size_bytes > MAX_ROW_BYTES and len(periods) > 1:
        periods = periods[1:]
        row = _row(periods, heard_at)
    return row


def _row(periods: tuple[UnthrottledPeriod, ...], heard_at: float) -> _ClientPeriods:
    return _ClientPeriods(periods, heard_at, sum(map(_size_bytes, _docs(periods))))


def _size_bytes(doc: Mapping[str, Any]) -> int:
    """As JSON, and never less than it really takes."""
    return 160 + sum(len(name) + 3 for name in doc.get("databases", ()))


def _docs(periods: Iterable[UnthrottledPeriod]) -> Iterator[dict[str, Any]]:
    """`databases` is left out where they are those of the period before."""
    before: tuple[str, ...] = ()
    for period in periods:
        doc: dict[str, Any] = {
            "id": period.id,
            "started_at": period.started_at,
            "duration_s": period.duration_s,
            "pieces": period.pieces,
        }
        if period.databases != before:
            doc["databases"] = list(period.databases)
        before = period.databases
        yield doc


def _periods(value: Mapping[str, Any]) -> tuple[UnthrottledPeriod, ...]:
    found: list[UnthrottledPeriod] = []
    databases: tuple[str, ...] = ()
    for doc in value["periods"]:
        databases = tuple(doc.get("databases", databases))
        found.append(
            UnthrottledPeriod(
                doc["id"], databases, doc["started_at"], doc["duration_s"], doc["pieces"]
            )
        )
    return tuple(found)
