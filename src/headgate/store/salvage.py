"""Read what was kept although the store cannot be opened: a disk that is read-only or full,
a file that another agent holds, one that is damaged. Nothing is changed there.

An operator's runtime settings must not be dropped because they cannot be written. Of the file and
the copy beside it, the newer one counts; where neither can be read, that is StateLost.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import quote

from headgate.base.keyvalue import Listing
from headgate.errors import StoreUnavailable
from headgate.store.conversion import LOG_VERSION, entries_of, old_revision, old_rows
from headgate.store.file import copy_beside, has_been, lost
from headgate.store.locallog import read_listing
from headgate.store.statecopy import StateCopy, copy_from

BUSY_S = 0.5
MAX_COPY_BYTES = 256 * 1024 * 1024
NOTHING = Listing((), 0, "")
Query = Callable[[sqlite3.Connection], Listing]


def salvage(
    path: Path, prefixes: Sequence[str], converting: Callable[[], None] = lambda: None
) -> Listing:
    """What is kept under them; nothing where there never was anything. Raises StoreUnavailable.
    `converting` is called before what an earlier version kept is converted."""
    if not has_been(path):
        return NOTHING
    copy = copy_beside(path)
    try:
        found = _in_file(path, lambda connection: _listed(connection, prefixes, converting))
    except (sqlite3.Error, StoreUnavailable):
        if not isinstance(copy, StateCopy):
            raise lost(path, copy) from None
        return copy.listing(prefixes)
    if isinstance(copy, StateCopy) and copy.revision > found.revision:
        return copy.listing(prefixes)
    return found


def _in_file(path: Path, read: Query) -> Listing:
    if not path.exists() or path.stat().st_size == 0:
        raise StoreUnavailable(f"{path.name}: does not exist")
    try:
        return _read(path, read)
    except sqlite3.Error:
        # A write-ahead log beside a file that may not be touched: read both from a copy.
        return _read_copy(path, read)


def _listed(
    connection: sqlite3.Connection, prefixes: Sequence[str], converting: Callable[[], None]
) -> Listing:
    """Also of a file from before there was a log, which cannot be brought to our version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version >= LOG_VERSION:
        return read_listing(connection, prefixes)
    converting()
    entries = entries_of(old_rows(connection))
    return copy_from(entries, old_revision(connection), 0.0).listing(prefixes)


def _read(path: Path, read: Query) -> Listing:
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    connect = partial(sqlite3.connect, uri, uri=True, timeout=BUSY_S, isolation_level=None)
    with closing(connect()) as connection:
        return read(connection)


def _read_copy(path: Path, read: Query) -> Listing:
    log = path.with_name(path.name + "-wal")
    try:
        size = sum(file.stat().st_size for file in (path, log) if file.exists())
        if size > MAX_COPY_BYTES:
            raise StoreUnavailable(f"{path.name}: {size} bytes are too many for a copy")
        with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
            copy = Path(folder) / "state.db"
            shutil.copyfile(path, copy)
            if log.exists():
                shutil.copyfile(log, copy.with_name("state.db-wal"))
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                return read(connection)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{path.name}: its content cannot be read: {error}") from None
