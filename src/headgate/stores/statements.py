"""What is asked of the file: each write with the way to take it back, each read a function.

What operators set is in puts.py. No transaction begins or ends here; sqlite.py does that
around them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Protocol, TypeVar

from headgate.core.records import Tally
from headgate.stores.minutes import FORGET_BATCH_ROWS, forget_minutes

T_co = TypeVar("T_co", covariant=True)


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
_OLDEST = "SELECT minute FROM tallies ORDER BY minute LIMIT 1 OFFSET ?"
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
        minutes = forget_minutes(connection, before)
        audit = connection.execute(_FORGET_AUDIT, (before * 60, FORGET_BATCH_ROWS))
        return bool(tallies.rowcount or minutes or audit.rowcount)

    def take_back(self, connection: sqlite3.Connection) -> None: ...


class ForgetOldest:
    """Drop the oldest history, however young; for a file that would have no room left for what
    operators set. Done again, it does no harm."""

    def do(self, connection: sqlite3.Connection) -> int | None:
        """From which minute on history is left; None where there is none."""
        row = connection.execute(_OLDEST, (FORGET_BATCH_ROWS,)).fetchone()
        if row is None:
            connection.execute("DELETE FROM tallies")
            connection.execute("DELETE FROM metric_minutes")
            return None
        for table in ("tallies", "metric_minutes"):
            connection.execute(f"DELETE FROM {table} WHERE minute <= ?", row)  # noqa: S608
        return int(row[0]) + 1

    def take_back(self, connection: sqlite3.Connection) -> None: ...


def used_bytes(connection: sqlite3.Connection) -> int:
    """Of the file: what is in use, without pages that wait to be used again."""
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(size * (pages - free))


def read_tallies(
    connection: sqlite3.Connection, since_minute: int, until_minute: int, limit: int
) -> list[Tally]:
    rows = connection.execute(_TALLIES, (since_minute, until_minute, max(0, limit)))
    return [Tally(*row) for row in rows][::-1]
