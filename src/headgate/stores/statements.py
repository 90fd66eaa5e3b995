"""What is asked of the file: each write with the way to take it back, each read a function.

What operators set is in puts.py. No transaction begins or ends here; sqlite.py does that
around them.
"""

from __future__ import annotations

import sqlite3
from typing import Protocol, TypeVar

from headgate.stores.budgets import forget_budget_minutes
from headgate.stores.counts import forget_counts
from headgate.stores.minutes import FORGET_BATCH_ROWS, forget_minutes

T_co = TypeVar("T_co", covariant=True)


ROOM_BYTES = 16 * 1024


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


# --- history ------------------------------------------------------------------------------

_BATCH_ENDS = "SELECT minute FROM counts WHERE minute < ? ORDER BY minute LIMIT 1 OFFSET ?"
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
        batch_end = connection.execute(_BATCH_ENDS, (before, FORGET_BATCH_ROWS)).fetchone()
        last_minute = batch_end[0] if batch_end else before - 1
        counts = forget_counts(connection, last_minute)
        minutes = forget_minutes(connection, before)
        violations = forget_budget_minutes(connection, before)
        audit = connection.execute(_FORGET_AUDIT, (before * 60, FORGET_BATCH_ROWS))
        return bool(counts or minutes or violations or audit.rowcount)

    def take_back(self, connection: sqlite3.Connection) -> None: ...


_HISTORY = ("counts", "hours", "clients", "kinds", "metric_minutes", "budget_minutes")


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
        connection.execute("DELETE FROM metric_minutes WHERE minute <= ?", row)
        connection.execute("DELETE FROM budget_minutes WHERE minute <= ?", row)
        return int(row[0]) + 1

    def take_back(self, connection: sqlite3.Connection) -> None: ...


def used_bytes(connection: sqlite3.Connection) -> int:
    """Of the file: what is in use, without pages that wait to be used again."""
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(size * (pages - free))
