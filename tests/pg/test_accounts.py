"""Query ids when there is a policy to need them, and charges that add up to what was used."""

from __future__ import annotations

import re

import psycopg
import pytest

from headgate.budgets.pgext.meter import RegionMeter
from tests.fixtures.pgkits import NEWEST, OLDEST, majors
from tests.pg.conftest import Fresh, where_versions_differ
from tests.pg.gate import Gate, Session, budget, cpu_s

ASKED = "SELECT count(*) FROM numbers WHERE digit = 3"
LOOK_UPS = 1500


def query_id(gate: Gate) -> str:
    with gate.server.connect() as session:
        session.execute("SET compute_query_id = on")
        lines = session.execute(f"EXPLAIN (VERBOSE) {ASKED}".encode()).fetchall()
    (found,) = re.findall(r"Query Identifier: (-?\d+)", str(lines))
    return str(found)


def is_blocked(session: Session, statement: str) -> bool:
    try:
        session.execute(statement.encode())
    except psycopg.errors.InsufficientResources:
        return True
    return False


@pytest.mark.parametrize("major", majors(OLDEST, NEWEST))
def test_a_rule_on_a_query_finds_what_was_prepared_without_an_id(fresh: Fresh, major: int) -> None:
    gate = fresh(major)
    asked = query_id(gate)
    with gate.app() as before, gate.app() as idle:
        before.execute(f"PREPARE p AS {ASKED}".encode())
        before.execute("EXECUTE p")
        mine = "SELECT query_id FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        assert before.execute(mine.encode()).fetchone() == (None,), "no policy: nobody needs ids"
        gate.publish(budget(rules=[{"match": {"username": "other"}}]))
        before.execute("EXECUTE p")
        assert before.execute(mine.encode()).fetchone() == (None,), "no rule for this session"
        gate.publish(budget(rules=[{"match": {"query": asked}}], max_workers=0))
        assert is_blocked(idle, ASKED), "the first statement under a policy has its id"
        # What is prepared is found by its second use at the latest.
        is_blocked(before, "EXECUTE p")
        assert is_blocked(before, "EXECUTE p")


@where_versions_differ
@pytest.mark.parametrize("prepare", [True, False], ids=["prepared", "parsed"])
def test_look_ups_are_charged_what_their_backend_uses(gate: Gate, prepare: bool) -> None:
    """R110: parsing, planning and answering are most of a cheap statement."""
    gate.publish(budget(rate=100, capacity=6000))

    def look_up(session: Session, times: int) -> None:
        for key in range(1, times + 1):
            session.execute("SELECT digit FROM numbers WHERE id = %s", (key,), prepare=prepare)

    with gate.app() as session:
        pid = session.info.backend_pid
        look_up(session, LOOK_UPS // 10)
        before_s = cpu_s(pid)
        with gate.counting() as risen:
            look_up(session, LOOK_UPS)
        assert risen["charged_s"] == pytest.approx(cpu_s(pid) - before_s, rel=0.25)


def test_wall_time_is_kept_beside_cpu_time(gate: Gate) -> None:
    """R158: a statement that waits uses no CPU time; budgets and patterns show both."""
    gate.publish(budget(max_workers=5))
    with gate.app() as session, gate.counting() as risen:
        session.execute("SELECT pg_sleep(0.3)")
    assert risen["wall_s"] >= 0.3 > 2 * risen["charged_s"]
    # Others of this server have waited for a busy machine, too, but none for most of its time.
    waiting = "SELECT FROM headgate.patterns WHERE wall_s >= 0.3 AND wall_s > 2 * cpu_s"
    assert gate.rows(waiting)
    _, readings = RegionMeter(gate.server.traffic_dir).read_now()
    assert readings.budgets["etl"].wall_ns >= 0.3e9
    assert max(pattern.wall_total_ns for pattern in readings.patterns) >= 0.3e9
