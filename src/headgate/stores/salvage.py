"""Read what was kept although the store cannot be opened: a disk that is read-only or full,
a file that another agent holds. Nothing is changed there.

An operator's runtime settings must not be dropped because they cannot be written.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from headgate.core.records import MetricChange
from headgate.errors import StoreUnavailable
from headgate.stores.statements import read_metric_changes

BUSY_S = 0.5
MAX_COPY_BYTES = 256 * 1024 * 1024


def salvage_changes(path: Path) -> list[MetricChange]:
    """The changes in `path`; none where there is no file yet. Raises StoreUnavailable."""
    if not path.exists():
        return []
    try:
        return _read(path)
    except sqlite3.Error:
        # A write-ahead log beside a file that may not be touched: read both from a copy.
        return _read_copy(path)


def _read(path: Path) -> list[MetricChange]:
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection:
        return read_metric_changes(connection)


def _read_copy(path: Path) -> list[MetricChange]:
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
                return read_metric_changes(connection)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{path.name}: what it keeps cannot be read: {error}") from None
