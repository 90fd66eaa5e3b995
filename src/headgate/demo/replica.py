"""A replica that is too small for its primary, on any machine.

Replay is paused and resumed so that it follows at a set number of bytes a second: what a
weaker disk or a busy replica does, made repeatable.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import psycopg

TICK_S = 0.02
LSN = "select pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')"


class SmallReplica:
    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, application_name="small-replica")
        self._bytes_per_s: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="small-replica", daemon=True)
        self._thread.start()

    def slow_to(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self._connection.close()

    def _run(self) -> None:
        with suppress(psycopg.Error):  # The server goes away when the demo ends.
            self._limit()

    def _limit(self) -> None:
        allowed, before = self._replayed(), time.monotonic()
        paused = False
        while not self._stop.wait(TICK_S):
            now, replayed = time.monotonic(), self._replayed()
            if self._bytes_per_s is None:
                allowed, before = replayed, now
                continue
            elapsed_s, before = now - before, now
            # What an idle replica does not use is not saved up; what it could not use because
            # this thread came late is.
            saved = replayed + self._bytes_per_s * (elapsed_s + 2 * TICK_S)
            allowed = min(allowed + self._bytes_per_s * elapsed_s, saved)
            if (replayed > allowed) is not paused:
                paused = not paused
                self._connection.execute(
                    "select pg_wal_replay_pause()" if paused else "select pg_wal_replay_resume()"
                )

    def _replayed(self) -> float:
        row = self._connection.execute(LSN).fetchone()
        assert row is not None
        return float(row[0])
