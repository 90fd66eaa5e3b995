"""Ways around the gate that someone has found: none of them leads past a limit of 0.

The budget is for a user, admits nothing, and is enforced. Whatever that user writes, and however:
the server must not do it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mysql.connector
import psycopg
import pymysql
import pytest
from psycopg import errors
from pymysql.constants import CLIENT

from headgate.budgets.model import Dialect
from headgate.budgets.sql_text import fingerprint
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import budget
from tests.proxy.live import wire
from tests.proxy.live.conftest import MariaDBGate, PostgresGate
from tests.proxy.live.limits import MYSQL_BLOCKED, NOTHING_FITS, ONE_PLACE, TAG, mariadb_occupied
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
        b"/*!99999 COMMIT */ DELETE FROM t",
        b"/*M!999999 ROLLBACK */ DELETE FROM t",
        b"/*!50001 DELETE FROM t */",
        b"SHOW TABLES /*!99999 ( */; DELETE FROM t",
        b"/*!99999 /* */ SHOW TABLES */ DELETE FROM t",
        b"/*!99999 SHOW */ /*!50001 DELETE FROM t */",
        # Comments that end at their first star and slash, whatever opens there in Postgres.
        b"/*/*/DELETE FROM t",
        b"/*/ SHOW /*/ DELETE FROM t",
        b"/*x/*/ DELETE FROM t /* */",
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
        # Of a view, what is constant in it is worked out to describe it.
        b"SHOW COLUMNS FROM t",
        b"SHOW INDEX FROM t",
        b"SHOW CREATE VIEW t",
        b"DESC t",
        b"EXPLAIN t",
        b"SET @a = REPLACE(REPLACE('aaaa', 'a', 'aaaa'), 'a', 'aaaa')",
        b"SET @a = REPLACE('" + b"a" * 9000 + b"', '" + b"a" * 4500 + b"b', '')",
        # M4: where a literal ends.
        b"SET @a = '\\'; DELETE FROM t; -- '",
        # Bytes that are spaces to a character set: several words that look like one name.
        b"SET \xa0STATEMENT\xa0sql_mode=ansi\xa0FOR\xa0DELETE\xa0FROM\xa0t",
        b"SHOW TABLES FROM parity\xa0WHERE\xa0parity",
    ],
    ids=lambda text: text.decode(errors="replace")[:40],
)
def test_nothing_leads_past_a_limit_of_0_in_mariadb(
    mariadb_gate: MariaDBGate, victims: MariaDBServer, text: bytes
) -> None:
    with shut_out(mariadb_gate) as session:
        if b"'\\'" in text:
            session.query("SET sql_mode = 'NO_BACKSLASH_ESCAPES'")
        if b"\xa0" in text:
            session.query("SET NAMES latin1")
        with pytest.raises(pymysql.err.MySQLError) as caught:
            session.query(text)
    assert caught.value.args[0] == MYSQL_BLOCKED
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
                assert error.args[0] != MYSQL_BLOCKED, (text, error)


@pytest.mark.parametrize(
    "before",
    [
        "SELECT 1",
        "BEGIN; SELECT 1; COMMIT",
        "BEGIN; SELECT 1; CREATE TABLE IF NOT EXISTS t (a INT)",
    ],
)
def test_every_statement_of_a_string_is_decided_in_mariadb(
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
    assert caught.value.args[0] == MYSQL_BLOCKED
    assert rows_left(victims) == ROWS


# ── Long texts ──

KIB = 1024
SEEN, UNSEEN = 300 * KIB, 1100 * KIB
"""Of the text in front of a tag: all of it is looked at, or the tag is out of sight."""
SHAPE = "SELECT 7 AS seven"


def long_text(length: int, tag: str = "") -> str:
    return f"SELECT {'/* - */ ' * (length // 8)} 7 AS seven {tag}"


def fingerprinted() -> dict[str, Any]:
    number = f"{fingerprint(SHAPE.encode(), Dialect.POSTGRES):016x}"
    return budget("shape", rules=({"match": {"fingerprint": number}},), max_workers=0)


def ask_mariadb(gate: MariaDBGate, text: str, prepared: bool) -> Any:
    if not prepared:
        with gate.way.pymysql() as session, session.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchone()
    session = gate.way.connector()
    try:
        cursor = session.cursor(prepared=True)
        cursor.execute(text)
        return cursor.fetchone()
    finally:
        session.close()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_long_text_is_no_way_past_a_tag_or_a_fingerprint_in_mariadb(
    mariadb_gate: MariaDBGate, prepared: bool
) -> None:
    """P4, R152: tags at its end are read, and what is out of sight is not unmatched."""
    gate = mariadb_gate
    gate.proxy.publish(NOTHING_FITS)
    assert ask_mariadb(gate, long_text(SEEN), prepared) == (7,)
    for length in (SEEN, UNSEEN):
        with pytest.raises((pymysql.err.MySQLError, mysql.connector.Error), match="etl"):
            ask_mariadb(gate, long_text(length, TAG), prepared)
    gate.proxy.publish(fingerprinted())
    for length in (SEEN, UNSEEN):
        with pytest.raises((pymysql.err.MySQLError, mysql.connector.Error), match="shape"):
            ask_mariadb(gate, long_text(length), prepared)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_long_text_is_no_way_past_a_tag_or_a_fingerprint_in_postgres(
    postgres_gate: PostgresGate, prepared: bool
) -> None:
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with gate.way.connect() as session:

        def ask(text: str) -> Any:
            cursor = session.cursor() if prepared else psycopg.ClientCursor(session)
            return cursor.execute(text.encode(), prepare=prepared or None).fetchone()

        assert ask(long_text(SEEN)) == (7,)
        for length in (SEEN, UNSEEN):
            with pytest.raises(errors.InsufficientResources):
                ask(long_text(length, TAG))
        gate.proxy.publish(fingerprinted())
        for length in (SEEN, UNSEEN):
            with pytest.raises(errors.InsufficientResources):
                ask(long_text(length))
        gate.proxy.publish()
        assert ask(long_text(UNSEEN, TAG)) == (7,)


def test_what_the_proxy_cannot_see_is_no_way_past_a_tag_or_a_fingerprint_in_mariadb(
    mariadb_gate: MariaDBGate,
) -> None:
    """What is prepared from a variable is known to the server alone."""
    gate = mariadb_gate
    with gate.way.pymysql() as session, session.cursor() as cursor:
        cursor.execute("SET @text = %s", [f"SELECT 7 {TAG}"])
        cursor.execute("PREPARE p FROM @text")
        for only in (NOTHING_FITS, fingerprinted()):
            gate.proxy.publish(only)
            with pytest.raises(pymysql.err.MySQLError, match=str(only["name"])):
                cursor.execute("EXECUTE p")
        # Another user's budget does not apply, whatever it runs.
        other = {"match": {"username": "nobody", "tag.job": "x"}}
        gate.proxy.publish(budget("other", rules=(other,), max_workers=0))
        assert cursor.execute("EXECUTE p") == 1


def test_what_the_proxy_cannot_see_is_no_way_past_a_tag_or_a_fingerprint_in_postgres(
    postgres_gate: PostgresGate,
) -> None:
    """A call of a function by its number."""
    gate = postgres_gate
    pg_backend_pid = struct.pack("!ihhh", 2026, 0, 0, 0)
    with wire.Peer(gate.way.port) as peer:
        peer.log_in("postgres", DATABASE)
        for only, answer in ((NOTHING_FITS, b"E"), (fingerprinted(), b"E"), (None, b"V")):
            gate.proxy.publish(*([] if only is None else [only]))
            peer.send(wire.message(b"F", pg_backend_pid))
            assert answer in {kind for kind, _ in peer.messages_until(b"Z")}


def test_explain_analyze_falls_under_the_fingerprint_of_what_it_runs(
    postgres_gate: PostgresGate, mariadb_gate: MariaDBGate
) -> None:
    """P5."""
    postgres_gate.proxy.publish(fingerprinted())
    mariadb_gate.proxy.publish(fingerprinted())
    with postgres_gate.way.connect() as session:
        for explain in ("EXPLAIN ANALYZE", "EXPLAIN (COSTS off, ANALYZE)"):
            with pytest.raises(errors.InsufficientResources):
                session.execute(f"{explain} {SHAPE}".encode())
        session.execute(f"EXPLAIN {SHAPE}".encode())
    with mariadb_gate.way.pymysql() as session, session.cursor() as cursor:
        for explain in ("ANALYZE", "ANALYZE FORMAT=JSON"):
            with pytest.raises(pymysql.err.MySQLError, match="shape"):
                cursor.execute(f"{explain} {SHAPE}")
        cursor.execute(f"EXPLAIN {SHAPE}")


def test_the_name_of_a_statement_hides_no_text(
    postgres_gate: PostgresGate, victim: ExtendedServer
) -> None:
    """A server goes by the first 63 bytes of it, however long it is."""
    gate = postgres_gate
    gate.proxy.publish(shut("clerk"))
    with wire.Peer(gate.way.port) as peer:
        peer.log_in("clerk", DATABASE)
        peer.send(wire.parse("DELETE FROM t", "n" * UNSEEN) + wire.bind("n" * 63))
        peer.send(wire.execute() + wire.SYNC)
        told = [wire.fields(body) for kind, body in peer.messages_until(b"Z") if kind == b"E"]
    assert [one["C"] for one in told] == [errors.InsufficientResources.sqlstate]
    with victim.connect(DATABASE) as looking:
        assert looking.execute("SELECT count(*) FROM t").fetchone() == (ROWS,)


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
        session.execute("DROP FUNCTION f, g; DROP FUNCTION IF EXISTS dear")
        session.execute("DROP MATERIALIZED VIEW m; DROP TABLE t")


def test_what_is_only_bound_is_charged_for_its_planning(
    postgres_gate: PostgresGate, victim: ExtendedServer
) -> None:
    """P3: the planner folds what calls itself immutable, for as long as that takes."""
    gate = postgres_gate
    with victim.connect(DATABASE) as session:
        session.execute(
            "CREATE OR REPLACE FUNCTION dear() RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
            "$$ BEGIN PERFORM pg_sleep(0.05); RETURN 1; END $$"
        )
    mine = ({"match": {"username": "clerk"}},)
    gate.proxy.publish(budget("mine", rules=mine, rate=100, capacity=6000))
    with wire.Peer(gate.way.port) as peer, gate.proxy.counting("mine") as risen:
        peer.log_in("clerk", DATABASE)
        for end in (wire.FLUSH, wire.SYNC):
            peer.send(wire.parse("SELECT dear()") + wire.bind() + end)
            peer.messages_until(b"2")
        peer.send(wire.SYNC)
        peer.messages_until(b"Z")
        eventually(lambda: gate.proxy.running() == 0)
    assert risen["charged_ns"] >= 100_000_000


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
