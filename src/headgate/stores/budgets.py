"""Violations of budgets in the file, by the minute.

Like statements.py: no transaction begins or ends here; sqlite.py does that around them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headgate.core.records import BudgetMinute
from headgate.stores.entries import check_budget_minutes
from headgate.stores.minutes import FORGET_BATCH_ROWS

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
