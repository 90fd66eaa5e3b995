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
from tests.proxy.live.ways import MariaDBWay, PostgresWay


def _shows_what_runs(proxy: ProxyProcess, sleep: Callable[[], Any]) -> None:
    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        eventually(lambda: _running(proxy) is not None)
        first = _running(proxy)
        eventually(lambda: first is None or (_running(proxy) or first) > first)
    finally:
        thread.join()
    eventually(lambda: _running(proxy) is None)


def _running(proxy: ProxyProcess) -> float | None:
    """Seconds that the one statement has run; None: none does."""
    _, listed = proxy.request("GET", "/v1/proxy/sessions")
    (shown,) = listed["sessions"]
    return shown["statement_s"] if shown["phase"] == "running" else None


def test_postgres_statements_are_counted_and_shown(postgres: ExtendedServer) -> None:
    with (
        ProxyProcess.started("postgres", postgres.port) as proxy,
        PostgresWay("shown", proxy.port).connect() as session,
    ):
        before = proxy.status()["statements"]["total"]
        session.execute("SELECT 1")
        session.execute("SELECT %s::int", (1,), prepare=True)
        assert proxy.status()["statements"]["total"] == before + 2
        _shows_what_runs(proxy, lambda: session.execute("SELECT pg_sleep(0.5)"))


def test_mysql_statements_are_counted_and_shown(mariadb_server: MariaDBServer) -> None:
    with ProxyProcess.started("mysql", mariadb_server.port) as proxy:
        session = MariaDBWay("shown", proxy.port).pymysql()
        with session, session.cursor() as cursor:
            before = proxy.status()["statements"]["total"]
            cursor.execute("SELECT 1")
            cursor.execute("SELECT 2")
            assert proxy.status()["statements"]["total"] == before + 2
            _shows_what_runs(proxy, lambda: cursor.execute("SELECT SLEEP(0.5)"))


def test_a_changed_user_counts_as_the_one_it_has_become(mariadb_server: MariaDBServer) -> None:
    """max_sessions_per_user cannot be got around by COM_CHANGE_USER."""
    limits = {"max_sessions_per_user": 1}
    with ProxyProcess.started("mysql", mariadb_server.port, {"proxy": limits}) as proxy:
        way = MariaDBWay("changed", proxy.port)
        first = way.connector()
        first.cmd_change_user(username="headgate_app", password="", database="parity")
        second = way.connector()
        with pytest.raises(mysql.connector.Error) as refused:
            second.cmd_change_user(username="headgate_app", password="", database="parity")
        assert refused.value.errno == 1040
        first.close()
