"""What the reader calls free cannot run work: every row of its tables, tried at a server (H3, P3).

A trap is laid: a function that leaves a row behind whenever it runs, a table whose reads the server
counts, and a view of both. Every form is written out, as it is meant and with the trap in each of
its places; what the reader still calls free is run, and the trap must not have sprung.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pymysql
import pytest

from headgate.budgets.model import Dialect
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.reader import UNJUDGED, forms, kind_of, written
from tests.proxy.live.ways import DATABASE

HARMLESS = 4
"""Statements of a form as it is meant; the trap is put into each of TRAPPED others."""
TRAPPED = 12
MYSQL_TRAPS = (
    "trap_f()",
    "(select trap_f())",
    "(select count(*) from trap_t)",
    "trap_v",
    "'x' where trap_f()",
    "1 where (select count(*) from trap_t) > 0",
    "@a := trap_f()",
    "next value for trap_s",
    "traps.trap_f()",
    "traps.concat('x')",
    "now ()",
    "x; do trap_f()",
    "/*!99999 x */ trap_f()",
    "/*!50000 trap_f() */",
)
POSTGRES_TRAPS = (
    "trap_f()",
    "(select trap_f())",
    "(select count(*) from trap_t)",
    "trap_v",
    "x from trap_v",
    "x; select trap_f()",
    "1 as select trap_f()",
    "E'\\\\'; select trap_f(); --'",
    "$$x$$; select trap_f()",
)
FILLS = {
    Dialect.MYSQL: {
        "NAME": ("trap_t", "`trap_v`", "trap_f", "traps"),
        "TEXT": ("'trap_t'", '"trap_v"', "'%'"),
        "LIKE": ("'trap_%'", "'%a%'"),
        "NIL": ("''", '""'),
        "NUM": ("4000000000",),
        "LIT": ("1", "'x'", "0x41", ".5"),
        "VAR": ("sql_mode", "trap", "`time_zone`"),
        "REL": ("trap_t", "`trap_v`", "traps"),
        "...": ("", "work", "and chain", "to savepoint a"),
    },
    Dialect.POSTGRES: {
        "NAME": ("trap_t", '"trap_v"', "trap_f", "all"),
        "TEXT": ("'trap_t'", "'trap_v'", "E'x'"),
        "NUM": ("1",),
        "LIT": ("1", "'x'", "$$x$$"),
        "VAR": ("search_path", "trap", '"TimeZone"'),
        "ANY": ("trap_t", "'trap_v'", "1", ",", "all"),
        "...": ("", "as select trap_f()", "(int) as select * from trap_v", "work"),
    },
}


def texts_of(form: str, dialect: Dialect) -> Iterator[str]:
    dice = random.Random(form)
    fills = FILLS[dialect]
    traps = MYSQL_TRAPS if dialect is Dialect.MYSQL else POSTGRES_TRAPS

    def meant(kind: str) -> str:
        return dice.choice(fills[kind])

    def trapped(kind: str) -> str:
        return dice.choice(traps) if dice.random() < 0.5 else meant(kind)

    for _ in range(HARMLESS):
        yield written(form, dice, meant)
    for trap in traps:
        yield f"{written(form, dice, meant)} {trap}"
    for _ in range(TRAPPED):
        yield written(form, dice, trapped)


@pytest.mark.parametrize("dialect", list(Dialect), ids=lambda one: str(one.name.lower()))
def test_every_form_is_free_as_it_is_meant(dialect: Dialect) -> None:
    dice = random.Random(1)
    for form in forms(dialect):
        for _ in range(20):
            text = written(form, dice, lambda kind: dice.choice(FILLS[dialect][kind]))
            assert kind_of(text.encode(), dialect) in UNJUDGED, (form, text)


# ── MariaDB ──

MARIADB_TRAP = (
    "CREATE TABLE trap_log (a INT)",
    "CREATE TABLE trap_t (a INT PRIMARY KEY)",
    "INSERT INTO trap_t VALUES (1), (2), (3)",
    "CREATE SEQUENCE trap_s",
    *(
        f"CREATE FUNCTION {head} RETURNS TEXT DETERMINISTIC "
        "BEGIN INSERT INTO trap_log VALUES (1); RETURN 1; END"
        for head in ("trap_f()", "`concat`(a TEXT)", "`now` ()")
    ),
    "CREATE VIEW trap_v AS SELECT a, trap_f() AS f FROM trap_t "
    "WHERE a = (SELECT MAX(a) FROM trap_t) AND trap_f() > 0",
)
TRAPS = "traps"


@pytest.fixture
def mariadb_trap(mariadb_server: MariaDBServer) -> Iterator[MariaDBServer]:
    """In a database of its own."""
    mariadb_server.query(f"CREATE DATABASE {TRAPS}")
    with mariadb_server.connect(TRAPS) as session, session.cursor() as cursor:
        for statement in MARIADB_TRAP:
            cursor.execute(statement)
    mariadb_server.query("SET GLOBAL userstat = 1")
    yield mariadb_server
    mariadb_server.query("SET GLOBAL userstat = 0")
    mariadb_server.query(f"DROP DATABASE {TRAPS}")


def sprung_mariadb(server: MariaDBServer) -> list[Any]:
    """How often a trap was run, and what was read and written in the whole database."""
    counted = server.query(
        "SELECT TABLE_NAME AS t, ROWS_READ AS r, ROWS_CHANGED AS w "
        f"FROM information_schema.TABLE_STATISTICS WHERE TABLE_SCHEMA = '{TRAPS}' ORDER BY 1"
    )
    return [(row["t"], row["r"], row["w"]) for row in counted]


def test_nothing_that_is_free_runs_work_in_mariadb(mariadb_trap: MariaDBServer) -> None:
    ran = 0
    for form in forms(Dialect.MYSQL):
        before = sprung_mariadb(mariadb_trap)
        tried: list[str] = []
        with mariadb_trap.connect(TRAPS) as session, session.cursor() as cursor:
            for text in texts_of(form, Dialect.MYSQL):
                if kind_of(text.encode(), Dialect.MYSQL) not in UNJUDGED:
                    continue
                tried.append(text)
                with suppress(pymysql.err.MySQLError):
                    cursor.execute(text.replace("%", "%%"))
        assert tried, form
        assert sprung_mariadb(mariadb_trap) == before, (form, tried)
        ran += len(tried)
    assert ran > 4 * len(forms(Dialect.MYSQL))


def test_the_trap_springs_in_mariadb(mariadb_trap: MariaDBServer) -> None:
    """What the reader does not call free would have been seen."""
    sessions = (
        "SHOW DATABASES WHERE traps.trap_f()",
        "SHOW DATABASES WHERE (SELECT COUNT(*) FROM traps.trap_t) = 3",
        "SET @a = traps.concat('x')",
        "SET @a = now ()",
        "SET @a = NEXT VALUE FOR trap_s",
        "EXPLAIN SELECT * FROM trap_t WHERE a = 1",
    )
    for text in sessions:
        assert kind_of(text.encode(), Dialect.MYSQL) not in UNJUDGED
        before = sprung_mariadb(mariadb_trap)
        with (
            mariadb_trap.connect(TRAPS) as session,
            session.cursor() as cursor,
            suppress(pymysql.err.MySQLError),
        ):
            cursor.execute(text)
        assert sprung_mariadb(mariadb_trap) != before, text


# ── Postgres ──

POSTGRES_TRAP = """
CREATE TABLE trap_log (a int);
CREATE TABLE trap_t (a int PRIMARY KEY);
INSERT INTO trap_t VALUES (1), (2), (3);
CREATE FUNCTION trap_g() RETURNS int LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO trap_log VALUES (1); RETURN 1; END $$;
CREATE FUNCTION trap_f() RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM trap_g(); RETURN 1; END $$;
CREATE VIEW trap_v AS SELECT a, trap_f() AS f FROM trap_t WHERE trap_f() > 0;
"""


@pytest.fixture
def postgres_trap(postgres: ExtendedServer) -> Iterator[psycopg.Connection[Any]]:
    with postgres.connect(DATABASE) as session:
        session.execute(POSTGRES_TRAP.encode())
        # Its own rows are counted now, not within the test.
        session.execute("SELECT pg_stat_force_next_flush()")
        yield session
        session.execute(
            "DROP VIEW trap_v; DROP FUNCTION trap_f, trap_g; DROP TABLE trap_log, trap_t"
        )


def sprung_postgres(session: psycopg.Connection[Any]) -> Any:
    session.execute("SELECT pg_stat_clear_snapshot()")
    return session.execute(
        "SELECT (SELECT count(*) FROM trap_log), "
        "(SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del "
        "FROM pg_stat_user_tables WHERE relname = 'trap_t')"
    ).fetchone()


def run_postgres(server: ExtendedServer, texts: list[str]) -> None:
    """Each by the simple protocol, so that a text may hold several; then its counts are told."""
    with server.connect(DATABASE) as session:
        for text in texts:
            with suppress(psycopg.Error):
                session.pgconn.exec_(text.encode())
        session.pgconn.exec_(b"ROLLBACK")
        session.pgconn.exec_(b"RESET ALL")
        session.pgconn.exec_(b"SELECT pg_catalog.pg_stat_force_next_flush()")


def test_nothing_that_is_free_runs_work_in_postgres(
    postgres: ExtendedServer, postgres_trap: psycopg.Connection[Any]
) -> None:
    ran = 0
    for form in forms(Dialect.POSTGRES):
        before = sprung_postgres(postgres_trap)
        texts = texts_of(form, Dialect.POSTGRES)
        tried = [t for t in texts if kind_of(t.encode(), Dialect.POSTGRES) in UNJUDGED]
        assert tried, form
        run_postgres(postgres, tried)
        assert sprung_postgres(postgres_trap) == before, (form, tried)
        ran += len(tried)
    assert ran > 4 * len(forms(Dialect.POSTGRES))


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN SELECT trap_f()",
        "EXPLAIN SELECT * FROM trap_t WHERE a = trap_f()",
        "SELECT * FROM trap_v",
    ],
)
def test_the_trap_springs_in_postgres(
    postgres: ExtendedServer, postgres_trap: psycopg.Connection[Any], text: str
) -> None:
    assert kind_of(text.encode(), Dialect.POSTGRES) not in UNJUDGED
    before = sprung_postgres(postgres_trap)
    run_postgres(postgres, [text])
    assert sprung_postgres(postgres_trap) != before
