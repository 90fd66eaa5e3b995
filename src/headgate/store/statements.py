"""Operations on the file: each write with its undo, each read as a function.

Operators' changes are in locallog.py. No transaction begins or ends here;
sqlite.py does that around them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from headgate.check.model import Verdict
from headgate.history.records import BudgetMinute, CheckedMinute, MetricMinute, Report, Tally
from headgate.store.locallog import check_budget_minutes, to_json

# --- what was decided, by minute and by hour -----------------------------------------------
# A name or a kind of decision is kept once, and counted under its number. Whatever changes the
# minutes changes the hours with them, in the same transaction.

MINUTES_AN_HOUR = 60


class _Numbers(NamedTuple):
    find: str
    add: str
    seen: str


_CLIENTS = _Numbers(
    "SELECT id, last_hour FROM clients WHERE name = ?",
    "INSERT INTO clients (name, last_hour) VALUES (?, ?)",
    "UPDATE clients SET last_hour = ? WHERE id = ?",
)
_KINDS = _Numbers(
    "SELECT id, last_hour FROM kinds WHERE database = ? AND verdict = ? AND metric = ?",
    "INSERT INTO kinds (database, verdict, metric, last_hour) VALUES (?, ?, ?, ?)",
    "UPDATE kinds SET last_hour = ? WHERE id = ?",
)

_ADD = """
    INSERT INTO {table} VALUES (?, ?, ?, ?)
    ON CONFLICT ({unit}, kind, client) DO UPDATE SET count = count + excluded.count
"""
_SUBTRACT = """
    UPDATE {table} SET count = max(0, count - ?) WHERE {unit} = ? AND kind = ? AND client = ?
"""
_DROP_EMPTY = """
    DELETE FROM {table} WHERE {unit} = ? AND kind = ? AND client = ? AND count = 0
"""
_TABLES = (("counts", "minute"), ("hours", "hour"))

_SUM_HOUR = """
    INSERT INTO hours SELECT ?, kind, client, sum(count) FROM counts
    WHERE minute BETWEEN ? AND ? GROUP BY kind, client
"""


class _MinuteRow(NamedTuple):
    minute: int
    kind: int
    client: int
    times: int

    def key(self, unit: str) -> tuple[int, int, int]:
        when = self.minute if unit == "minute" else self.minute // MINUTES_AN_HOUR
        return when, self.kind, self.client


class AddTallies:
    def __init__(self, tallies: Sequence[Tally]) -> None:
        self._tallies = tallies
        self._rows: list[_MinuteRow] = []

    def do(self, connection: sqlite3.Connection) -> None:
        self._rows = _numbered(connection, self._tallies)
        for table, unit in _TABLES:
            rows = ((*row.key(unit), row.times) for row in self._rows)
            connection.executemany(_ADD.format(table=table, unit=unit), rows)

    def take_back(self, connection: sqlite3.Connection) -> None:
        """The counts; a name that nothing is counted under any more does no harm."""
        for table, unit in _TABLES:
            rows = ((row.times, *row.key(unit)) for row in self._rows)
            connection.executemany(_SUBTRACT.format(table=table, unit=unit), rows)
            keys = (row.key(unit) for row in self._rows)
            connection.executemany(_DROP_EMPTY.format(table=table, unit=unit), keys)


def _numbered(connection: sqlite3.Connection, tallies: Sequence[Tally]) -> list[_MinuteRow]:
    hours: dict[str, int] = {}
    kind_hours: dict[tuple[str, str, str], int] = {}
    for t in tallies:
        hour, kind = t.minute // MINUTES_AN_HOUR, (t.database, t.verdict, t.metric)
        hours[t.client] = max(hour, hours.get(t.client, hour))
        kind_hours[kind] = max(hour, kind_hours.get(kind, hour))
    clients = {name: _number(connection, _CLIENTS, (name,), hour) for name, hour in hours.items()}
    kinds = {kind: _number(connection, _KINDS, kind, hour) for kind, hour in kind_hours.items()}
    return [
        _MinuteRow(t.minute, kinds[t.database, t.verdict, t.metric], clients[t.client], t.count)
        for t in tallies
    ]


def _number(
    connection: sqlite3.Connection, table: _Numbers, key: tuple[str, ...], hour: int
) -> int:
    """Under which a name or a kind of decision is counted; a new one gets the next."""
    found = connection.execute(table.find, key).fetchone()
    if found is None:
        return int(connection.execute(table.add, (*key, hour)).lastrowid or 0)
    if found[1] < hour:
        connection.execute(table.seen, (hour, found[0]))
    return int(found[0])


def forget_counts(connection: sqlite3.Connection, last_minute: int) -> int:
    """Up to this minute, included; how many rows of the minutes went."""
    gone = connection.execute("DELETE FROM counts WHERE minute <= ?", (last_minute,)).rowcount
    if not gone:
        return 0
    hour = (last_minute + 1) // MINUTES_AN_HOUR
    first = hour * MINUTES_AN_HOUR
    connection.execute("DELETE FROM hours WHERE hour <= ?", (hour,))
    # The hour in which the cut fell is summed up again from what is left of it.
    connection.execute(_SUM_HOUR, (hour, first, first + MINUTES_AN_HOUR - 1))
    connection.execute("DELETE FROM clients WHERE last_hour < ?", (hour,))
    connection.execute("DELETE FROM kinds WHERE last_hour < ?", (hour,))
    return gone


# --- writes, each with its undo ------------------------------------------------------------


T_co = TypeVar("T_co", covariant=True)

ROOM_BYTES = 16 * 1024
FORGET_BATCH_ROWS = 5000


class Write(Protocol[T_co]):
    def do(self, connection: sqlite3.Connection) -> T_co: ...

    def take_back(self, connection: sqlite3.Connection) -> None:
        """Undo `do`, which was the last write before this one."""
        ...


class Touch:
    """Write a row that is not there afterwards: changes nothing, and shows that writing works, and
    that there is room for it."""

    shows_room = True

    def do(self, connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE room (filler BLOB)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM_BYTES,))
        connection.execute("DROP TABLE room")

    def take_back(self, connection: sqlite3.Connection) -> None: ...


# --- metrics by the minute ---------------------------------------------------------------

_METRIC_COLUMNS = (
    "minute, database, metric, looks, unavailable, breached, total, low, high, threshold"
)
_PUT_METRIC = "INSERT OR REPLACE INTO metric_minutes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE_METRIC = f"""
    SELECT {_METRIC_COLUMNS} FROM metric_minutes WHERE minute = ? AND database = ? AND metric = ?
"""  # noqa: S608 -- constants only
_DROP_METRIC = "DELETE FROM metric_minutes WHERE minute = ? AND database = ? AND metric = ?"

Key = tuple[int, str, str]


class AddMetricMinutes:
    def __init__(self, minutes: Sequence[MetricMinute]) -> None:
        self._minutes = minutes
        self._before: list[tuple[Key, MetricMinute | None]] = []

    def do(self, connection: sqlite3.Connection) -> None:
        self._before = []
        for minute in self._minutes:
            key = (minute.minute, minute.database, minute.metric)
            row = connection.execute(_ONE_METRIC, key).fetchone()
            before = None if row is None else MetricMinute(*row)
            self._before.append((key, before))
            connection.execute(_PUT_METRIC, _row(minute if before is None else before.plus(minute)))

    def take_back(self, connection: sqlite3.Connection) -> None:
        for key, before in reversed(self._before):
            if before is None:
                connection.execute(_DROP_METRIC, key)
            else:
                connection.execute(_PUT_METRIC, _row(before))


def _row(m: MetricMinute) -> tuple[object, ...]:
    values = (m.looks, m.absent, m.breached, m.total, m.low, m.high, m.threshold)
    return (m.minute, m.database, m.metric, *values)


# --- violations of budgets by the minute -------------------------------------------------

_ADD_BUDGET = """
    INSERT INTO budget_minutes VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (minute, database, budget, what, limited)
    DO UPDATE SET count = count + excluded.count
"""
_ALIKE_BUDGET = "minute = ? AND database = ? AND budget = ? AND what = ? AND limited = ?"
_SUBTRACT_BUDGET = f"UPDATE budget_minutes SET count = max(0, count - ?) WHERE {_ALIKE_BUDGET}"  # noqa: S608
_DROP_EMPTY_BUDGET = f"DELETE FROM budget_minutes WHERE {_ALIKE_BUDGET} AND count = 0"  # noqa: S608
_MINUTES_BUDGET = """
    SELECT minute, database, budget, what, limited, count
    FROM budget_minutes WHERE minute BETWEEN ? AND ? {chosen}
    ORDER BY minute DESC, database DESC, budget DESC, what DESC, limited DESC LIMIT ?
"""


class AddBudgetMinutes:
    def __init__(self, minutes: Sequence[BudgetMinute]) -> None:
        check_budget_minutes(minutes)
        self._rows = [((m.minute, m.database, m.budget, m.what, m.limit), m.count) for m in minutes]

    def do(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_ADD_BUDGET, ((*key, count) for key, count in self._rows))

    def take_back(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_SUBTRACT_BUDGET, ((count, *key) for key, count in self._rows))
        connection.executemany(_DROP_EMPTY_BUDGET, (key for key, _ in self._rows))


def read_budget_minutes(
    connection: sqlite3.Connection,
    span: tuple[int, int],
    database: str,
    budget: str,
    limit: int,
) -> list[BudgetMinute]:
    wanted = [("database", database), ("budget", budget)]
    chosen = " ".join(f"AND {name} = ?" for name, value in wanted if value)
    parameters = [value for _, value in wanted if value]
    rows = connection.execute(
        _MINUTES_BUDGET.format(chosen=chosen), (*span, *parameters, max(0, limit))
    )
    return [BudgetMinute(*row) for row in rows][::-1]


# --- what clients said of themselves ---------------------------------------------------------

_REPORTS = "SELECT client, origin, wall_s, value_json FROM reports ORDER BY wall_s, client, origin"
_ONE_REPORT = (
    "SELECT client, origin, wall_s, value_json FROM reports WHERE client = ? AND origin = ?"
)
_PUT_REPORT = (
    "INSERT OR REPLACE INTO reports (client, origin, wall_s, value_json) VALUES (?, ?, ?, ?)"
)
_DROP_REPORT = "DELETE FROM reports WHERE client = ? AND origin = ?"


class PutReport:
    def __init__(self, report: Report, forget: Sequence[Report]) -> None:
        self._report = report
        self._touched = [(one.client, one.origin) for one in (report, *forget)]
        self._before: list[Any] = []

    def do(self, connection: sqlite3.Connection) -> None:
        rows = [connection.execute(_ONE_REPORT, key).fetchone() for key in self._touched]
        self._before = [row for row in rows if row is not None]
        connection.executemany(_DROP_REPORT, self._touched)
        one = self._report
        row = (one.client, one.origin, one.wall_s, to_json(one.value))
        connection.execute(_PUT_REPORT, row)

    def take_back(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_DROP_REPORT, self._touched)
        connection.executemany(_PUT_REPORT, self._before)


class ForgetReports:
    """All of them. Done again, it does no harm."""

    def do(self, connection: sqlite3.Connection) -> int:
        return connection.execute("DELETE FROM reports").rowcount

    def take_back(self, connection: sqlite3.Connection) -> None: ...


def read_reports(connection: sqlite3.Connection) -> list[Report]:
    return [
        Report(client, origin, wall_s, json.loads(value_json))
        for client, origin, wall_s, value_json in connection.execute(_REPORTS)
    ]


# --- history ------------------------------------------------------------------------------

_BATCH_ENDS = "SELECT minute FROM {} WHERE minute < ? ORDER BY minute LIMIT 1 OFFSET ?"
_OLDEST = "SELECT minute FROM counts ORDER BY minute LIMIT 1 OFFSET ?"
_FORGET_AUDIT = """
    DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE wall_s < ? LIMIT ?)
"""


class ForgetBatch:
    """Drop the oldest of what is older than a minute; done again, it does no harm."""

    def __init__(self, before_minute: int) -> None:
        self._before_minute = before_minute

    def do(self, connection: sqlite3.Connection) -> bool:
        """True if there may be more."""
        before = self._before_minute
        counts = forget_counts(connection, _batch_end(connection, "counts", before))
        minutes = [_forget_minutes(connection, table, before) for table in _BY_MINUTE]
        audit = connection.execute(_FORGET_AUDIT, (before * 60, FORGET_BATCH_ROWS))
        return bool(counts or any(minutes) or audit.rowcount)

    def take_back(self, connection: sqlite3.Connection) -> None: ...


_BY_MINUTE = ("metric_minutes", "budget_minutes")
_HISTORY = ("counts", "hours", "clients", "kinds", *_BY_MINUTE)


def _batch_end(connection: sqlite3.Connection, table: str, before_minute: int) -> int:
    """The last minute of the oldest of what is older."""
    found = connection.execute(_BATCH_ENDS.format(table), (before_minute, FORGET_BATCH_ROWS))
    row = found.fetchone()
    return int(row[0]) if row else before_minute - 1


def _forget_minutes(connection: sqlite3.Connection, table: str, before_minute: int) -> int:
    """How many rows went."""
    last = (_batch_end(connection, table, before_minute),)
    return connection.execute(f"DELETE FROM {table} WHERE minute <= ?", last).rowcount  # noqa: S608


class ForgetOldest:
    """Drop the oldest history, however young; for a file that would have no room left for what
    operators set. Done again, it does no harm."""

    def do(self, connection: sqlite3.Connection) -> int | None:
        """From which minute on history is left; None where there is none."""
        row = connection.execute(_OLDEST, (FORGET_BATCH_ROWS,)).fetchone()
        if row is None:
            for table in _HISTORY:
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 -- constants only
            return None
        forget_counts(connection, row[0])
        for table in _BY_MINUTE:
            connection.execute(f"DELETE FROM {table} WHERE minute <= ?", row)  # noqa: S608
        return int(row[0]) + 1

    def take_back(self, connection: sqlite3.Connection) -> None: ...


def used_bytes(connection: sqlite3.Connection) -> int:
    """Of the file: what is in use, without pages that wait to be used again."""
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(size * (pages - free))


# --- query history in the file: sums by level, time and kind.   SqliteStore ──► here -------
# Whole hours are read from the table of hours, the rest at both ends from the minutes. Sums
# of all clients follow the order of the rows, so two weeks are read once and never sorted.


NO_LIMIT = -1
"""As SQLite takes it."""


class HistoryScope(NamedTuple):
    """Whose history, where, and of which minutes (both included)."""

    tokens: tuple[str, ...]
    database: str
    """Empty for all."""
    since_minute: int
    until_minute: int


class _Part(NamedTuple):
    """A stretch of one of the two tables."""

    table: str
    unit: str
    scale: int
    first: int
    last: int


# A level is found in a client's name by its colons; what is asked for is always a parameter.
_HAS_LEVEL = "instr(':' || name || ':', ':' || ? || ':') > 0"
_PART = """
    SELECT {unit} * {scale} AS minute, kind, {client} AS client, {count} AS count
    FROM {table} WHERE {unit} BETWEEN ? AND ? {chosen} {group}
"""
_SUMS = """
    SELECT start, database, coalesce(name, ''), verdict, metric, summed FROM (
        SELECT {start} AS start, kind, client, {count} AS summed FROM ({parts}) {group}
    )
    JOIN kinds ON kinds.id = kind LEFT JOIN clients ON clients.id = client
    ORDER BY {order} LIMIT ?
"""
_OLDEST_LAST = "start DESC, database DESC, name DESC, verdict DESC, metric DESC"
_LEAST_LAST = "summed DESC, database, name, verdict, metric"
_ASKED = """
    SELECT minute, sum(count),
           sum(CASE WHEN kind IN (SELECT id FROM kinds WHERE verdict = ?) THEN 0 ELSE count END)
    FROM counts WHERE minute BETWEEN ? AND ? {chosen} GROUP BY minute
"""
_TALLIES = """
    SELECT minute, database, name, verdict, metric, count
    FROM counts CROSS JOIN kinds ON kinds.id = kind CROSS JOIN clients ON clients.id = client
    WHERE minute BETWEEN ? AND ? {chosen}
    ORDER BY minute DESC, database DESC, name DESC, verdict DESC, metric DESC LIMIT ?
"""
_METRICS = """
    SELECT minute, database, metric, looks, unavailable, breached, total, low, high, threshold
    FROM metric_minutes WHERE minute BETWEEN ? AND ? {chosen}
    ORDER BY minute DESC, database DESC, metric DESC LIMIT ?
"""


def read_tallies(connection: sqlite3.Connection, scope: HistoryScope, limit: int) -> list[Tally]:
    """Newest ones; oldest first."""
    chosen, parameters = _chosen(scope)
    span = (scope.since_minute, scope.until_minute)
    rows = connection.execute(_TALLIES.format(chosen=chosen), (*span, *parameters, max(0, limit)))
    return [Tally(*row) for row in rows][::-1]


def read_sums(
    connection: sqlite3.Connection,
    scope: HistoryScope,
    *,
    step_minutes: int | None,
    by_client: bool,
    limit: int | None,
) -> list[Tally]:
    hourly = step_minutes is None or step_minutes % MINUTES_AN_HOUR == 0
    parts, parameters = _parts(scope, hourly=hourly, by_client=by_client)
    start = str(int(scope.since_minute))
    if step_minutes is not None:
        start = f"minute - minute % {int(step_minutes)}"
    # Minutes by client are rows as they stand: there is nothing to add up.
    single = by_client and step_minutes == 1
    query = _SUMS.format(
        start=start,
        parts=parts,
        count="count" if single else "sum(count)",
        group="" if single else "GROUP BY start, kind, client",
        order=_OLDEST_LAST,
    )
    rows = connection.execute(query, (*parameters, NO_LIMIT if limit is None else max(0, limit)))
    return [Tally(*row) for row in rows][::-1]


def read_client_sums(
    connection: sqlite3.Connection, scope: HistoryScope, limit: int
) -> list[Tally]:
    parts, parameters = _parts(scope, hourly=True, by_client=True)
    query = _SUMS.format(
        start=str(int(scope.since_minute)),
        parts=parts,
        count="sum(count)",
        group="GROUP BY client, kind",
        order=_LEAST_LAST,
    )
    return [Tally(*row) for row in connection.execute(query, (*parameters, max(0, limit)))]


def read_asked(connection: sqlite3.Connection, scope: HistoryScope) -> list[CheckedMinute]:
    chosen, parameters = _chosen(scope)
    span = (Verdict.OK.value, scope.since_minute, scope.until_minute)
    rows = connection.execute(_ASKED.format(chosen=chosen), (*span, *parameters))
    return [CheckedMinute(*row) for row in rows]


def read_metric_minutes(
    connection: sqlite3.Connection, scope: HistoryScope, metric: str, limit: int
) -> list[MetricMinute]:
    wanted = [("database", scope.database), ("metric", metric)]
    chosen = " ".join(f"AND {name} = ?" for name, value in wanted if value)
    parameters = [value for _, value in wanted if value]
    span = (scope.since_minute, scope.until_minute)
    rows = connection.execute(_METRICS.format(chosen=chosen), (*span, *parameters, max(0, limit)))
    return [MetricMinute(*row) for row in rows][::-1]


def _chosen(scope: HistoryScope) -> tuple[str, list[str]]:
    """What rows must have, and its parameters."""
    chosen, parameters = "", list[str]()
    if scope.database:
        chosen += " AND kind IN (SELECT id FROM kinds WHERE database = ?)"
        parameters.append(scope.database)
    if scope.tokens:
        levels = " AND ".join(_HAS_LEVEL for _ in scope.tokens)
        chosen += f" AND client IN (SELECT id FROM clients WHERE {levels})"  # noqa: S608
        parameters += scope.tokens
    return chosen, parameters


def _parts(scope: HistoryScope, *, hourly: bool, by_client: bool) -> tuple[str, list[object]]:
    chosen, wanted = _chosen(scope)
    queries, parameters = [], list[object]()
    for part in _stretches(scope, hourly=hourly):
        query = _PART.format(
            table=part.table,
            unit=part.unit,
            scale=part.scale,
            chosen=chosen,
            client="client" if by_client else "NULL",
            count="count" if by_client else "sum(count)",
            group="" if by_client else f"GROUP BY {part.unit}, kind",
        )
        queries.append(query)
        parameters += [part.first, part.last, *wanted]
    return " UNION ALL ".join(queries), parameters


def _stretches(scope: HistoryScope, *, hourly: bool) -> Iterator[_Part]:
    since, until = scope.since_minute, scope.until_minute
    first, last = -(-since // MINUTES_AN_HOUR), (until + 1) // MINUTES_AN_HOUR - 1
    if not hourly or first > last:
        yield _Part("counts", "minute", 1, since, until)
        return
    yield _Part("hours", "hour", MINUTES_AN_HOUR, first, last)
    for begin, end in ((since, first * MINUTES_AN_HOUR - 1), ((last + 1) * MINUTES_AN_HOUR, until)):
        if begin <= end:
            yield _Part("counts", "minute", 1, begin, end)
