"""History in the file: metrics by the minute, and tallies summed up by level and time.

Like statements.py: no transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headgate.core.records import MetricMinute, Tally

FORGET_BATCH_ROWS = 5000

_COLUMNS = "minute, database, metric, looks, absent, breached, total, low, high, threshold"
_PUT = "INSERT OR REPLACE INTO metric_minutes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE = f"""
    SELECT {_COLUMNS} FROM metric_minutes WHERE minute = ? AND database = ? AND metric = ?
"""  # noqa: S608 -- constants only
_DROP = "DELETE FROM metric_minutes WHERE minute = ? AND database = ? AND metric = ?"
_SPAN = f"""
    SELECT {_COLUMNS} FROM metric_minutes WHERE minute BETWEEN ? AND ?
    ORDER BY minute DESC, database DESC, metric DESC LIMIT ?
"""  # noqa: S608 -- constants only
_BATCH_ENDS = "SELECT minute FROM metric_minutes WHERE minute < ? ORDER BY minute LIMIT 1 OFFSET ?"
_FORGET = "DELETE FROM metric_minutes WHERE minute <= ?"

# A level is found in a client's name by its colons; what is asked for is always a parameter.
_HAS_LEVEL = "AND instr(':' || client || ':', ':' || ? || ':') > 0"
_SUMS = """
    SELECT minute - (minute - ?) % ? AS start, database, {client} AS who, verdict, metric,
           sum(count)
    FROM tallies WHERE minute BETWEEN ? AND ? {tokens}
    GROUP BY start, database, who, verdict, metric
    ORDER BY start DESC, database DESC, who DESC, verdict DESC, metric DESC LIMIT ?
"""

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


def read_metric_minutes(
    connection: sqlite3.Connection, since_minute: int, until_minute: int, limit: int
) -> list[MetricMinute]:
    rows = connection.execute(_SPAN, (since_minute, until_minute, max(0, limit)))
    return [MetricMinute(*row) for row in rows][::-1]


def read_sums(
    connection: sqlite3.Connection,
    tokens: Sequence[str],
    since_minute: int,
    until_minute: int,
    step_minutes: int,
    by_client: bool,
    limit: int,
) -> list[Tally]:
    query = _SUMS.format(
        client="client" if by_client else "''", tokens=" ".join(_HAS_LEVEL for _ in tokens)
    )
    span = (since_minute, step_minutes, since_minute, until_minute)
    rows = connection.execute(query, (*span, *tokens, max(0, limit)))
    return [Tally(*row) for row in rows][::-1]
