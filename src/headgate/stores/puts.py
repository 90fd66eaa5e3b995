"""What operators set, in the file: metrics and records, each put with its audit entry.

Like statements.py: no transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from headgate.core.records import AuditEntry, MetricChange, Record
from headgate.stores.entries import (
    MAX_RECORDS,
    Standing,
    change_of,
    check_record_replaces,
    check_replaces,
    check_stands,
    record_of,
    standing_of,
    to_json,
    too_many_records,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Table:
    """One that keeps the newest of each key; every statement takes the key first."""

    standing: str
    put: str
    drop: str


@dataclass(frozen=True, slots=True)
class _Row:
    table: _Table
    key: tuple[str, str]

    def standing(self, connection: sqlite3.Connection) -> Standing | None:
        row = connection.execute(self.table.standing, self.key).fetchone()
        return None if row is None else Standing(*row)

    def replace(self, connection: sqlite3.Connection, by: Standing | None) -> None:
        if by is None:
            connection.execute(self.table.drop, self.key)
        else:
            row = (*self.key, by.raw_json, by.revision, by.wall_s, by.who, by.action)
            connection.execute(self.table.put, row)


class _Put(ABC, Generic[T]):
    """Replace one row and add to the audit; the id of the entry is the new revision."""

    sets_state = True
    """What is in force is another after it."""

    def __init__(self, row: _Row, raw: Mapping[str, Any] | None, audit: AuditEntry) -> None:
        self._row = row
        self._raw = raw
        self._audit = audit
        self._before: Standing | None = None
        self._revision = 0

    def do(self, connection: sqlite3.Connection) -> T:
        self._before = self._row.standing(connection)
        self._check(connection, self._before)
        self._revision = add_audit(connection, self._audit)
        standing = standing_of(self._raw, self._audit, self._revision)
        self._row.replace(connection, standing)
        return self._kept(standing)

    def take_back(self, connection: sqlite3.Connection) -> None:
        standing = self._row.standing(connection)
        # Another file may have been put in place since: only what we wrote is ours to undo.
        if standing is not None and standing.revision == self._revision:
            self._row.replace(connection, self._before)
            connection.execute("DELETE FROM audit WHERE id = ?", (self._revision,))

    @abstractmethod
    def _check(self, connection: sqlite3.Connection, before: Standing | None) -> None:
        """Raise if it may not replace `before`."""

    @abstractmethod
    def _kept(self, standing: Standing) -> T: ...


# --- metrics -------------------------------------------------------------------------------

_METRIC_CHANGES = """
    SELECT database, metric, raw_json, revision FROM metric_changes ORDER BY revision
"""
_METRICS = _Table(
    standing="""
        SELECT raw_json, revision, wall_s, who, action FROM metric_changes
        WHERE database = ? AND metric = ?
    """,
    put="INSERT OR REPLACE INTO metric_changes VALUES (?, ?, ?, ?, ?, ?, ?)",
    drop="DELETE FROM metric_changes WHERE database = ? AND metric = ?",
)


class PutMetric(_Put[MetricChange]):
    def __init__(self, change: MetricChange, audit: AuditEntry) -> None:
        super().__init__(_Row(_METRICS, (change.database, change.metric)), change.raw, audit)
        self._change = change

    def _check(self, connection: sqlite3.Connection, before: Standing | None) -> None:
        (kept,) = connection.execute("SELECT count(*) FROM metric_changes").fetchone()
        check_replaces(self._change, before, kept=kept)

    def _kept(self, standing: Standing) -> MetricChange:
        return change_of(*self._row.key, standing.raw_json, standing.revision)


def read_metric_changes(connection: sqlite3.Connection) -> list[MetricChange]:
    return [change_of(*row) for row in connection.execute(_METRIC_CHANGES)]


# --- records -------------------------------------------------------------------------------

_RECORDS = _Table(
    standing="""
        SELECT value_json, revision, wall_s, who, action FROM records
        WHERE kind = ? AND key = ?
    """,
    put="""
        INSERT OR REPLACE INTO records (kind, key, value_json, revision, wall_s, who, action)
        VALUES (?, ?, ?, ?, ?, ?, ?)
    """,
    drop="DELETE FROM records WHERE kind = ? AND key = ?",
)
_RECORDS_OF_KIND = """
    SELECT kind, key, value_json, revision FROM records
    WHERE kind = ? AND value_json IS NOT NULL ORDER BY key
"""
_DROP_OLDEST_REMOVED = """
    DELETE FROM records
    WHERE revision = (SELECT min(revision) FROM records WHERE kind = ? AND value_json IS NULL)
"""


class PutRecord(_Put[Record]):
    def __init__(self, record: Record, audit: AuditEntry) -> None:
        super().__init__(_Row(_RECORDS, (record.kind, record.key)), record.value, audit)
        self._record = record

    def _check(self, connection: sqlite3.Connection, before: Standing | None) -> None:
        check_record_replaces(self._record, before)
        if before is None:
            self._make_room(connection)

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """What is dropped for it is not brought back by `take_back`: it was not listed."""
        kind = (self._record.kind,)
        (kept,) = connection.execute("SELECT count(*) FROM records WHERE kind = ?", kind).fetchone()
        if kept >= MAX_RECORDS and not connection.execute(_DROP_OLDEST_REMOVED, kind).rowcount:
            raise too_many_records(self._record)

    def _kept(self, standing: Standing) -> Record:
        return record_of(*self._row.key, standing.raw_json, standing.revision)


class PutRecords:
    """Several, in one transaction."""

    sets_state = True

    def __init__(self, puts: Sequence[tuple[Record, AuditEntry]]) -> None:
        self._puts = [PutRecord(record, audit) for record, audit in puts]

    def do(self, connection: sqlite3.Connection) -> list[Record]:
        return [put.do(connection) for put in self._puts]

    def take_back(self, connection: sqlite3.Connection) -> None:
        for put in reversed(self._puts):
            put.take_back(connection)


class NoteRecord:
    """A new value under the revision that stands: no operator's change, and not audited. Its copy
    may wait: it is noted every few seconds."""

    def __init__(self, record: Record) -> None:
        self._row = _Row(_RECORDS, (record.kind, record.key))
        self._record = record
        self._before: Standing | None = None

    def do(self, connection: sqlite3.Connection) -> None:
        self._before = check_stands(self._record, self._row.standing(connection))
        new = replace(self._before, raw_json=to_json(self._record.value))
        self._row.replace(connection, new)

    def take_back(self, connection: sqlite3.Connection) -> None:
        standing = self._row.standing(connection)
        if standing is not None and standing.revision == self._record.revision:
            self._row.replace(connection, self._before)


def read_records(connection: sqlite3.Connection, kind: str) -> list[Record]:
    return [record_of(*row) for row in connection.execute(_RECORDS_OF_KIND, (kind,))]


# --- audit ---------------------------------------------------------------------------------

_ADD_AUDIT = """
    INSERT INTO audit (wall_s, who, action, target, before_json, after_json)
    VALUES (?, ?, ?, ?, ?, ?)
"""
_AUDIT = """
    SELECT wall_s, who, action, target, before_json, after_json, id FROM audit
    ORDER BY id DESC LIMIT ?
"""


def read_audit(connection: sqlite3.Connection, limit: int) -> list[AuditEntry]:
    # max: to SQLite a negative limit is none at all.
    return [_entry_of(row) for row in connection.execute(_AUDIT, (max(0, limit),))]


class AddAudit:
    """An entry of its own, of what changes no row."""

    sets_state = True

    def __init__(self, entry: AuditEntry) -> None:
        self._entry = entry
        self._id = 0

    def do(self, connection: sqlite3.Connection) -> None:
        self._id = add_audit(connection, self._entry)

    def take_back(self, connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM audit WHERE id = ?", (self._id,))


def add_audit(connection: sqlite3.Connection, entry: AuditEntry) -> int:
    before_json, after_json = to_json(entry.before), to_json(entry.after)
    row = (entry.wall_s, entry.who, entry.action, entry.target, before_json, after_json)
    return int(connection.execute(_ADD_AUDIT, row).lastrowid or 0)


def _entry_of(row: Sequence[Any]) -> AuditEntry:
    wall_s, who, action, target, before_json, after_json, entry_id = row
    before, after = json.loads(before_json), json.loads(after_json)
    return AuditEntry(wall_s, who, action, target, before, after, entry_id)
