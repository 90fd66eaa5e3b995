"""The state file while it is open: a lock beside it, one connection to write, two to read.

OpenFile.open ──► lock ──► was there one? ──► create (0600) ──► is it ours? ──► bring to our version
                              ──► is it as new as its copy? ──► all three connections

Whole or not at all: what fails on the way is closed again, and the file is neither
overwritten nor deleted. Beside it lie a copy of what is in force (statecopy.py), and a lock that
remembers that there has been a state: a file that is gone is then a loss, and no new beginning.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from headgate.base.keyvalue import Listing
from headgate.errors import OutcomeUnknown, StateLost, StoreUnavailable
from headgate.store.locallog import read_listing, read_log
from headgate.store.statecopy import (
    LOG_VERSION,
    CopyFile,
    Damaged,
    StateCopy,
    convert,
    copy_from,
    entries_of,
    load_copy,
    old_revision,
    old_rows,
    parts_of,
    place_of,
    restore,
)

APPLICATION_ID = 0x48644774  # "HdGt": tells our files from other programs' (PRAGMA application_id)


class SchemaStep(NamedTuple):
    script: str
    convert: Callable[[sqlite3.Connection], None] | None = None
    """What SQL cannot do, after the script and within the same transaction."""


STEPS = (
    ("schema.sql", None),
    ("records.sql", None),
    ("history.sql", None),
    ("counts.sql", None),
    ("budgets.sql", None),
    ("reports.sql", None),
    ("log.sql", convert),
    ("verdicts.sql", None),
)
"""Step n brings a file of version n to version n + 1; the version is PRAGMA user_version."""

PAGE_BYTES = 4096
MAX_WAL_BYTES = 4 * 1024 * 1024
RESERVE_SUFFIX, RESERVE_BYTES = ".reserve", 256 * 1024
SPARE_PAGES = 64
MARK = b"state\n"
"""In the lock file, after the pid: there has been a state."""
LOCK_BYTES = 64
DEADLINE_OPS = 2000
"""SQLite instructions between two looks at the deadline: well under a millisecond."""

Identity = tuple[int, int]
"""(device, inode)"""


class ReadConnection:
    """A connection that only reads, for one thread at a time: `lock` is held meanwhile."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = ON")
        self.connection = connection
        self.lock = threading.Lock()


class OpenFile:
    """Made, used to write and closed by one thread; others may read, each with its
    ReadConnection."""

    def __init__(
        self,
        path: Path,
        writer: sqlite3.Connection,
        readers: tuple[ReadConnection, ReadConnection],
        held: ExitStack,
        note: str = "",
        *,
        is_copied: bool = False,
    ) -> None:
        self.path = path
        self.writer = writer
        self.copy = CopyFile(path)
        self.is_copied = is_copied
        """The copy beside it had the same content when it was opened."""
        self.note = note
        """What had to be repaired to open it, for display; empty: nothing."""
        self.reader, self.looker = readers
        """Work of milliseconds; and history queries, which may take seconds."""
        self.spoilt = False
        """Set by any thread when its connection must not be used any more."""
        self.closed = False
        self._held = held
        self._identity = _identity(path)
        self._side_files = [Path(f"{path}{suffix}") for suffix in ("-wal", "-shm")]
        self._side_identities = [_identity(place) for place in self._side_files]

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        busy_timeout_s: float,
        max_bytes: int,
        anew: bool = False,
        converting: Callable[[], None] = lambda: None,
    ) -> OpenFile:
        """StateLost if there has been a state, and neither the file nor its copy has it;
        `anew`: the operator has acknowledged that, and the old files were renamed. `converting` is
        called before the state of an earlier version is converted, which takes some time."""
        path = path.resolve()  # Two links to one file must share one lock.
        with ExitStack() as held:
            lock = take_lock(path, held)
            found = copy_beside(path)
            is_new = not path.exists() or path.stat().st_size == 0
            if is_new:
                _check_never_was(path, lock, found, anew=anew)
                set_aside(path, ("-wal", "-shm"), "orphan")  # Of a file that is gone.
            with suppress(FileExistsError):
                # SQLite gives its side files the mode of the file itself.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            _check_writable(path)
            writer = _connect(path, busy_timeout_s, held)
            if not is_new and _version_of_ours(writer, path.name) == 0:
                # A database without a table: all that it had was in its log, and that is gone.
                _check_never_was(path, lock, found, anew=anew)
            _prepare_writer(writer, path.name, max_bytes, converting)
            note = _bring_up_to(writer, found, path.name, is_new=is_new)
            reader = ReadConnection(_connect(path, busy_timeout_s, held))
            looker = ReadConnection(_connect(path, busy_timeout_s, held))
            mark_lock(lock)
            keep_reserve(path)
            said = (found.id, found.revision) if isinstance(found, StateCopy) else None
            is_copied = said == read_log(writer)
            return cls(path, writer, (reader, looker), held.pop_all(), note, is_copied=is_copied)

    def is_current(self) -> bool:
        """False if it must be opened again; raises while the file is gone.

        SQLite would go on writing to a deleted file without an error. The agent does not silently
        begin a new one: it would lack the settings of the old one.
        """
        if self.closed or self.spoilt:
            return False
        if self._identity is None:
            return False
        found = _identity(self.path)
        if found is None:
            raise StoreUnavailable(
                f"{self.path.name}: was deleted or moved while in use. Put it back, or restart "
                "the agent: it begins a new file with the changes in force"
            )
        return found == self._identity

    def close(self, *, within_s: float) -> None:
        # A history query may take seconds, and its client can retry.
        self.looker.connection.interrupt()
        with ExitStack() as locked:
            for reader in (self.looker, self.reader):
                if not reader.lock.acquire(timeout=within_s):
                    name = self.path.name
                    raise StoreUnavailable(f"{name}: a query still runs, cannot be closed yet")
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
            f"{path.name}: is read-only; give the agent's user write access to the file and its "
            "folder"
        )


# --- two copies ----------------------------------------------------------------------------


def copy_beside(path: Path) -> StateCopy | str | None:
    """None: there is none. A text: it cannot be used, and why."""
    try:
        return load_copy(path)
    except Damaged as error:
        return f"{place_of(path).name} {error}"
    except OSError as error:
        return f"{place_of(path).name} cannot be read: {error.strerror or error}"


def has_been(path: Path) -> bool:
    """Whether there has been a state, as far as what lies there tells."""
    if place_of(path).exists() or (path.is_file() and path.stat().st_size > 0):
        return True
    with suppress(OSError), open(f"{path}.lock", "rb") as lock:  # noqa: PTH123
        return MARK in lock.read(LOCK_BYTES)
    return False


def lost(path: Path, copy: StateCopy | str | None) -> StateLost:
    beside = copy if isinstance(copy, str) else f"{place_of(path).name} is gone"
    return StateLost(
        f"{path.name}: the operators' changes are lost: the file cannot be read, and {beside}. "
        "Restore either file, or acknowledge the loss: `headgate state acknowledge`"
    )


def _check_never_was(path: Path, lock: int, found: StateCopy | str | None, *, anew: bool) -> None:
    if isinstance(found, StateCopy) or anew:
        return
    if found is not None or MARK in os.pread(lock, LOCK_BYTES, 0):
        raise lost(path, found)


def _bring_up_to(
    writer: sqlite3.Connection, found: StateCopy | str | None, name: str, *, is_new: bool
) -> str:
    """Raises what SQLite does where what is in force cannot be read."""
    now_s = time.time()  # noqa: TID251 -- for the audit entry of what no caller asked for
    for _ in parts_of(writer, now_s):
        pass
    here = read_log(writer)
    if not isinstance(found, StateCopy) or found.revision <= here.revision:
        return ""
    with transaction(writer, lambda: False):
        restore(writer, found, now_s, name)
    made = datetime.fromtimestamp(found.wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    was = "was gone" if is_new else f"was older (revision {here.revision})"
    left = (
        "its audit and history before are gone"
        if is_new
        else f"to use the file instead, stop the agent, remove {name}.copy and start it"
    )
    return (
        f"{name} {was}: the changes in force come from its copy (revision {found.revision}, of "
        f"{made}); {left}"
    )


def set_aside(path: Path, suffixes: Sequence[str], ending: str) -> list[str]:
    """What lies there, under another name; nothing is deleted."""
    moved = []
    for suffix in suffixes:
        place = Path(f"{path}{suffix}")
        if place.exists():
            place.rename(f"{place}.{ending}")
            moved.append(f"{place.name}.{ending}")
    return moved


def check_ours(path: Path) -> None:
    """Raise StoreUnavailable for a file that is another program's, or a newer version's: it is not
    ours to move. One that is damaged is."""
    if not path.exists():
        return
    uri = f"file:{quote(str(path))}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as connection:
        _version_of_ours(connection, path.name)


# --- room on a full disk -------------------------------------------------------------------


def keep_reserve(path: Path) -> None:
    """Room on the disk that is given up for what must fit. Best effort: a disk that has none to
    give will do without."""
    place = Path(f"{path}{RESERVE_SUFFIX}")
    if place.exists():
        return
    try:
        fd = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        finally:
            os.close(fd)
    except OSError:
        with suppress(OSError):
            place.unlink(missing_ok=True)


@contextmanager
def lift_bound(file: OpenFile) -> Iterator[None]:
    """For one write: the reserve's room on the disk, and more pages than the file may have."""
    with suppress(OSError):
        Path(f"{file.path}{RESERVE_SUFFIX}").unlink(missing_ok=True)
    (pages,) = file.writer.execute("PRAGMA max_page_count").fetchone()
    file.writer.execute(f"PRAGMA max_page_count = {pages + SPARE_PAGES}")
    try:
        yield
    finally:
        file.writer.execute(f"PRAGMA max_page_count = {pages}")


# --- the lock ------------------------------------------------------------------------------


def take_lock(path: Path, held: ExitStack) -> int:
    """One agent per file. A side file: closing *any* descriptor of the database itself would
    drop the POSIX locks that SQLite holds on it."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise StoreUnavailable(
            f"{path.name}: the agent with pid {holder} uses it; stop that agent, or give this one "
            "another file in agent.state"
        ) from None
    with suppress(OSError):  # A full disk must not keep the store shut: the pid is a courtesy.
        os.pwrite(lock, f"{os.getpid():<19}\n".encode(), 0)
    return lock


def mark_lock(lock: int) -> None:
    """Have it remember that there is a state."""
    with suppress(OSError):
        if MARK not in os.pread(lock, LOCK_BYTES, 0):
            os.pwrite(lock, MARK, 20)
            os.fsync(lock)


# --- connections ---------------------------------------------------------------------------


def _connect(path: Path, busy_timeout_s: float, held: ExitStack) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )
    held.callback(connection.close)
    return connection


def _prepare_writer(
    connection: sqlite3.Connection,
    file_name: str,
    max_bytes: int,
    converting: Callable[[], None],
) -> None:
    version = _version_of_ours(connection, file_name)
    if 0 < version < len(STEPS):
        converting()
    if version == 0:
        # Only ever effective before the first table; without it a file never shrinks.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    # With WAL, NORMAL may lose the last commits in a power cut. A change that was acknowledged to
    # an operator must survive; a store that writes once a second can afford the sync.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_BYTES)}")
    migrate(
        connection, version, [SchemaStep(_script(name), then) for name, then in STEPS[version:]]
    )


def _version_of_ours(connection: sqlite3.Connection, file_name: str) -> int:
    """The version of the file, 0 for an empty one; reads only."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    empty = (application_id, version, tables) == (0, 0, 0)
    if application_id != APPLICATION_ID and not empty:
        raise StoreUnavailable(
            f"{file_name}: is a database of another program and was not changed; "
            "give agent.state its own file"
        )
    if version > len(STEPS):
        raise StoreUnavailable(
            f"{file_name}: was written by a newer Headgate (file version {version}, this one "
            f"reads up to {len(STEPS)}); start the newer one, or give agent.state another file"
        )
    return int(version)


@cache
def _script(name: str) -> str:
    return resources.files("headgate.store").joinpath(name).read_text(encoding="utf-8")


def migrate(connection: sqlite3.Connection, version: int, steps: Sequence[SchemaStep]) -> None:
    """Take the file forward, each step whole or not at all."""
    for reached, step in enumerate(steps, start=version + 1):
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {step.script}\n;")
            if step.convert is not None:
                step.convert(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {reached}")
            connection.execute("COMMIT")
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
        _commit(connection)
    finally:
        _roll_back(connection)
        connection.set_progress_handler(None, 0)


def _commit(connection: sqlite3.Connection) -> None:
    """One that fails is not there. Where it was written and could not be synced, it lies whole in
    the log, and the next start would take it for kept: another commit is put in its place."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(connection)
        if primary_code(error) == sqlite3.SQLITE_IOERR:
            _write_over(connection, error)
        raise


def _write_over(connection: sqlite3.Connection, failed: sqlite3.Error) -> None:
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA user_version = {version}")  # As it is: a page is written.
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(connection)
        raise OutcomeUnknown(
            f"the commit failed ({failed}), and so did the rollback ({error}): the change is not "
            "in force, but may be after a restart. Check the disk, restart the agent, look again"
        ) from error


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


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


# --- salvage -------------------------------------------------------------------------------
# Read what was kept although the store cannot be opened: a disk that is read-only or full,
# a file that another agent holds, one that is damaged. Nothing is changed there.
#
# An operator's runtime settings must not be dropped because they cannot be written. Of the file and
# the copy beside it, the newer one counts; where neither can be read, that is StateLost.

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
