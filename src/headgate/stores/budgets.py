"""Traffic control in the file: policies as they stood, and violations by the minute.

Like statements.py: no transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from headgate.core.records import AuditEntry, BudgetMinute, PolicyRevision
from headgate.stores.entries import (
    MAX_POLICIES,
    MAX_POLICIES_BYTES,
    check_budget_minutes,
    check_policy,
    check_policy_replaces,
)
from headgate.stores.minutes import FORGET_BATCH_ROWS
from headgate.stores.puts import add_audit

VERSION_BEFORE_POLICIES = 4

# --- policies ------------------------------------------------------------------------------

_Row = tuple[str, int, float, str, str, str, str, str]
_ABOUT = "database, revision, wall_s, who, action, summary"
_NEWEST = f"""
    SELECT {_ABOUT}, '{{}}', '{{}}' FROM policy_revisions
    WHERE database = ? ORDER BY revision DESC LIMIT ?
"""  # noqa: S608 -- constants only
_WHOLE = f"SELECT {_ABOUT}, document_json, changes_json FROM policy_revisions"  # noqa: S608
_ONE = f"{_WHOLE} WHERE database = ? AND revision = ?"
_NEWEST_OF_EACH = "SELECT max(revision) FROM policy_revisions GROUP BY database"
_IN_FORCE = f"{_WHOLE} WHERE revision IN ({_NEWEST_OF_EACH}) ORDER BY database"
_PUT = "INSERT INTO policy_revisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM policy_revisions WHERE revision = ?"
_SIZES = """
    SELECT revision, length(document_json) + length(changes_json) FROM policy_revisions
    WHERE database = ? ORDER BY revision DESC
"""


class PutPolicy:
    sets_state = True

    def __init__(self, new: PolicyRevision, audit: AuditEntry) -> None:
        self._new = new
        self._audit = audit
        self._revision = 0

    def do(self, connection: sqlite3.Connection) -> PolicyRevision:
        new, text = self._new, check_policy(self._new)
        newest = connection.execute(_NEWEST, (new.database, 1)).fetchone()
        check_policy_replaces(new, None if newest is None else _revision_of(newest))
        self._revision = add_audit(connection, self._audit)
        about = (new.wall_s, new.who, new.action, new.summary)
        row = (self._revision, new.database, *about, *text)
        connection.execute(_PUT, row)
        self._make_room(connection)
        document, changes = map(json.loads, text)
        return replace(new, revision=self._revision, document=document, changes=changes)

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """What is dropped for it is not brought back by `take_back`: it was the oldest."""
        kept_bytes = 0
        rows = connection.execute(_SIZES, (self._new.database,)).fetchall()
        for count, (revision, size_bytes) in enumerate(rows, start=1):
            kept_bytes += size_bytes
            if count > 1 and (count > MAX_POLICIES or kept_bytes > MAX_POLICIES_BYTES):
                connection.execute(_DROP, (revision,))

    def take_back(self, connection: sqlite3.Connection) -> None:
        connection.execute(_DROP, (self._revision,))
        connection.execute("DELETE FROM audit WHERE id = ?", (self._revision,))


def read_policies(connection: sqlite3.Connection) -> list[PolicyRevision]:
    return [_revision_of(row) for row in connection.execute(_IN_FORCE)]


def salvageable_policies(connection: sqlite3.Connection) -> list[PolicyRevision]:
    """None in a file from before there were any, which cannot be brought to our version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return [] if version <= VERSION_BEFORE_POLICIES else read_policies(connection)


def read_policy_revisions(
    connection: sqlite3.Connection, database: str, limit: int
) -> list[PolicyRevision]:
    rows = connection.execute(_NEWEST, (database, max(0, limit)))
    return [_revision_of(row) for row in rows]


def read_policy_revision(
    connection: sqlite3.Connection, database: str, revision: int
) -> PolicyRevision | None:
    row = connection.execute(_ONE, (database, revision)).fetchone()
    return None if row is None else _revision_of(row)


def _revision_of(row: _Row) -> PolicyRevision:
    database, revision, wall_s, who, action, summary, document, changes = row
    about = (database, revision, wall_s, who, action, summary)
    return PolicyRevision(*about, json.loads(document), json.loads(changes))


# --- violations ----------------------------------------------------------------------------

_ADD = """
    INSERT INTO budget_minutes VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (minute, database, budget, what, limited)
    DO UPDATE SET count = count + excluded.count
"""
_ALIKE = "minute = ? AND database = ? AND budget = ? AND what = ? AND limited = ?"
_SUBTRACT = f"UPDATE budget_minutes SET count = max(0, count - ?) WHERE {_ALIKE}"  # noqa: S608
_DROP_EMPTY = f"DELETE FROM budget_minutes WHERE {_ALIKE} AND count = 0"  # noqa: S608
_MINUTES = """
    SELECT minute, database, budget, what, limited, count
    FROM budget_minutes WHERE minute BETWEEN ? AND ? {chosen}
    ORDER BY minute DESC, database DESC, budget DESC, what DESC, limited DESC LIMIT ?
"""
_BATCH_ENDS = "SELECT minute FROM budget_minutes WHERE minute < ? ORDER BY minute LIMIT 1 OFFSET ?"
_FORGET = "DELETE FROM budget_minutes WHERE minute <= ?"


class AddBudgetMinutes:
    def __init__(self, minutes: Sequence[BudgetMinute]) -> None:
        check_budget_minutes(minutes)
        self._rows = [((m.minute, m.database, m.budget, m.what, m.limit), m.count) for m in minutes]

    def do(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_ADD, ((*key, count) for key, count in self._rows))

    def take_back(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_SUBTRACT, ((count, *key) for key, count in self._rows))
        connection.executemany(_DROP_EMPTY, (key for key, _ in self._rows))


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
    rows = connection.execute(_MINUTES.format(chosen=chosen), (*span, *parameters, max(0, limit)))
    return [BudgetMinute(*row) for row in rows][::-1]


def forget_budget_minutes(connection: sqlite3.Connection, before_minute: int) -> int:
    """The oldest of what is older; how many rows went."""
    batch_end = connection.execute(_BATCH_ENDS, (before_minute, FORGET_BATCH_ROWS)).fetchone()
    last_minute = batch_end[0] if batch_end else before_minute - 1
    return connection.execute(_FORGET, (last_minute,)).rowcount
