"""What clients said of themselves, in the file: a table of its own, beside audit and history.

Like statements.py: no transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from headgate.core.records import Report
from headgate.stores.entries import to_json

_REPORTS = "SELECT client, origin, wall_s, value_json FROM reports ORDER BY wall_s, client, origin"
_ONE = "SELECT client, origin, wall_s, value_json FROM reports WHERE client = ? AND origin = ?"
_PUT = "INSERT OR REPLACE INTO reports (client, origin, wall_s, value_json) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM reports WHERE client = ? AND origin = ?"


class PutReport:
    def __init__(self, report: Report, forget: Sequence[Report]) -> None:
        self._report = report
        self._touched = [(one.client, one.origin) for one in (report, *forget)]
        self._before: list[Any] = []

    def do(self, connection: sqlite3.Connection) -> None:
        rows = [connection.execute(_ONE, key).fetchone() for key in self._touched]
        self._before = [row for row in rows if row is not None]
        connection.executemany(_DROP, self._touched)
        one = self._report
        row = (one.client, one.origin, one.wall_s, to_json(one.value))
        connection.execute(_PUT, row)

    def take_back(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_DROP, self._touched)
        connection.executemany(_PUT, self._before)


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
