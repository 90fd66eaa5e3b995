"""Plain DB-API drivers, with real ones: sqlite3, PyMySQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import psycopg
import pymysql
import pytest

from headgate import Client, InvalidSettings, WaitedTooLong
from headgate.integrations import dbapi
from tests.client.scripted import REJECTED, ScriptedAgent
from tests.fixtures.mariadb import USER, MariaDBServer
from tests.fixtures.servers import Pair

TAGS = {"app": "etl:nightly"}


@pytest.fixture
def connection(gate: Client) -> Iterator[Any]:
    connection = dbapi.connect(sqlite3, gate, ":memory:", tags=TAGS)
    yield connection
    connection.close()


def test_each_transaction_checks_once(agent: ScriptedAgent, connection: Any) -> None:
    """What sqlite3 runs outside of one, as it does DDL and SELECT, is a transaction of its own."""
    agent.script.plays.append(REJECTED)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (n int)")
        assert len(agent.heard) == 2
        cursor.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
        assert cursor.execute("SELECT sum(n) FROM t WHERE n < ?", (9,)).fetchone() == (3,)
        assert len(agent.heard) == 3
        connection.rollback()
        assert cursor.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert len(agent.heard) == 4


def test_attributes_are_the_drivers_read_and_written(
    agent: ScriptedAgent, connection: Any, gate: Client, database: str
) -> None:
    """Autocommit that is set on the wrapper alone would never commit."""
    connection.row_factory = sqlite3.Row
    cursor = connection.cursor()
    cursor.arraysize = 500
    assert cursor.driver_cursor.arraysize == 500
    assert next(cursor.execute("SELECT 7 AS n"))["n"] == 7
    with pytest.raises(AttributeError):
        cursor.rowcount = 1
    throttled = dbapi.connect(psycopg, gate, database)
    throttled.autocommit = True
    throttled.cursor().execute("CREATE TABLE t (n int)")
    throttled.close()
    with psycopg.connect(database) as other:
        assert other.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_shortcuts_and_scripts_check_too(agent: ScriptedAgent, gate: Client) -> None:
    connection = dbapi.connect(sqlite3, gate, ":memory:", isolation_level=None, tags=TAGS)
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    connection.execute("CREATE TABLE t (n int)").execute("INSERT INTO t VALUES (1)")
    connection.executemany("INSERT INTO t VALUES (?)", [(2,)])
    assert len(agent.heard) == 3
    assert [text for text in seen if not text.endswith(" /*app='etl%3Anightly'*/")] == []
    connection.executescript("INSERT INTO t VALUES (3); INSERT INTO t VALUES (4)")
    assert connection.cursor().executescript("DELETE FROM t").connection is connection
    assert len(agent.heard) == 5
    connection.close()


def test_beginnings_of_other_names_check(agent: ScriptedAgent, gate: Client, database: str) -> None:
    """Each with psycopg, of which the wrapper knows nothing but names; bytes and all."""
    connection = dbapi.connect(psycopg, gate, database, tags=TAGS)
    with connection.transaction():
        connection.execute(b"CREATE TABLE t (n text)")
    assert len(agent.heard) == 1
    with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
        copy.write_row(("\N{LATIN SMALL LETTER E WITH ACUTE}",))
    connection.commit()
    assert len(agent.heard) == 2
    connection.tpc_begin("headgate-1")
    connection.execute(query="SELECT %s::int", params=(1,))
    connection.tpc_rollback()
    assert len(agent.heard) == 3
    connection.driver_connection.execute("SELECT 1")
    connection.driver_connection.commit()  # behind its back
    assert connection.execute("SELECT n FROM t").fetchone() == ("é",)
    assert len(agent.heard) == 4
    connection.close()


def test_what_would_go_around_it_is_rejected(gate: Client) -> None:
    class Low(sqlite3.Connection):
        def real_query(self) -> None:
            raise AssertionError("it was called")

    low = dbapi.throttled(Low(":memory:"), sqlite3, gate)
    with pytest.raises(InvalidSettings, match="real_query: bypasses"):
        low.real_query()
    low.close()

    class Loops:
        async def commit(self) -> None: ...

    with pytest.raises(InvalidSettings, match="Loops is asynchronous"):
        dbapi.throttled(Loops(), sqlite3, gate)


def test_in_autocommit_each_statement_checks_but_none_within_begin(
    agent: ScriptedAgent, gate: Client
) -> None:
    connection = dbapi.connect(sqlite3, gate, ":memory:", isolation_level=None)
    cursor = connection.cursor()
    for statement in ("CREATE TABLE t (n int)", "BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"):
        cursor.execute(statement)
    assert len(agent.heard) == 2
    cursor.execute("DELETE FROM t")
    assert len(agent.heard) == 3
    connection.close()


def test_a_batch_of_transactions_checks_once(agent: ScriptedAgent, gate: Client) -> None:
    connection = dbapi.connect(sqlite3, gate, ":memory:", every=10)
    for _ in range(20):
        connection.cursor().execute("SELECT 1")
        connection.commit()
    assert len(agent.heard) == 2
    connection.close()


def test_what_is_rejected_is_not_run(agent: ScriptedAgent) -> None:
    agent.script.default = REJECTED
    with Client("etl", database="main", url=agent.url, max_wait_s=0) as gate:
        connection = dbapi.connect(sqlite3, gate, ":memory:", every=10)
        for _ in range(2):
            with pytest.raises(WaitedTooLong):
                connection.cursor().execute("CREATE TABLE t (n int)")
        raw = connection.driver_connection
        assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        connection.close()


def test_pymysql_gets_the_tags_whether_or_not_it_reads_percent_signs(
    agent: ScriptedAgent, gate: Client, mariadb_pair: Pair[MariaDBServer]
) -> None:
    driver: ModuleType = pymysql
    settings: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": mariadb_pair.primary.port,
        "user": USER,
    }
    connection = dbapi.connect(driver, gate, tags=TAGS, program_name="etl:nightly", **settings)
    query = "SELECT info FROM information_schema.processlist WHERE id = connection_id()"
    with connection.cursor() as cursor:
        cursor.execute(query)
        assert cursor.fetchone()[0].endswith(" /*app='etl%3Anightly'*/")
        cursor.execute(f"{query} AND 1 = %s", (1,))
        assert cursor.fetchone()[0].endswith(" AND 1 = 1 /*app='etl%3Anightly'*/")
    connection.commit()
    agent.heard.clear()
    connection.autocommit(True)
    connection.query("SELECT 1")
    connection.begin()
    connection.query("SELECT 1")
    connection.commit()
    assert len(agent.heard) == 2
    with connection.cursor() as cursor, pytest.raises(pymysql.OperationalError):
        cursor.callproc("mysql.no_such_procedure")
    assert len(agent.heard) == 3
    connection.close()
