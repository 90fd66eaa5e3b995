"""SQLite's and the system's errors, as StoreUnavailable with what to do about each."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.errors import StoreUnavailable

_ASIDE = "the file is left as it is: restore a copy, or move it away to begin a new one"

ADVICE: dict[int, str] = {
    sqlite3.SQLITE_FULL: "free disk space or lower history_days; writing resumes automatically",
    sqlite3.SQLITE_IOERR: "check the disk: free space, quota, health",
    sqlite3.SQLITE_READONLY: "give the agent's user write access to the file and its folder",
    sqlite3.SQLITE_PERM: "give the agent's user write access to the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "give the agent's user write access to the file and its folder",
    sqlite3.SQLITE_BUSY: "another program has locked it: stop that program",
    sqlite3.SQLITE_LOCKED: "another program has locked it: stop that program",
    sqlite3.SQLITE_CORRUPT: _ASIDE,
    sqlite3.SQLITE_NOTADB: _ASIDE,
    sqlite3.SQLITE_INTERRUPT: "it took longer than its deadline; try again, and query less "
    "history, such as a shorter time or one database",
}

# These leave a connection usable; after any other it is opened again.
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
        advice = ADVICE.get(primary_code(error), "try again, or restart the agent")
        code = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StoreUnavailable(f"{file_name}: {error} ({code}); {advice}") from error
    except OSError as error:
        advice = "check that its folder exists and that the agent's user can write there"
        reason = error.strerror or str(error)
        raise StoreUnavailable(f"{file_name}: {reason}; {advice}") from error
