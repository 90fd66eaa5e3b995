"""Budgets in the query path of MariaDB: blocked, warned of, held, and let through."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import mysql.connector
import pymysql
import pytest
from pymysql.constants import CLIENT

from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.proxy.live import wire
from tests.proxy.live.conftest import MariaDBGate
from tests.proxy.live.limits import (
    LONGEST_DELAY_S,
    MYSQL_BLOCKED,
    NOTHING_FITS,
    ONE_PLACE,
    PATIENT,
    TAG,
    Started,
    etl,
    mariadb_occupied,
    waiting,
)
from tests.proxy.live.test_mysql_commands import EXECUTE, FETCH, Commands
from tests.proxy.live.test_pymysql import new_name, table

Run = Callable[[str], Any]


def blocked(run: Callable[[], Any]) -> str:
    """The message of a block; a failure if there is none."""
    try:
        run()
    except (pymysql.err.MySQLError, mysql.connector.Error) as error:
        number = error.args[0] if isinstance(error, pymysql.err.MySQLError) else error.errno
        assert number == MYSQL_BLOCKED, error
        return str(error)
    raise AssertionError("it was not blocked")


# ── Blocked ──────────────────────────────────────────────────────────────────


def test_a_query_is_blocked_and_the_session_goes_on(mariadb_gate: MariaDBGate) -> None:
    mariadb_gate.proxy.publish(NOTHING_FITS)
    with (
        mariadb_gate.way.pymysql() as session,
        session.cursor() as cursor,
        mariadb_gate.proxy.counting() as risen,
    ):
        for _ in range(3):
            told = blocked(lambda: cursor.execute(f"SELECT 1 {TAG}"))
            assert "etl" in told
            cursor.execute("SELECT 7")
            assert cursor.fetchone() == (7,)
    assert (risen["blocked"], risen["admitted"]) == (3, 0)


def test_a_block_says_which_budget_how_much_and_when_to_come_back(
    mariadb_gate: MariaDBGate,
) -> None:
    """R143."""
    gate = mariadb_gate
    gate.proxy.publish(ONE_PLACE)
    with (
        mariadb_occupied(gate.proxy, gate.way),
        gate.way.pymysql() as session,
        session.cursor() as cursor,
    ):
        told = blocked(lambda: cursor.execute(f"SELECT 1 {TAG}"))
    assert '"etl"' in told and "1 of 1 workers" in told
    assert "retry" in told.lower()


def test_a_prepared_statement_is_blocked_when_it_is_executed(mariadb_gate: MariaDBGate) -> None:
    session = mariadb_gate.way.connector()
    try:
        cursor = session.cursor(prepared=True)
        cursor.execute(f"SELECT ? + 1 {TAG}", (1,))
        assert cursor.fetchall() == [(2,)]
        mariadb_gate.proxy.publish(NOTHING_FITS)
        for _ in range(2):
            blocked(lambda: cursor.execute(f"SELECT ? + 1 {TAG}", (1,)))
        mariadb_gate.proxy.publish()
        cursor.execute(f"SELECT ? + 1 {TAG}", (3,))
        assert cursor.fetchall() == [(4,)]
        cursor.close()
    finally:
        session.close()


def test_several_statements_in_one_text_are_decided_before_any_is_sent(
    mariadb_gate: MariaDBGate,
) -> None:
    gate = mariadb_gate
    gate.proxy.publish(NOTHING_FITS)
    with (
        table(gate.way, "a INT") as name,
        gate.way.pymysql(client_flag=CLIENT.MULTI_STATEMENTS) as session,
        session.cursor() as cursor,
    ):
        texts = f"INSERT INTO {name} VALUES (1); INSERT INTO {name} VALUES (2) {TAG}"
        blocked(lambda: cursor.execute(texts))
        cursor.execute(f"SELECT COUNT(*) FROM {name}")
        assert cursor.fetchone() == (0,)


def test_a_blocked_statement_never_reaches_the_server(
    mariadb_gate: MariaDBGate, mariadb_server: MariaDBServer
) -> None:
    mariadb_gate.proxy.publish(NOTHING_FITS)
    with mariadb_gate.way.pymysql() as session, session.cursor() as cursor:

        def questions() -> int:
            cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
            row = cursor.fetchone()
            assert row is not None
            return int(row[1])

        before = questions()
        for _ in range(5):
            blocked(lambda: cursor.execute(f"SELECT 1 {TAG}"))
        assert questions() == before + 1


def test_a_blocked_statement_leaves_a_transaction_as_an_error_of_the_server_would(
    mariadb_gate: MariaDBGate,
) -> None:
    """An ERR does not end a transaction in MySQL: its client decides."""
    gate = mariadb_gate
    gate.proxy.publish(NOTHING_FITS)
    with table(gate.way, "a INT") as name, gate.way.pymysql(autocommit=False) as session:
        cursor = session.cursor()
        session.begin()
        cursor.execute(f"INSERT INTO {name} VALUES (1)")
        blocked(lambda: cursor.execute(f"INSERT INTO {name} VALUES (2) {TAG}"))
        session.rollback()
        cursor.execute(f"SELECT COUNT(*) FROM {name}")
        assert cursor.fetchone() == (0,)


def test_inside_a_transaction_it_passes_what_would_not_fit_outside(
    mariadb_gate: MariaDBGate,
) -> None:
    """R148: by BEGIN, and by autocommit switched off."""
    gate = mariadb_gate
    gate.proxy.publish(ONE_PLACE)
    for autocommit in (True, False):
        with table(gate.way, "a INT") as name, gate.way.pymysql(autocommit=autocommit) as session:
            cursor = session.cursor()
            if autocommit:
                session.begin()
            cursor.execute(f"INSERT INTO {name} VALUES (1)")
            with mariadb_occupied(gate.proxy, gate.way), gate.proxy.counting() as risen:
                cursor.execute(f"INSERT INTO {name} VALUES (2) {TAG}")
            assert risen["passed"] == 1
            session.commit()


def test_the_first_statement_after_autocommit_was_switched_off_is_decided(
    mariadb_gate: MariaDBGate,
) -> None:
    gate = mariadb_gate
    gate.proxy.publish(ONE_PLACE)
    with table(gate.way, "a INT") as name, gate.way.pymysql(autocommit=False) as session:
        cursor = session.cursor()
        with mariadb_occupied(gate.proxy, gate.way):
            blocked(lambda: cursor.execute(f"INSERT INTO {name} VALUES (1) {TAG}"))
            session.commit()
            blocked(lambda: cursor.execute(f"INSERT INTO {name} VALUES (1) {TAG}"))


def test_a_cursor_that_was_admitted_is_fetched_as_inside_a_transaction(
    mariadb_gate: MariaDBGate,
) -> None:
    gate = mariadb_gate
    gate.proxy.publish(ONE_PLACE)
    with gate.way.pymysql() as session:
        talk = Commands(session)
        statement = talk.prepare(f"SELECT seq FROM seq_1_to_25 {TAG}")
        talk.send(EXECUTE, struct.pack("<IBI", statement, 1, 1))
        talk.read()
        talk.rows()
        with mariadb_occupied(gate.proxy, gate.way):
            talk.send(FETCH, struct.pack("<II", statement, 100))
            rows, _ = talk.rows()
        assert len(rows) == 25


def test_commands_that_cost_nothing_are_free(mariadb_gate: MariaDBGate) -> None:
    gate = mariadb_gate
    gate.proxy.publish(NOTHING_FITS)
    with gate.way.pymysql() as session, session.cursor() as cursor:
        session.ping(reconnect=False)
        for text in ("BEGIN", "COMMIT", "SET @x = 1", "ROLLBACK", "USE parity"):
            cursor.execute(f"{text} {TAG}")


# ── Warned of ────────────────────────────────────────────────────────────────


def test_a_budget_that_warns_lets_it_run_and_counts(mariadb_gate: MariaDBGate) -> None:
    gate = mariadb_gate
    gate.proxy.publish(etl(max_workers=0, mode="warn"))
    with (
        gate.way.pymysql() as session,
        session.cursor() as cursor,
        gate.proxy.counting() as risen,
    ):
        cursor.execute(f"SELECT 7 {TAG}")
        assert cursor.fetchone() == (7,)
    assert risen["warned"] == 1


def test_a_warning_is_there_for_show_warnings(mariadb_gate: MariaDBGate) -> None:
    """The protocol has no notices: the count is raised, and who asks what it was is told."""
    gate = mariadb_gate
    gate.proxy.publish(etl(max_workers=0, mode="warn"))
    with gate.way.connector(get_warnings=False) as session, session.cursor() as cursor:
        cursor.execute(f"SELECT 7 {TAG}")
        assert cursor.fetchall() == [(7,)]
        assert cursor.warning_count == 1
        cursor.execute("SHOW WARNINGS")
        [(level, _, told)] = cursor.fetchall()
        assert level in ("Warning", "Note") and '"etl"' in told
        cursor.execute("SELECT 8")
        assert cursor.fetchall() == [(8,)] and cursor.warning_count == 0


# ── Held ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["query", "prepared"])
def test_what_waits_for_a_place_runs_when_it_is_free(mariadb_gate: MariaDBGate, form: str) -> None:
    gate = mariadb_gate
    gate.proxy.publish(PATIENT)
    session = gate.way.connector()

    def ask() -> Any:
        cursor = session.cursor(prepared=form == "prepared")
        text = f"SELECT 6 + {'?' if form == 'prepared' else '%s'} {TAG}"
        cursor.execute(text, (1,))
        return cursor.fetchall()

    try:
        with gate.proxy.counting() as risen, mariadb_occupied(gate.proxy, gate.way) as release:
            held = Started(ask)
            eventually(lambda: waiting(gate.proxy) == 1)
            release()
            assert held.join() == [(7,)]
        assert (risen["delayed"], risen["admitted"]) == (1, 2)
    finally:
        session.close()


def test_patience_ends_in_a_block(mariadb_gate: MariaDBGate) -> None:
    gate = mariadb_gate
    gate.proxy.publish(etl(max_workers=1, max_delay_s=0.15))
    with (
        mariadb_occupied(gate.proxy, gate.way),
        gate.way.pymysql() as session,
        session.cursor() as cursor,
    ):
        began = time.monotonic()
        blocked(lambda: cursor.execute(f"SELECT 1 {TAG}"))
        assert time.monotonic() - began >= 0.15


@pytest.mark.parametrize("kill", ["KILL QUERY", "KILL"])
def test_kill_ends_a_delayed_statement(mariadb_gate: MariaDBGate, kill: str) -> None:
    gate = mariadb_gate
    gate.proxy.publish(PATIENT)
    with (
        mariadb_occupied(gate.proxy, gate.way),
        gate.way.pymysql() as other,
        gate.way.pymysql() as session,
    ):
        held = Started(lambda: session.cursor().execute(f"SELECT 1 {TAG}"))
        eventually(lambda: waiting(gate.proxy) == 1)
        other.cursor().execute(f"{kill} {session.thread_id()}")
        held.join()
        assert isinstance(held.error, pymysql.err.MySQLError), held.answer
        assert waiting(gate.proxy) == 0
        if kill == "KILL QUERY":
            assert held.error.args[0] == 1317
            session.cursor().execute("SELECT 1")


def test_a_client_that_hangs_up_while_delayed_never_reaches_the_server(
    mariadb_gate: MariaDBGate,
) -> None:
    gate = mariadb_gate
    gate.proxy.publish(PATIENT)
    with table(gate.way, "a INT") as name:
        with mariadb_occupied(gate.proxy, gate.way) as release:
            session = gate.way.pymysql()
            session._execute_command(3, f"INSERT INTO {name} VALUES (1) {TAG}")
            eventually(lambda: waiting(gate.proxy) == 1)
            wire.reset_on_close(session._sock)
            session._force_close()
            eventually(lambda: waiting(gate.proxy) == 0)
            release()
        with gate.way.pymysql() as looking, looking.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {name}")
            assert cursor.fetchone() == (0,)


def test_a_limit_of_concurrency_holds_exactly(
    mariadb_gate: MariaDBGate, mariadb_server: MariaDBServer
) -> None:
    gate, mark = mariadb_gate, new_name("three")
    gate.proxy.publish(etl(max_workers=3, max_delay_s=LONGEST_DELAY_S))
    done: list[int] = []

    def work(table_name: str) -> None:
        with gate.way.pymysql() as session, session.cursor() as cursor:
            for _ in range(3):
                cursor.execute(f"SELECT SLEEP(0.01) AS {mark} FROM {table_name} {TAG}")
                done.append(1)

    sql = (
        "SELECT COUNT(*) FROM information_schema.processlist"
        # By its state: what has been answered is listed for a moment longer.
        f" WHERE info LIKE '%{mark}%'"
        " AND state IN ('User sleep', 'Waiting for table metadata lock')"
    )
    with (
        table(gate.way, "a INT") as name,
        mariadb_server.connect() as looking,
        looking.cursor(pymysql.cursors.Cursor) as cursor,
        gate.way.pymysql() as locker,
    ):

        def inside() -> int:
            cursor.execute(sql)
            row = cursor.fetchone()
            assert row is not None
            return int(row[0])

        locker.cursor().execute(f"INSERT INTO {name} VALUES (1)")
        locker.cursor().execute(f"LOCK TABLES {name} WRITE")
        threads = [threading.Thread(target=work, args=(name,)) for _ in range(10)]
        for thread in threads:
            thread.start()
        eventually(lambda: waiting(gate.proxy) == 7)
        eventually(lambda: inside() == 3)
        locker.cursor().execute("UNLOCK TABLES")
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, inside())
    assert len(done) == 30
    assert most <= 3
