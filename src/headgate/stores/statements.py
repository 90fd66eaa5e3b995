"""What is asked of the file: each write with the way to take it back, each read a function.

No transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from headgate.core.records import AuditEntry, MetricChange, Tally
from headgate.stores.entries import Standing, change_of, check_replaces, standing_of, to_json

T_co = TypeVar("T_co", covariant=True)

FORGET_BATCH_ROWS = 5000


class Write(Protocol[T_co]):
    def do(self, connection: sqlite3.Connection) -> T_co: ...

    def take_back(self, connection: sqlite3.Connection) -> None:
        """Undo `do`, which was the last write before this one."""
        ...


class Touch:
    """Write the file's version over itself: changes nothing, and shows that writing works."""

    def do(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version:d}")

    def take_back(self, connection: sqlite3.Connection) -> None: ...


# --- metrics and audit ---------------------------------------------------------------------

_METRIC_CHANGES = """
    SELECT database, metric, raw_json, revision FROM metric_changes ORDER BY revision
"""
_STANDING = """
    SELECT raw_json, revision, wall_s, who, action FROM metric_changes
    WHERE database = ? AND metric = ?
"""
_PUT_METRIC = "INSERT OR REPLACE INTO metric_changes VALUES (?, ?, ?, ?, ?, ?, ?)"
_DROP_METRIC = "DELETE FROM metric_changes WHERE database = ? AND metric = ?"
_ADD_AUDIT = """
    INSERT INTO audit (wall_s, who, action, target, before_json, after_json)
    VALUES (?, ?, ?, ?, ?, ?)
"""
_AUDIT = """
    SELECT wall_s, who, action, target, before_json, after_json, id FROM audit
    ORDER BY id DESC LIMIT ?
"""


class PutMetric:
    def __init__(self, change: MetricChange, audit: AuditEntry) -> None:
        self._change = change
        self._audit = audit
        self._before: Standing | None = None
        self._revision = 0

    def do(self, connection: sqlite3.Connection) -> MetricChange:
        change = self._change
        self._before = self._standing(connection)
        (kept,) = connection.execute("SELECT count(*) FROM metric_changes").fetchone()
        check_replaces(change, self._before, kept=kept)
        self._revision = _add_audit(connection, self._audit)
        standing = standing_of(change, self._audit, self._revision)
        self._replace(connection, standing)
        return change_of(change.database, change.metric, standing.raw_json, self._revision)

    def take_back(self, connection: sqlite3.Connection) -> None:
        standing = self._standing(connection)
        # Another file may have been put in place since: only what we wrote is ours to undo.
        if standing is not None and standing.revision == self._revision:
            self._replace(connection, self._before)
            connection.execute("DELETE FROM audit WHERE id = ?", (self._revision,))

    def _standing(self, connection: sqlite3.Connection) -> Standing | None:
        key = (self._change.database, self._change.metric)
        row = connection.execute(_STANDING, key).fetchone()
        return None if row is None else Standing(*row)

    def _replace(self, connection: sqlite3.Connection, by: Standing | None) -> None:
        key = (self._change.database, self._change.metric)
        if by is None:
            connection.execute(_DROP_METRIC, key)
        else:
            row = (*key, by.raw_json, by.revision, by.wall_s, by.who, by.action)
            connection.execute(_PUT_METRIC, row)


def read_metric_changes(connection: sqlite3.Connection) -> list[MetricChange]:
    return [change_of(*row) for row in connection.execute(_METRIC_CHANGES)]


def read_audit(connection: sqlite3.Connection, limit: int) -> list[AuditEntry]:
    # max: to SQLite a negative limit is none at all.
    return [_entry_of(row) for row in connection.execute(_AUDIT, (max(0, limit),))]


def _add_audit(connection: sqlite3.Connection, entry: AuditEntry) -> int:
    before_json, after_json = to_json(entry.before), to_json(entry.after)
    row = (entry.wall_s, entry.who, entry.action, entry.target, before_json, after_json)
    return int(connection.execute(_ADD_AUDIT, row).lastrowid or 0)


def _entry_of(row: Sequence[Any]) -> AuditEntry:
    wall_s, who, action, target, before_json, after_json, entry_id = row
    before, after = json.loads(before_json), json.loads(after_json)
    return AuditEntry(wall_s, who, action, target, before, after, entry_id)


# --- tallies -------------------------------------------------------------------------------

_ADD_TALLY = """
    INSERT INTO tallies VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (minute, database, client, verdict, metric)
    DO UPDATE SET count = count + excluded.count
"""
_SUBTRACT_TALLY = """
    UPDATE tallies SET count = max(0, count - ?)
    WHERE minute = ? AND database = ? AND client = ? AND verdict = ? AND metric = ?
"""
_DROP_EMPTY_TALLY = """
    DELETE FROM tallies
    WHERE minute = ? AND database = ? AND client = ? AND verdict = ? AND metric = ? AND count = 0
"""
_TALLIES = """
    SELECT minute, database, client, verdict, metric, count FROM tallies
    WHERE minute BETWEEN ? AND ?
    ORDER BY minute DESC, database DESC, client DESC, verdict DESC, metric DESC LIMIT ?
"""
_BATCH_ENDS = "SELECT minute FROM tallies WHERE minute < ? ORDER BY minute LIMIT 1 OFFSET ?"
_FORGET_AUDIT = """
    DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE wall_s < ? LIMIT ?)
"""


class AddTallies:
    def __init__(self, tallies: Sequence[Tally]) -> None:
        self._alike = [(t.minute, t.database, t.client, t.verdict, t.metric) for t in tallies]
        self._counts = [t.count for t in tallies]

    def do(self, connection: sqlite3.Connection) -> None:
        rows = zip(self._alike, self._counts, strict=True)
        connection.executemany(_ADD_TALLY, ((*alike, count) for alike, count in rows))

    def take_back(self, connection: sqlite3.Connection) -> None:
        rows = zip(self._alike, self._counts, strict=True)
        connection.executemany(_SUBTRACT_TALLY, ((count, *alike) for alike, count in rows))
        connection.executemany(_DROP_EMPTY_TALLY, self._alike)


class ForgetBatch:
    """Drop the oldest of what is older than a minute; done again, it does no harm."""

    def __init__(self, before_minute: int) -> None:
        self._before_minute = before_minute

    def do(self, connection: sqlite3.Connection) -> bool:
        """True if there may be more."""
        before = self._before_minute
        batch_end = connection.execute(_BATCH_ENDS, (before, FORGET_BATCH_ROWS)).fetchone()
        last_minute = batch_end[0] if batch_end else before - 1
        tallies = connection.execute("DELETE FROM tallies WHERE minute <= ?", (last_minute,))
        audit = connection.execute(_FORGET_AUDIT, (before * 60, FORGET_BATCH_ROWS))
        return bool(tallies.rowcount or audit.rowcount)

    def take_back(self, connection: sqlite3.Connection) -> None: ...


def read_tallies(
    connection: sqlite3.Connection, since_minute: int, until_minute: int, limit: int
) -> list[Tally]:
    rows = connection.execute(_TALLIES, (since_minute, until_minute, max(0, limit)))
    return [Tally(*row) for row in rows][::-1]
