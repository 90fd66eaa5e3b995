"""History in the file: what was decided, by minute and by hour.   statements.py's kind of file

A name or a kind of decision is kept once, and counted under its number. Whatever changes the
minutes changes the hours with them, in the same transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from headgate.history.records import Tally

MINUTES_AN_HOUR = 60

_CLIENT = "SELECT id, last_hour FROM clients WHERE name = ?"
_NEW_CLIENT = "INSERT INTO clients (name, last_hour) VALUES (?, ?)"
_SEEN_CLIENT = "UPDATE clients SET last_hour = ? WHERE id = ?"
_KIND = "SELECT id, last_hour FROM kinds WHERE database = ? AND verdict = ? AND metric = ?"
_NEW_KIND = "INSERT INTO kinds (database, verdict, metric, last_hour) VALUES (?, ?, ?, ?)"
_SEEN_KIND = "UPDATE kinds SET last_hour = ? WHERE id = ?"

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


class _Row(NamedTuple):
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
        self._rows: list[_Row] = []

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


def _numbered(connection: sqlite3.Connection, tallies: Sequence[Tally]) -> list[_Row]:
    hours: dict[str, int] = {}
    kind_hours: dict[tuple[str, str, str], int] = {}
    for t in tallies:
        hour, kind = t.minute // MINUTES_AN_HOUR, (t.database, t.verdict, t.metric)
        hours[t.client] = max(hour, hours.get(t.client, hour))
        kind_hours[kind] = max(hour, kind_hours.get(kind, hour))
    clients = {name: _client(connection, name, hour) for name, hour in hours.items()}
    kinds = {kind: _kind(connection, kind, hour) for kind, hour in kind_hours.items()}
    return [
        _Row(t.minute, kinds[t.database, t.verdict, t.metric], clients[t.client], t.count)
        for t in tallies
    ]


def _client(connection: sqlite3.Connection, name: str, hour: int) -> int:
    found = connection.execute(_CLIENT, (name,)).fetchone()
    if found is None:
        return _id(connection.execute(_NEW_CLIENT, (name, hour)))
    if found[1] < hour:
        connection.execute(_SEEN_CLIENT, (hour, found[0]))
    return int(found[0])


def _kind(connection: sqlite3.Connection, kind: tuple[str, str, str], hour: int) -> int:
    found = connection.execute(_KIND, kind).fetchone()
    if found is None:
        return _id(connection.execute(_NEW_KIND, (*kind, hour)))
    if found[1] < hour:
        connection.execute(_SEEN_KIND, (hour, found[0]))
    return int(found[0])


def _id(inserted: sqlite3.Cursor) -> int:
    return int(inserted.lastrowid or 0)


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
