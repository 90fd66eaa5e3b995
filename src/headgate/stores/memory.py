"""A store that ends with the process: the default without `agent.state`, and the tests' fake.

Held to the same contract as sqlite.py. Memory is bounded: beyond the limits the oldest
history goes first; settings are never dropped.
"""

from __future__ import annotations

import json
from asyncio import to_thread
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from headgate.core.decision import Verdict
from headgate.core.keyvalue import Compare, Lease, Listing, Put
from headgate.core.records import (
    Asked,
    AuditEntry,
    BudgetMinute,
    MetricMinute,
    Report,
    Tally,
)
from headgate.errors import Conflict, StoreUnavailable
from headgate.stores.entries import (
    check_budget_minutes,
    check_commit,
    check_report,
    check_room,
    check_step,
    check_tallies,
    to_json,
)
from headgate.stores.fleet_memory import KeptInMemory

MAX_AUDIT_ENTRIES = 10_000
MAX_TALLIES = 200_000
MAX_METRIC_MINUTES = 100_000
MAX_BUDGET_MINUTES = 100_000

_OK = Verdict.OK.value
_Alike = tuple[str, str, str, str]
"""(database, client, verdict, metric)"""
_Violation = tuple[int, str, str, str, str]
"""(minute, database, budget, what, limit)"""
_Kept = list[tuple[int, dict[_Alike, int]]]
"""By minute."""


class MemoryStore:
    def __init__(
        self, *, max_audit_entries: int = MAX_AUDIT_ENTRIES, max_tallies: int = MAX_TALLIES
    ) -> None:
        self._log = KeptInMemory(max_log_commits=1)
        self._audit: deque[AuditEntry] = deque(maxlen=max_audit_entries)
        self._minutes: dict[int, dict[_Alike, int]] = {}
        self._max_tallies = max_tallies
        self._metric_minutes: dict[tuple[int, str, str], MetricMinute] = {}
        self._budget_minutes: dict[_Violation, int] = {}
        self._reports: dict[tuple[str, str], Report] = {}
        """By client and origin."""
        self._audited = 0
        """The id of the newest audit entry."""
        self._is_open = False

    @property
    def name(self) -> str:
        return "memory"

    @property
    def fault(self) -> str | None:
        return None

    @property
    def notes(self) -> Sequence[str]:
        return ()

    async def open(self) -> None:
        self._is_open = True

    async def begin_anew(self, audit: AuditEntry) -> Sequence[str]:
        raise Conflict("what is kept in memory cannot be lost; nothing was changed")

    async def close(self) -> None:
        self._is_open = False

    async def list(self, prefixes: Sequence[str], *, at_any_member: bool = False) -> Listing:
        self._check_open()
        return self._log.listing(prefixes)

    async def salvage_list(self, prefixes: Sequence[str]) -> Listing:
        return await self.list(prefixes)

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        self._check_open()
        check_commit(compares, puts)
        self._log.hold(compares)
        check_room(puts, {put.key: self._log.entry(put.key) for put in puts}, self._log.count)
        entries = [replace(_copied(one), id=self._audited + n) for n, one in enumerate(audit, 1)]
        revision = self._log.put_all(replace(put, lease=0) for put in puts)
        self._audit.extend(entries)
        self._audited += len(entries)
        return revision

    async def count(self, prefix: str) -> int:
        self._check_open()
        return self._log.count(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        return Lease(0, ttl_s)

    async def audit(self, *, limit: int = 100) -> Sequence[AuditEntry]:
        self._check_open()
        newest_first = list(reversed(self._audit))
        return [_copied(entry) for entry in newest_first[: max(0, limit)]]

    async def reports(self) -> Sequence[Report]:
        self._check_open()
        in_order = sorted(self._reports.values(), key=lambda r: (r.wall_s, r.client, r.origin))
        return [replace(one, value=json.loads(to_json(one.value))) for one in in_order]

    async def put_report(self, report: Report, *, forget: Sequence[Report] = ()) -> None:
        self._check_open()
        check_report(report)
        kept = replace(report, value=json.loads(to_json(report.value)))
        for one in forget:
            self._reports.pop((one.client, one.origin), None)
        self._reports[report.client, report.origin] = kept

    async def add_tallies(self, tallies: Sequence[Tally]) -> None:
        self._check_open()
        check_tallies(tallies)
        for t in tallies:
            counts = self._minutes.setdefault(t.minute, {})
            alike = (t.database, t.client, t.verdict, t.metric)
            counts[alike] = counts.get(alike, 0) + t.count
        self._make_room()

    async def tallies(
        self,
        tokens: Sequence[str] = (),
        *,
        since_minute: int,
        until_minute: int,
        limit: int = 10_000,
    ) -> Sequence[Tally]:
        kept = self._within(since_minute, until_minute)
        return await to_thread(lambda: _newest(_tallies(kept, tokens, ""), limit))

    async def add_metric_minutes(self, minutes: Sequence[MetricMinute]) -> None:
        self._check_open()
        for given in minutes:
            key = (given.minute, given.database, given.metric)
            before = self._metric_minutes.get(key)
            self._metric_minutes[key] = given if before is None else before.plus(given)
        while len(self._metric_minutes) > MAX_METRIC_MINUTES:
            del self._metric_minutes[next(iter(self._metric_minutes))]  # The oldest came first.

    async def metric_minutes(
        self,
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        metric: str = "",
        limit: int = 100_000,
    ) -> Sequence[MetricMinute]:
        self._check_open()
        kept = list(self._metric_minutes.values())
        wanted = (since_minute, until_minute, database, metric, limit)
        return await to_thread(_metric_minutes, kept, *wanted)

    async def sums(
        self,
        tokens: Sequence[str],
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        step_minutes: int | None = 1,
        by_client: bool = True,
        limit: int | None = None,
    ) -> Sequence[Tally]:
        check_step(step_minutes)
        kept = self._within(since_minute, until_minute)

        def start(minute: int) -> int:
            return since_minute if step_minutes is None else minute - minute % step_minutes

        def summed() -> list[Tally]:
            found = _summed(_tallies(kept, tokens, database), start, by_client=by_client)
            return _newest(found, limit)

        return await to_thread(summed)

    async def client_sums(
        self,
        tokens: Sequence[str],
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        limit: int,
    ) -> Sequence[Tally]:
        found = await self.sums(
            tokens,
            since_minute=since_minute,
            until_minute=until_minute,
            database=database,
            step_minutes=None,
        )
        by_count = sorted(
            found, key=lambda t: (-t.count, t.database, t.client, t.verdict, t.metric)
        )
        return by_count[: max(0, limit)]

    async def minutes_asked(
        self, tokens: Sequence[str], *, since_minute: int, until_minute: int, database: str = ""
    ) -> Sequence[Asked]:
        kept = self._within(since_minute, until_minute)
        return await to_thread(lambda: _asked(_tallies(kept, tokens, database)))

    async def add_budget_minutes(self, minutes: Sequence[BudgetMinute]) -> None:
        self._check_open()
        check_budget_minutes(minutes)
        for m in minutes:
            key = (m.minute, m.database, m.budget, m.what, m.limit)
            self._budget_minutes[key] = self._budget_minutes.get(key, 0) + m.count
        while len(self._budget_minutes) > MAX_BUDGET_MINUTES:
            del self._budget_minutes[next(iter(self._budget_minutes))]  # The oldest came first.

    async def budget_minutes(
        self,
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        budget: str = "",
        limit: int = 100_000,
    ) -> Sequence[BudgetMinute]:
        self._check_open()
        found = sorted(
            BudgetMinute(*key, count)
            for key, count in self._budget_minutes.items()
            if since_minute <= key[0] <= until_minute
            and database in ("", key[1])
            and budget in ("", key[2])
        )
        return found[max(0, len(found) - max(0, limit)) :]

    async def forget_before(self, minute: int) -> None:
        self._check_open()
        for violation in [kept for kept in self._budget_minutes if kept[0] < minute]:
            del self._budget_minutes[violation]
        for key in [kept for kept in self._metric_minutes if kept[0] < minute]:
            del self._metric_minutes[key]
        for old in [kept for kept in self._minutes if kept < minute]:
            del self._minutes[old]
        kept = [entry for entry in self._audit if entry.wall_s >= minute * 60]
        self._audit = deque(kept, maxlen=self._audit.maxlen)

    def _within(self, since_minute: int, until_minute: int) -> _Kept:
        """A copy, to be read in a thread: checks are answered, and counted, meanwhile."""
        self._check_open()
        return [
            (minute, counts.copy())
            for minute, counts in self._minutes.items()
            if since_minute <= minute <= until_minute
        ]

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the store in memory is not open")

    def _make_room(self) -> None:
        kept = sum(map(len, self._minutes.values()))
        while kept > self._max_tallies:
            kept -= len(self._minutes.pop(min(self._minutes)))


def has_tokens(client: str, tokens: Sequence[str]) -> bool:
    """As the file finds them: each between two colons, so that `a:b` is found in `x:a:b`."""
    return all(f":{token}:" in f":{client}:" for token in tokens)


def _tallies(kept: _Kept, tokens: Sequence[str], database: str) -> list[Tally]:
    return [
        Tally(minute, *alike, count)
        for minute, counts in kept
        for alike, count in counts.items()
        if database in ("", alike[0]) and has_tokens(alike[1], tokens)
    ]


def _summed(
    tallies: Sequence[Tally], start: Callable[[int], int], *, by_client: bool
) -> list[Tally]:
    summed: dict[tuple[int, str, str, str, str], int] = {}
    for t in tallies:
        key = (start(t.minute), t.database, t.client if by_client else "", t.verdict, t.metric)
        summed[key] = summed.get(key, 0) + t.count
    return [Tally(*key, count) for key, count in summed.items()]


def _newest(tallies: Sequence[Tally], limit: int | None) -> list[Tally]:
    ordered = sorted(
        tallies, key=lambda t: (t.minute, t.database, t.client, t.verdict, t.metric, t.count)
    )
    return ordered if limit is None else ordered[max(0, len(ordered) - max(0, limit)) :]


def _asked(tallies: Sequence[Tally]) -> list[Asked]:
    found: dict[int, tuple[int, int]] = {}
    for t in tallies:
        checks, refused = found.get(t.minute, (0, 0))
        found[t.minute] = checks + t.count, refused + (t.count if t.verdict != _OK else 0)
    return [Asked(minute, *found[minute]) for minute in sorted(found)]


def _metric_minutes(
    kept: Sequence[MetricMinute], since: int, until: int, database: str, metric: str, limit: int
) -> list[MetricMinute]:
    found = [
        m
        for m in kept
        if since <= m.minute <= until and database in ("", m.database) and metric in ("", m.metric)
    ]
    found.sort(key=lambda m: (m.minute, m.database, m.metric))
    return found[max(0, len(found) - max(0, limit)) :]


def _copied(entry: AuditEntry) -> AuditEntry:
    """As a file would give it back: nobody can edit what is kept."""
    before, after = json.loads(to_json([entry.before, entry.after]))
    return replace(entry, before=before, after=after)
