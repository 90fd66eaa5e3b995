"""R148: a transaction is decided about at its first statement, and never at its last."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.pg.conftest import where_versions_differ
from tests.pg.gate import DEAR, Gate, Session, block, budget, learn, occupied

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
        gate.publish(budget(max_workers=0, in_transaction=True))
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


def test_the_second_statement_of_a_string_is_inside_a_transaction(gate: Gate) -> None:
    learn(gate, DEAR)
    gate.publish(budget(burst=0.5))
    with gate.app() as session, gate.counting() as risen:
        session.execute(f"SELECT 1; {DEAR}".encode())
        block(lambda: session.execute(f"{DEAR}; SELECT 1".encode()))
    assert (risen["passed"], risen["blocked_burst"]) == (1, 1)


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
    strict = budget(max_workers=0, in_transaction=True)
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
    gate.publish(budget(max_workers=1, in_transaction=True))
    with gate.counting() as risen:
        deferring.execute("INSERT INTO child VALUES (1)")
    assert risen["admitted"] == 1
    assert risen["blocked_concurrency"] == 0


def test_set_constraints_is_never_blocked(gate: Gate, deferring: Session) -> None:
    with deferring.transaction():
        deferring.execute("INSERT INTO parent VALUES (1)")
        deferring.execute("INSERT INTO child VALUES (1)")
        gate.publish(budget(max_workers=0, in_transaction=True))
        deferring.execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_holdable_cursor_that_commit_runs_is_never_blocked(
    gate: Gate, in_transaction: bool
) -> None:
    with gate.app() as session:
        session.execute("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT id FROM numbers")
        gate.publish(budget(max_workers=0, in_transaction=in_transaction))
        session.execute("COMMIT")
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
