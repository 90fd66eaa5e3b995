"""The store in one SQLite file: WAL, one thread that writes, one that reads.

put_metric, put_record … ──► writer thread ──┐
metric_changes, records … ──► reader thread ──┴──► OpenFile (file.py)

StoreUnavailable means that nothing was kept: a commit that lands after its caller was told
so is taken back before the next write. After a fault the file is opened anew by whichever
operation comes next, so the store is well again as soon as the disk is.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog

from headgate.core.records import AuditEntry, MetricChange, MetricMinute, Record, Tally
from headgate.errors import StoreUnavailable
from headgate.stores.entries import check_record, check_step, check_tallies
from headgate.stores.faults import named_faults, spoils_connection
from headgate.stores.file import DEADLINE_OPS, OpenFile, transaction
from headgate.stores.minutes import AddMetricMinutes, read_metric_minutes, read_sums
from headgate.stores.puts import (
    PutMetric,
    PutRecords,
    read_audit,
    read_metric_changes,
    read_records,
)
from headgate.stores.salvage import salvage, salvageable_records
from headgate.stores.statements import (
    AddTallies,
    ForgetBatch,
    ForgetOldest,
    Touch,
    Write,
    read_tallies,
    used_bytes,
)
from headgate.stores.worker import Ticket, Worker

log = structlog.get_logger()

T = TypeVar("T")
Query = Callable[[sqlite3.Connection], T]

VACUUM_PAGES = 2000
MAX_BYTES = 4 * 1024**3
HISTORY_SHARE = 0.75
"""Of MAX_BYTES: beyond it the oldest history is forgotten before its time."""
CLOSE_DEADLINE_S = 2.0
TALLIES_PER_S = 10_000
"""A slow disk's pace: a batch gets a second more for each so many."""


class _NotOpen(StoreUnavailable):
    """The reader found no file it may use: the writer has to open one first."""


class SqliteStore:
    def __init__(self, path: Path, *, deadline_s: float = 2.0, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._max_bytes = max_bytes
        self._threads: tuple[Worker, Worker] | None = None
        self._file: OpenFile | None = None
        """Set by the writer thread alone."""
        self._owed: Write[Any] | None = None
        """A commit that came too late: taken back before the next write."""

    @property
    def name(self) -> str:
        return "sqlite"

    async def open(self) -> None:
        """May be tried again, and operations try by themselves; `close` ends it either way."""
        if self._threads is None:
            writer = Worker(f"{self._path.name} (writing)")
            self._threads = writer, Worker(f"{self._path.name} (reading)")
        await self._run_writer(self._open_job)

    async def close(self) -> None:
        if self._threads is None:
            return
        threads, self._threads = self._threads, None
        try:
            # What was acknowledged is on the disk already: a disk that hangs now loses nothing.
            with suppress(StoreUnavailable):
                until_mono_s = time.monotonic() + CLOSE_DEADLINE_S
                await threads[0].run(self._close_job, until_mono_s=until_mono_s)
        finally:
            for thread in threads:
                thread.stop()

    async def metric_changes(self) -> Sequence[MetricChange]:
        return await self._read(read_metric_changes)

    async def salvage_changes(self) -> Sequence[MetricChange]:
        return await self._salvage(read_metric_changes)

    async def put_metric(self, change: MetricChange, audit: AuditEntry) -> MetricChange:
        return await self._write(PutMetric(change, audit))

    async def records(self, kind: str) -> Sequence[Record]:
        return await self._read(lambda connection: read_records(connection, kind))

    async def salvage_records(self, kind: str) -> Sequence[Record]:
        return await self._salvage(lambda connection: salvageable_records(connection, kind))

    async def put_record(self, record: Record, audit: AuditEntry) -> Record:
        (kept,) = await self.put_records([(record, audit)])
        return kept

    async def put_records(self, puts: Sequence[tuple[Record, AuditEntry]]) -> Sequence[Record]:
        for record, _ in puts:
            check_record(record)
        return await self._write(PutRecords(puts))

    async def audit(self, *, limit: int = 100) -> Sequence[AuditEntry]:
        return await self._read(lambda connection: read_audit(connection, limit))

    async def add_tallies(self, tallies: Sequence[Tally]) -> None:
        """Of none, too, is a write: it finds out whether the file can be written again."""
        check_tallies(tallies)
        # After hours away a great many come at once: they must fit, or they never will.
        extra_s = len(tallies) // TALLIES_PER_S
        await self._write(AddTallies(tallies) if tallies else Touch(), extra_s=extra_s)

    async def tallies(
        self, *, since_minute: int, until_minute: int, limit: int = 10_000
    ) -> Sequence[Tally]:
        """Both minutes included, oldest first; beyond `limit` the oldest are left out."""
        span = (since_minute, until_minute, limit)
        return await self._read(lambda connection: read_tallies(connection, *span))

    async def add_metric_minutes(self, minutes: Sequence[MetricMinute]) -> None:
        await self._write(AddMetricMinutes(minutes))

    async def metric_minutes(
        self, *, since_minute: int, until_minute: int, limit: int = 100_000
    ) -> Sequence[MetricMinute]:
        span = (since_minute, until_minute, limit)
        return await self._read(lambda connection: read_metric_minutes(connection, *span))

    async def sums(
        self,
        tokens: Sequence[str],
        *,
        since_minute: int,
        until_minute: int,
        step_minutes: int = 1,
        by_client: bool = True,
        limit: int = 100_000,
    ) -> Sequence[Tally]:
        check_step(step_minutes)
        asked = (tokens, since_minute, until_minute, step_minutes, by_client, limit)
        return await self._read(lambda connection: read_sums(connection, *asked))

    async def forget_before(self, minute: int) -> None:
        """In batches, so that other writes come in between and each keeps its deadline."""
        while await self._write(ForgetBatch(minute)):
            await self._run_writer(self._shrink_job)
        await self._keep_room()
        await self._run_writer(self._checkpoint_job)

    async def _keep_room(self) -> None:
        """History never takes the room that settings, rules and their audit need: where the
        file is nearly as large as it may be, the oldest of it goes before its time."""
        limit_bytes = HISTORY_SHARE * self._max_bytes
        while await self._read(used_bytes) > limit_bytes:
            kept_from = await self._write(ForgetOldest())
            log.warning("history.cut_short", limit_bytes=limit_bytes, from_minute=kept_from)
            if kept_from is None:
                return
            await self._run_writer(self._shrink_job)

    # --- threads ---------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._deadline_s

    def _workers(self) -> tuple[Worker, Worker]:
        if self._threads is None:
            raise StoreUnavailable(f"{self._path.name}: the store is not open")
        return self._threads

    async def _run_writer(self, job: Callable[[Ticket[None]], None]) -> None:
        writer, _ = self._workers()
        await writer.run(job, until_mono_s=self._deadline())

    async def _write(self, write: Write[T], *, extra_s: float = 0.0) -> T:
        def job(ticket: Ticket[T]) -> None:
            value = self._in_writer(ticket, lambda file: self._transact(file, ticket, write))
            if not ticket.settle(value):
                self._owed = write
                with suppress(StoreUnavailable):  # Stays owed: the next write tries again.
                    self._in_writer(ticket, self._pay)

        writer, _ = self._workers()
        return await writer.run(job, until_mono_s=self._deadline() + extra_s)

    async def _read(self, query: Query[T]) -> T:
        def job(ticket: Ticket[T]) -> None:
            ticket.settle(self._in_reader(ticket, query))

        writer, reader = self._workers()
        until_mono_s = self._deadline()
        try:
            return await reader.run(job, until_mono_s=until_mono_s)
        except _NotOpen:
            await writer.run(self._open_job, until_mono_s=until_mono_s)
            return await reader.run(job, until_mono_s=until_mono_s)

    async def _salvage(self, query: Query[list[T]]) -> list[T]:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.to_thread(salvage, self._path, query)
        except TimeoutError:
            message = f"{self._path.name}: not read within {self._deadline_s:g} s"
            raise StoreUnavailable(message) from None

    # --- in the writer thread --------------------------------------------------------------

    def _in_writer(self, ticket: Ticket[Any], use: Callable[[OpenFile], T]) -> T:
        with named_faults(self._path.name):
            file = self._current(ticket)
            try:
                return use(file)
            except sqlite3.Error as error:
                file.spoilt |= spoils_connection(error)
                raise

    def _current(self, ticket: Ticket[Any]) -> OpenFile:
        if self._file is not None and self._file.is_current():
            return self._file
        self._close_file(ticket)
        busy_timeout_s = self._deadline_s / 2  # A held lock is named, before the wait just ends.
        self._file = OpenFile.open(
            self._path, busy_timeout_s=busy_timeout_s, max_bytes=self._max_bytes
        )
        return self._file

    def _close_file(self, ticket: Ticket[Any]) -> None:
        if self._file is not None:
            self._file.close(within_s=ticket.remaining_s())
        self._file = None

    def _transact(self, file: OpenFile, ticket: Ticket[T], write: Write[T]) -> T:
        self._pay(file)
        with transaction(file.writer, ticket.given_up):
            return write.do(file.writer)

    def _pay(self, file: OpenFile) -> None:
        if self._owed is not None:
            with transaction(file.writer, lambda: False):
                self._owed.take_back(file.writer)
            self._owed = None

    def _open_job(self, ticket: Ticket[None]) -> None:
        ticket.settle(self._in_writer(ticket, lambda file: None))

    def _shrink_job(self, ticket: Ticket[None]) -> None:
        # As a script: `execute` takes one step of this pragma, and one step frees one page.
        script = f"PRAGMA incremental_vacuum({VACUUM_PAGES})"
        self._in_writer(ticket, lambda file: file.writer.executescript(script))
        ticket.settle(None)

    def _checkpoint_job(self, ticket: Ticket[None]) -> None:
        pragma = "PRAGMA wal_checkpoint(TRUNCATE)"
        self._in_writer(ticket, lambda file: file.writer.execute(pragma).fetchall())
        ticket.settle(None)

    def _close_job(self, ticket: Ticket[None]) -> None:
        if self._owed is not None:
            with suppress(StoreUnavailable):
                self._in_writer(ticket, self._pay)
        with named_faults(self._path.name):
            self._close_file(ticket)
        ticket.settle(None)

    # --- in the reader thread --------------------------------------------------------------

    def _in_reader(self, ticket: Ticket[Any], query: Query[T]) -> T:
        file = self._file
        if file is None or not file.reading.acquire(timeout=ticket.remaining_s()):
            raise _NotOpen(f"{self._path.name}: is being opened; try again")
        try:
            with named_faults(self._path.name):
                if not file.is_current():
                    raise _NotOpen(f"{self._path.name}: is being opened anew; try again")
                return _queried(file, ticket, query)
        finally:
            file.reading.release()


def _queried(file: OpenFile, ticket: Ticket[Any], query: Query[T]) -> T:
    file.reader.set_progress_handler(ticket.given_up, DEADLINE_OPS)
    try:
        return query(file.reader)
    except sqlite3.Error as error:
        file.spoilt |= spoils_connection(error)
        raise
