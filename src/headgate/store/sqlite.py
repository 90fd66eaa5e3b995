"""The store in one SQLite file: WAL, one thread for writes, one for reads, one for history.

commit, add_tallies … ──► writer thread ──┐
list, count, audit … ───► reader thread ──┼──► OpenFile (file.py)
sums, tallies … ────────► looking thread ─┘

Summing up two weeks takes about a second: neither writes nor the reads for rules and metrics wait
for it.

StoreUnavailable means that nothing was stored, unless it is OutcomeUnknown: a commit that finishes
after its caller got that error is taken back before the next write. After a fault the next
operation opens the file again, so the store recovers as soon as the disk does.

A change is acknowledged once it is in two copies: in the file, and beside it (statecopy.py). If the
copy cannot be written, the change still counts; the fault is reported, and the write tried again.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from headgate.base.keyvalue import Compare, Listing, Put
from headgate.errors import Conflict, OutcomeUnknown, StoreUnavailable
from headgate.history.records import (
    AuditEntry,
    BudgetMinute,
    CheckedMinute,
    MetricMinute,
    Report,
    Tally,
)
from headgate.store.file import (
    DEADLINE_OPS,
    OpenFile,
    ReadConnection,
    check_ours,
    copy_beside,
    is_full,
    keep_reserve,
    lift_bound,
    named_faults,
    salvage,
    set_aside,
    spoils_connection,
    transaction,
)
from headgate.store.locallog import (
    AddAudit,
    Commit,
    check_commit,
    check_report,
    check_step,
    check_tallies,
    read_audit,
    read_count,
    read_listing,
)
from headgate.store.statecopy import SUFFIX, CopyPart
from headgate.store.statements import (
    AddBudgetMinutes,
    AddMetricMinutes,
    AddTallies,
    ForgetBatch,
    ForgetOldest,
    ForgetReports,
    HistoryScope,
    PutReport,
    Touch,
    Write,
    read_asked,
    read_budget_minutes,
    read_client_sums,
    read_metric_minutes,
    read_reports,
    read_sums,
    read_tallies,
    used_bytes,
)
from headgate.store.worker import Job, Ticket, Worker

log = structlog.get_logger()

T = TypeVar("T")
Query = Callable[[sqlite3.Connection], T]

VACUUM_PAGES = 2000
MAX_BYTES = 4 * 1024**3
HISTORY_SHARE = 0.75
"""Share of MAX_BYTES: beyond it the oldest history is deleted early."""
CLOSE_DEADLINE_S = 2.0
TALLIES_PER_S = 10_000
"""Speed of a slow disk: a batch gets one more second for each this many rows."""
BYTES_PER_S = 1024 * 1024
"""The same for a commit: thousands of budgets at once are megabytes."""
LOOK_BACK_S = 15.0
"""Deadline of a history query: summing up a lot of it is no fault of the disk."""
CONVERSION_S = 120.0
"""To convert a file of an earlier version: with tens of thousands of changes and a slow disk it
takes some seconds, and the changes in force are not lost meanwhile."""
COPY_AGAIN_S = 10.0
"""Pause after a copy that could not be written."""
TOO_MUCH = (
    "that much history cannot be summed up in time: use a shorter time (--since 1d), "
    "one database, or a level that fewer clients have"
)


class _NotOpen(StoreUnavailable):
    """The reader found no file it may use: the writer has to open one first."""


class StateFile:
    """The file as the threads use it: `query` in those that read, all else in the one that
    writes."""

    def __init__(self, path: Path, store: str, *, busy_timeout_s: float, max_bytes: int) -> None:
        """`store`: its name in logs."""
        self.path = path
        self.max_bytes = max_bytes
        self._store = store
        self._busy_timeout_s = busy_timeout_s
        self._file: OpenFile | None = None
        self._owed: Write[Any] | None = None
        """A commit that finished too late: taken back before the next write."""
        self.fault: str | None = None
        self._copy_fault = ""
        self._copy_due = False
        """The whole copy must be written."""
        self._copied_at = float("-inf")
        self._opened_with = ""

    @property
    def notes(self) -> Sequence[str]:
        told = [self._opened_with]
        if self._copy_fault:
            told.append(
                f"the second copy of the changes in force cannot be written: {self._copy_fault}; "
                "the agent tries again"
            )
        return [note for note in told if note]

    # --- jobs of the writer thread ---------------------------------------------------------

    def open(self, ticket: Ticket[None]) -> None:
        self._use(ticket, lambda file: None)
        self._copy(ticket)
        ticket.settle(None)

    def write(
        self, ticket: Ticket[T], write: Write[T], *, must_fit: bool, made: Commit | None
    ) -> None:
        """`made`: what goes into the copy."""
        try:
            value = self._written(ticket, write, must_fit=must_fit)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, sqlite3.Error | OSError):
                self.fault = str(error)  # For display, until there is room for a write again.
            raise
        if getattr(write, "shows_room", False):
            self.fault = None
        self._copy(ticket, made)
        if not ticket.settle(value):
            self._owed = write
            with suppress(StoreUnavailable):  # Still pending: the next write tries again.
                self._use(ticket, self._pay)
            self._copy(ticket)

    def begin_anew(self, ticket: Ticket[Sequence[str]]) -> None:
        with suppress(StoreUnavailable):
            self._use(ticket, lambda file: None)
            name = self.path.name
            raise Conflict(f"{name} can be used: nothing is lost, and nothing was changed")
        with named_faults(self.path.name):
            self._close_file(ticket)
            path = self.path.resolve()
            check_ours(path)
            ending = datetime.now(UTC).strftime("lost-%Y%m%dT%H%M%SZ")
            suffixes = ["", "-wal", "-shm"]
            if isinstance(copy_beside(path), str):
                suffixes.append(SUFFIX)
            moved = set_aside(path, suffixes, ending)
            self._open(ticket, anew=True)
        ticket.settle(moved)

    def shrink(self, ticket: Ticket[None]) -> None:
        # As a script: `execute` takes one step of this pragma, and one step frees one page.
        script = f"PRAGMA incremental_vacuum({VACUUM_PAGES})"
        self._use(ticket, lambda file: file.writer.executescript(script))
        ticket.settle(None)

    def checkpoint(self, ticket: Ticket[None]) -> None:
        pragma = "PRAGMA wal_checkpoint(TRUNCATE)"
        self._use(ticket, lambda file: file.writer.execute(pragma).fetchall())
        self._use(ticket, lambda file: keep_reserve(file.path))
        ticket.settle(None)

    def close(self, ticket: Ticket[None]) -> None:
        if self._owed is not None:
            with suppress(StoreUnavailable):
                self._use(ticket, self._pay)
        with named_faults(self.path.name):
            self._close_file(ticket)
        ticket.settle(None)

    # --- their parts -----------------------------------------------------------------------

    def _written(self, ticket: Ticket[T], write: Write[T], *, must_fit: bool) -> T:
        def transact(file: OpenFile) -> T:
            self._pay(file)
            with transaction(file.writer, ticket.given_up):
                return write.do(file.writer)

        try:
            return self._use(ticket, transact)
        except StoreUnavailable as error:
            if not must_fit or not is_full(error):
                raise
            # What lifts a restriction goes through on a full disk: room is kept for it.
            with self._use(ticket, lift_bound):
                return self._use(ticket, transact)

    def _copy(self, ticket: Ticket[Any], made: Commit | None = None) -> None:
        """Beside the file. Never fails a change: what is acknowledged is in the file."""
        now_s = time.monotonic()
        again = self._copy_due and now_s - self._copied_at >= COPY_AGAIN_S
        if made is None and not again:
            return
        self._copied_at = now_s

        def copy(file: OpenFile) -> None:
            part = None if made is None else CopyPart(*made.log, _now(), made.rows)
            if self._copy_due or part is None or not file.copy.append(part):
                file.copy.save(file.writer, _now())

        try:
            self._use(ticket, copy)
        except StoreUnavailable as error:
            if not self._copy_fault:
                log.error("store.copy_fault", store=self._store, detail=str(error))
            self._copy_due, self._copy_fault = True, str(error)
        else:
            self._copy_due, self._copy_fault = False, ""

    def _use(self, ticket: Ticket[Any], use: Callable[[OpenFile], T]) -> T:
        with named_faults(self.path.name):
            file = self._file
            if file is None or not file.is_current():
                self._close_file(ticket)
                file = self._open(ticket)
            try:
                return use(file)
            except OutcomeUnknown as error:
                file.spoilt = True
                raise OutcomeUnknown(f"{self.path.name}: {error}") from error.__cause__
            except sqlite3.Error as error:
                file.spoilt |= spoils_connection(error)
                raise

    def _open(self, ticket: Ticket[Any], *, anew: bool = False) -> OpenFile:
        file = self._file = OpenFile.open(
            self.path,
            busy_timeout_s=self._busy_timeout_s,
            max_bytes=self.max_bytes,
            anew=anew,
            converting=lambda: ticket.extend(CONVERSION_S),
        )
        if file.note:
            log.warning("store.restored", store=self._store, detail=file.note)
            self._opened_with = file.note
        if not file.is_copied:
            self._copy_due, self._copied_at = True, float("-inf")
        return file

    def _close_file(self, ticket: Ticket[Any]) -> None:
        if self._file is not None:
            self._file.close(within_s=ticket.remaining_s())
        self._file = None

    def _pay(self, file: OpenFile) -> None:
        if self._owed is not None:
            with transaction(file.writer, lambda: False):
                self._owed.take_back(file.writer)
            self._owed = None
            self._copy_due, self._copied_at = True, float("-inf")

    # --- in a reading thread ---------------------------------------------------------------

    def query(
        self, ticket: Ticket[Any], choose: Callable[[OpenFile], ReadConnection], query: Query[T]
    ) -> T:
        file = self._file
        reader = None if file is None else choose(file)
        if file is None or reader is None or not reader.lock.acquire(timeout=ticket.remaining_s()):
            raise _NotOpen(f"{self.path.name}: is being opened; try again")
        try:
            with named_faults(self.path.name):
                if not file.is_current():
                    raise _NotOpen(f"{self.path.name}: is being opened again; try later")
                reader.connection.set_progress_handler(ticket.given_up, DEADLINE_OPS)
                try:
                    return query(reader.connection)
                except sqlite3.Error as error:
                    file.spoilt |= spoils_connection(error)
                    raise
        finally:
            reader.lock.release()


class _Workers(NamedTuple):
    writer: Worker
    reader: Worker
    looker: Worker


class FileThreads:
    """The threads of one file, and how long callers wait for them."""

    def __init__(self, file: StateFile, *, deadline_s: float, look_back_s: float) -> None:
        self.file = file
        self._deadline_s = deadline_s
        self._look_back_s = look_back_s
        self._workers: _Workers | None = None

    async def open(self) -> None:
        if self._workers is None:
            name = self.file.path.name
            self._workers = _Workers(
                Worker(f"{name} (writing)"),
                Worker(f"{name} (reading)"),
                Worker(f"{name} (looking back)", advice=TOO_MUCH),
            )
        await self.run(self.file.open)

    async def close(self) -> None:
        if self._workers is None:
            return
        workers, self._workers = self._workers, None
        try:
            # What was acknowledged is on the disk already: a disk that hangs now loses nothing.
            with suppress(StoreUnavailable):
                until_mono_s = time.monotonic() + CLOSE_DEADLINE_S
                await workers.writer.run(self.file.close, until_mono_s=until_mono_s)
        finally:
            for worker in workers:
                worker.stop()

    def deadline(self) -> float:
        return time.monotonic() + self._deadline_s

    async def run(self, job: Job[T], *, extra_s: float = 0.0) -> T:
        """In the writer thread."""
        return await self._opened().writer.run(job, until_mono_s=self.deadline() + extra_s)

    async def write(
        self,
        write: Write[T],
        *,
        extra_s: float = 0.0,
        must_fit: bool = False,
        made: Commit | None = None,
    ) -> T:
        def job(ticket: Ticket[T]) -> None:
            self.file.write(ticket, write, must_fit=must_fit, made=made)

        return await self.run(job, extra_s=extra_s)

    async def read(self, query: Query[T]) -> T:
        def job(ticket: Ticket[T]) -> None:
            ticket.settle(self.file.query(ticket, lambda file: file.reader, query))

        return await self._read(self._opened().reader, job, self.deadline())

    async def look(self, query: Query[T]) -> T:
        def job(ticket: Ticket[T]) -> None:
            ticket.settle(self.file.query(ticket, lambda file: file.looker, query))

        until_mono_s = time.monotonic() + self._look_back_s
        return await self._read(self._opened().looker, job, until_mono_s)

    async def _read(self, worker: Worker, job: Job[T], until_mono_s: float) -> T:
        try:
            return await worker.run(job, until_mono_s=until_mono_s)
        except _NotOpen:
            await self.run(self.file.open)
            return await worker.run(job, until_mono_s=until_mono_s)

    def _opened(self) -> _Workers:
        if self._workers is None:
            raise StoreUnavailable(f"{self.file.path.name}: the store is not open")
        return self._workers


class SqliteHistory:
    """What was decided and measured, by the minute."""

    def __init__(self, threads: FileThreads) -> None:
        self._threads = threads

    async def add_tallies(self, tallies: Sequence[Tally]) -> None:
        """Of none, too, is a write: it finds out whether the file can be written again."""
        check_tallies(tallies)
        # After hours away a great many come at once: they must fit, or they never will.
        extra_s = len(tallies) // TALLIES_PER_S
        await self._threads.write(AddTallies(tallies) if tallies else Touch(), extra_s=extra_s)

    async def add_metric_minutes(self, minutes: Sequence[MetricMinute]) -> None:
        await self._threads.write(AddMetricMinutes(minutes))

    async def tallies(
        self,
        tokens: Sequence[str] = (),
        *,
        since_minute: int,
        until_minute: int,
        limit: int = 10_000,
    ) -> Sequence[Tally]:
        """Both minutes included, oldest first; beyond `limit` the oldest are left out."""
        scope = HistoryScope(tuple(tokens), "", since_minute, until_minute)
        return await self._threads.look(lambda connection: read_tallies(connection, scope, limit))

    async def metric_minutes(
        self,
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        metric: str = "",
        limit: int = 100_000,
    ) -> Sequence[MetricMinute]:
        scope = HistoryScope((), database, since_minute, until_minute)
        return await self._threads.look(
            lambda connection: read_metric_minutes(connection, scope, metric, limit)
        )

    async def sums(
        self,
        tokens: Sequence[str],
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        step_minutes: int | None = 1,
        by_client: bool = True,
        limit: int | None = None,
    ) -> Sequence[Tally]:
        check_step(step_minutes)
        scope = HistoryScope(tuple(tokens), database, since_minute, until_minute)
        return await self._threads.look(
            lambda connection: read_sums(
                connection, scope, step_minutes=step_minutes, by_client=by_client, limit=limit
            )
        )

    async def client_sums(
        self,
        tokens: Sequence[str],
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        limit: int,
    ) -> Sequence[Tally]:
        scope = HistoryScope(tuple(tokens), database, since_minute, until_minute)
        return await self._threads.look(
            lambda connection: read_client_sums(connection, scope, limit)
        )

    async def minutes_asked(
        self, tokens: Sequence[str], *, since_minute: int, until_minute: int, database: str = ""
    ) -> Sequence[CheckedMinute]:
        scope = HistoryScope(tuple(tokens), database, since_minute, until_minute)
        return await self._threads.look(lambda connection: read_asked(connection, scope))

    async def add_budget_minutes(self, minutes: Sequence[BudgetMinute]) -> None:
        await self._threads.write(AddBudgetMinutes(minutes))

    async def budget_minutes(
        self,
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        budget: str = "",
        limit: int = 100_000,
    ) -> Sequence[BudgetMinute]:
        span = (since_minute, until_minute)
        return await self._threads.look(
            lambda found: read_budget_minutes(found, span, database, budget, limit)
        )

    async def forget_before(self, minute: int) -> None:
        """In batches, so that other writes come in between and each keeps its deadline."""
        while await self._threads.write(ForgetBatch(minute)):
            await self._threads.run(self._threads.file.shrink)
        await self._keep_room()
        await self._threads.run(self._threads.file.checkpoint)

    async def _keep_room(self) -> None:
        """History never takes the room that settings, rules and their audit need: where the
        file is nearly as large as it may be, the oldest of it goes before its time. What
        clients reported goes before any of it."""
        limit_bytes = HISTORY_SHARE * self._threads.file.max_bytes
        if await self._threads.read(used_bytes) > limit_bytes:
            forgotten = await self._threads.write(ForgetReports())
            log.warning("reports.forgotten", limit_bytes=limit_bytes, reports=forgotten)
        while await self._threads.read(used_bytes) > limit_bytes:
            kept_from = await self._threads.write(ForgetOldest())
            log.warning("history.cut_short", limit_bytes=limit_bytes, from_minute=kept_from)
            if kept_from is None:
                return
            await self._threads.run(self._threads.file.shrink)


class SqliteStore:
    name = "sqlite"

    def __init__(
        self,
        path: Path,
        *,
        deadline_s: float = 2.0,
        look_back_s: float = LOOK_BACK_S,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        busy_timeout_s = deadline_s / 2  # A held lock is named, before the wait just ends.
        self._file = StateFile(path, self.name, busy_timeout_s=busy_timeout_s, max_bytes=max_bytes)
        self._threads = FileThreads(self._file, deadline_s=deadline_s, look_back_s=look_back_s)
        self.history = SqliteHistory(self._threads)

    @property
    def fault(self) -> str | None:
        return self._file.fault

    @property
    def notes(self) -> Sequence[str]:
        return self._file.notes

    async def open(self) -> None:
        """Can be called again, and operations do so automatically; `close` ends it either way."""
        await self._threads.open()

    async def close(self) -> None:
        await self._threads.close()

    async def begin_anew(self, audit: AuditEntry) -> Sequence[str]:
        """If the file cannot be used: rename it, and begin another one with the content of the
        copy beside it, or with nothing. Returns the new names of the old files. Conflict if it can
        be used."""
        moved = await self._threads.run(self._file.begin_anew)
        await self._threads.write(AddAudit(audit))
        return moved

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        if not allow_stale:
            return await self._threads.read(lambda connection: read_listing(connection, prefixes))

        def job(ticket: Ticket[Listing]) -> None:
            path, converting = self._file.path, lambda: ticket.extend(CONVERSION_S)
            ticket.settle(salvage(path, prefixes, converting))

        worker = Worker(f"{self._file.path.name} (salvaging)")  # Of its own: others may hang.
        try:
            return await worker.run(job, until_mono_s=self._threads.deadline())
        finally:
            worker.stop()

    async def count(self, prefix: str) -> int:
        return await self._threads.read(lambda connection: read_count(connection, prefix))

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        """Leases mean nothing here: nothing is collected."""
        extra_s = check_commit(compares, puts) / BYTES_PER_S
        made = Commit(compares, puts, audit)
        return await self._threads.write(made, extra_s=extra_s, must_fit=must_fit, made=made)

    async def audit(self, *, limit: int = 100) -> Sequence[AuditEntry]:
        return await self._threads.read(lambda connection: read_audit(connection, limit))

    async def reports(self) -> Sequence[Report]:
        return await self._threads.read(read_reports)

    async def put_report(self, report: Report, *, forget: Sequence[Report] = ()) -> None:
        check_report(report)
        await self._threads.write(PutReport(report, forget))


class TemporaryStore(SqliteStore):
    """For an agent without a state file: in a folder of its own, which goes when the agent does."""

    name = "temporary"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headgate-")
        super().__init__(Path(self._folder.name) / "state.db")

    async def close(self) -> None:
        await super().close()
        self._folder.cleanup()


def _now() -> float:
    return time.time()  # noqa: TID251 -- when a copy was made, for people
