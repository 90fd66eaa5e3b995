"""What the tests of enforcement share: a budget's one place taken, and statements that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pymysql

from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.proxies import Document, ProxyProcess, budget
from tests.proxy.live.ways import MariaDBWay, PostgresWay

PREFIX = "[HEADGATE] Traffic Control: budget "
# Statements are decided by the tag that they carry: what the tests look at by, is not.
JUDGED = ({"match": {"tag.job": "etl"}},)
TAG = "/*job='etl'*/"
MYSQL_BLOCKED = 1205


def etl(**limits: Any) -> Document:
    return budget("etl", rules=JUDGED, **limits)


NOTHING_FITS = etl(max_workers=0)
ONE_PLACE = etl(max_workers=1)
LONGEST_DELAY_S = 10
"""That a budget may ask for."""
PATIENT = etl(max_workers=1, max_delay_s=LONGEST_DELAY_S)


class Started:
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.answer = call()
        except (psycopg.Error, pymysql.Error, OSError) as error:
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self, within_s: float = DEADLINE_S) -> Any:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "it is still running"
        return self.answer


def repeat(call: Callable[[], Any]) -> None:
    """Until it raises, as it must in the end."""

    def once() -> bool:
        call()
        return False

    eventually(once)


def waiting(proxy: ProxyProcess, name: str = "etl") -> int:
    """Statements that are held for the budget now."""
    return proxy.counts(name).sleeping


@contextmanager
def postgres_occupied(proxy: ProxyProcess, way: PostgresWay) -> Iterator[Callable[[], None]]:
    """The place is taken until the end, or until what it gives is called."""
    with way.connect() as holder:
        running = Started(lambda: holder.execute(f"SELECT pg_sleep(600) {TAG}"))
        eventually(lambda: proxy.running() > 0)

        def is_over() -> bool:
            # Again, if need be: a cancel that overtakes its statement finds nothing to end.
            holder.cancel_safe()
            return not running.is_running

        def release() -> None:
            eventually(is_over)
            running.join()

        try:
            yield release
        finally:
            if running.is_running:
                release()
    eventually(lambda: proxy.running() == 0)


@contextmanager
def mariadb_occupied(proxy: ProxyProcess, way: MariaDBWay) -> Iterator[Callable[[], None]]:
    with way.pymysql() as holder, way.pymysql() as killer:
        running = Started(lambda: holder.cursor().execute(f"SELECT SLEEP(600) {TAG}"))
        eventually(lambda: proxy.running() > 0)

        def is_over() -> bool:
            killer.cursor().execute(f"KILL QUERY {holder.thread_id()}")
            return not running.is_running

        def release() -> None:
            eventually(is_over)
            running.join()

        try:
            yield release
        finally:
            if running.is_running:
                release()
            with suppress(pymysql.Error):
                holder.ping(reconnect=False)
    eventually(lambda: proxy.running() == 0)
