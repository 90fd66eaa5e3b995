"""Operations on the file: each write with its undo, each read as a function.

Operators' changes are in locallog.py, the audit in audit.py. No transaction begins or ends here;
sqlite.py does that around them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from headgate.history.records import BudgetMinute, MetricMinute, Report
from headgate.store.counts import forget_counts
from headgate.store.entries import check_budget_minutes, to_json

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
