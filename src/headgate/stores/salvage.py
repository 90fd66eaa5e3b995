"""Read what was kept although the store cannot be opened: a disk that is read-only or full,
a file that another agent holds. Nothing is changed there.

An operator's runtime settings must not be dropped because they cannot be written.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from headgate.core.records import Record
from headgate.errors import StoreUnavailable
from headgate.stores.puts import read_records

T = TypeVar("T")
Query = Callable[[sqlite3.Connection], list[T]]

BUSY_S = 0.5
MAX_COPY_BYTES = 256 * 1024 * 1024
VERSION_BEFORE_RECORDS = 1


def salvage(path: Path, query: Query[T]) -> list[T]:
    """What `query` finds in `path`; nothing where there is no file yet. Raises StoreUnavailable."""
    if not path.exists():
        return []
    try:
        return _read(path, query)
    except sqlite3.Error:
        # A write-ahead log beside a file that may not be touched: read both from a copy.
        return _read_copy(path, query)


def salvageable_records(connection: sqlite3.Connection, kind: str) -> list[Record]:
    """None in a file from before there were any, which cannot be brought to our version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return [] if version == VERSION_BEFORE_RECORDS else read_records(connection, kind)


def _read(path: Path, query: Query[T]) -> list[T]:
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection:
        return query(connection)


def _read_copy(path: Path, query: Query[T]) -> list[T]:
    log = path.with_name(path.name + "-wal")
    try:
        size = sum(file.stat().st_size for file in (path, log) if file.exists())
        if size > MAX_COPY_BYTES:
            raise StoreUnavailable(f"{path.name}: {size} bytes are too many to read from a copy")
        with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
            copy = Path(folder) / "state.db"
            shutil.copyfile(path, copy)
            if log.exists():
                shutil.copyfile(log, copy.with_name("state.db-wal"))
            with closing(sqlite3.connect(copy)) as connection:
                return query(connection)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{path.name}: what it keeps cannot be read: {error}") from None
