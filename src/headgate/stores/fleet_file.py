"""A fleet's store in a file, while it is open: a thread with its own connection to it.

Lane.run(use) ──► worker thread ──► connection, opened when it is first needed ──► use(connection)

Agents of one machine share the file, so there is no lock beside it: SQLite's own are enough, and
each commit says by compares what it rests on.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from headgate.errors import StoreUnavailable
from headgate.stores.faults import named_faults, primary_code, spoils_connection
from headgate.stores.file import DEADLINE_OPS, MAX_WAL_BYTES, PAGE_BYTES
from headgate.stores.worker import Ticket, Worker

APPLICATION_ID = 0x48644766  # "HdGf": neither an agent's state file nor another program's.
VERSION = 1
MAX_BYTES = 1024**3
CLOSE_DEADLINE_S = 2.0
BUSY_PAUSE_S = 0.01

T = TypeVar("T")
Use = Callable[[sqlite3.Connection], T]


class Lane:
    """Does one thing after the other with the file; opens it, and opens it anew after a fault."""

    def __init__(
        self, path: Path, doing: str, *, deadline_s: float, begun: threading.Event
    ) -> None:
        """`begun`, of all lanes to the file: one of them has had it open."""
        self._path = path
        self._begun = begun
        self._deadline_s = deadline_s
        self._worker = Worker(f"{path.name} ({doing})")
        self._file: FleetFile | None = None
        """Touched by the worker thread alone."""

    async def run(self, use: Use[T]) -> T:
        def job(ticket: Ticket[T]) -> None:
            with named_faults(self._path.name):
                ticket.settle(self._used(ticket, use))

        return await self._worker.run(job, until_mono_s=time.monotonic() + self._deadline_s)

    async def close(self) -> None:
        try:
            with suppress(StoreUnavailable):
                until_mono_s = time.monotonic() + CLOSE_DEADLINE_S
                await self._worker.run(self._close_job, until_mono_s=until_mono_s)
        finally:
            self._worker.stop()

    def _used(self, ticket: Ticket[Any], use: Use[T]) -> T:
        connection = self._current(ticket).connection
        connection.set_progress_handler(ticket.given_up, DEADLINE_OPS)
        try:
            return use(connection)
        except sqlite3.Error as error:
            if spoils_connection(error):
                self._close_file()
            raise
        finally:
            with suppress(sqlite3.ProgrammingError):  # It was closed, just now.
                connection.set_progress_handler(None, 0)

    def _current(self, ticket: Ticket[Any]) -> FleetFile:
        if self._file is not None and self._file.is_current():
            return self._file
        self._close_file()
        self._create()
        self._file = FleetFile(self._path, ticket)
        self._begun.set()
        return self._file

    def _create(self) -> None:
        """A new one is not begun behind the operator's back: it would lack all that was set."""
        if self._begun.is_set():
            _present(self._path)
            return
        with suppress(FileExistsError):
            # SQLite gives its side files the mode of the file itself.
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o660))

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _close_job(self, ticket: Ticket[None]) -> None:
        self._close_file()
        ticket.settle(None)


class FleetFile:
    """One connection to it, and whether it still is the file at its path."""

    def __init__(self, path: Path, ticket: Ticket[Any]) -> None:
        self._path = path
        self._identity = _identity(path)
        with ExitStack() as held:
            # A held lock is to be named, before the wait just ends.
            timeout_s = ticket.remaining_s() / 2
            self.connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
            held.callback(self.connection.close)
            _unless_busy(lambda: _prepare(self.connection, path.name), ticket)
            held.pop_all()
        self._logs = [Path(f"{path}{suffix}") for suffix in ("-wal", "-shm")]
        self._log_identities = [_identity(place) for place in self._logs]

    def is_current(self) -> bool:
        """SQLite would go on writing to a deleted file and never say so."""
        return _present(self._path) == self._identity

    def close(self) -> None:
        self.connection.close()
        if _identity(self._path) in (None, self._identity):
            return
        # Another file was put in ours' place: our log must not be replayed into it.
        for place, identity in zip(self._logs, self._log_identities, strict=True):
            if identity is not None and _identity(place) == identity:
                place.rename(f"{place}.orphan")


def _present(path: Path) -> tuple[int, int]:
    found = _identity(path)
    if found is None:
        raise StoreUnavailable(
            f"{path.name}: was deleted or moved while in use; put it back, or start the agents "
            "anew to begin an empty one"
        )
    return found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _unless_busy(prepare: Callable[[], None], ticket: Ticket[Any]) -> None:
    """Going over to the write-ahead log does not wait for who begins the file at the same time."""
    while True:
        try:
            return prepare()
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or ticket.remaining_s() < BUSY_PAUSE_S:
                raise
        time.sleep(BUSY_PAUSE_S)


def _prepare(connection: sqlite3.Connection, file_name: str) -> None:
    version = _version_of_ours(connection, file_name)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # What was acknowledged outlives a power cut.
    connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    connection.execute(f"PRAGMA max_page_count = {MAX_BYTES // PAGE_BYTES}")
    if version < VERSION:
        script = resources.files("headgate.stores").joinpath("fleet.sql").read_text("utf-8")
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {script}\n; {marks} COMMIT;")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _version_of_ours(connection: sqlite3.Connection, file_name: str) -> int:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id != APPLICATION_ID and (application_id, version, tables) != (0, 0, 0):
        raise StoreUnavailable(
            f"{file_name}: is no fleet's store but another database, and was left as it is; "
            "give fleet.store a file of its own"
        )
    if version > VERSION:
        raise StoreUnavailable(
            f"{file_name}: was written by a newer Headgate (file version {version}, this one "
            f"knows up to {VERSION}); start the newer one here as well"
        )
    return int(version)
