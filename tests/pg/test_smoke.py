"""The majors that most tests leave out: the extension does there what it does elsewhere."""

from __future__ import annotations

import psycopg
import pytest

from tests.fixtures.pgkits import OLDEST, majors
from tests.pg.gate import Gate, block, budget, detail, tagged

pytestmark = pytest.mark.parametrize("gate", majors(OLDEST), indirect=True)


def test_the_whole_way(gate: Gate) -> None:
    gate.publish(budget(max_workers=5), tagged("tags", job="a"))
    with gate.app() as session, gate.counting() as risen, gate.counting("tags") as tags:
        session.execute("SELECT burn(5) /*job='a'*/")
        for n in range(8):
            session.execute("SELECT %s::int + 1", [n], prepare=True)
        session.execute("CREATE TEMP TABLE made AS SELECT 1 AS n")
        session.execute("VACUUM made")
        session.execute("DO 'BEGIN PERFORM burn(1); END'")
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.execute("SELECT 1 / (n - 1) FROM made")
        with session.transaction():
            session.execute("DECLARE c CURSOR FOR SELECT id FROM numbers")
            session.execute("FETCH 5 FROM c")
            session.execute("FETCH 5 FROM c")
    assert risen["admitted"] == 14
    assert tags["admitted"] == 1
    assert gate.running() == 0


def test_blocked(gate: Gate) -> None:
    gate.publish(budget(max_workers=0))
    with gate.app() as session, gate.counting() as risen:
        assert detail(block(lambda: session.execute("SELECT 1")))["limit"] == "concurrency"
        block(lambda: session.execute("CREATE TABLE never (n int)"))
        block(lambda: session.execute("SELECT 1"))
        block(lambda: session.execute("EXPLAIN SELECT 1"))
        session.execute("SHOW work_mem")
    assert risen["blocked_concurrency"] == 4
    assert risen["blocked_early"] >= 1


def test_commit_is_never_blocked(gate: Gate) -> None:
    with gate.app() as session:
        session.execute("CREATE TABLE up (n int PRIMARY KEY)")
        session.execute("CREATE TABLE down (n int REFERENCES up DEFERRABLE INITIALLY DEFERRED)")
        session.execute("BEGIN; INSERT INTO down VALUES (1); INSERT INTO up VALUES (1)")
        gate.publish(budget(max_workers=0, in_transaction="block"))
        session.execute("COMMIT")
        gate.clear()
        session.execute("DROP TABLE down, up")


def test_terminate_gives_back(gate: Gate) -> None:
    gate.publish(budget(max_workers=5))
    with gate.app() as session:
        session.execute("SELECT 1")
        gate.rows(f"SELECT pg_terminate_backend({session.info.backend_pid})")
    gate.none_running()


def test_patterns_are_learnt(gate: Gate) -> None:
    gate.publish(budget(max_workers=5))
    with gate.app() as session:
        for _ in range(5):
            session.execute("SELECT burn(3)")
    rows = gate.rows("SELECT * FROM headgate.patterns WHERE calls >= 5 AND mean_cpu_ms > 0.1")
    assert rows
    assert all(row["k_ns"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("CREATE SCHEMA headgate AUTHORIZATION app", 'belongs to role "app"'),
        (
            "CREATE SCHEMA headgate; CREATE FUNCTION headgate.theirs() RETURNS int"
            " LANGUAGE sql AS 'SELECT 1'",
            "holds objects of somebody else",
        ),
        ("CREATE SCHEMA headgate; CREATE TABLE headgate.theirs ()", "holds objects"),
        ("CREATE SCHEMA headgate", None),
    ],
)
def test_the_schema_of_somebody_else_is_not_taken(gate: Gate, before: str, why: str | None) -> None:
    """L11: what lies there would be granted to pg_monitor, and what is made there be replaced."""
    gate.admin().execute("CREATE DATABASE elsewhere")
    try:
        with gate.server.connect("elsewhere") as session:
            session.execute(before.encode())
            if why is None:
                session.execute("CREATE EXTENSION pg_headgate")
            else:
                with pytest.raises(psycopg.Error, match=why):
                    session.execute("CREATE EXTENSION pg_headgate")
    finally:
        gate.admin().execute("DROP DATABASE elsewhere WITH (FORCE)")
