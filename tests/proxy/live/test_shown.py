"""What an operator is shown of sessions: what runs, for how long, and that all of it is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mysql.connector
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import ProxyProcess
from tests.proxy.live.ways import DATABASE, MariaDBWay, PostgresWay

KEY = 4711
"""Of a lock that another holds: what asks for it runs until that lets go."""


def _shows_what_runs(
    proxy: ProxyProcess, wait: Callable[[], Any], let_go: Callable[[], Any]
) -> None:
    """`wait`: a statement that lasts until `let_go`."""
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        eventually(lambda: _running(proxy) is not None)
        first = _running(proxy)
        assert first is not None
        eventually(lambda: (_running(proxy) or 0.0) > first)
    finally:
        let_go()
        thread.join()
    eventually(lambda: _running(proxy) is None)


def _running(proxy: ProxyProcess) -> float | None:
    """Seconds that the one statement has run; None: none does."""
    _, listed = proxy.request("GET", "/v1/proxy/sessions")
    (shown,) = listed["sessions"]
    return shown["statement_s"] if shown["phase"] == "running" else None


def _phase(proxy: ProxyProcess) -> tuple[str, bool]:
    _, listed = proxy.request("GET", "/v1/proxy/sessions")
    (shown,) = listed["sessions"]
    return shown["phase"], shown["in_transaction"]


def _shows_idle_in_transaction(proxy: ProxyProcess, run: Callable[[str], Any]) -> None:
    """P5: nothing runs between the statements of a transaction."""
    for text in ("BEGIN", "SELECT 1"):
        run(text)
        eventually(lambda: _phase(proxy) == ("idle", True))
    run("COMMIT")
    eventually(lambda: _phase(proxy) == ("idle", False))


def test_postgres_statements_are_counted_and_shown(postgres: ExtendedServer) -> None:
    with (
        ProxyProcess.started("postgres", postgres.port) as proxy,
        PostgresWay("shown", proxy.port).connect() as session,
        postgres.connect(dbname=DATABASE) as locker,
    ):
        before = proxy.status()["statements"]["total"]
        session.execute("SELECT 1")
        session.execute("SELECT %s::int", (1,), prepare=True)
        assert proxy.status()["statements"]["total"] == before + 2
        _shows_idle_in_transaction(proxy, session.execute)
        locker.execute(f"SELECT pg_advisory_lock({KEY})")
        _shows_what_runs(
            proxy,
            lambda: session.execute(f"SELECT pg_advisory_xact_lock({KEY})"),
            lambda: locker.execute("SELECT pg_advisory_unlock_all()"),
        )


def test_mysql_statements_are_counted_and_shown(mariadb_server: MariaDBServer) -> None:
    with (
        ProxyProcess.started("mysql", mariadb_server.port) as proxy,
        mariadb_server.connect() as locker,
    ):
        session = MariaDBWay("shown", proxy.port).pymysql()
        with session, session.cursor() as cursor, locker.cursor() as locking:
            before = proxy.status()["statements"]["total"]
            cursor.execute("SELECT 1")
            cursor.execute("SELECT 2")
            assert proxy.status()["statements"]["total"] == before + 2
            _shows_idle_in_transaction(proxy, cursor.execute)
            locking.execute(f"SELECT GET_LOCK('{KEY}', 60)")
            _shows_what_runs(
                proxy,
                lambda: cursor.execute(f"SELECT GET_LOCK('{KEY}', 600)"),
                lambda: locking.execute(f"SELECT RELEASE_LOCK('{KEY}')"),
            )


def test_a_changed_user_counts_as_the_one_it_has_become(mariadb_server: MariaDBServer) -> None:
    """max_sessions_per_user cannot be got around by COM_CHANGE_USER."""
    limits = {"max_sessions_per_user": 1}
    with ProxyProcess.started("mysql", mariadb_server.port, {"proxy": limits}) as proxy:
        way = MariaDBWay("changed", proxy.port)
        first = way.connector()
        first.cmd_change_user(username="headgate_app", password="", database="parity")
        second = way.connector()
        with pytest.raises(mysql.connector.Error) as blocked:
            second.cmd_change_user(username="headgate_app", password="", database="parity")
        assert blocked.value.errno == 1040
        first.close()
