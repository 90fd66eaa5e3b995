"""When a connection checks: before a transaction begins, and not again until it is over.

`every` is the size of a batch: how many transactions one OK is for. Small and quick transactions
may share one; a batch that takes seconds should not, because an OK is about the present moment.
"""

from __future__ import annotations

import re
from typing import Any

from headgate.errors import Fault, InvalidSettings

# Behind comments, as of a program that tags its statements at their head.
_VERB = re.compile(r"(?:[\s(;]|/\*.*?\*/|--[^\n]*\n)*([A-Za-z]+)", re.DOTALL)
_BEGINS = frozenset({"BEGIN", "START"})
_ENDS = frozenset({"COMMIT", "ROLLBACK", "END", "ABORT"})


class TransactionBatch:
    """Of one connection: says before which transactions to check."""

    __slots__ = ("_every", "_left")

    def __init__(self, every: int = 1) -> None:
        self._every = checked_every(every)
        self._left = 0

    def is_due(self) -> bool:
        """Counts the transaction that is about to begin."""
        due = self._left == 0
        self._left = (self._every if due else self._left) - 1
        return due

    def rejected(self) -> None:
        """The wait failed: the next transaction has to check again."""
        self._left = 0


def checked_every(every: int) -> int:
    if every < 1:
        raise InvalidSettings([Fault("every", f"a batch is at least 1 transaction, not {every!r}")])
    return every


def verb_of(statement: str) -> str:
    found = _VERB.match(statement)
    return found[1].upper() if found else ""


def begins(statement: str) -> bool:
    return verb_of(statement) in _BEGINS


def ends(statement: str) -> bool:
    """`ROLLBACK TO` a savepoint ends nothing."""
    verb = verb_of(statement)
    return verb in _ENDS and not (verb == "ROLLBACK" and " TO " in f" {statement.upper()} ")


# --- what a driver's connection knows of itself, however its driver spells it --------------
# DB-API has no word for "is a transaction open?", and only a late one for "autocommit". Each driver
# has both, from what its server said last; reading them costs no round trip.


_IDLE = 0
"""Of libpq's PGTransactionStatusType, which psycopg and psycopg2 pass on."""
_SERVER_STATUS_IN_TRANS = 1
"""Of the MySQL protocol's status flags, which come with each of the server's answers."""


def is_autocommit(connection: Any) -> bool:
    """As the driver has it now."""
    if hasattr(connection, "isolation_level") and hasattr(connection, "total_changes"):
        # sqlite3, aiosqlite. From Python 3.12 on: True, False, or LEGACY_TRANSACTION_CONTROL.
        modern = getattr(connection, "autocommit", None)
        return modern if isinstance(modern, bool) else connection.isolation_level is None
    if hasattr(connection, "get_autocommit"):  # PyMySQL, mysqlclient, aiomysql
        return bool(connection.get_autocommit())
    said = getattr(connection, "autocommit", False)
    return said if isinstance(said, bool) else False


def in_transaction(connection: Any) -> bool | None:
    """Whether one is open, also one that was begun by hand. None: this driver does not tell."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if isinstance(status, int):  # psycopg, psycopg2
        return status != _IDLE
    flags = getattr(connection, "server_status", None)
    if isinstance(flags, int):  # PyMySQL
        return bool(flags & _SERVER_STATUS_IN_TRANS)
    said = getattr(connection, "in_transaction", None)
    if isinstance(said, bool):  # sqlite3, MySQL Connector/Python
        return said
    for name in ("is_in_transaction", "get_transaction_status"):  # asyncpg, aiomysql
        told = getattr(connection, name, None)
        if callable(told):
            return bool(told())
    return None
