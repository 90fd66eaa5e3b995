"""Portals of the extended protocol, as drivers with a fetch size use them."""

from __future__ import annotations

from tests.fixtures.eventually import eventually
from tests.pg.conftest import where_versions_differ
from tests.pg.gate import DEAR, Gate, budget, learn
from tests.pg.wire import (
    COMPLETE,
    ERROR,
    FLUSH,
    SUSPENDED,
    SYNC,
    bind,
    execute,
    prepare,
    raw_session,
)

pytestmark = where_versions_differ

COUNTED = budget(max_workers=100)


def test_a_portal_read_in_parts_is_admitted_once(gate: Gate) -> None:
    gate.publish(COUNTED)
    with raw_session(gate.server.port) as session, gate.counting() as risen:
        session.query("BEGIN")
        session.send(prepare("SELECT id FROM numbers"), bind("p"), execute("p", 5), FLUSH)
        for _ in range(3):
            session.until(SUSPENDED)
            assert gate.running() == 0, "a reader that rests holds no place"
            session.send(execute("p", 5), FLUSH)
        session.until(SUSPENDED)
        session.send(execute("p", 0), SYNC)
        assert COMPLETE in [kind for kind, _ in session.until_ready()]
        session.query("COMMIT")
    assert risen["admitted"] == 1
    assert risen["charged_s"] > 0


def test_a_portal_that_is_never_read_holds_nothing(gate: Gate) -> None:
    gate.publish(budget(max_workers=1))
    with raw_session(gate.server.port) as bound, gate.app() as session:
        bound.query("BEGIN")
        bound.send(prepare("SELECT 1"), bind("p"), SYNC)
        bound.until_ready()
        session.execute("SELECT 1")


def test_a_portal_that_is_dropped_half_read_is_settled(gate: Gate) -> None:
    gate.publish(COUNTED)
    before = gate.budget()
    with raw_session(gate.server.port) as session:
        session.query("BEGIN")
        session.send(prepare("SELECT burn(2) FROM numbers"), bind(), execute("", 2), FLUSH)
        session.until(SUSPENDED)
    eventually(lambda: gate.budget()["charged_s"] > before["charged_s"])
    assert gate.budget()["admitted"] == before["admitted"] + 1


def test_every_statement_of_a_pipeline_is_decided(gate: Gate) -> None:
    """R93: a cheap one before it does not get an expensive one past its limit, but for a BEGIN."""
    learn(gate, DEAR)
    gate.publish(budget(max_workers=100, burst=0.5))
    with raw_session(gate.server.port) as session, gate.counting() as risen:
        dear = (prepare("SELECT 1"), bind(), execute(), prepare(DEAR), bind(), execute(), SYNC)
        session.send(*dear)
        assert ERROR in [kind for kind, _ in session.until_ready()]
        session.send(prepare("BEGIN"), bind(), execute(), *dear)
        assert ERROR not in [kind for kind, _ in session.until_ready()]
        session.query("ROLLBACK")
    assert risen["passed"] == 1
    assert risen["blocked_burst"] == 1


def test_an_insert_with_returning_read_in_parts(gate: Gate) -> None:
    gate.publish(COUNTED)
    text = "INSERT INTO numbers SELECT -n, 1 FROM generate_series(1, 20) n RETURNING id"
    with raw_session(gate.server.port) as session, gate.counting() as risen:
        session.query("BEGIN")
        session.send(prepare(text), bind("p"), execute("p", 5), FLUSH)
        session.until(SUSPENDED)
        assert gate.running() == 0
        session.send(execute("p", 0), SYNC)
        session.until_ready()
        session.query("ROLLBACK")
    assert risen["admitted"] == 1
