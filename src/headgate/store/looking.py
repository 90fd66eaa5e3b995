"""Query history in the file: sums by level, time and kind.   SqliteStore ──► here

Whole hours are read from the table of hours, the rest at both ends from the minutes. Sums
of all clients follow the order of the rows, so two weeks are read once and never sorted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from headgate.check.model import Verdict
from headgate.history.records import CheckedMinute, MetricMinute, Tally
from headgate.store.counts import MINUTES_AN_HOUR

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
