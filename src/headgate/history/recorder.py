"""Count every decision, exactly, in bounded memory.   Checker ──► Recorder ──flush──► Store

The hot path does two dictionary updates. Counts move to the store about once a second. While the
store is away they wait here, added up by minute, as long as they fit. Observers of the counts
(watch.py) are called at the same pace, off the hot path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from headgate.base.crowds import OTHER
from headgate.base.names import MetricRef, Scope
from headgate.check.health import Health
from headgate.check.model import Decision, State, Verdict
from headgate.check.snapshot import Counted
from headgate.history.clientele import Clientele, ClientRecord, Place
from headgate.history.records import Tally
from headgate.metrics.samples import Instant

RULE = "rule:"
BUDGET = "budget:"
UNKNOWN_DATABASE = "(unknown)"
MAX_WAITING = 100_000
MAX_RECENT = 512
MAX_REASONS = 64
"""Per client, each counted separately: rules and budgets beyond it are counted together."""
MAX_ROWS_A_MINUTE = 2000
"""Rows of history: with 14 days of history at most 50 million. Further rows are counted in groups
(base/crowds.py), so that sums stay exact, also those by level."""
MAX_CROWD_ROWS_A_MINUTE = 500
"""Rows for groups, in addition; then `other`."""
DETAIL_INTERVAL_S = 1.0
CLIENT_KEPT_S = 24 * 3600.0
LATE_MINUTES = 15
"""How old a client's local decision may be to be counted in the minute when it was made."""

_OK = Verdict.OK
Key = tuple[str, str, Verdict, str]
"""(database, client, verdict, deciding metric or rule)"""
Reason = tuple[Verdict, str]
"""The rest of a Key, behind its Place."""
Watcher = Callable[[list[tuple[Key, int]]], None]
"""Called with what was counted since the last call."""


def decided_by(decision: Decision) -> str:
    """The metric (a breached one first), the rule or the budget behind it; of an admission, the
    exemption without which it would have been none, else empty."""
    if decision.verdict is _OK:
        exempt = decision.applied.exempt
        return f"{RULE}{exempt.id}" if decision.exempted and exempt else ""
    failing = decision.failing
    if failing:
        first = next((f for f in failing if f.state is State.BREACHED), failing[0])
        return named(first.ref) if first.spec else OTHER
    if decision.verdict is Verdict.OVER_BUDGET:
        return f"{BUDGET}{decision.check.budget}"
    return f"{RULE}{decision.rule.id}" if decision.rule else ""


def named(ref: MetricRef) -> str:
    """As history calls it: the shard's value is another one than the host's."""
    return f"{Scope.SHARD.value}/{ref.metric}" if ref.scope is Scope.SHARD else ref.metric


class Recorder:
    def __init__(self, *, max_clients: int) -> None:
        self._clientele = Clientele(max_clients, self._has_left)
        self._clients = self._clientele.records
        self._counted: dict[Key, int] = {}
        """Rejections and exemptions since the last roll-over. Plain admissions, the common case,
        are counted in the client's own record, apart from those already rolled over."""
        self._minute = 0
        self._minute_ends = 0.0
        self._waiting: dict[tuple[int, Key], int] = {}
        self._totals: dict[Place, dict[Reason, int]] = {}
        self.forgotten: dict[tuple[str, Verdict], int] = {}
        """Decisions about clients that have no place any more, by database and verdict. Not
        added to others' totals: a counter that jumps would look like a burst of checks."""
        self._recent: deque[Decision] = deque(maxlen=MAX_RECENT)
        """Rejections in full, at most one a second per client: counts are exact, these are for
        reading."""
        self.dropped_tallies = 0
        self._rows: set[Key] = set()
        """Keys of the current minute."""
        self._late_rows: dict[int, set[Key]] = {}
        """Keys of past minutes, for late reports."""
        self._watchers: list[Watcher] = []

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def record(self, decision: Decision) -> None:
        verdict, wall_s = decision.verdict, decision.at.wall_s
        if wall_s >= self._minute_ends:
            self._roll_over(wall_s)
        database = decision.check.database if decision.health is not None else UNKNOWN_DATABASE
        client = decision.check.identity.text
        known = self._clients.get((database, client))
        if known is None:
            client, known = self._clientele.meet(database, decision.check)
        known.last_at, known.last_verdict, known.check = wall_s, verdict, decision.check
        if verdict is _OK:
            known.admitted += 1
            known.rejected_since = None
            if decision.exempted:
                self._count_exempted(known, (database, client, verdict, decided_by(decision)))
            return
        by = decided_by(decision)
        _rejected(known, by, wall_s)
        if abs(wall_s - known.detailed_at) >= DETAIL_INTERVAL_S:
            known.detailed_at = wall_s
            self._recent.append(decision)
        key = (database, client, verdict, by)
        self._counted[key] = self._counted.get(key, 0) + 1

    def _count_exempted(self, known: ClientRecord, key: Key) -> None:
        known.exempted += 1
        self._counted[key] = self._counted.get(key, 0) + 1

    def merge(self, told: Counted, health: Health | None, now: Instant) -> None:
        """Decisions that a client made locally, in the minute in which it made them."""
        if now.wall_s >= self._minute_ends:
            self._roll_over(now.wall_s)
        check, verdict, times = told.check, told.verdict, told.times
        database = check.database if health is not None else UNKNOWN_DATABASE
        client = check.identity.text
        known = self._clients.get((database, client))
        if known is None:
            client, known = self._clientele.meet(database, check)
        last_at = now.wall_s - told.last_s_ago
        if last_at >= known.last_at:
            known.last_at, known.last_verdict, known.check = last_at, verdict, check
        if verdict is _OK:
            _admitted(known, told, last_at)
        else:
            _rejected_times(known, told, now.wall_s)
            self._keep_told(known, told, health, now)
        key, minute = (database, client, verdict, told.by), int(last_at // 60)
        if minute < self._minute:
            self._count_late(max(minute, self._minute - LATE_MINUTES), key, times, known)
        elif verdict is not _OK or told.by:
            self._counted[key] = self._counted.get(key, 0) + times

    def _keep_told(
        self, known: ClientRecord, told: Counted, health: Health | None, now: Instant
    ) -> None:
        """A rejection in full, as far as the client reported it, in the client's words."""
        if abs(now.wall_s - known.detailed_at) < DETAIL_INTERVAL_S:
            return
        known.detailed_at = now.wall_s
        note = told.reason.removeprefix(f"{told.check.database}: ")
        self._recent.append(Decision(told.verdict, told.check, now, health, note=note))

    def _count_late(self, minute: int, key: Key, times: int, known: ClientRecord) -> None:
        if key[2] is _OK and not key[3]:
            known.admitted_told += times
        self._total(key, times)
        rows = self._late_rows.setdefault(minute, set())
        self._wait(minute, self._row(key, rows), times)
        for watcher in self._watchers:
            watcher([(key, times)])

    def totals(self) -> dict[Key, int]:
        """Every decision since the start about those that have a place, by what is alike in
        them."""
        merged = {(*place, *why): n for place, of in self._totals.items() for why, n in of.items()}
        for key, count in self._untold():
            merged[key] = merged.get(key, 0) + count
        return merged

    def _untold(self) -> Iterator[tuple[Key, int]]:
        """What has been counted since the last roll-over."""
        yield from self._counted.items()
        for (database, client), record in self._clients.items():
            untold = record.admitted - record.exempted - record.admitted_told
            if untold:
                yield (database, client, _OK, ""), untold

    def clients(self) -> Iterator[tuple[str, str, ClientRecord]]:
        for (database, client), record in self._clients.items():
            yield database, client, record

    def tokens(self, database: str) -> set[str]:
        """Every level of every client that checked recently."""
        return self._clientele.tokens(database)

    def recent(self) -> list[Decision]:
        """Newest first."""
        return list(reversed(self._recent))

    def drain(self, wall_s: float) -> list[Tally]:
        """What the store has not got yet. Give it back with `restore` if it cannot be kept."""
        self._roll_over(wall_s)
        waiting, self._waiting = self._waiting, {}
        return [
            Tally(minute, database, client, verdict.value, metric, count)
            for (minute, (database, client, verdict, metric)), count in waiting.items()
        ]

    def tell(self, wall_s: float) -> None:
        """Call the observers now, not at the end of the second."""
        self._roll_over(wall_s)

    def restore(self, tallies: list[Tally]) -> None:
        for t in tallies:
            key = (t.database, t.client, Verdict(t.verdict), t.metric)
            self._wait(t.minute, key, t.count)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def forget_idle(self, wall_s: float) -> None:
        """Make room."""
        self._roll_over(wall_s)
        self._clientele.forget_before(wall_s - CLIENT_KEPT_S)

    def _has_left(self, place: Place, _record: ClientRecord) -> None:
        for (verdict, _), count in self._totals.pop(place, {}).items():
            gone = (place[0], verdict)
            self.forgotten[gone] = self.forgotten.get(gone, 0) + count

    def _roll_over(self, wall_s: float) -> None:
        counted = list(self._untold())
        if len(self._rows) + len(counted) > MAX_ROWS_A_MINUTE:
            counted.sort(key=_most)  # There may not be a row for each: the largest have theirs.
        for key, count in counted:
            self._total(key, count)
            self._wait(self._minute, self._row(key, self._rows), count)
        for record in self._clients.values():
            record.admitted_told = record.admitted - record.exempted
        self._counted.clear()
        minute = int(wall_s // 60)
        if minute != self._minute:
            self._late_rows[self._minute], self._rows = self._rows, set()
            oldest = minute - LATE_MINUTES
            self._late_rows = {m: rows for m, rows in self._late_rows.items() if m >= oldest}
        self._minute = minute
        self._minute_ends = (self._minute + 1) * 60.0
        self._clientele.look_for_idle(wall_s)
        for watcher in self._watchers:
            watcher(counted)

    def _total(self, key: Key, count: int) -> None:
        database, client, verdict, by = key
        totals = self._totals.setdefault((database, client), {})
        if len(totals) >= MAX_REASONS and (verdict, by) not in totals:
            # Rules come and go for years: the oldest keep their own, the others share one.
            kind, colon, _ = by.partition(":")
            by = f"{kind}:{OTHER}" if colon else by
        totals[verdict, by] = totals.get((verdict, by), 0) + count

    def _row(self, key: Key, rows: set[Key]) -> Key:
        """What it is kept under, in a minute that has `rows` already."""
        if key in rows or len(rows) < MAX_ROWS_A_MINUTE:
            rows.add(key)
            return key
        database, client, verdict, by = key
        for crowd in self._clientele.crowds(database, client):
            wider = (database, crowd, verdict, by)
            if wider in rows or len(rows) < MAX_ROWS_A_MINUTE + MAX_CROWD_ROWS_A_MINUTE:
                rows.add(wider)
                return wider
        return (database, OTHER, verdict, OTHER if by else "")

    def _wait(self, minute: int, key: Key, count: int) -> None:
        slot = (minute, key)
        if slot not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self.dropped_tallies += count
            return
        self._waiting[slot] = self._waiting.get(slot, 0) + count


def _rejected(known: ClientRecord, by: str, wall_s: float) -> None:
    known.rejected += 1
    known.rejected_by = by
    if known.rejected_since is None:
        known.rejected_since = wall_s


def _admitted(known: ClientRecord, told: Counted, last_at: float) -> None:
    known.admitted += told.times
    if told.by:
        known.exempted += told.times
    if known.rejected_since is not None and last_at >= known.rejected_since:
        known.rejected_since = None


def _rejected_times(known: ClientRecord, told: Counted, wall_s: float) -> None:
    known.rejected += told.times
    known.rejected_by = told.by
    if known.rejected_since is None:
        known.rejected_since = wall_s - told.first_s_ago


def _most(counted: tuple[Key, int]) -> int:
    return -counted[1]
