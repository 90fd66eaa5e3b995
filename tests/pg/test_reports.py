"""What clients and logs are told: R125, R135, R143."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from tests.pg.gate import Gate, block, budget, detail, notices_of, occupied

DEAR = "SELECT count(*) FROM numbers, generate_series(1, 20)"


def test_concurrency(gate: Gate) -> None:
    version = gate.publish(budget(max_workers=1))
    with occupied(gate), gate.app() as session:
        error = block(lambda: session.execute("SELECT 1"))
    assert error.sqlstate == "53000"
    assert error.diag.message_primary == (
        '[HEADGATE] Traffic Control: budget "etl": concurrency limit: 1 of 1 workers are in use'
    )
    said = detail(error)
    assert said["budget"] == "etl"
    assert said["limit"] == "concurrency"
    assert (said["used"], said["bound"]) == ("1", "1")
    assert 100 <= int(said["retry_after_ms"]) <= 125  # R143: a quarter more at most
    assert said["policy_version"] == str(version)
    assert error.diag.message_hint == f"Retry in {said['retry_after_ms']} ms."


def test_what_never_fits(gate: Gate) -> None:
    gate.publish(budget(burst=0.01))
    dear = "SELECT count(*), 'never run' FROM numbers, generate_series(1, 50)"
    with gate.app() as session:
        error = block(lambda: session.execute(dear))
    assert "per-query limit: estimated " in (error.diag.message_primary or "")
    said = detail(error)
    assert (said["limit"], said["retry_after_ms"]) == ("burst", "never")
    assert float(said["bound_ms"]) == 0.2
    assert (error.diag.message_hint or "").startswith("The estimate is over the limit")


def test_a_full_bucket_says_when_to_come_back(gate: Gate) -> None:
    text = "SELECT count(*) AS filling FROM numbers"
    gate.publish(budget(max_workers=9))
    with gate.app() as session:
        for _ in range(3):
            session.execute(text)
        gate.publish(budget("filled", rate=0.5, capacity=1, rules=[{"each": ["username"]}]))

        def run() -> None:
            for _ in range(500):
                session.execute(text)

        error = block(run)
    assert "capacity limit: " in (error.diag.message_primary or "")
    said = detail(error)
    assert (said["limit"], said["bucket"]) == ("capacity", "username=app")
    assert float(said["used_ms"]) + float(said["estimate_ms"]) > float(said["bound_ms"]) == 20
    assert error.diag.message_hint == f"Retry in {said['retry_after_ms']} ms."
    assert 0 < int(said["retry_after_ms"]) <= 4000


@contextmanager
def role(gate: Gate, name: str) -> Iterator[None]:
    quoted = sql.Identifier(name)
    gate.admin().execute(sql.SQL("CREATE ROLE {} LOGIN").format(quoted))
    try:
        yield
    finally:
        gate.admin().execute(sql.SQL("DROP ROLE {}").format(quoted))


EACH = [{"each": ["username", "database"]}]


def test_a_label_is_cut_between_characters(gate: Gate) -> None:
    """Half of one is an error of its own (22021), in a block's place and in the view's."""
    name = "a" + 31 * "é"
    gate.publish(budget("cut", max_workers=0, rules=EACH))
    with role(gate, name), gate.app(name) as session:
        session.execute("SET client_encoding = 'LATIN1'")
        assert "bucket=username=aé" in (
            block(lambda: session.execute("SELECT 1")).diag.message_detail or ""
        )
        gate.publish(budget("cut", max_workers=5, rules=EACH))
        session.execute("SELECT 1")
        labels = gate.rows("SELECT label, length(label) AS n FROM headgate.buckets")
    assert any(row["label"].startswith("username=aé") for row in labels)


def test_a_name_makes_no_fields_of_its_own(gate: Gate) -> None:
    name = "x retry_after_ms=0 100%"
    gate.publish(budget("odd", max_workers=0, rules=EACH))
    with role(gate, name), gate.app(name) as session:
        said = detail(block(lambda: session.execute("SELECT 1")))
    assert said["bucket"].startswith("username=x%20retry_after_ms=0%20100%25,")
    assert said["retry_after_ms"] == "never"


def test_a_walsender_reads_the_views(gate: Gate) -> None:
    """It decides nothing and has no seat of its own, nor have background workers."""
    gate.publish(budget(max_workers=3, rate=50, capacity=600))
    where = f"host=127.0.0.1 port={gate.server.port} user=postgres dbname=postgres"
    sender = psycopg.pq.PGconn.connect(f"{where} replication=database".encode())
    try:
        for view in ("status()", "backends", "buckets", "budgets", "patterns", "violations"):
            result = sender.exec_(f"SELECT * FROM headgate.{view}".encode())
            assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, sender.error_message
        seats = gate.rows(f"SELECT FROM headgate.backends WHERE pid = {sender.backend_pid}")
    finally:
        sender.finish()
    assert seats == []


def tags_counted(gate: Gate, pid: int) -> tuple[int, int]:
    (row,) = gate.rows(f"SELECT * FROM headgate.backends WHERE pid = {pid}")
    return row["ignored_tags"], row["duplicate_tags"]


@pytest.mark.parametrize(
    ("comment", "ignored", "duplicates"),
    [
        ("tenant='ac me%ff'", 1, 0),
        (f"tenant='{2000 * 'x'}'", 1, 0),
        ("tenant='acme',tenant='other'", 0, 1),
        (",".join(f"t{n}='1'" for n in range(40)) + ",tenant='acme'", 9, 0),
    ],
)
def test_tags_that_take_a_statement_out_of_its_budget_are_counted(
    gate: Gate, comment: str, ignored: int, duplicates: int
) -> None:
    """R120: most of all where nothing matches for it."""
    gate.publish(budget(rules=[{"match": {"tag.tenant": "acme"}}], max_workers=0))
    with gate.app() as session:
        pid = session.info.backend_pid
        session.execute("SELECT 1")
        before = tags_counted(gate, pid)
        session.execute(f"SELECT 1 /*{comment}*/".encode())
        after = tags_counted(gate, pid)
    assert (after[0] - before[0], after[1] - before[1]) == (ignored, duplicates)


def test_warnings_are_notices_and_rationed(gate: Gate) -> None:
    gate.publish(budget(mode="warn", max_workers=0))
    with gate.app() as session, gate.counting() as risen:
        heard = notices_of(session)
        began_s = time.monotonic()
        for _ in range(20):
            session.execute("SELECT 1")
        took_s = time.monotonic() - began_s
    assert set(heard) == {
        '[HEADGATE] Traffic Control: budget "etl": concurrency limit: 0 of 0 workers are in use'
    }
    assert len(heard) <= 1 + took_s, "one a second"
    assert risen["warned_concurrency"] == 20, "counters are exact all the same"
    assert risen["admitted"] == 0


def test_a_warning_threshold_is_a_notice(gate: Gate) -> None:
    """R123."""
    gate.publish(budget(max_workers=1, warning_threshold=80))
    with gate.app() as session, gate.counting() as risen:
        heard = notices_of(session)
        session.execute("SELECT 1")
    assert len(heard) == 1
    assert "warning threshold of the concurrency limit: " in heard[0]
    assert risen["warned_threshold"] == risen["admitted"] == 1


def test_blocks_are_logged_now_and_then_and_counted_all(gate: Gate) -> None:
    gate.publish(budget("logged", max_workers=0))
    words = 'Traffic Control: budget "logged": concurrency'
    before, began_s = gate.server.log().count(words), time.monotonic()
    with gate.app() as session, gate.counting("logged") as risen:
        for _ in range(50):
            block(lambda: session.execute("SELECT 1"))
    lines = gate.server.log().count(words) - before
    assert 1 <= lines <= 2 + time.monotonic() - began_s, "one a second"
    assert risen["blocked_concurrency"] == 50


def test_other_errors_are_logged_as_ever(gate: Gate) -> None:
    gate.publish(budget("quiet", max_workers=0))
    with gate.app() as session:
        for _ in range(3):
            block(lambda: session.execute("SELECT 1"))
            with pytest.raises(Exception, match="no_such_column"):
                session.execute("SET LOCAL work_mem = '1MB'; SELECT no_such_column")
    assert gate.server.log().count('column "no_such_column" does not exist') >= 3


@pytest.mark.parametrize("parameters", [None, [1]])
def test_what_is_full_is_blocked_before_planning(gate: Gate, parameters: list[int] | None) -> None:
    """By the simple protocol, and by the extended one."""
    text = "SELECT digit FROM numbers WHERE id = " + ("1" if parameters is None else "%s")
    gate.publish(budget(max_workers=0))
    with gate.app() as session, gate.counting() as risen:
        for _ in range(5):
            block(lambda: session.execute(text.encode(), parameters))
    assert risen["blocked_early"] >= 4, "all but the first, which nobody expected"


def test_patterns_are_told_apart_without_query_ids(gate: Gate) -> None:
    gate.admin().execute("ALTER ROLE app SET compute_query_id = off")
    gate.publish(budget(max_workers=9))
    nameless = "SELECT count(*) AS n FROM headgate.patterns WHERE query_id = 0"
    before = gate.rows(nameless)[0]["n"]
    try:
        with gate.app() as session:
            for n in range(3):
                session.execute(f"SELECT {n} AS nameless".encode())
                session.execute(f"SELECT {n}, {n} AS nameless_too".encode())
    finally:
        gate.admin().execute("ALTER ROLE app RESET compute_query_id")
    assert gate.rows(nameless)[0]["n"] == before + 2


def test_a_known_dear_pattern_is_blocked_before_planning(gate: Gate) -> None:
    gate.publish(budget(max_workers=9))
    with gate.app() as session:
        for _ in range(3):
            session.execute(DEAR)
        gate.publish(budget(burst=0.05))
        block(lambda: session.execute(DEAR))
        with gate.counting() as risen:
            block(lambda: session.execute(DEAR))
    assert risen["blocked_early"] == 1


def test_the_views_are_for_monitors(gate: Gate) -> None:
    with gate.app() as session:
        with pytest.raises(Exception, match="permission denied"):
            session.execute("SELECT * FROM headgate.budgets")
        gate.admin().execute("GRANT pg_monitor TO app")
        for view in ("status()", "backends", "budgets", "buckets", "patterns", "violations"):
            session.execute(f"SELECT * FROM headgate.{view}".encode())
        gate.admin().execute("REVOKE pg_monitor FROM app")


def test_violations_by_limit(gate: Gate) -> None:
    gate.publish(budget("watched", max_workers=0))
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))
    rows = gate.rows("SELECT * FROM headgate.violations WHERE budget = 'watched'")
    assert {row["limit_name"]: row["blocked"] > 0 for row in rows} == {
        "concurrency": True,
        "burst": False,
        "capacity": False,
    }
