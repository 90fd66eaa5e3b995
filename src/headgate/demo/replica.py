"""A replica that is too small for its primary, on any machine.

Its replaying process is stopped and continued so that it follows at a set number of
transactions a second: what too little CPU does to a replica, made repeatable. Transactions,
not bytes: after each checkpoint the same work makes several times as much log. And not
pg_wal_replay_pause(): that is an operator's doing, and agents rightly report it as such.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import psycopg

from headgate.demo.postgres import PostgresServer

TICK_S = 0.02
LONGEST_STOP_S = 0.4
# On a primary, of those that began; on a replica, of those replayed.
TRANSACTIONS = "select pg_snapshot_xmax(pg_current_snapshot())::text::int8"
REPLAYER = "select pid from pg_stat_activity where backend_type = 'startup'"


def transactions(primary: PostgresServer) -> float:
    with psycopg.connect(primary.dsn(), autocommit=True, connect_timeout=5) as connection:
        return _number(connection, TRANSACTIONS)


class Brake:
    """Holds one replica back from the moment it is made until `release`."""

    def __init__(self, replica: PostgresServer, per_s: float) -> None:
        self.replica = replica
        self._per_s = per_s
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brake", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Returns when it replays as fast as it can."""
        self._released.set()
        self._thread.join()

    def _run(self) -> None:
        with (
            suppress(psycopg.Error),  # The server goes away when the demo ends.
            psycopg.connect(
                self.replica.dsn(), autocommit=True, application_name="brake", connect_timeout=5
            ) as connection,
        ):
            self._limit(connection, int(_number(connection, REPLAYER)))

    def _limit(self, connection: psycopg.Connection[tuple[float]], replayer: int) -> None:
        allowed, before = _number(connection, TRANSACTIONS), time.monotonic()
        pause_s = TICK_S
        while not self._released.wait(pause_s):
            now, replayed = time.monotonic(), _number(connection, TRANSACTIONS)
            elapsed_s, before = now - before, now
            # What an idle replica does not use is not saved up; what it could not use because
            # this thread came late is.
            saved = replayed + self._per_s * (elapsed_s + 2 * TICK_S)
            allowed = min(allowed + self._per_s * elapsed_s, saved)
            ahead_s = (replayed - allowed) / self._per_s
            pause_s = 0.001
            if ahead_s > 0:
                self._stop(replayer, min(ahead_s, LONGEST_STOP_S))
            elif ahead_s < -TICK_S:
                pause_s = TICK_S

    def _stop(self, replayer: int, seconds: float) -> None:
        """Asks the server nothing meanwhile: the stopped process may hold what it needs."""
        with suppress(ProcessLookupError):
            os.kill(replayer, signal.SIGSTOP)
            try:
                self._released.wait(seconds)
            finally:
                os.kill(replayer, signal.SIGCONT)


def _number(connection: psycopg.Connection[tuple[float]], query: str) -> float:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return float(row[0])
