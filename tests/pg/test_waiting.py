"""Statements that wait for room, and clients that are held back for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.pg.gate import Gate, Session, budget, detail, occupied, refusal


def _start(session: Session, text: str) -> threading.Thread:
    def run() -> None:
        with suppress(psycopg.Error):
            session.execute(text.encode())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_statement_waits_for_a_place(gate: Gate) -> None:
    gate.publish(budget(max_workers=1, max_delay_s=10))
    with gate.app() as first, gate.app() as second, gate.counting() as risen:
        holder = _start(first, "SELECT pg_sleep(0.2)")
        eventually(lambda: gate.running() > 0)
        second.execute("SELECT 1")
        holder.join(10)
    assert risen["delayed"] == 1
    assert 0.01 < risen["delayed_s"] < 5
    assert risen["admitted"] == 2
    assert gate.budget()["sleeping"] == 0


def test_a_statement_waits_for_the_bucket_to_drain(gate: Gate) -> None:
    text = "SELECT burn(12), 1, 2, 3 AS drained"  # A pattern that no other test has dear values of.
    gate.publish(budget(max_workers=9))
    with gate.app() as session:
        for _ in range(3):
            session.execute(text)
        gate.publish(budget("drains", rate=5, capacity=1, max_delay_s=10))
        with gate.counting("drains") as risen:
            for _ in range(30):
                session.execute(text)
    assert risen["admitted"] == 30
    assert risen["delayed"] > 0


PATIENT = budget(max_workers=1, max_delay_s=10)


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
        refusal(lambda: session.execute("SELECT 1"))
        assert 0.1 <= time.monotonic() - began < 5
    assert risen["blocked_concurrency"] == risen["delayed"] == 1


def test_no_more_wait_than_the_budget_holds(full: Gate) -> None:
    full.publish({**PATIENT, "max_delayed": 1})
    with full.app() as first, full.app() as second:
        waiter = _start(first, "SELECT 1")
        eventually(lambda: full.budget()["sleeping"] == 1)
        refusal(lambda: second.execute("SELECT 1"))
        full.rows(f"SELECT pg_cancel_backend({first.info.backend_pid})")
        waiter.join(10)
        eventually(lambda: full.budget()["sleeping"] == 0)


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_wait_ends_by_cancel_and_terminate(full: Gate, end: str) -> None:
    with full.app() as session:
        waiter = _start(session, "SELECT 1")
        eventually(lambda: full.budget()["sleeping"] == 1)
        began = time.monotonic()
        full.rows(f"SELECT {end}({session.info.backend_pid})")
        waiter.join(10)
        assert time.monotonic() - began < 5
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
        assert detail(refusal(lambda: session.execute("SELECT 1")))["retry_after_ms"] == "never"


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
        waiter = _start(session, "SELECT 1")
        eventually(lambda: full.budget()["sleeping"] == 1)
        full.publish(budget(max_workers=5))
        waiter.join(5)
        assert not waiter.is_alive()


def test_a_refused_session_is_held_for_a_moment(gate: Gate) -> None:
    gate.publish(budget(max_workers=0, penalty_s=0.1))
    with gate.app() as session:
        began = time.monotonic()
        refusal(lambda: session.execute("SELECT 1"))
        assert time.monotonic() - began >= 0.1
    assert gate.budget()["sleeping"] == 0


def test_the_penalty_has_no_more_than_its_places(gate: Gate) -> None:
    gate.publish(budget(max_workers=0, penalty_s=1, max_delayed=0))
    with gate.app() as session:
        began = time.monotonic()
        for _ in range(3):
            refusal(lambda: session.execute("SELECT 1"))
        assert time.monotonic() - began < 1


def test_no_penalty_inside_a_transaction(gate: Gate) -> None:
    with gate.app() as session:
        session.execute("BEGIN; SELECT 1")
        gate.publish(budget(max_workers=0, penalty_s=1, in_transaction=True))
        began = time.monotonic()
        refusal(lambda: session.execute("SELECT 1"))
        assert time.monotonic() - began < 1
        session.execute("ROLLBACK")
