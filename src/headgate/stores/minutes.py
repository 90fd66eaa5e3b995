"""History in the file: metrics by the minute.

Like statements.py: no transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headgate.core.records import MetricMinute

FORGET_BATCH_ROWS = 5000

_COLUMNS = "minute, database, metric, looks, absent, breached, total, low, high, threshold"
_PUT = "INSERT OR REPLACE INTO metric_minutes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE = f"""
    SELECT {_COLUMNS} FROM metric_minutes WHERE minute = ? AND database = ? AND metric = ?
"""  # noqa: S608 -- constants only
_DROP = "DELETE FROM metric_minutes WHERE minute = ? AND database = ? AND metric = ?"
_BATCH_ENDS = "SELECT minute FROM metric_minutes WHERE minute < ? ORDER BY minute LIMIT 1 OFFSET ?"
_FORGET = "DELETE FROM metric_minutes WHERE minute <= ?"

Key = tuple[int, str, str]


class AddMetricMinutes:
    def __init__(self, minutes: Sequence[MetricMinute]) -> None:
        self._minutes = minutes
        self._before: list[tuple[Key, MetricMinute | None]] = []

    def do(self, connection: sqlite3.Connection) -> None:
        self._before = []
        for minute in self._minutes:
            key = (minute.minute, minute.database, minute.metric)
            row = connection.execute(_ONE, key).fetchone()
            before = None if row is None else MetricMinute(*row)
            self._before.append((key, before))
            connection.execute(_PUT, _row(minute if before is None else before.plus(minute)))

    def take_back(self, connection: sqlite3.Connection) -> None:
        for key, before in reversed(self._before):
            if before is None:
                connection.execute(_DROP, key)
            else:
                connection.execute(_PUT, _row(before))


def _row(m: MetricMinute) -> tuple[object, ...]:
    values = (m.looks, m.absent, m.breached, m.total, m.low, m.high, m.threshold)
    return (m.minute, m.database, m.metric, *values)


def forget_minutes(connection: sqlite3.Connection, before_minute: int) -> int:
    """The oldest of what is older; how many rows went."""
    batch_end = connection.execute(_BATCH_ENDS, (before_minute, FORGET_BATCH_ROWS)).fetchone()
    last_minute = batch_end[0] if batch_end else before_minute - 1
    return connection.execute(_FORGET, (last_minute,)).rowcount
