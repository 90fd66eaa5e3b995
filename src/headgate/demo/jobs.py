"""Two jobs that would hurt the database, and learn to ask.

Each loops over chunks of real writes. Told to ask, it lets the SDK hold it before each
chunk; nothing else about it changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from headgate import Client, HeadgateError

ROWS = 20_000
CHUNK_ROWS = 400
# A fixed pace, so that what the jobs write does not depend on how busy this machine is.
PERIOD_S = 0.025

SCHEMA = f"""
create table orders (id int primary key, note text not null) with (fillfactor = 50);
create table events (id bigint generated always as identity, payload text not null);
insert into orders select i, repeat('x', 400) from generate_series(1, {ROWS}) i;
"""


class Job:
    """A writer in a thread of its own."""

    def __init__(self, name: str, dsn: str, url: str, write: Callable[[Job], None]) -> None:
        self.name = name
        self.chunks = 0
        self.asks = False
        self._gate = Client(name, database="main", url=url, timeout_s=2.0)
        self._write = write
        self._stop = threading.Event()
        self.connection = psycopg.connect(dsn, autocommit=True, application_name=name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._gate.close()
        self.connection.close()

    def _run(self) -> None:
        with suppress(psycopg.Error):  # The server goes away when the demo ends.
            due = time.monotonic()
            while not self._stop.is_set():
                if self.asks and not self._may_start():
                    continue
                self._write(self)
                self.chunks += 1
                due = max(due + PERIOD_S, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))

    def _may_start(self) -> bool:
        """One OK licenses one chunk. Short waits, so that the job can be stopped."""
        try:
            return self._gate.wait(deadline_s=0.5).admitted
        except HeadgateError:
            return False


def backfill(job: Job) -> None:
    """Rewrites the orders, a chunk at a time, for ever."""
    first = 1 + job.chunks * CHUNK_ROWS % ROWS
    job.connection.execute(
        "update orders set note = repeat(chr(97 + %s), 400) where id between %s and %s",
        (job.chunks % 26, first, first + CHUNK_ROWS - 1),
    )


def etl(job: Job) -> None:
    """Loads events, and empties the table now and then so that the demo needs little disk."""
    if job.chunks % 200 == 199:
        job.connection.execute("truncate events")
    job.connection.execute(
        "insert into events (payload) select repeat('e', 400) from generate_series(1, %s)",
        (CHUNK_ROWS,),
    )
