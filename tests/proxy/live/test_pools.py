"""A pool's connection that was closed while it lay idle: the pool sees it, and connects again.

The client must see what it would see without a proxy. For MySQL that is a closed connection: pools
know 2006 and 2013, and do not know an error that stands in the place of an answer.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

from tests.fixtures import mariadb
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import ProxyProcess
from tests.fixtures.shards import CACHE_DIR
from tests.proxy.live.conftest import one_way
from tests.proxy.live.limits import Started
from tests.proxy.live.ways import MariaDBWay, PostgresWay

GONE = (2006, 2013)
DRIVERS = ("pymysql", "connector")


def await_bytes_or_end(connection: Any) -> None:
    """Until its socket has something to read: the end, or words before it."""
    sock = connection._sock if hasattr(connection, "_sock") else connection._socket.sock
    ready, _, _ = select.select([sock], [], [], DEADLINE_S)
    assert ready, "nobody has closed it"


@contextmanager
def mysql_engine(way: MariaDBWay, driver: str) -> Iterator[sqlalchemy.Engine]:
    connect = way.pymysql if driver == "pymysql" else way.connector
    name = "pymysql" if driver == "pymysql" else "mysqlconnector"
    engine = sqlalchemy.create_engine(
        f"mysql+{name}://", creator=connect, pool_pre_ping=True, pool_size=1
    )
    try:
        yield engine
    finally:
        engine.dispose()


def pooled_again(engine: sqlalchemy.Engine, close: Callable[[Any], None]) -> None:
    """`close` has the connection closed while the pool has it; the next use must work."""
    with engine.connect() as session:
        driver = session.connection.driver_connection
        session.execute(sqlalchemy.text("SELECT 1"))
        session.rollback()
    close(driver)
    with engine.connect() as session:
        assert session.connection.driver_connection is not driver
        assert session.execute(sqlalchemy.text("SELECT 41 + 1")).scalar() == 42


# ── MariaDB ──────────────────────────────────────────────────────────────────


def goes_idle(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("SET SESSION wait_timeout = 1")
    cursor.close()
    await_bytes_or_end(connection)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_pool_replaces_what_mariadb_closed_for_idleness(my: MariaDBWay, driver: str) -> None:
    """P2."""
    with mysql_engine(my, driver) as engine:
        pooled_again(engine, goes_idle)


@one_way
def test_a_pool_replaces_what_was_killed(my: MariaDBWay, mariadb_server: MariaDBServer) -> None:
    """The server says 1927 to it, without a request: that passes."""

    def is_killed(connection: Any) -> None:
        mariadb_server.query(f"KILL {connection.thread_id()}")
        await_bytes_or_end(connection)

    with mysql_engine(my, "pymysql") as engine:
        pooled_again(engine, is_killed)


def test_pymysql_sees_that_the_server_has_gone_away(my: MariaDBWay) -> None:
    """P2: as its own test_connection_gone_away."""
    session = my.pymysql()
    goes_idle(session)
    with pytest.raises(pymysql.err.OperationalError) as caught:
        session.cursor().execute("SELECT 1+1")
    assert caught.value.args[0] in GONE


def test_a_statement_whose_server_died_is_a_lost_connection(servers_dir: Path) -> None:
    """Nobody knows whether it has taken effect: just what 2013 says, and what drivers know."""
    with (
        mariadb.start_primary(servers_dir, cache_dir=CACHE_DIR) as server,
        ProxyProcess.started("mysql", server.port) as proxy,
    ):
        session = MariaDBWay("mortal", proxy.port).pymysql(database=None)
        running = Started(lambda: session.cursor().execute("SELECT SLEEP(600), 'lost'"))
        eventually(lambda: "'lost'" in str(server.query("SHOW PROCESSLIST")))
        server.kill()
        running.join()
        assert isinstance(running.error, pymysql.err.OperationalError)
        assert running.error.args[0] in GONE


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_pool_replaces_what_the_proxy_closed(mariadb_server: MariaDBServer, driver: str) -> None:
    """Idle for longer than idle_timeout_s, and drained: the same as if the server had closed it."""
    tables = {"proxy": {"idle_timeout_s": 1}}
    with ProxyProcess.started("mysql", mariadb_server.port, tables) as proxy:
        way = MariaDBWay("idle", proxy.port)
        with mysql_engine(way, driver) as engine:
            pooled_again(engine, await_bytes_or_end)


def test_a_pool_outlives_a_restart_of_the_proxy(mariadb_server: MariaDBServer) -> None:
    with ProxyProcess.started("mysql", mariadb_server.port) as proxy:
        way = MariaDBWay("drained", proxy.port)

        def is_drained(connection: Any) -> None:
            assert proxy.stop() == 0
            await_bytes_or_end(connection)
            proxy.start()

        with mysql_engine(way, "pymysql") as engine:
            pooled_again(engine, is_drained)


# ── Postgres ─────────────────────────────────────────────────────────────────


@contextmanager
def postgres_engine(way: PostgresWay) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=way.connect, pool_pre_ping=True, pool_size=1
    )
    try:
        yield engine
    finally:
        engine.dispose()


def await_end(connection: psycopg.Connection[Any]) -> None:
    with socket.socket(fileno=connection.fileno()) as sock:
        try:
            ready, _, _ = select.select([sock], [], [], DEADLINE_S)
        finally:
            sock.detach()
    assert ready, "nobody has closed it"


def test_a_pool_replaces_what_postgres_closed_for_idleness(pg: PostgresWay) -> None:
    """P2."""

    def goes_idle(connection: psycopg.Connection[Any]) -> None:
        connection.execute("SET idle_session_timeout = 500")
        await_end(connection)

    with postgres_engine(pg) as engine:
        pooled_again(engine, goes_idle)


def test_a_pool_replaces_what_postgres_terminated(
    pg: PostgresWay, postgres: ExtendedServer
) -> None:
    def is_ended(connection: psycopg.Connection[Any]) -> None:
        with postgres.connect() as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        await_end(connection)

    with postgres_engine(pg) as engine:
        pooled_again(engine, is_ended)
