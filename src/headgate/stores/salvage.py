"""Read what was kept although the store cannot be opened: a disk that is read-only or full,
a file that another agent holds, one that is damaged. Nothing is changed there.

An operator's runtime settings must not be dropped because they cannot be written. Of the file and
the copy beside it, the newer one counts; where neither can be read, that is StateLost.
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
from headgate.stores.file import STEPS, copy_beside, has_been, lost
from headgate.stores.puts import read_records
from headgate.stores.statecopy import StateCopy, in_memory, revision_in

T = TypeVar("T")
U = TypeVar("U")
Query = Callable[[sqlite3.Connection], list[T]]

BUSY_S = 0.5
MAX_COPY_BYTES = 256 * 1024 * 1024
VERSION_BEFORE_RECORDS = 1


def salvage(path: Path, query: Query[T]) -> list[T]:
    """What `query` finds; nothing where there never was anything. Raises StoreUnavailable."""
    if not has_been(path):
        return []
    copy = copy_beside(path)
    try:
        revision, found = _in_file(path, query)
    except (sqlite3.Error, StoreUnavailable):
        if not isinstance(copy, StateCopy):
            raise lost(path, copy) from None
        return _in_copy(copy, query)
    if isinstance(copy, StateCopy) and copy.revision > revision:
        return _in_copy(copy, query)
    return found


def _in_file(path: Path, query: Query[T]) -> tuple[int, list[T]]:
    if not path.exists() or path.stat().st_size == 0:
        raise StoreUnavailable(f"{path.name}: is gone")

    def revised(connection: sqlite3.Connection) -> tuple[int, list[T]]:
        return revision_in(connection), query(connection)

    try:
        return _read(path, revised)
    except sqlite3.Error:
        # A write-ahead log beside a file that may not be touched: read both from a copy.
        return _read_copy(path, revised)


def _in_copy(copy: StateCopy, query: Query[T]) -> list[T]:
    with in_memory(copy, STEPS) as connection:
        return query(connection)


def salvageable_records(connection: sqlite3.Connection, kind: str) -> list[Record]:
    """None in a file from before there were any, which cannot be brought to our version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return [] if version == VERSION_BEFORE_RECORDS else read_records(connection, kind)


def _read(path: Path, query: Callable[[sqlite3.Connection], U]) -> U:
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection:
        return query(connection)


def _read_copy(path: Path, query: Callable[[sqlite3.Connection], U]) -> U:
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
