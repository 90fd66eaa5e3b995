"""What statements are charged, and what is learned of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fixtures.eventually import eventually
from tests.pg.conftest import where_versions_differ
from tests.pg.gate import DEAR, Gate, block, budget, detail, learn

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


# --- tables that nobody has analyzed (N1) ----------------------------------------------------

TINY = ("tiny_a", "tiny_b", "tiny_c", "tiny_d")


@contextmanager
def tiny_tables(gate: Gate) -> Iterator[None]:
    """Of one row each. The planner takes each of them for ten pages full of rows."""
    admin = gate.admin()
    for table in TINY:
        admin.execute(f"CREATE TABLE {table} AS SELECT 1 AS id".encode())
        admin.execute(f"GRANT ALL ON {table} TO app".encode())
    try:
        yield
    finally:
        admin.execute(f"DROP TABLE {', '.join(TINY)}".encode())


def test_a_guess_about_small_tables_is_bounded(gate: Gate) -> None:
    """N1: four rows in all, estimated at minutes, and blocked for good."""
    with tiny_tables(gate), gate.app() as session:
        gate.publish(budget(burst=5))  # 0.1 s of two CPUs
        row = session.execute(f"SELECT count(*) FROM {', '.join(TINY)}".encode()).fetchone()
    assert row == (1,)


@pytest.mark.parametrize(
    "dear",
    [
        "SELECT count(*) FROM tiny_a, tiny_b, tiny_c, numbers AS n, numbers AS m",
        "SELECT count(*) FROM tiny_a, tiny_b, tiny_c, generate_series(1, 100000000)",
        "SELECT count(*) FROM (SELECT generate_series(1, 100000000) FROM tiny_a, tiny_b, tiny_c) s",
    ],
    ids=["a large table", "a function", "a set for each row"],
)
def test_what_reads_more_than_small_tables_is_estimated_as_planned(gate: Gate, dear: str) -> None:
    """N1: a small table that nobody analyzed lets nothing else in."""
    with tiny_tables(gate), gate.app() as session:
        gate.publish(budget(burst=5))
        error = block(lambda: session.execute(dear.encode()))
    said = detail(error)
    assert (said["limit"], said["retry_after_ms"]) == ("burst", "never"), "it has never run"
    hint = error.diag.message_hint or ""
    assert "The estimate is a guess: run ANALYZE public.tiny_" in hint


def test_a_hint_to_analyze_is_given_only_where_that_is_missing(gate: Gate) -> None:
    with tiny_tables(gate), gate.app() as session:
        for table in TINY:
            gate.admin().execute(f"ANALYZE {table}".encode())
        gate.admin().execute(b"ANALYZE numbers")
        gate.publish(budget(burst=5))
        text = b"SELECT count(*) FROM tiny_a, numbers AS n, numbers AS m"
        error = block(lambda: session.execute(text))
    assert "ANALYZE" not in (error.diag.message_hint or "")


def test_what_is_blocked_for_its_estimate_says_when_it_is_tried_again(gate: Gate) -> None:
    """N1: as documented, a quarter of an hour after the last time; a limit of 0 tries nothing."""
    learn(gate, DEAR)
    with gate.app() as session:
        gate.publish(budget(burst=0.01))
        error = block(lambda: session.execute(DEAR.encode()))
        said = detail(error)
        assert 0 < int(said["retry_after_ms"]) <= 900_000 * 1.25
        told = f"One execution is admitted in {said['retry_after_ms']} ms"
        assert told in (error.diag.message_hint or "")
        gate.publish(budget(burst=0))
        assert detail(block(lambda: session.execute(DEAR.encode())))["retry_after_ms"] == "never"
