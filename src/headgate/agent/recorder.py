"""Count every decision, exactly, in bounded memory.   Checker ──► Recorder ──flush──► Store

The hot path does two dictionary updates. Counts move to the store about once a second; when
it is away they wait here, added up by minute, for as long as they fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from headgate.core.decision import Decision, State, Verdict
from headgate.core.records import Tally

OTHER = "other"
UNKNOWN_DATABASE = "(unknown)"
MAX_WAITING = 100_000
MAX_RECENT = 512
DETAIL_INTERVAL_S = 1.0
CLIENT_KEPT_S = 24 * 3600.0

_OK = Verdict.OK
Key = tuple[str, str, Verdict, str]
"""(database, client, verdict, deciding metric or rule)"""


class ClientRecord:
    """One client on one database, as it was last seen."""

    __slots__ = (
        "admitted",
        "admitted_told",
        "detailed_at",
        "last_at",
        "last_verdict",
        "refused",
        "refused_by",
        "refused_since",
    )

    def __init__(self) -> None:
        self.admitted = 0
        self.admitted_told = 0
        """How many of them have been rolled over into minutes and totals."""
        self.refused = 0
        self.detailed_at = 0.0
        """When a refusal of it was last kept in full."""
        self.last_at = 0.0
        self.last_verdict = Verdict.OK
        self.refused_since: float | None = None
        self.refused_by = ""


def decided_by(decision: Decision) -> str:
    """The metric (a breached one first) or the rule behind a refusal; empty for an admission."""
    if decision.verdict is Verdict.OK:
        return ""
    failing = decision.failing
    if failing:
        first = next((f for f in failing if f.state is State.BREACHED), failing[0])
        return first.ref.metric if first.spec else OTHER
    return f"rule:{decision.rule.id}" if decision.rule else ""


class Recorder:
    def __init__(self, *, max_clients: int) -> None:
        self._max_clients = max_clients
        self._clients: dict[tuple[str, str], ClientRecord] = {}
        self._refusals: dict[Key, int] = {}
        """Since the last roll-over. Admissions, the common case, are counted in the client's
        own record, and told apart from those rolled over already."""
        self._minute = 0
        self._minute_ends = 0.0
        self._waiting: dict[tuple[int, Key], int] = {}
        self._totals: dict[Key, int] = {}
        self._recent: deque[Decision] = deque(maxlen=MAX_RECENT)
        """Refusals in full (R134), at most one a second of a client: counts are exact, this
        is for reading."""
        self.dropped_tallies = 0

    def record(self, decision: Decision) -> None:
        verdict, wall_s = decision.verdict, decision.at.wall_s
        if wall_s >= self._minute_ends:
            self._roll_over(wall_s)
        database = decision.check.database if decision.health is not None else UNKNOWN_DATABASE
        client = decision.check.identity.text
        known = self._clients.get((database, client))
        if known is None:
            client, known = self._meet(database, client)
        known.last_at, known.last_verdict = wall_s, verdict
        if verdict is _OK:
            known.admitted += 1
            known.refused_since = None
            return
        by = decided_by(decision)
        _refused(known, by, wall_s)
        if abs(wall_s - known.detailed_at) >= DETAIL_INTERVAL_S:
            known.detailed_at = wall_s
            self._recent.append(decision)
        key = (database, client, verdict, by)
        self._refusals[key] = self._refusals.get(key, 0) + 1

    def totals(self) -> dict[Key, int]:
        """Every decision since the start, by what is alike in them."""
        merged = dict(self._totals)
        for key, count in self._untold():
            merged[key] = merged.get(key, 0) + count
        return merged

    def _untold(self) -> Iterator[tuple[Key, int]]:
        """What has been counted since the last roll-over."""
        yield from self._refusals.items()
        for (database, client), record in self._clients.items():
            if record.admitted > record.admitted_told:
                yield (database, client, _OK, ""), record.admitted - record.admitted_told

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

    def _meet(self, database: str, client: str) -> tuple[str, ClientRecord]:
        if len(self._clients) >= self._max_clients:
            client = OTHER  # Made-up names share one record; they cannot push out real ones.
        record = self._clients.get((database, client))
        if record is None:
            record = self._clients[(database, client)] = ClientRecord()
        return client, record

    def _roll_over(self, wall_s: float) -> None:
        for key, count in self._untold():
            self._totals[key] = self._totals.get(key, 0) + count
            self._wait(self._minute, key, count)
        for record in self._clients.values():
            record.admitted_told = record.admitted
        self._refusals.clear()
        self._minute = int(wall_s // 60)
        self._minute_ends = (self._minute + 1) * 60.0

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
