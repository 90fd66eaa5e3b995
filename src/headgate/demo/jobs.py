"""Jobs that would hurt the database, and learn to check.

Each loops over chunks of real writes, on whichever server is the primary. With checks on, the SDK
throttles it before each chunk by the health of the whole shard; nothing else about it changes. It
knows one agent; where that one names another, the SDK goes there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg

from headgate import Client, HeadgateError
from headgate.client.answers import Answer
from headgate.client.circuit import OnUnavailable
from headgate.demo.agents import AGENT_ROLE, DemoAgent
from headgate.demo.postgres import PostgresServer
from headgate.demo.traffic import CRITICAL_ROLE, JOBS_ROLE, ROGUE_ROLE
from headgate.errors import WaitedTooLong

ROWS = 20_000
CHUNK_ROWS = 400
# A fixed pace, so that what the jobs write does not depend on how busy this machine is.
PERIOD_S = 0.025
LONGEST_WAIT_S = 0.5
RETRY_S = 0.1
SILENT_FOR_S = 1.5
"""After so long without an answer a job that may goes on unthrottled."""
IDLE_S = 0.1

SCHEMA = f"""
create table orders (id int primary key, note text not null) with (fillfactor = 50);
create table events (id bigint generated always as identity, payload text not null);
create table customers (id int primary key, note text not null) with (fillfactor = 50);
insert into orders select i, repeat('x', 400) from generate_series(1, {ROWS}) i;
insert into customers select i, repeat('x', 400) from generate_series(1, {ROWS}) i;
create role {AGENT_ROLE} login in role pg_monitor;
create role {JOBS_ROLE} login;
create role {CRITICAL_ROLE} login;
create role {ROGUE_ROLE} login;
grant select, insert, update, truncate on orders, events, customers to {JOBS_ROLE};
grant select on orders to {CRITICAL_ROLE}, {ROGUE_ROLE};
"""


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The answer that a job got when it wanted to start a chunk."""

    asked_at: float
    heard_at: float
    admitted: bool
    verdict: str
    reason: str = ""
    cause: str = ""
    unthrottled: bool = False
    """No agent answered for so long that it went on without one."""


def primary_dsn(shard: Sequence[PostgresServer], user: str) -> str:
    """Of whichever of them takes writes: the driver tries each."""
    hosts = ",".join("127.0.0.1" for _ in shard)
    ports = ",".join(str(server.port) for server in shard)
    return (
        f"host={hosts} port={ports} dbname=postgres user={user}"
        " target_session_attrs=read-write connect_timeout=10"
    )


class DemoJob:
    """A writer in a thread of its own."""

    def __init__(
        self,
        name: str,
        dsn: str,
        home: DemoAgent,
        write: Callable[[DemoJob], None],
        *,
        on_unavailable: OnUnavailable = "closed",
    ) -> None:
        self.name = name
        self.home = home
        self.chunks = 0
        self.chunks_shown: int | None = None
        """In the last frame that it was in."""
        self.works = True
        """False: it is there, and does nothing for now."""
        self.asks = True
        self.heard: deque[JobAnswer] = deque(maxlen=20_000)
        self.rejected_since: float | None = None
        self._gate = Client(
            name,
            database="main",
            url=home.url,
            metrics="lag",
            scope="shard",
            timeout_s=10.0,
            on_unavailable=on_unavailable,
            unavailable_after_s=SILENT_FOR_S,
        )
        self._dsn = dsn
        self._write = write
        self._stop = threading.Event()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=20)
        self._gate.close()

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._dsn, autocommit=True, application_name=self.name
            )
        self._connection.execute(statement.encode(), values)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            if not self.works:
                self._stop.wait(IDLE_S)
                continue
            if self.asks and not self._may_start():
                continue
            if self._chunk():
                due = max(due + PERIOD_S, time.monotonic())
                self._stop.wait(max(0.0, due - time.monotonic()))
        if self._connection is not None:
            self._connection.close()

    def _chunk(self) -> bool:
        """A chunk that fails is done again: the primary may be another one by then."""
        try:
            self._write(self)
        except psycopg.Error:
            self._stop.wait(RETRY_S)
            return False
        self.chunks += 1
        return True

    def _may_start(self) -> bool:
        """One OK licenses one chunk. Short waits, so that the job can be stopped."""
        asked_at = time.monotonic()
        try:
            self._note(_heard(asked_at, self._gate.wait(deadline_s=LONGEST_WAIT_S)))
            return True
        except WaitedTooLong as rejected:
            assert rejected.answer is not None
            self._note(_heard(asked_at, rejected.answer))
            self._stop.wait(rejected.answer.retry_after_s or RETRY_S)
        except HeadgateError as error:
            self._note(JobAnswer(asked_at, time.monotonic(), False, "UNAVAILABLE", str(error)))
        return False

    def _note(self, heard: JobAnswer) -> None:
        self.heard.append(heard)
        if heard.admitted:
            self.rejected_since = None
        elif self.rejected_since is None:
            self.rejected_since = heard.asked_at


def _heard(asked_at: float, answer: Answer) -> JobAnswer:
    cause = next((metric.cause for metric in answer.metrics if metric.cause), "")
    now = time.monotonic()
    return JobAnswer(
        asked_at,
        now,
        answer.admitted,
        answer.verdict,
        answer.reason,
        cause or "",
        answer.unthrottled,
    )


def backfill(job: DemoJob) -> None:
    """Rewrites the orders, a chunk at a time, without end."""
    first = 1 + job.chunks * CHUNK_ROWS % ROWS
    job.execute(
        "update orders set note = repeat(chr(97 + %s), 400) where id between %s and %s",
        (job.chunks % 26, first, first + CHUNK_ROWS - 1),
    )


def migrate(job: DemoJob) -> None:
    """Fills a new column of the customers, as an online migration does."""
    first = 1 + job.chunks * CHUNK_ROWS % ROWS
    job.execute(
        "update customers set note = repeat(chr(65 + %s), 400) where id between %s and %s",
        (job.chunks % 26, first, first + CHUNK_ROWS - 1),
    )


def etl(job: DemoJob) -> None:
    """Loads events, and empties the table now and then so that the demo needs little disk."""
    if job.chunks % 200 == 199:
        job.execute("truncate events")
    job.execute(
        "insert into events (payload) select repeat('e', 400) from generate_series(1, %s)",
        (CHUNK_ROWS,),
    )


# --- who else is in the database -----------------------------------------------------------
# Other clients of the database: a dashboard that must stay fast, and a rogue that never checks.
#
# The dashboard is critical traffic: it only reads, and checks whether replicas are fresh. The rogue
# is an export script: several sessions, no pauses, no checks.

DASHBOARD = "dashboard:orders"
DASHBOARD_QUERY = "select count(*), max(id) from orders where note like 'a%'"
DASHBOARD_PERIOD_S = 0.1
FRESH_S = 5.0
ASK_EVERY_S = 1.0
EXPORT = "export.py"
EXPORT_QUERY = "select count(distinct md5(note || id)) from orders"
BLOCKED_STATE = "53000"
REPEAT_S = 0.2
JOIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Read:
    at: float
    took_s: float


class Dashboard:
    """Reads all the time, in a thread of its own, and keeps how long each took."""

    def __init__(self, dsn: str, home: DemoAgent) -> None:
        self.reads: deque[Read] = deque(maxlen=5_000)
        self.blocked = 0
        """Statements that a budget blocked: there must be none."""
        self._dsn = dsn
        self._gate = Client(DASHBOARD, database="main", url=home.url, timeout_s=10.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=DASHBOARD, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        self._gate.close()

    def took_s(
        self, since: float, until: float = float("inf"), *, share: float = 0.95
    ) -> float | None:
        """What that share of its reads stayed below; None where nothing was read then."""
        took = sorted(read.took_s for read in list(self.reads) if since <= read.at < until)
        return took[min(len(took) - 1, int(len(took) * share))] if took else None

    def _run(self) -> None:
        asked_at = float("-inf")
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as session:
                    while not self._stop.wait(DASHBOARD_PERIOD_S):
                        if time.monotonic() - asked_at >= ASK_EVERY_S:
                            asked_at = time.monotonic()
                            self._ask()
                        self._read(session)
            except psycopg.Error:  # Its server may be gone: the next one serves.
                self._stop.wait(REPEAT_S)

    def _ask(self) -> None:
        try:
            self._gate.check_read(FRESH_S)
        except HeadgateError:
            return  # It reads the primary then, as here it always does.

    def _read(self, session: psycopg.Connection[tuple[object, ...]]) -> None:
        began_at = time.monotonic()
        try:
            session.execute(DASHBOARD_QUERY)
        except psycopg.Error as error:
            if error.sqlstate != BLOCKED_STATE:
                raise
            self.blocked += 1
        self.reads.append(Read(began_at, time.monotonic() - began_at))


class Rogue:
    """Sessions that run the same expensive statement again and again."""

    def __init__(self, dsn: str, sessions: int) -> None:
        self.sessions = sessions
        self.done = 0
        self.blocked = 0
        self.last_block = ""
        self._dsn = dsn
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def is_here(self) -> bool:
        return bool(self._threads)

    def appear(self) -> None:
        if self.is_here:
            return
        self.done = self.blocked = 0
        self.last_block = ""
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._run, name=EXPORT, daemon=True)
            for _ in range(self.sessions)
        ]
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._threads = []

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(
                    self._dsn, autocommit=True, application_name=EXPORT
                ) as session:
                    while not self._stop.is_set():
                        self._export(session)
            except psycopg.Error:
                self._stop.wait(REPEAT_S)

    def _export(self, session: psycopg.Connection[tuple[object, ...]]) -> None:
        try:
            session.execute(EXPORT_QUERY)
        except psycopg.Error as error:
            if error.sqlstate != BLOCKED_STATE:
                raise
            with self._lock:
                self.blocked += 1
                self.last_block = str(error.diag.message_primary)
        else:
            with self._lock:
                self.done += 1
