"""Hold a replica's replaying process to a set number of transactions a second.

    us ──pipe──► brake ──SIGSTOP, SIGCONT──► the replica's startup process

Run as a process by stage.py: a thread would compete with the jobs for the interpreter while
the replica runs free, and it replays a second's work in a few milliseconds. Ends, and lets the
replica go, when the pipe is closed, however that comes about.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

import psycopg

TICK_S = 0.02
LONGEST_STOP_S = 0.4
# On a primary, of those that began; on a replica, of those replayed.
TRANSACTIONS = "select pg_snapshot_xmax(pg_current_snapshot())::text::int8"
REPLAYER = "select pid from pg_stat_activity where backend_type = 'startup'"


def number(connection: psycopg.Connection[tuple[float]], query: str) -> float:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return float(row[0])


def released(within_s: float) -> bool:
    ready, _, _ = select.select([0], [], [], within_s)
    return bool(ready)


def limit(connection: psycopg.Connection[tuple[float]], replayer: int, per_s: float) -> None:
    allowed, before = number(connection, TRANSACTIONS), time.monotonic()
    pause_s = TICK_S
    while not released(pause_s):
        now, replayed = time.monotonic(), number(connection, TRANSACTIONS)
        elapsed_s, before = now - before, now
        # What an idle replica does not use is not saved up; what it could not use because we
        # came late is. And where it ran too far for the same reason, it has a debt of one stop at
        # most: more would make it slower later than was promised.
        saved = replayed + per_s * (elapsed_s + 2 * TICK_S)
        owed = replayed - per_s * LONGEST_STOP_S
        allowed = max(owed, min(allowed + per_s * elapsed_s, saved))
        ahead_s = (replayed - allowed) / per_s
        if ahead_s > 0:
            stop(replayer, ahead_s)
        pause_s = TICK_S if ahead_s < -TICK_S else 0.0


def stop(replayer: int, seconds: float) -> None:
    """Sends the server nothing meanwhile: the stopped process may hold a lock that it needs."""
    os.kill(replayer, signal.SIGSTOP)
    try:
        released(seconds)
    finally:
        os.kill(replayer, signal.SIGCONT)


def main() -> None:
    dsn, per_s = sys.argv[1], float(sys.argv[2])
    # The server may go away before this process is stopped.
    with (
        suppress(psycopg.Error, ProcessLookupError),
        psycopg.connect(
            dsn, autocommit=True, application_name="brake", connect_timeout=60
        ) as connection,
    ):
        limit(connection, int(number(connection, REPLAYER)), per_s)


if __name__ == "__main__":
    main()
