"""Count every decision, exactly, in bounded memory.   Checker ──► Recorder ──flush──► Store

The hot path does two dictionary updates. Counts move to the store about once a second. While the
store is away they wait here, added up by minute, as long as they fit. Observers of the counts
(watch.py) are called at the same pace, off the hot path.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import Any

from headgate.base.names import OTHER, MetricRef, Scope, crowds_of
from headgate.check.health import Health
from headgate.check.model import Check, Decision, State, Verdict
from headgate.check.snapshot import Counted
from headgate.history.records import Tally
from headgate.metrics.samples import Instant

# --- clients -------------------------------------------------------------------------------
# Which clients have a record of their own, in bounded memory.   Recorder ──a new name──► Clientele
#
# A client may make up a name for each of its jobs. While there is room, every name has a record.
# After that, a name that checks again replaces one that has not checked for a while; the rest are
# counted in groups (base/names.py). So names that are used once replace nobody, and a client that
# keeps checking is shown by name.

IDLE_S = 60.0
"""A client that has not checked for this long gives its place to another one."""
CROWDS_PER_CLIENT, MIN_CROWDS = 0.25, 8
"""Room for groups, besides the room for clients: groups share few levels."""
MAX_IDLE = 256
"""How many idle clients to look for at a time."""
MAX_MET = 4096
"""Names without a record that may check again."""
MAX_TOKENS = 4096
"""Levels of recent new names. Levels of clients with a record are known anyway."""

Place = tuple[str, str]
"""(database, client)"""


class ClientRecord:
    """One client on one database, as it was last seen."""

    __slots__ = (
        "admitted",
        "admitted_told",
        "check",
        "checks",
        "detailed_at",
        "exempted",
        "last_at",
        "last_verdict",
        "rejected",
        "rejected_by",
        "rejected_since",
    )

    def __init__(self, check: Check, *, checks: bool) -> None:
        self.check = check
        """Its last health: which metrics apply to the client."""
        self.checks = checks
        """False: only its statements were counted, where the server decides about them."""
        self.admitted = 0
        self.admitted_told = 0
        """How many of them were already added to minutes and totals."""
        self.exempted = 0
        """Those that a metric would have rejected; counted by rule."""
        self.rejected = 0
        self.detailed_at = 0.0
        """When one of its rejections was last stored in full."""
        self.last_at = 0.0
        self.last_verdict = Verdict.OK
        self.rejected_since: float | None = None
        self.rejected_by = ""

    @property
    def asked(self) -> int:
        return self.admitted + self.rejected

    def take_over(self, gone: ClientRecord) -> None:
        """Add what another record counted; all of that was reported already."""
        self.admitted += gone.admitted
        self.admitted_told += gone.admitted_told
        self.exempted += gone.exempted
        self.rejected += gone.rejected
        self.checks |= gone.checks
        self.last_at = max(self.last_at, gone.last_at)


Leaves = Callable[[Place, ClientRecord], None]
"""Called with the client that has lost its place."""


class Clientele:
    def __init__(self, max_clients: int, leaves: Leaves) -> None:
        self.records: dict[Place, ClientRecord] = {}
        """Read directly on the hot path."""
        self._max_clients = max_clients
        self._max_crowds = max(MIN_CROWDS, int(CROWDS_PER_CLIENT * max_clients))
        self._leaves = leaves
        self._crowds: set[Place] = set()
        """Keys that are groups, not clients; without `other`, which always has a place."""
        self._others = 0
        self._idle: dict[bool, deque[tuple[Place, int]]] = {True: deque(), False: deque()}
        """Groups and clients that may have to go, longest idle first, with their number of checks
        at that time."""
        self._lacking: set[bool] = set()
        self._met: OrderedDict[Place, None] = OrderedDict()
        self._tokens: OrderedDict[Place, tuple[str, bool]] = OrderedDict()
        """(database, level) → the last name that had it, and whether other names had it."""
        self._joined: dict[Place, tuple[str, ClientRecord]] = {}
        """(database, all levels but the first) → their group, while there is no room."""

    def meet(self, database: str, check: Check, *, checks: bool) -> tuple[str, ClientRecord]:
        """What a client without a record is counted under from now on, or this time."""
        client = check.identity.text
        first, _, rest = client.partition(":")
        joined = self._joined.get((database, rest))
        if joined is not None and checks and self._is_news(database, client, first):
            return joined
        if checks:
            for token in check.identity.tokens:
                self._note(database, token, client)
        record = self._place((database, client), check, is_crowd=False, checks=checks)
        if record is not None:
            return client, record
        joined = self._join(database, client, check, checks=checks)
        if joined[0] == f"{OTHER}:{rest}":
            self._joined[database, rest] = joined
        return joined

    def _is_news(self, database: str, client: str, first: str) -> bool:
        """A name that is used for the first time, as are its most specific level and, in a
        flood of such names, nearly all: noted, and no more."""
        place, token = (database, client), (database, first)
        if place in self._met or token in self._tokens:
            return False
        self._met[place] = None
        self._tokens[token] = (client, False)
        _bound(self._met, MAX_MET)
        _bound(self._tokens, MAX_TOKENS)
        return True

    def crowds(self, database: str, client: str) -> Iterator[str]:
        return crowds_of(client, lambda token: self._tokens.get((database, token), ("", False))[1])

    def tokens(self, database: str) -> set[str]:
        """Every level of every client that checked recently, with a record or without."""
        found = {token for place, token in self._tokens if place == database}
        for (place, client), record in self.records.items():
            if place == database and record.checks:
                found.update(client.split(":"))
        return found - {OTHER}

    def look_for_idle(self, wall_s: float) -> None:
        """About once a second, after all counts were reported; only if a client needs a place and
        found none."""
        self._joined.clear()
        for is_crowd in self._lacking:
            silent = (
                (record.last_at, place, record.asked)
                for place, record in self.records.items()
                if record.last_at <= wall_s - IDLE_S
                and (place in self._crowds) is is_crowd
                and place[1] != OTHER
            )
            oldest = nsmallest(MAX_IDLE, silent)
            self._idle[is_crowd] = deque((place, asked) for _, place, asked in oldest)
        self._lacking.clear()

    def forget_before(self, wall_s: float) -> None:
        for place in [p for p, record in self.records.items() if record.last_at < wall_s]:
            self._leaves(place, self._remove(place))

    # --- room ------------------------------------------------------------------------------

    def _join(
        self, database: str, client: str, check: Check, *, checks: bool
    ) -> tuple[str, ClientRecord]:
        for crowd in self.crowds(database, client):
            place = (database, crowd)
            record = self.records.get(place)
            record = record or self._place(place, check, is_crowd=True, checks=checks)
            if record is not None:
                return crowd, record
        raise AssertionError("the last group always has a place")

    def _place(
        self, place: Place, check: Check, *, is_crowd: bool, checks: bool
    ) -> ClientRecord | None:
        if place[1] == OTHER:
            self._others += 1
        elif self._is_full(is_crowd=is_crowd) and not self._makes_room(place, is_crowd=is_crowd):
            return None
        elif is_crowd:
            self._crowds.add(place)
        record = self.records[place] = ClientRecord(check, checks=checks)
        return record

    def _is_full(self, *, is_crowd: bool) -> bool:
        if is_crowd:
            return len(self._crowds) >= self._max_crowds
        return len(self.records) - len(self._crowds) - self._others >= self._max_clients

    def _makes_room(self, place: Place, *, is_crowd: bool) -> bool:
        """Only for a name that checked before: single-use names must not replace others."""
        if place not in self._met:
            self._met[place] = None
            _bound(self._met, MAX_MET)
            return False
        self._met.move_to_end(place)
        idle = self._idle[is_crowd]
        while idle:
            old, asked = idle.popleft()
            record = self.records.get(old)
            if record is None or record.asked != asked:
                continue
            self._gives_way(old)
            if not self._is_full(is_crowd=is_crowd):  # A wider crowd may have had the place.
                self._met.pop(place, None)
                return True
        self._lacking.add(is_crowd)
        return False

    def _gives_way(self, place: Place) -> None:
        """Its counts go to its like, so that what is shown of a level stays whole."""
        gone = self._remove(place)
        _, crowd = self._join(*place, gone.check, checks=gone.checks)
        crowd.take_over(gone)
        self._leaves(place, gone)

    def _remove(self, place: Place) -> ClientRecord:
        self._joined.clear()
        self._crowds.discard(place)
        self._others -= place[1] == OTHER
        return self.records.pop(place)

    # --- levels ----------------------------------------------------------------------------

    def _note(self, database: str, token: str, client: str) -> None:
        known = self._tokens.get((database, token))
        shared = known is not None and (known[1] or known[0] != client)
        self._tokens[database, token] = (client, shared)
        self._tokens.move_to_end((database, token))
        _bound(self._tokens, MAX_TOKENS)


def _bound(noted: OrderedDict[Place, Any], most: int) -> None:
    if len(noted) > most:
        noted.popitem(last=False)


# --- decisions -----------------------------------------------------------------------------

RULE = "rule:"
BUDGET = "budget:"
UNKNOWN_DATABASE = "(unknown)"
MAX_WAITING = 100_000
MAX_RECENT = 512
MAX_REASONS = 64
"""Per client, each counted separately: rules and budgets beyond it are counted together."""
MAX_ROWS_A_MINUTE = 2000
"""Rows of history: with 14 days of history at most 50 million. Further rows are counted in groups
(base/names.py), so that sums stay exact, also those by level."""
MAX_CROWD_ROWS_A_MINUTE = 500
"""Rows for groups, in addition; then `other`."""
DETAIL_INTERVAL_S = 1.0
CLIENT_KEPT_S = 24 * 3600.0
LATE_MINUTES = 15
"""How old a client's local decision may be to be counted in the minute when it was made."""

# Bound once: looking up a member of an enum is a call.
_OK, _BREACHED, _SHARD = Verdict.OK, State.BREACHED, Scope.SHARD
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
        first = failing[0]
        if first.state is not _BREACHED:
            first = next((f for f in failing if f.state is _BREACHED), first)
        return named(first.ref) if first.spec else OTHER
    if decision.verdict is Verdict.OVER_BUDGET:
        return f"{BUDGET}{decision.check.budget}"
    return f"{RULE}{decision.rule.id}" if decision.rule else ""


def named(ref: MetricRef) -> str:
    """As history calls it: the shard's value is another one than the host's."""
    return f"{_SHARD.value}/{ref.metric}" if ref.scope is _SHARD else ref.metric


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
        self.without_value: Counter[tuple[str, str]] = Counter()
        """By database and metric: checks admitted although the metric had no value."""
        self.in_full: deque[Decision] = deque(maxlen=MAX_RECENT)
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
        verdict, check = decision.verdict, decision.check
        by = "" if verdict is _OK and not decision.exempted else decided_by(decision)
        database = check.database if decision.health is not None else UNKNOWN_DATABASE
        if self.count(check, database, verdict, by, decision.at.wall_s):
            self.in_full.append(decision)

    def count(self, check: Check, database: str, verdict: Verdict, by: str, wall_s: float) -> bool:
        """One decision; `by`: see decided_by. Returns whether it is to be kept in full, too."""
        if wall_s >= self._minute_ends:
            self.roll_over(wall_s)
        client = check.identity.text
        known = self._clients.get((database, client))
        if known is None:
            client, known = self._clientele.meet(database, check, checks=True)
        known.last_at, known.last_verdict, known.check = wall_s, verdict, check
        known.checks = True
        in_full = False
        if verdict is _OK:
            known.admitted += 1
            known.rejected_since = None
            if not by:
                return False
            known.exempted += 1
        else:
            _reject(known, by, 1, wall_s)
            if abs(wall_s - known.detailed_at) >= DETAIL_INTERVAL_S:
                known.detailed_at = wall_s
                in_full = True
        key = (database, client, verdict, by)
        self._counted[key] = self._counted.get(key, 0) + 1
        return in_full

    def merge(
        self, told: Counted, health: Health | None, now: Instant, *, checks: bool = True
    ) -> None:
        """Decisions made elsewhere, in the minute in which they were made: by a client locally;
        or by a server about statements, whose client never `checks` by that."""
        if now.wall_s >= self._minute_ends:
            self.roll_over(now.wall_s)
        check, verdict, times = told.check, told.verdict, told.times
        database = check.database if health is not None else UNKNOWN_DATABASE
        client = check.identity.text
        known = self._clients.get((database, client))
        if known is None:
            client, known = self._clientele.meet(database, check, checks=checks)
        known.checks |= checks
        last_at = now.wall_s - told.last_s_ago
        if last_at >= known.last_at:
            known.last_at, known.last_verdict, known.check = last_at, verdict, check
        if verdict is _OK:
            _admitted(known, told, last_at)
        else:
            _reject(known, told.by, times, now.wall_s - told.first_s_ago)
            if abs(now.wall_s - known.detailed_at) >= DETAIL_INTERVAL_S:
                known.detailed_at = now.wall_s
                # In full, as far as the client reported it, in the client's words.
                note = told.reason.removeprefix(f"{check.database}: ")
                self.in_full.append(Decision(verdict, check, now, health, note=note))
        key, minute = (database, client, verdict, told.by), int(last_at // 60)
        if minute < self._minute:
            self._count_late(max(minute, self._minute - LATE_MINUTES), key, times, known)
        elif verdict is not _OK or told.by:
            self._counted[key] = self._counted.get(key, 0) + times

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
        return list(reversed(self.in_full))

    def drain(self, wall_s: float) -> list[Tally]:
        """What the store has not got yet. Give it back with `restore` if it cannot be kept."""
        self.roll_over(wall_s)
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
        """Make room."""
        self.roll_over(wall_s)
        self._clientele.forget_before(wall_s - CLIENT_KEPT_S)

    def _has_left(self, place: Place, _record: ClientRecord) -> None:
        for (verdict, _), count in self._totals.pop(place, {}).items():
            gone = (place[0], verdict)
            self.forgotten[gone] = self.forgotten.get(gone, 0) + count

    def roll_over(self, wall_s: float) -> None:
        """Add up what was counted, and call the observers."""
        counted = list(self._untold())
        if len(self._rows) + len(counted) > MAX_ROWS_A_MINUTE:
            # There may not be a row for each: the largest have theirs.
            counted.sort(key=lambda one: -one[1])
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


def _reject(known: ClientRecord, by: str, times: int, since_s: float) -> None:
    known.rejected += times
    known.rejected_by = by
    if known.rejected_since is None:
        known.rejected_since = since_s


def _admitted(known: ClientRecord, told: Counted, last_at: float) -> None:
    known.admitted += told.times
    if told.by:
        known.exempted += told.times
    if known.rejected_since is not None and last_at >= known.rejected_since:
        known.rejected_since = None
