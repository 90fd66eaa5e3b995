"""Ways around the gate that somebody has found: none of them leads past a limit of 0.

The budget is for a user, admits nothing, and is enforced. Whatever that user writes, and however:
the server must not do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg import errors
from pymysql.constants import CLIENT

from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import budget
from tests.proxy.live.conftest import MariaDBGate, PostgresGate
from tests.proxy.live.limits import MYSQL_REFUSED, ONE_PLACE, TAG, mariadb_occupied
from tests.proxy.live.ways import DATABASE

ROWS = 3


def shut(user: str) -> dict[str, Any]:
    return budget("shut", rules=({"match": {"username": user}},), max_workers=0)


# ── MariaDB ──


@pytest.fixture
def victims(mariadb_server: MariaDBServer) -> Iterator[MariaDBServer]:
    """A table t, and a function f that empties it."""
    with mariadb_server.connect(DATABASE) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT)")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(['(1)'] * ROWS)}")
        cursor.execute(
            "CREATE FUNCTION f() RETURNS INT DETERMINISTIC BEGIN DELETE FROM t; RETURN 1; END"
        )
        yield mariadb_server
        cursor.execute("DROP FUNCTION f")
        cursor.execute("DROP TABLE t")


def rows_left(server: MariaDBServer) -> int:
    return int(server.query(f"SELECT COUNT(*) AS n FROM {DATABASE}.t")[0]["n"])


@contextmanager
def shut_out(gate: MariaDBGate) -> Iterator[Any]:
    gate.proxy.publish(shut(gate.way.user))
    with gate.way.pymysql(client_flag=CLIENT.MULTI_STATEMENTS) as session:
        yield session


@pytest.mark.parametrize(
    "text",
    [
        b"DELETE FROM t",
        # H1: versioned comments that this server skips, or runs.
        b"/*!99999 SHOW */ DELETE FROM t",
        b"/*!999999 SHOW */ DELETE FROM t",
        b"/*M!999999 SET */ DELETE FROM t",
        b"/*!50001 DELETE FROM t */",
        b"SHOW TABLES /*!99999 ( */; DELETE FROM t",
        b"/*!99999 /* */ SHOW TABLES */ DELETE FROM t",
        b"/*!99999 SHOW */ /*!50001 DELETE FROM t */",
        # H2: lines that end at a line feed alone.
        b"#\rSHOW TABLES\nDELETE FROM t",
        b"-- x\rSHOW TABLES\nDELETE FROM t",
        b"--\x7fx\rSHOW TABLES\nDELETE FROM t",
        # H3: statements that look harmless, and run something.
        b"SHOW DATABASES WHERE (SELECT COUNT(*) FROM t) = 3",
        b"SHOW DATABASES WHERE f()",
        b"SHOW TABLES WHERE f()",
        b"KILL BENCHMARK(1, MD5('x'))",
        b"EXPLAIN SELECT * FROM t WHERE a = (SELECT BENCHMARK(1, MD5('x')))",
        b"SET @a = f()",
        b"SET STATEMENT max_statement_time = 1 FOR DELETE FROM t",
        b"PREPARE p FROM CONCAT('SELECT ', BENCHMARK(1, MD5('x')))",
        b"EXECUTE IMMEDIATE 'DELETE FROM t'",
        # M4: where a literal ends.
        b"SET @a = '\\'; DELETE FROM t; -- '",
    ],
    ids=lambda text: text.decode(errors="replace")[:40],
)
def test_nothing_leads_past_a_limit_of_0_in_mariadb(
    mariadb_gate: MariaDBGate, victims: MariaDBServer, text: bytes
) -> None:
    with shut_out(mariadb_gate) as session:
        if b"'\\'" in text:
            session.query("SET sql_mode = 'NO_BACKSLASH_ESCAPES'")
        with pytest.raises(pymysql.err.MySQLError) as caught:
            session.query(text)
    assert caught.value.args[0] == MYSQL_REFUSED
    assert rows_left(victims) == ROWS


def test_a_driver_signs_in_under_a_limit_of_0(mariadb_gate: MariaDBGate) -> None:
    """What is free for want of work stays free: settings, transactions, and ends of statements."""
    with shut_out(mariadb_gate) as session:
        for text in (
            "SET NAMES utf8mb4",
            "SET sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",
            "/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */",
            "SHOW VARIABLES WHERE Variable_name = 'wait_timeout' OR Variable_name = 'sql_mode'",
            "SHOW WARNINGS",
            f"USE {DATABASE}",
            "BEGIN",
            "SAVEPOINT a",
            "COMMIT",
            "KILL QUERY 4000000",
        ):
            try:
                session.query(text)
            except pymysql.err.MySQLError as error:
                assert error.args[0] != MYSQL_REFUSED, (text, error)


@pytest.mark.parametrize(
    "before",
    [
        "SELECT 1",
        "BEGIN; SELECT 1; COMMIT",
        "BEGIN; SELECT 1; CREATE TABLE IF NOT EXISTS t (a INT)",
    ],
)
def test_every_statement_of_a_string_is_judged_in_mariadb(
    mariadb_gate: MariaDBGate, victims: MariaDBServer, before: str
) -> None:
    """M3: a string is no transaction there."""
    gate = mariadb_gate
    gate.proxy.publish(ONE_PLACE)
    with (
        mariadb_occupied(gate.proxy, gate.way),
        gate.way.pymysql(client_flag=CLIENT.MULTI_STATEMENTS) as session,
        pytest.raises(pymysql.err.MySQLError) as caught,
    ):
        session.query(f"{before}; DELETE FROM t {TAG}")
    assert caught.value.args[0] == MYSQL_REFUSED
    assert rows_left(victims) == ROWS


# ── Postgres ──


@pytest.fixture
def victim(postgres: ExtendedServer) -> Iterator[ExtendedServer]:
    with postgres.connect(DATABASE) as session:
        session.execute("CREATE TABLE t AS SELECT generate_series(1, 3) AS a")
        session.execute("CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t")
        session.execute(
            "CREATE FUNCTION g() RETURNS int LANGUAGE plpgsql AS "
            "$$ BEGIN DELETE FROM t; RETURN 1; END $$"
        )
        session.execute(
            "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
            "$$ BEGIN PERFORM g(); RETURN 1; END $$"
        )
        yield postgres
        session.execute("DROP FUNCTION f, g; DROP MATERIALIZED VIEW m; DROP TABLE t")


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN SELECT f()",
        "EXPLAIN (ANALYZE OFF) SELECT * FROM t WHERE a = f()",
        "REFRESH MATERIALIZED VIEW m",
        "NOTIFY a, 'b'",
        "CHECKPOINT",
        "LOAD 'plpgsql'",
        "ALTER SYSTEM SET work_mem = '4MB'",
        "-- x\rDELETE FROM t",
        "SET a.b = '\\'; DELETE FROM t; --'",
        "BEGIN; EXPLAIN SELECT f()",
    ],
)
def test_nothing_leads_past_a_limit_of_0_in_postgres(
    postgres_gate: PostgresGate, victim: ExtendedServer, text: str
) -> None:
    gate = postgres_gate
    gate.proxy.publish(shut("clerk"))
    with (
        gate.way.connect(user="clerk") as session,
        pytest.raises(errors.InsufficientResources),
    ):
        psycopg.ClientCursor(session).execute(text.encode())
    with victim.connect(DATABASE) as looking:
        assert looking.execute("SELECT count(*) FROM t").fetchone() == (ROWS,)
