"""SQLite's and the system's errors, as StoreUnavailable with what to do about each."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.errors import StoreUnavailable

_ASIDE = "it is left as it is: restore a copy, or move it away and a new one is begun"

ADVICE: dict[int, str] = {
    sqlite3.SQLITE_FULL: "make room on the disk or keep fewer history_days; it goes on by itself",
    sqlite3.SQLITE_IOERR: "look at the disk: its room, its quota, its health",
    sqlite3.SQLITE_READONLY: "let the agent's user write the file and its folder",
    sqlite3.SQLITE_PERM: "let the agent's user write the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "let the agent's user write the file and its folder",
    sqlite3.SQLITE_BUSY: "another program holds it locked: end that program",
    sqlite3.SQLITE_LOCKED: "another program holds it locked: end that program",
    sqlite3.SQLITE_CORRUPT: _ASIDE,
    sqlite3.SQLITE_NOTADB: _ASIDE,
    sqlite3.SQLITE_INTERRUPT: "it took longer than its deadline; ask again, and of history for "
    "less of it, such as a shorter time or one database",
}

# These leave a connection as good as it was; after any other it is opened anew.
_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_CONSTRAINT,
    }
)


def primary_code(error: sqlite3.Error) -> int:
    """The code without its extension; SQLITE_ERROR where Python itself raised."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def spoils_connection(error: sqlite3.Error) -> bool:
    return primary_code(error) not in _PASSING


def is_full(error: StoreUnavailable) -> bool:
    """The disk, or what the file may take of it."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return primary_code(cause) == sqlite3.SQLITE_FULL
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def named_faults(file_name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        advice = ADVICE.get(primary_code(error), "try again, or start the agent anew")
        code = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StoreUnavailable(f"{file_name}: {error} ({code}); {advice}") from error
    except OSError as error:
        advice = "see that its folder exists and that the agent's user may write there"
        reason = error.strerror or str(error)
        raise StoreUnavailable(f"{file_name}: {reason}; {advice}") from error
