"""A fleet's store in one SQLite file, for the agents of one machine.

list, watch (polling), count ──► reading thread ─┐
commit, grant, renew, revoke ──► writing thread ─┴─► file (WAL): entries, changes, leases

Each call opens what it needs, so the store is well again as soon as the disk is. Leases that have
run out are collected by the next write.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from headgate.core.keyvalue import Changes, Compare, Lease, Listing, Put
from headgate.errors import OutcomeUnknown, StoreUnavailable
from headgate.stores import fleet_statements as statements
from headgate.stores.fleet_file import Lane
from headgate.stores.fleet_limits import check_commit
from headgate.stores.fleet_statements import LogLimits

POLL_S = 0.2
MAX_LOG = LogLimits(commits=10_000, bytes=64 * 1024 * 1024)

T = TypeVar("T")


class _Claim:
    """Decides once whether a commit came first, or who asked for it left first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._withdrawn = False
        self.taken = False

    def take(self) -> bool:
        """In the thread, just before it commits; False: nobody waits for it any more."""
        with self._lock:
            self.taken = not self._withdrawn
            return self.taken

    def withdraw(self) -> bool:
        """By who asked; False: it may have been done."""
        with self._lock:
            self._withdrawn = not self.taken
            return self._withdrawn


class SqliteFleetStore:
    def __init__(
        self,
        path: Path,
        *,
        deadline_s: float = 2.0,
        poll_s: float = POLL_S,
        max_log: LogLimits = MAX_LOG,
    ) -> None:
        self._path = path
        self._poll_s = poll_s
        self._max_log = max_log
        begun = threading.Event()
        self._reading = Lane(path, "reading", deadline_s=deadline_s, begun=begun)
        self._writing = Lane(path, "writing", deadline_s=deadline_s, begun=begun)
        self._closed = asyncio.Event()

    @property
    def name(self) -> str:
        return f"sqlite {self._path.name}"

    async def list(self, prefixes: Sequence[str], *, at_any_member: bool = False) -> Listing:
        return await self._read(lambda found: statements.read_listing(found, prefixes))

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        wanted = tuple(prefixes)
        begun_with, told = (await self._read(statements.read_kept)).store_id, after_revision
        while True:
            store_id, changes = await self._read(partial(_changes, wanted, told))
            if store_id != begun_with:
                raise StoreUnavailable(f"{self.name}: another file was put in its place")
            told = changes.revision
            if changes.events:
                yield changes
            else:
                await self._pause()

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int:
        check_commit(compares, puts)

        def change(connection: sqlite3.Connection) -> int:
            statements.hold(connection, compares)
            return statements.put_all(connection, puts, self._max_log)

        return await self._write(change)

    async def count(self, prefix: str) -> int:
        return await self._read(lambda found: statements.read_count(found, prefix))

    async def grant(self, ttl_s: float) -> Lease:
        return await self._write(lambda connection: statements.grant(connection, ttl_s))

    async def renew(self, lease_id: int) -> Lease:
        return await self._write(lambda connection: statements.renew(connection, lease_id))

    async def revoke(self, lease_id: int) -> None:
        await self._write(lambda found: statements.revoke(found, lease_id, self._max_log))

    async def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            await self._reading.close()
            await self._writing.close()

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        def use(connection: sqlite3.Connection) -> T:
            with _snapshot(connection):
                return query(connection)

        self._check_open()
        return await self._reading.run(use)

    async def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        claim = _Claim()

        def use(connection: sqlite3.Connection) -> T:
            with _transaction(connection, claim):
                statements.collect(connection, self._max_log)
                return change(connection)

        self._check_open()
        try:
            return await self._writing.run(use)
        except StoreUnavailable as error:
            if claim.withdraw():
                raise
            raise OutcomeUnknown(f"{error}; the change may have been made: look first") from error
        finally:
            claim.withdraw()  # Who was cancelled waits no longer either.

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._poll_s):
                await self._closed.wait()
        except TimeoutError:
            return

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreUnavailable(f"{self.name}: the store is not open")


def _changes(
    prefixes: tuple[str, ...], after_revision: int, connection: sqlite3.Connection
) -> tuple[str, Changes]:
    """And of which data: the file may have been replaced meanwhile."""
    store_id = statements.read_kept(connection).store_id
    return store_id, statements.read_changes(connection, prefixes, after_revision)


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Several reads of the same moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def _transaction(connection: sqlite3.Connection, claim: _Claim) -> Iterator[None]:
    """All or nothing; and nothing, too, when nobody waits for it any more."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        if not claim.take():
            raise StoreUnavailable("the deadline passed before the commit; rolled back")
        connection.set_progress_handler(None, 0)  # A commit is not stopped half-way.
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
