"""Whatever ends a statement: its places come back, and its time is charged."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.pg.gate import Gate, Session, budget

COUNTED = budget(max_workers=100)


@pytest.fixture
def counted(gate: Gate) -> Gate:
    gate.publish(COUNTED)
    return gate


def test_errors_give_back_and_charge(counted: Gate) -> None:
    """R108."""
    with counted.app() as session, counted.counting() as risen:
        for _ in range(10):
            with pytest.raises(psycopg.errors.DivisionByZero):
                session.execute("SELECT burn(2), 1 / (id - 10) FROM numbers WHERE id < 11")
            assert counted.running() == 0
    assert risen["admitted"] == 10
    assert risen["charged_s"] > 0.002


def test_errors_in_utility_statements_give_back(counted: Gate) -> None:
    with counted.app() as session, counted.counting() as risen:
        for statement in ("DO 'BEGIN PERFORM burn(2); PERFORM 1 / 0; END'", "DROP TABLE nowhere"):
            with pytest.raises(psycopg.Error):
                session.execute(statement.encode())
    assert risen["admitted"] == 2
    assert counted.running() == 0


def test_errors_inside_savepoints_give_back(counted: Gate) -> None:
    with counted.app() as session, counted.counting() as risen, session.transaction():
        session.execute("DECLARE c CURSOR FOR SELECT id FROM numbers")
        session.execute("FETCH 1 FROM c")
        for _ in range(10):
            with pytest.raises(psycopg.errors.DivisionByZero), session.transaction():
                session.execute("SELECT 1 / (id - 3) FROM numbers")
        assert counted.running() == 0
        assert len(session.execute("FETCH 1 FROM c").fetchall()) == 1
    assert risen["admitted"] == 11


def test_an_error_in_a_trigger_gives_back(counted: Gate) -> None:
    with counted.app() as session:
        session.execute("CREATE TABLE picky (n int)")
        session.execute(
            "CREATE FUNCTION pick() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM burn(1); RAISE EXCEPTION ''no''; END'"
        )
        session.execute(
            "CREATE TRIGGER t AFTER INSERT ON picky FOR EACH ROW EXECUTE FUNCTION pick()"
        )
        with counted.counting() as risen, pytest.raises(psycopg.errors.RaiseException):
            session.execute("INSERT INTO picky VALUES (1)")
        session.execute("DROP TABLE picky; DROP FUNCTION pick")
    assert risen["admitted"] == 1
    assert counted.running() == 0


def test_timeouts_give_back_and_charge(counted: Gate) -> None:
    before = counted.budget()["charged_s"]
    with counted.app() as session:
        session.execute("SET statement_timeout = '20ms'")

        def charged_s() -> float:
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute("SELECT burn(100000)")
            return float(counted.budget()["charged_s"] - before)

        eventually(lambda: charged_s() > 0.005)  # On a busy machine 20 ms are little work.
    assert counted.running() == 0


def _in_background(session: Session, text: str) -> threading.Thread:
    def run() -> None:
        with pytest.raises(psycopg.Error):
            session.execute(text.encode())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("text", ["SELECT burn(100000)", "DO 'BEGIN PERFORM pg_sleep(600); END'"])
def test_cancel_and_terminate_give_back(counted: Gate, end: str, text: str) -> None:
    with counted.app() as session, counted.counting() as risen:
        thread = _in_background(session, text)
        eventually(lambda: counted.running() > 0)
        counted.rows(f"SELECT {end}({session.info.backend_pid})")
        thread.join(60)
        counted.none_running()
    assert risen["admitted"] == 1


def test_a_client_that_vanishes_gives_back_when_its_statement_ends(counted: Gate) -> None:
    session = counted.server.connect(user="app")
    session.execute("SET client_connection_check_interval = '20ms'")
    session.pgconn.send_query(b"SELECT pg_sleep(600)")
    eventually(lambda: counted.running() > 0)
    session.close()
    counted.none_running()
