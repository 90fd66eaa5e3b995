"""What runs without being judged runs no work, and planning is charged (P3).

A trap is laid: a function that the planner runs, and that moves a sequence whenever it is run,
which no rollback takes back. Under a limit of 0 it must never be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from headgate.budgets.model import Dialect
from headgate.budgets.sql_text import fingerprint
from tests.pg.gate import Gate, Session, block, budget
from tests.pg.wire import ERROR, SYNC, bind, prepare, raw_session

LIMITS: list[dict[str, Any]] = [
    {"max_workers": 0},
    {"concurrency": 0},
    {"rate": 0},
    {"capacity": 0},
    {"burst": 0},
]
QUIET_S = 1.1
"""After a block, the extension looks before planning for a second."""


@pytest.fixture
def trap(gate: Gate) -> Iterator[Session]:
    """A session of the user app, who owns the trap."""
    with gate.app() as session:
        session.execute("CREATE SEQUENCE sprung")
        session.execute("CREATE TABLE bait AS SELECT 1 AS n")
        session.execute("CREATE MATERIALIZED VIEW mirror AS SELECT count(*) FROM bait")
        session.execute(
            "CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS"
            " 'BEGIN RETURN nextval(''sprung''); END'"
        )
        session.execute(
            "CREATE FUNCTION folded() RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM writes(); RETURN 1; END'"
        )
        session.execute(
            "CREATE FUNCTION dear() RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM count(*) FROM generate_series(1, 200000); RETURN 1; END'"
        )
        session.execute(
            "CREATE FUNCTION dear_and_fails() RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM count(*) FROM generate_series(1, 200000); RETURN 1 / 0; END'"
        )
        session.execute("PREPARE executed(int) AS SELECT $1")
        session.execute("PREPARE explained AS SELECT folded()")
        yield session
    gate.clear()
    gate.admin().execute(
        "DROP FUNCTION writes, folded, dear, dear_and_fails; DROP MATERIALIZED VIEW mirror; "
        "DROP TABLE IF EXISTS bait, made; DROP SEQUENCE sprung"
    )


def is_sprung(gate: Gate) -> bool:
    return bool(gate.rows("SELECT is_called FROM sprung")[0]["is_called"])


@pytest.mark.parametrize(
    "text",
    [
        "SELECT folded()",
        "EXPLAIN SELECT folded()",
        "EXPLAIN (ANALYZE OFF) SELECT folded()",
        "EXPLAIN ANALYZE SELECT folded()",
        "EXPLAIN EXECUTE explained",
        "EXECUTE explained",
        "EXECUTE executed(writes())",
        "EXPLAIN ANALYZE EXECUTE executed(writes())",
        "CREATE TABLE made AS EXECUTE executed(writes())",
        "DECLARE c CURSOR WITH HOLD FOR SELECT folded()",
        "CREATE TABLE made AS SELECT folded()",
        "CREATE TABLE made AS SELECT folded() WITH NO DATA",
        "REFRESH MATERIALIZED VIEW mirror",
        "NOTIFY sprung, 'x'",
        "COPY (SELECT folded()) TO STDOUT",
    ],
)
def test_a_limit_of_0_comes_before_the_planner(gate: Gate, trap: Session, text: str) -> None:
    gate.publish(budget(max_workers=0))
    block(lambda: trap.execute(text.encode()))
    assert not is_sprung(gate)


def test_a_limit_of_0_is_asked_for_on_a_quiet_server_too(gate: Gate, trap: Session) -> None:
    """Where nobody was blocked a moment ago, others are planned first."""
    for limit in LIMITS:
        gate.publish(budget(**limit))
        time.sleep(QUIET_S)
        block(lambda: trap.execute("SELECT folded()"))
    assert not is_sprung(gate)


def test_a_bind_is_enough_to_be_blocked_under_a_limit_of_0(gate: Gate, trap: Session) -> None:
    """Plans are made for it, and nothing is executed."""
    gate.publish(budget(max_workers=0))
    with raw_session(gate.server.port, "app") as session:
        session.send(prepare("SELECT folded()"), bind(), SYNC)
        kinds = [kind for kind, _ in session.until_ready()]
    assert ERROR in kinds
    assert not is_sprung(gate)


@pytest.mark.parametrize(
    "text",
    [
        "BEGIN; SAVEPOINT a; ROLLBACK TO a; RELEASE a; COMMIT",
        "SET work_mem = '4MB'",
        "SHOW work_mem",
        "RESET ALL",
        "DISCARD ALL",
        "LISTEN a; UNLISTEN *",
        "PREPARE another AS SELECT folded(); DEALLOCATE another",
    ],
)
def test_what_is_free_stays_free_and_runs_nothing(gate: Gate, trap: Session, text: str) -> None:
    gate.publish(budget(max_workers=0))
    for one in text.split("; "):
        trap.execute(one.encode())
    assert not is_sprung(gate)


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN SELECT dear()",
        "SELECT dear()",
        "DECLARE c CURSOR WITH HOLD FOR SELECT dear()",
        "EXPLAIN ANALYZE SELECT dear()",
        "SELECT dear_and_fails()",
        "EXPLAIN SELECT dear_and_fails()",
    ],
)
def test_planning_is_charged(gate: Gate, trap: Session, text: str) -> None:
    gate.publish(budget(max_workers=100, rate=100, capacity=6000))
    with gate.counting() as risen:
        for _ in range(3):
            with suppress(psycopg.errors.DivisionByZero, psycopg.errors.DuplicateCursor):
                trap.execute(text.encode())
    assert risen["charged_s"] > 0.006


def test_planning_is_charged_to_who_is_blocked_behind_it(gate: Gate, trap: Session) -> None:
    """Else a statement that never fits would be planned for nothing, again and again."""
    gate.publish(budget(burst=0.001, rate=100, capacity=6000))
    with gate.counting() as risen:
        block(lambda: trap.execute("SELECT dear(), count(*) FROM generate_series(1, 100000000)"))
    assert risen["charged_s"] > 0.002


def test_explain_analyze_falls_under_the_fingerprint_of_what_it_runs(
    gate: Gate, trap: Session
) -> None:
    """P5."""
    number = f"{fingerprint(b'SELECT n FROM bait', Dialect.POSTGRES):016x}"
    gate.publish(budget(rules=[{"match": {"fingerprint": number}}], max_workers=0))
    block(lambda: trap.execute("EXPLAIN ANALYZE SELECT n FROM bait"))
    block(lambda: trap.execute("EXPLAIN (BUFFERS, ANALYZE) SELECT n FROM bait"))
    trap.execute("EXPLAIN SELECT n FROM bait")
