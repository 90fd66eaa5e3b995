"""The state file while it is open: a lock beside it, one connection to write, two to read.

OpenFile.open ──► lock ──► create (0600) ──► is it ours? ──► bring to our version ──► all three

Whole or not at all: what fails on the way is closed again, and the file is neither
overwritten nor deleted.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import resources
from pathlib import Path

from headgate.errors import StoreUnavailable

APPLICATION_ID = 0x48644774  # "HdGt": tells our files from other programs' (PRAGMA application_id)
STEPS = ("schema.sql", "records.sql", "history.sql", "counts.sql", "budgets.sql", "reports.sql")
"""Step n brings a file of version n to version n + 1; the version is PRAGMA user_version."""

PAGE_BYTES = 4096
MAX_WAL_BYTES = 4 * 1024 * 1024
DEADLINE_OPS = 2000
"""Steps of SQLite's machine between two looks at the deadline: well under a millisecond."""

Identity = tuple[int, int]
"""(device, inode)"""


class Reader:
    """A connection that only reads, for one thread at a time: `lock` is held meanwhile."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = ON")
        self.connection = connection
        self.lock = threading.Lock()


class OpenFile:
    """Made, used to write and closed by one thread; others may read, each with its Reader."""

    def __init__(
        self,
        path: Path,
        writer: sqlite3.Connection,
        readers: tuple[Reader, Reader],
        held: ExitStack,
    ) -> None:
        self.path = path
        self.writer = writer
        self.reader, self.looker = readers
        """What takes milliseconds, and looking back, which may take seconds."""
        self.spoilt = False
        """Set by any thread when its connection cannot be trusted further."""
        self.closed = False
        self._held = held
        self._identity = _identity(path)
        self._side_files = [Path(f"{path}{suffix}") for suffix in ("-wal", "-shm")]
        self._side_identities = [_identity(place) for place in self._side_files]

    @classmethod
    def open(cls, path: Path, *, busy_timeout_s: float, max_bytes: int) -> OpenFile:
        path = path.resolve()  # Two links to one file must meet at one lock.
        with ExitStack() as held:
            take_lock(path, held)
            with suppress(FileExistsError):
                # SQLite gives its side files the mode of the file itself.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            _check_writable(path)
            writer = _connect(path, busy_timeout_s, held)
            _prepare_writer(writer, path.name, max_bytes)
            reader = Reader(_connect(path, busy_timeout_s, held))
            looker = Reader(_connect(path, busy_timeout_s, held))
            return cls(path, writer, (reader, looker), held.pop_all())

    def is_current(self) -> bool:
        """False when it must be opened anew; raises while the file is gone.

        SQLite would go on writing to a deleted file and never say so. A new one is not begun
        behind the operator's back: it would lack the settings that were in the old one.
        """
        if self.closed or self.spoilt:
            return False
        if self._identity is None:
            return False
        found = _identity(self.path)
        if found is None:
            raise StoreUnavailable(
                f"{self.path.name}: was deleted or moved while in use; put it back, "
                "or start the agent anew to begin an empty one"
            )
        return found == self._identity

    def close(self, *, within_s: float) -> None:
        # Whoever looks back may be at it for seconds, and can be asked to ask again.
        self.looker.connection.interrupt()
        with ExitStack() as locked:
            for reader in (self.looker, self.reader):
                if not reader.lock.acquire(timeout=within_s):
                    name = self.path.name
                    raise StoreUnavailable(f"{name}: a read still runs, cannot be closed yet")
                locked.callback(reader.lock.release)
            self.closed = True
            # SQLite itself leaves the log behind when the file was moved; so it goes along.
            with suppress(sqlite3.Error):
                self.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._held.close()
        self._set_orphans_aside()

    def _set_orphans_aside(self) -> None:
        """Keep our log from being replayed into a file that was put in our file's place."""
        if _identity(self.path) in (None, self._identity):
            return
        for place, identity in zip(self._side_files, self._side_identities, strict=True):
            if identity is not None and _identity(place) == identity:
                place.rename(f"{place}.orphan")


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _check_writable(path: Path) -> None:
    """SQLite opens what it may only read, and says so at the first change: too late for us."""
    if not os.access(path, os.W_OK, effective_ids=True):
        raise StoreUnavailable(
            f"{path.name}: may only be read; let the agent's user write the file and its folder"
        )


# --- the lock ------------------------------------------------------------------------------


def take_lock(path: Path, held: ExitStack) -> None:
    """One agent per file. A side file: closing *any* descriptor of the database itself would
    drop the POSIX locks that SQLite holds on it."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise StoreUnavailable(
            f"{path.name}: the agent with pid {holder} holds it; "
            "stop that one, or give this one another file in agent.state"
        ) from None
    with suppress(OSError):  # A full disk must not keep the store shut: the pid is a courtesy.
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


# --- connections ---------------------------------------------------------------------------


def _connect(path: Path, busy_timeout_s: float, held: ExitStack) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )
    held.callback(connection.close)
    return connection


def _prepare_writer(connection: sqlite3.Connection, file_name: str, max_bytes: int) -> None:
    version = _version_of_ours(connection, file_name)
    if version == 0:
        # Only ever effective before the first table; without it a file never shrinks.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    # With WAL, NORMAL may lose the last commits in a power cut. What an operator was told is
    # kept must be kept; a store that writes once a second can afford the sync.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_BYTES)}")
    migrate(connection, version, [_script(step) for step in STEPS[version:]])


def _version_of_ours(connection: sqlite3.Connection, file_name: str) -> int:
    """The version of the file, 0 for an empty one; reads only."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    empty = (application_id, version, tables) == (0, 0, 0)
    if application_id != APPLICATION_ID and not empty:
        raise StoreUnavailable(
            f"{file_name}: is a database of another program and was left as it is; "
            "give agent.state a file of its own"
        )
    if version > len(STEPS):
        raise StoreUnavailable(
            f"{file_name}: was written by a newer Headgate (file version {version}, this one "
            f"knows up to {len(STEPS)}); start the newer one, or give agent.state another file"
        )
    return int(version)


def _script(name: str) -> str:
    return resources.files("headgate.stores").joinpath(name).read_text(encoding="utf-8")


def migrate(connection: sqlite3.Connection, version: int, scripts: Sequence[str]) -> None:
    """Take the file forward, each step whole or not at all."""
    for reached, script in enumerate(scripts, start=version + 1):
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {reached};"
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {script}\n; {marks} COMMIT;")
        finally:
            _roll_back(connection)


@contextmanager
def transaction(connection: sqlite3.Connection, given_up: Callable[[], bool]) -> Iterator[None]:
    """All or nothing; and nothing, too, when nobody waits for it any more."""
    connection.set_progress_handler(given_up, DEADLINE_OPS)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        # SQLite may call the handler after the commit is done, and then call it interrupted.
        connection.set_progress_handler(None, 0)
        if given_up():
            raise StoreUnavailable("the deadline passed before the commit; rolled back")
        connection.execute("COMMIT")
    finally:
        _roll_back(connection)
        connection.set_progress_handler(None, 0)


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
