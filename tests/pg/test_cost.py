"""What statements are charged, and what is learned of them."""

from __future__ import annotations

import pytest

from tests.fixtures.eventually import eventually
from tests.pg.conftest import where_versions_differ
from tests.pg.gate import Gate, budget

pytestmark = where_versions_differ

WAITS = """
SELECT FROM pg_stat_activity
WHERE pid = {} AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > '0.3 s'
"""


def test_a_wait_while_planning_is_no_cpu_time(gate: Gate) -> None:
    """Partitions are locked there: whoever waits for a DDL statement would pay for it."""
    gate.publish(budget(rate=10, capacity=600))
    with gate.server.connect() as owner, gate.app() as session:
        owner.execute("CREATE TABLE sliced (id int) PARTITION BY RANGE (id)")
        owner.execute("CREATE TABLE slice PARTITION OF sliced FOR VALUES FROM (0) TO (9)")
        owner.execute("GRANT ALL ON sliced, slice TO app")
        owner.execute("BEGIN; LOCK TABLE slice IN ACCESS EXCLUSIVE MODE")
        with gate.counting() as risen:
            session.pgconn.send_query(b"SELECT * FROM sliced")
            eventually(lambda: gate.rows(WAITS.format(session.info.backend_pid)) != [])
            owner.execute("ROLLBACK")
            while session.pgconn.get_result() is not None:
                pass
        owner.execute("DROP TABLE sliced")
    assert 0 < risen["charged_s"] < 0.1


def patterns(gate: Gate) -> set[tuple[object, ...]]:
    rows = gate.rows("SELECT query_id, mean_cost, calls, cpu_s FROM headgate.patterns")
    return {tuple(row.values()) for row in rows}


@pytest.mark.parametrize("setting", ["cpu_tuple_cost = 1e300", "enable_seqscan = off"])
def test_a_session_of_other_planner_settings_spoils_no_estimate(gate: Gate, setting: str) -> None:
    """One plan of an absurd cost would have a pattern taken for free, for everybody (R106)."""
    gate.publish(budget(max_workers=9))
    text = b"SELECT count(*), 'by these settings' FROM numbers WHERE id > 0"
    with gate.app() as session:
        session.execute(text)
        usual = patterns(gate)
        session.execute(f"SET {setting}".encode())
        session.execute(text)
    assert usual < patterns(gate), "learned apart"
