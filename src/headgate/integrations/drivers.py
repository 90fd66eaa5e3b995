"""What a driver's connection knows of itself, however its driver spells it.

DB-API has no word for "is a transaction open?", and only a late one for "autocommit". Each driver
has both, from what its server said last; reading them costs no round trip.
"""

from __future__ import annotations

from typing import Any

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
