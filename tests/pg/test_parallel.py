"""Parallel workers: they take places (R126), and their time is their leader's."""

from __future__ import annotations

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.pg.gate import Gate, Session, block, budget, detail, occupied

EAGER = (
    "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;"
    "SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2"
)
HEAVY = "SELECT sum(ln(id) * sqrt(digit)) FROM numbers, LATERAL (SELECT md5(id::text)) x"


def eager(session: Session) -> None:
    session.execute(EAGER.encode())


def test_a_parallel_plan_takes_a_place_for_each_process(gate: Gate) -> None:
    with gate.app() as session:
        eager(session)
        plan = str(session.execute(f"EXPLAIN {HEAVY}".encode()).fetchall())
        assert "Workers Planned: 2" in plan
        gate.publish(budget(max_workers=3))
        with occupied(gate):
            said = detail(block(lambda: session.execute(HEAVY.encode())))
            assert (said["used"], said["bound"]) == ("1", "3")
        session.execute(HEAVY.encode())
        gate.publish(budget(max_workers=1))
        session.execute(HEAVY.encode())  # more than there are places: alone, it may
    assert gate.running() == 0


def test_the_workers_time_is_charged(gate: Gate) -> None:
    gate.publish(budget(max_workers=100))
    cross = "SELECT count(*) FROM numbers a, generate_series(1, 60) WHERE a.digit + a.id > 0"
    with gate.app() as session:
        with gate.counting() as serial:
            session.execute("SET max_parallel_workers_per_gather = 0")
            session.execute(cross.encode())
        with gate.counting() as parallel:
            eager(session)
            session.execute("SET parallel_leader_participation = off")
            session.execute(cross.encode())
    assert parallel["charged_s"] > 0.5 * serial["charged_s"]


def test_the_workers_time_of_what_a_statement_calls_is_charged(gate: Gate) -> None:
    gate.publish(budget(max_workers=100))
    block = (
        b"DO 'BEGIN PERFORM count(*) FROM numbers a, generate_series(1, 60)"
        b" WHERE a.digit + a.id > 0; END'"
    )
    with gate.app() as session:
        session.execute("SET max_parallel_workers_per_gather = 0")
        with gate.counting() as serial:
            session.execute(block)
        eager(session)
        session.execute("SET parallel_leader_participation = off")
        with gate.counting() as parallel:
            session.execute(block)
    assert parallel["charged_s"] > 0.5 * serial["charged_s"]


def test_a_cancelled_parallel_statement_gives_back(gate: Gate) -> None:
    gate.publish(budget(max_workers=100))
    with gate.app() as session:
        eager(session)
        session.execute("SET parallel_leader_participation = off")
        session.execute("SET statement_timeout = '200ms'")

        def charged_s() -> float:
            with gate.counting() as risen, pytest.raises(psycopg.errors.QueryCanceled):
                session.execute(
                    b"SELECT count(*) FROM numbers a, numbers b WHERE a.digit * b.id % 7 = 1"
                )
            assert gate.running() == 0
            return float(risen["charged_s"])

        # Its workers' time, too, once a busy machine has let them work.
        eventually(lambda: charged_s() > 0.02)
