"""The audit in the file.

Like statements.py: no transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from headgate.core.records import AuditEntry
from headgate.stores.entries import to_json

_ADD = """
    INSERT INTO audit (wall_s, who, action, target, before_json, after_json)
    VALUES (?, ?, ?, ?, ?, ?)
"""
_READ = """
    SELECT wall_s, who, action, target, before_json, after_json, id FROM audit
    ORDER BY id DESC LIMIT ?
"""
_DROP = "DELETE FROM audit WHERE id = ? AND wall_s = ? AND who = ? AND action = ?"


def read_audit(connection: sqlite3.Connection, limit: int) -> list[AuditEntry]:
    # max: to SQLite a negative limit is none at all.
    return [_entry_of(row) for row in connection.execute(_READ, (max(0, limit),))]


class AddAudit:
    """An entry of its own, of what changes no row."""

    def __init__(self, entry: AuditEntry) -> None:
        self._entry = entry
        self._id = 0

    def do(self, connection: sqlite3.Connection) -> None:
        self._id = add_audit(connection, self._entry)

    def take_back(self, connection: sqlite3.Connection) -> None:
        drop_audit(connection, self._id, self._entry)


def add_audit(connection: sqlite3.Connection, entry: AuditEntry) -> int:
    before_json, after_json = to_json(entry.before), to_json(entry.after)
    row = (entry.wall_s, entry.who, entry.action, entry.target, before_json, after_json)
    return int(connection.execute(_ADD, row).lastrowid or 0)


def drop_audit(connection: sqlite3.Connection, entry_id: int, entry: AuditEntry) -> None:
    """In another file that number may belong to another entry."""
    connection.execute(_DROP, (entry_id, entry.wall_s, entry.who, entry.action))


def _entry_of(row: Sequence[Any]) -> AuditEntry:
    wall_s, who, action, target, before_json, after_json, entry_id = row
    before, after = json.loads(before_json), json.loads(after_json)
    return AuditEntry(wall_s, who, action, target, before, after, entry_id)
