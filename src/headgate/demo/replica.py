"""A replica that is too small for its primary, on any machine.

Its replaying process is stopped and continued so that it follows at a set number of
transactions a second: what too little CPU does to a replica, made repeatable. Transactions,
not bytes: after each checkpoint the same work makes several times as much log. And not
pg_wal_replay_pause(): that is an operator's doing, and agents rightly report it as such.
"""

from __future__ import annotations

import subprocess
import sys

import psycopg

from headgate.demo.brake import TRANSACTIONS, number
from headgate.demo.postgres import PostgresServer

RELEASE_S = 20.0


def transactions(primary: PostgresServer) -> float:
    with psycopg.connect(primary.dsn(), autocommit=True, connect_timeout=60) as connection:
        return number(connection, TRANSACTIONS)


class Brake:
    """Holds one replica back from the moment it is made until `release`."""

    def __init__(self, replica: PostgresServer, per_s: float) -> None:
        self.replica = replica
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headgate.demo.brake", replica.dsn(), f"{per_s:.3f}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us; we let go in order
        )

    def release(self) -> None:
        """Returns when it replays as fast as it can."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(RELEASE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Whatever became of the brake, nothing of the server stays stopped.
        self.replica.resume()
