"""A store that ends with the process: the default without `agent.state`, and the tests' fake.

Held to the same contract as sqlite.py. Memory is bounded: beyond the limits the oldest
history goes first; settings are never dropped.
"""

from __future__ import annotations

import json
from asyncio import to_thread
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.core.decision import Verdict
from headgate.core.records import (
    Asked,
    AuditEntry,
    BudgetMinute,
    MetricChange,
    MetricMinute,
    PolicyRevision,
    Record,
    Report,
    Tally,
)
from headgate.errors import Conflict, StoreUnavailable
from headgate.stores.entries import (
    MAX_POLICIES,
    MAX_POLICIES_BYTES,
    MAX_RECORDS,
    Standing,
    change_of,
    check_budget_minutes,
    check_policy,
    check_policy_replaces,
    check_record,
    check_record_replaces,
    check_replaces,
    check_report,
    check_stands,
    check_step,
    check_tallies,
    record_of,
    standing_of,
    to_json,
    too_many_records,
)

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
        self._metrics: dict[tuple[str, str], Standing] = {}
        self._records: dict[str, dict[str, Standing]] = {}
        """By kind and key."""
        self._audit: deque[AuditEntry] = deque(maxlen=max_audit_entries)
        self._minutes: dict[int, dict[_Alike, int]] = {}
        self._max_tallies = max_tallies
        self._metric_minutes: dict[tuple[int, str, str], MetricMinute] = {}
        self._policies: dict[str, list[tuple[PolicyRevision, str, str]]] = {}
        """By database, newest first, each with its document and changes as JSON."""
        self._budget_minutes: dict[_Violation, int] = {}
        self._reports: dict[tuple[str, str], Report] = {}
        """By client and origin."""
        self._revision = 0
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

    async def metric_changes(self) -> Sequence[MetricChange]:
        self._check_open()
        changes = [
            change_of(database, metric, standing.raw_json, standing.revision)
            for (database, metric), standing in self._metrics.items()
        ]
        return sorted(changes, key=lambda change: change.revision)

    async def salvage_changes(self) -> Sequence[MetricChange]:
        return await self.metric_changes()

    async def put_metric(self, change: MetricChange, audit: AuditEntry) -> MetricChange:
        self._check_open()
        key = (change.database, change.metric)
        check_replaces(change, self._metrics.get(key), kept=len(self._metrics))
        standing = self._audited(change.raw, audit)
        self._metrics[key] = standing
        return change_of(*key, standing.raw_json, standing.revision)

    async def records(self, kind: str) -> Sequence[Record]:
        self._check_open()
        return [
            record_of(kind, key, standing.raw_json, standing.revision)
            for key, standing in sorted(self._records.get(kind, {}).items())
            if standing.raw_json is not None
        ]

    async def salvage_records(self, kind: str) -> Sequence[Record]:
        return await self.records(kind)

    async def put_record(self, record: Record, audit: AuditEntry) -> Record:
        (kept,) = await self.put_records([(record, audit)])
        return kept

    async def put_records(
        self, puts: Sequence[tuple[Record, AuditEntry]], *, must_fit: bool = False
    ) -> Sequence[Record]:
        self._check_open()
        for record, _ in puts:
            check_record(record)
        # On copies, which are put in place when nothing can be refused any more.
        draft = {record.kind: dict(self._records.get(record.kind, {})) for record, _ in puts}
        entries: list[AuditEntry] = []
        kept = []
        for record, audit in puts:
            entry = replace(_copied(audit), id=self._revision + len(entries) + 1)
            kept.append(_put(record, entry, draft[record.kind]))
            entries.append(entry)
        self._records |= draft
        self._audit.extend(entries)
        self._revision += len(entries)
        return kept

    async def note_record(self, record: Record) -> None:
        self._check_open()
        check_record(record)
        of_kind = self._records.get(record.kind, {})
        standing = check_stands(record, of_kind.get(record.key))
        of_kind[record.key] = replace(standing, raw_json=to_json(record.value))

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

    async def put_policy(self, new: PolicyRevision, audit: AuditEntry) -> PolicyRevision:
        self._check_open()
        document, changes = check_policy(new)
        kept = self._policies.get(new.database, [])
        check_policy_replaces(new, kept[0][0] if kept else None)
        entry = replace(_copied(audit), id=self._revision + 1)
        about = replace(new, revision=entry.id, document={}, changes={})
        self._policies[new.database] = _newest_policies([(about, document, changes), *kept])
        self._revision = entry.id
        self._audit.append(entry)
        return _whole(about, document, changes)

    async def policies(self) -> Sequence[PolicyRevision]:
        self._check_open()
        return [_whole(*kept[0]) for _, kept in sorted(self._policies.items())]

    async def salvage_policies(self) -> Sequence[PolicyRevision]:
        return await self.policies()

    async def policy_revisions(
        self, database: str, *, limit: int = 100
    ) -> Sequence[PolicyRevision]:
        self._check_open()
        kept = self._policies.get(database, [])
        return [about for about, _, _ in kept[: max(0, limit)]]

    async def policy_revision(self, database: str, revision: int) -> PolicyRevision | None:
        self._check_open()
        kept = self._policies.get(database, [])
        return next((_whole(*one) for one in kept if one[0].revision == revision), None)

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

    def _audited(self, raw: Mapping[str, Any] | None, audit: AuditEntry) -> Standing:
        """`raw` under a new revision, with its audit entry; neither if either is no JSON."""
        revision = self._revision + 1
        standing = standing_of(raw, audit, revision)
        entry = replace(_copied(audit), id=revision)
        self._revision = revision
        self._audit.append(entry)
        return standing

    def _make_room(self) -> None:
        kept = sum(map(len, self._minutes.values()))
        while kept > self._max_tallies:
            kept -= len(self._minutes.pop(min(self._minutes)))


def _put(record: Record, entry: AuditEntry, of_kind: dict[str, Standing]) -> Record:
    check_record_replaces(record, of_kind.get(record.key))
    for key in _giving_way_to(record, of_kind):
        del of_kind[key]
    standing = of_kind[record.key] = standing_of(record.value, entry, entry.id)
    return record_of(record.kind, record.key, standing.raw_json, standing.revision)


def _giving_way_to(record: Record, of_kind: Mapping[str, Standing]) -> list[str]:
    """Where its kind is full, the oldest removed one; raises if there is none."""
    if record.key in of_kind or len(of_kind) < MAX_RECORDS:
        return []
    removed = [key for key, standing in of_kind.items() if standing.raw_json is None]
    if not removed:
        raise too_many_records(record)
    return [min(removed, key=lambda key: of_kind[key].revision)]


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


def _newest_policies(
    kept: list[tuple[PolicyRevision, str, str]],
) -> list[tuple[PolicyRevision, str, str]]:
    found, kept_bytes = kept[:1], sum(map(len, kept[0][1:]))
    for one in kept[1:MAX_POLICIES]:
        kept_bytes += sum(map(len, one[1:]))
        if kept_bytes > MAX_POLICIES_BYTES:
            break
        found.append(one)
    return found


def _whole(about: PolicyRevision, document: str, changes: str) -> PolicyRevision:
    return replace(about, document=json.loads(document), changes=json.loads(changes))


def _copied(entry: AuditEntry) -> AuditEntry:
    """As a file would give it back: nobody can edit what is kept."""
    before, after = json.loads(to_json([entry.before, entry.after]))
    return replace(entry, before=before, after=after)
