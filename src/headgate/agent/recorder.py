"""Count every decision, exactly, in bounded memory.   Checker ──► Recorder ──flush──► Store

The hot path does two dictionary updates. Counts move to the store about once a second; when
it is away they wait here, added up by minute, for as long as they fit. Who wants to know what
was counted (watch.py) is told at the same pace, off the hot path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from headgate.core.decision import Check, Decision, State, Verdict
from headgate.core.names import MetricRef, Scope
from headgate.core.records import Tally

OTHER = "other"
RULE = "rule:"
UNKNOWN_DATABASE = "(unknown)"
MAX_WAITING = 100_000
MAX_RECENT = 512
MAX_ROWS_A_MINUTE = 2000
"""Rows of history: with 14 days of history at most 40 million. What would be one more is
counted under `other`, so that sums stay exact."""
DETAIL_INTERVAL_S = 1.0
CLIENT_KEPT_S = 24 * 3600.0

_OK = Verdict.OK
Key = tuple[str, str, Verdict, str]
"""(database, client, verdict, deciding metric or rule)"""
Watcher = Callable[[list[tuple[Key, int]]], None]
"""Told what was counted since it was last told."""


class ClientRecord:
    """One client on one database, as it was last seen."""

    __slots__ = (
        "admitted",
        "admitted_told",
        "check",
        "detailed_at",
        "exempted",
        "last_at",
        "last_verdict",
        "refused",
        "refused_by",
        "refused_since",
    )

    def __init__(self, check: Check) -> None:
        self.check = check
        """Its last one: what it is judged by."""
        self.admitted = 0
        self.admitted_told = 0
        """How many of them have been rolled over into minutes and totals."""
        self.exempted = 0
        """Those of them that a metric would have refused; counted by rule."""
        self.refused = 0
        self.detailed_at = 0.0
        """When a refusal of it was last kept in full."""
        self.last_at = 0.0
        self.last_verdict = Verdict.OK
        self.refused_since: float | None = None
        self.refused_by = ""


def decided_by(decision: Decision) -> str:
    """The metric (a breached one first) or the rule behind it; of an admission, the exemption
    without which it would have been none, else empty."""
    if decision.verdict is _OK:
        exempt = decision.applied.exempt
        return f"{RULE}{exempt.id}" if decision.waived and exempt else ""
    failing = decision.failing
    if failing:
        first = next((f for f in failing if f.state is State.BREACHED), failing[0])
        return named(first.ref) if first.spec else OTHER
    return f"{RULE}{decision.rule.id}" if decision.rule else ""


def named(ref: MetricRef) -> str:
    """As history calls it: the shard's value is another one than the host's."""
    return f"{Scope.SHARD.value}/{ref.metric}" if ref.scope is Scope.SHARD else ref.metric


class Recorder:
    def __init__(self, *, max_clients: int) -> None:
        self._max_clients = max_clients
        self._clients: dict[tuple[str, str], ClientRecord] = {}
        self._counted: dict[Key, int] = {}
        """Refusals and exemptions since the last roll-over. Plain admissions, the common case,
        are counted in the client's own record, and told apart from those rolled over already."""
        self._minute = 0
        self._minute_ends = 0.0
        self._waiting: dict[tuple[int, Key], int] = {}
        self._totals: dict[Key, int] = {}
        self._recent: deque[Decision] = deque(maxlen=MAX_RECENT)
        """Refusals in full (R134), at most one a second of a client: counts are exact, this
        is for reading."""
        self.dropped_tallies = 0
        self._rows: set[Key] = set()
        """What the present minute is kept under."""
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
            client, known = self._meet(database, client, decision.check)
        known.last_at, known.last_verdict, known.check = wall_s, verdict, decision.check
        if verdict is _OK:
            known.admitted += 1
            known.refused_since = None
            if decision.waived:
                self._count_exempted(known, (database, client, verdict, decided_by(decision)))
            return
        by = decided_by(decision)
        _refused(known, by, wall_s)
        if abs(wall_s - known.detailed_at) >= DETAIL_INTERVAL_S:
            known.detailed_at = wall_s
            self._recent.append(decision)
        key = (database, client, verdict, by)
        self._counted[key] = self._counted.get(key, 0) + 1

    def _count_exempted(self, known: ClientRecord, key: Key) -> None:
        known.exempted += 1
        self._counted[key] = self._counted.get(key, 0) + 1

    def totals(self) -> dict[Key, int]:
        """Every decision since the start, by what is alike in them."""
        merged = dict(self._totals)
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
        """Have the watchers told now, and not when the next second is over."""
        self._roll_over(wall_s)

    def restore(self, tallies: list[Tally]) -> None:
        for t in tallies:
            key = (t.database, t.client, Verdict(t.verdict), t.metric)
            self._wait(t.minute, key, t.count)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def forget_idle(self, wall_s: float) -> None:
        """Make room. A forgotten client's counts go to `other`, so that sums stay exact."""
        self._roll_over(wall_s)
        idle = {k for k, r in self._clients.items() if r.last_at < wall_s - CLIENT_KEPT_S}
        for client in idle:
            del self._clients[client]
        for key in [key for key in self._totals if key[:2] in idle]:
            database, _, verdict, metric = key
            other = (database, OTHER, verdict, metric)
            self._totals[other] = self._totals.get(other, 0) + self._totals.pop(key)

    def _meet(self, database: str, client: str, check: Check) -> tuple[str, ClientRecord]:
        if len(self._clients) >= self._max_clients:
            client = OTHER  # Made-up names share one record; they cannot push out real ones.
        record = self._clients.get((database, client))
        if record is None:
            record = self._clients[(database, client)] = ClientRecord(check)
        return client, record

    def _roll_over(self, wall_s: float) -> None:
        counted = list(self._untold())
        for key, count in counted:
            self._totals[key] = self._totals.get(key, 0) + count
            self._wait(self._minute, self._row(key), count)
        for record in self._clients.values():
            record.admitted_told = record.admitted - record.exempted
        self._counted.clear()
        minute = int(wall_s // 60)
        if minute != self._minute:
            self._rows.clear()
        self._minute = minute
        self._minute_ends = (self._minute + 1) * 60.0
        for watcher in self._watchers:
            watcher(counted)

    def _row(self, key: Key) -> Key:
        if key in self._rows:
            return key
        if len(self._rows) >= MAX_ROWS_A_MINUTE:
            database, _, verdict, by = key
            return (database, OTHER, verdict, OTHER if by else "")
        self._rows.add(key)
        return key

    def _wait(self, minute: int, key: Key, count: int) -> None:
        slot = (minute, key)
        if slot not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self.dropped_tallies += count
            return
        self._waiting[slot] = self._waiting.get(slot, 0) + count


def _refused(known: ClientRecord, by: str, wall_s: float) -> None:
    known.refused += 1
    known.refused_by = by
    if known.refused_since is None:
        known.refused_since = wall_s
