"""Statements that wait for room, and clients that are held back for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.pg.gate import Gate, Session, block, budget, detail, occupied

PATIENT = budget(max_workers=1, max_delay_s=10)


class Waiter:
    """A statement in a thread of its own, held for a place, and what came of it."""

    def __init__(self, gate: Gate, session: Session) -> None:
        self.error: psycopg.Error | None = None
        self._session = session
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        eventually(lambda: gate.budget()["sleeping"] == 1)

    def _run(self) -> None:
        try:
            self._session.execute("SELECT 1")
        except psycopg.Error as error:
            self.error = error

    def ended(self) -> psycopg.Error | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def test_a_statement_waits_for_a_place(gate: Gate) -> None:
    gate.publish(PATIENT)
    with gate.app() as session, gate.counting() as risen:
        with occupied(gate):
            waiter = Waiter(gate, session)
        assert waiter.ended() is None
    assert risen["delayed"] == 1
    assert risen["delayed_s"] > 0
    assert risen["admitted"] == 2
    assert gate.budget()["sleeping"] == 0


def test_a_statement_waits_for_the_bucket_to_drain(gate: Gate) -> None:
    text = "SELECT burn(12), 1, 2, 3 AS drained"  # A pattern that no other test has dear values of.
    gate.publish(budget(max_workers=9))
    with gate.app() as session:
        for _ in range(3):
            session.execute(text)
        gate.publish(budget("drains", rate=1, capacity=1, max_delay_s=10))
        before, ran = gate.budget("drains"), 0

        def has_waited() -> bool:
            nonlocal ran
            for _ in range(5):
                session.execute(text)
                ran += 1
            return bool(gate.budget("drains")["delayed"] > before["delayed"])

        eventually(has_waited)
    assert gate.budget("drains")["admitted"] == before["admitted"] + ran


@pytest.fixture
def full(gate: Gate) -> Iterator[Gate]:
    """Its only place is taken, and whoever comes waits for it."""
    gate.publish(PATIENT)
    with occupied(gate):
        yield gate


def test_patience_ends(full: Gate) -> None:
    full.publish(budget(max_workers=1, max_delay_s=0.1))
    with full.app() as session, full.counting() as risen:
        began = time.monotonic()
        block(lambda: session.execute("SELECT 1"))
        assert time.monotonic() - began >= 0.1
    assert risen["blocked_concurrency"] == risen["delayed"] == 1


def test_no_more_wait_than_the_budget_holds(full: Gate) -> None:
    full.publish({**PATIENT, "max_delayed": 1})
    with full.app() as first, full.app() as second:
        waiter = Waiter(full, first)
        block(lambda: second.execute("SELECT 1"))
        full.rows(f"SELECT pg_cancel_backend({first.info.backend_pid})")
        assert isinstance(waiter.ended(), psycopg.errors.QueryCanceled)
        eventually(lambda: full.budget()["sleeping"] == 0)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("pg_cancel_backend", psycopg.errors.QueryCanceled),
        ("pg_terminate_backend", psycopg.errors.AdminShutdown),
    ],
)
def test_a_wait_ends_by_cancel_and_terminate(
    full: Gate, end: str, told: type[psycopg.Error]
) -> None:
    """Not by the end of its patience, which would be a block."""
    with full.app() as session:
        waiter = Waiter(full, session)
        full.rows(f"SELECT {end}({session.info.backend_pid})")
        assert isinstance(waiter.ended(), told)
    eventually(lambda: full.budget()["sleeping"] == 0)


def test_a_wait_ends_by_the_statements_own_timeout(full: Gate) -> None:
    with full.app() as session:
        session.execute("SET statement_timeout = '50ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            session.execute("SELECT 1")
    assert full.budget()["sleeping"] == 0


def test_what_can_never_fit_does_not_wait(gate: Gate) -> None:
    gate.publish(budget(max_workers=0, max_delay_s=10))
    with gate.app() as session:
        assert detail(block(lambda: session.execute("SELECT 1")))["retry_after_ms"] == "never"


def test_nobody_waits_inside_a_transaction(gate: Gate) -> None:
    """R148."""
    with gate.app() as session, session.transaction():
        session.execute("SELECT 1")
        gate.publish(PATIENT)
        with occupied(gate), gate.counting() as risen:
            session.execute("SELECT 1")
    assert (risen["passed"], risen["delayed"]) == (1, 0)


def test_a_new_policy_frees_who_waits(full: Gate) -> None:
    with full.app() as session:
        waiter = Waiter(full, session)
        full.publish(budget(max_workers=5))
        assert waiter.ended() is None, "it ran"


def test_a_blocked_session_is_held_for_a_moment(gate: Gate) -> None:
    gate.publish(budget(max_workers=0, penalty_s=0.1))
    with gate.app() as session:
        began = time.monotonic()
        block(lambda: session.execute("SELECT 1"))
        assert time.monotonic() - began >= 0.1
    assert gate.budget()["sleeping"] == 0


def is_told_at_once(session: Session) -> bool:
    """Before a penalty of a second could be over. A busy machine may take as long: ask again; with
    the penalty nobody is told sooner, however often one asks."""
    began = time.monotonic()
    block(lambda: session.execute("SELECT 1"))
    return time.monotonic() - began < 1


def test_the_penalty_has_no_more_than_its_places(gate: Gate) -> None:
    gate.publish(budget(max_workers=0, penalty_s=1, max_delayed=0))
    with gate.app() as session:
        eventually(lambda: is_told_at_once(session))


def test_no_penalty_inside_a_transaction(gate: Gate) -> None:
    with gate.app() as session:

        def is_told_at_once_inside() -> bool:
            gate.clear()
            session.execute("BEGIN; SELECT 1")
            gate.publish(budget(max_workers=0, penalty_s=1, in_transaction="block"))
            try:
                return is_told_at_once(session)
            finally:
                session.execute("ROLLBACK")

        eventually(is_told_at_once_inside)
