"""Every statement is charged (R165). A transaction that its client has begun is decided at its
first statement, never at its last (R148); a string of several statements is no such transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy

from tests.pg.conftest import where_versions_differ
from tests.pg.gate import DEAR, Gate, Session, block, budget, detail, learn, occupied

pytestmark = where_versions_differ

CLOSED = budget(max_workers=0)
FULL = budget(max_workers=1)  # once it is occupied


def test_a_transaction_that_has_begun_goes_on(gate: Gate) -> None:
    with gate.app() as session, session.transaction():
        session.execute("UPDATE numbers SET digit = digit WHERE id = 1")
        gate.publish(FULL)
        with occupied(gate), gate.counting() as risen:
            session.execute("SELECT 1")
            session.execute("ANALYZE numbers")
    assert risen["passed"] == 2
    assert risen["blocked_concurrency"] == 0


def test_its_first_statement_is_blocked(gate: Gate) -> None:
    gate.publish(CLOSED)
    with gate.app() as session:
        session.execute("BEGIN; SET LOCAL work_mem = '1MB'")
        block(lambda: session.execute("SELECT 1"))
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            session.execute("SELECT 1")
        session.execute("ROLLBACK")


def test_a_budget_may_ask_for_more(gate: Gate) -> None:
    with gate.app() as session:
        session.execute("BEGIN; SELECT 1")
        gate.publish(budget(max_workers=0, in_transaction="block"))
        block(lambda: session.execute("SELECT 1"))
        session.execute("ROLLBACK")


def test_a_lock_is_no_way_around_a_closed_budget(gate: Gate) -> None:
    """Judged where the transaction begins with it; later it passes, as all else does."""
    lock = "LOCK TABLE numbers IN ACCESS SHARE MODE"
    with gate.app() as session:
        session.execute(f"BEGIN; {lock}".encode())
        gate.publish(FULL)
        with occupied(gate), gate.counting() as risen:
            session.execute(lock)
            session.execute("SELECT 1")
        assert (risen["passed"], risen["blocked_concurrency"]) == (2, 0)
        session.execute("COMMIT; BEGIN")
        gate.publish(CLOSED)
        block(lambda: session.execute(lock))
        session.execute("ROLLBACK")


def test_every_statement_of_a_string_is_decided(gate: Gate) -> None:
    """R93: a cheap one before it does not get an expensive one past its limit."""
    learn(gate, DEAR)
    gate.publish(budget(burst=0.5))
    with gate.app() as session, gate.counting() as risen:
        for string in (f"SELECT 1; {DEAR}", f"{DEAR}; SELECT 1", f"SELECT 1; COMMIT; {DEAR}"):
            block(lambda string=string: session.execute(string.encode()))  # type: ignore[misc]
        with session.pipeline():
            session.execute("SELECT 1")
            cursor = session.execute(DEAR.encode())
            block(cursor.fetchone)
        session.rollback()
        # Work that was done before it in the same string is the client's to keep.
        session.execute(f"SELECT 1; BEGIN; {DEAR}; ROLLBACK".encode())
        session.execute(f"BEGIN; SELECT 1; COMMIT AND CHAIN; SELECT 1; {DEAR}; ROLLBACK".encode())
    assert (risen["passed"], risen["blocked_burst"]) == (2, 4)


def _psycopg(gate: Gate) -> Iterator[Callable[[Sequence[str]], None]]:
    with gate.app(autocommit=False) as session:

        def run(statements: Sequence[str]) -> None:
            with session.transaction():
                for statement in statements:
                    session.execute(statement.encode())

        yield run


def _sqlalchemy(gate: Gate) -> Iterator[Callable[[Sequence[str]], None]]:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: gate.server.connect(user="app", autocommit=False)
    )

    def run(statements: Sequence[str]) -> None:
        try:
            with engine.begin() as connection:
                for statement in statements:
                    connection.execute(sqlalchemy.text(statement))
        except sqlalchemy.exc.DBAPIError as error:
            assert isinstance(error.orig, psycopg.Error)
            raise error.orig from error

    yield run
    engine.dispose()


@pytest.mark.parametrize("driver", [_psycopg, _sqlalchemy])
def test_default_transactions_of_a_driver_are_held_to_their_share(
    gate: Gate, driver: Callable[[Gate], Iterator[Callable[[Sequence[str]], None]]]
) -> None:
    """R110: all that ran is within share × time + size, but for the transaction that ran last."""
    gate.publish(budget(rate=5, capacity=10))  # Of two CPUs: 0.1 s a second, and 0.2 s.
    with contextmanager(driver)(gate) as run, gate.counting() as risen:
        began_s, before = time.monotonic(), gate.budget()["charged_s"]
        blocked, charges = 0, [0.0]
        while blocked < 3 or len(charges) < 10:
            try:
                run(("SELECT burn(5)", "SELECT burn(5) + 0", "UPDATE numbers SET digit = 1"))
            except psycopg.errors.InsufficientResources as error:
                blocked += 1
                time.sleep(min(1, int(detail(error)["retry_after_ms"]) / 1000))
                continue
            charges.append(gate.budget()["charged_s"] - before)
            elapsed_s = time.monotonic() - began_s
            last_s = charges[-1] - charges[-2]
            assert charges[-1] <= 0.1 * elapsed_s + 0.2 + last_s + 0.01
    assert risen["admitted"] >= 3 * 9


def test_chained_transactions_begin_anew(gate: Gate) -> None:
    with gate.app() as session:
        session.execute("BEGIN; SELECT 1")
        gate.publish(CLOSED)
        session.execute("COMMIT AND CHAIN")
        block(lambda: session.execute("SELECT 1"))
        session.execute("ROLLBACK")


@pytest.fixture
def deferring(gate: Gate) -> Iterator[Session]:
    """A constraint and a trigger that COMMIT checks, by queries, loops and writes."""
    with gate.app() as session:
        session.execute("CREATE TABLE parent (n int PRIMARY KEY)")
        session.execute(
            "CREATE TABLE child (n int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )
        session.execute(
            "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$"
            " DECLARE r record; BEGIN"
            " FOR r IN SELECT id FROM numbers WHERE id < 30 LOOP"
            "   INSERT INTO parent SELECT 1000 + r.id WHERE r.id = 1 ON CONFLICT DO NOTHING;"
            " END LOOP; PERFORM burn(1);"
            " EXECUTE 'CREATE TEMP TABLE IF NOT EXISTS late_one (n int)'; RETURN NULL; END $$"
        )
        session.execute(
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON child"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()"
        )
        yield session
        gate.clear()
        session.execute("DROP TABLE child, parent; DROP FUNCTION late")


def test_what_a_commit_checks_is_never_blocked(gate: Gate, deferring: Session) -> None:
    """Else COMMIT fails with 53000, and the rows are lost."""
    strict = budget(max_workers=0, in_transaction="block")
    for rounds in range(3):
        with gate.app("other") as noisy:
            deferring.execute("BEGIN")
            deferring.execute(f"INSERT INTO parent VALUES ({rounds})".encode())
            deferring.execute(f"INSERT INTO child VALUES ({rounds})".encode())
            gate.publish(strict, budget("noise", rules=[{"match": {"username": "other"}}], rate=0))
            # Something is blocked a moment before: now all are looked at earlier, too.
            block(lambda noisy=noisy: noisy.execute("SELECT 1"))  # type: ignore[misc]
            deferring.execute("COMMIT")
            gate.clear()
    assert len(gate.rows("SELECT FROM child")) == 3


def test_what_an_implicit_commit_checks_is_never_blocked(gate: Gate, deferring: Session) -> None:
    deferring.execute("INSERT INTO parent VALUES (1)")
    gate.publish(budget(max_workers=1, in_transaction="block"))
    with gate.counting() as risen:
        deferring.execute("INSERT INTO child VALUES (1)")
    assert risen["admitted"] == 1
    assert risen["blocked_concurrency"] == 0


def test_set_constraints_is_never_blocked(gate: Gate, deferring: Session) -> None:
    with deferring.transaction():
        deferring.execute("INSERT INTO parent VALUES (1)")
        deferring.execute("INSERT INTO child VALUES (1)")
        gate.publish(budget(max_workers=0, in_transaction="block"))
        deferring.execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.parametrize("in_transaction", ["charge", "block"])
def test_a_holdable_cursor_that_commit_runs_is_never_blocked(
    gate: Gate, in_transaction: str
) -> None:
    with gate.app() as session:
        session.execute("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT id FROM numbers")
        gate.publish(budget(max_workers=0, in_transaction=in_transaction))
        with gate.counting() as risen:
            session.execute("COMMIT")
        assert (risen["admitted"], risen["blocked_concurrency"]) == (1, 0)
        assert len(session.execute("FETCH 2 FROM c").fetchall()) == 2
        session.execute("CLOSE c")


def test_a_holdable_cursor_is_blocked_where_it_is_declared(gate: Gate) -> None:
    gate.publish(CLOSED)
    with gate.app() as session:
        declare = "DECLARE c CURSOR WITH HOLD FOR SELECT id FROM numbers"
        block(lambda: session.execute(declare))


def test_a_holdable_cursor_is_charged(gate: Gate) -> None:
    gate.publish(budget(max_workers=5))
    with gate.app() as session, gate.counting() as risen:
        session.execute("DECLARE c CURSOR WITH HOLD FOR SELECT burn(1) FROM generate_series(1, 9)")
        session.execute("FETCH ALL FROM c")
        session.execute("CLOSE c")
    assert risen["admitted"] == 1
    assert risen["charged_s"] > 0.0005
    assert gate.running() == 0
