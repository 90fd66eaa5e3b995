"""Other clients of the database: a dashboard that must stay fast, and a rogue that never checks.

The dashboard is critical traffic: it only reads, and checks whether replicas are fresh. The rogue
is an export script: several sessions, no pauses, no checks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

import psycopg

from headgate import Client, HeadgateError
from headgate.demo.agents import DemoAgent

DASHBOARD = "dashboard:orders"
DASHBOARD_QUERY = "select count(*), max(id) from orders where note like 'a%'"
DASHBOARD_PERIOD_S = 0.1
FRESH_S = 5.0
ASK_EVERY_S = 1.0
EXPORT = "export.py"
EXPORT_QUERY = "select count(distinct md5(note || id)) from orders"
BLOCKED_STATE = "53000"
RETRY_S = 0.2
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
                self._stop.wait(RETRY_S)

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
                self._stop.wait(RETRY_S)

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
