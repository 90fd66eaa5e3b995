"""What psycopg can do with Postgres directly, it can do through the proxy."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors, pq
from psycopg.rows import dict_row

from tests.fixtures.eventually import aeventually, eventually
from tests.fixtures.pgkits import ExtendedServer
from tests.proxy.live.ways import PostgresWay

LARGE_BYTES = 3 * 1024**2
"""More than a socket, a buffer and the window of a text hold together."""
RUNNING = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s"


def new_name(prefix: str = "t") -> str:
    return f"{prefix}_{uuid.uuid4().hex[:12]}"


@contextmanager
def table(way: PostgresWay, columns: str) -> Iterator[str]:
    """Of its own, seen by every session."""
    name = new_name()
    with way.connect() as session:
        session.execute(f"CREATE TABLE {name} ({columns})")
        try:
            yield name
        finally:
            session.execute(f"DROP TABLE IF EXISTS {name}")


def runs_on(server: ExtendedServer, mark: str) -> bool:
    with server.connect() as session:
        row = session.execute(RUNNING, [f"%{mark[:-1]}_%"]).fetchone()
    return row is not None and row[0] > 0


# ── Statements ───────────────────────────────────────────────────────────────


def test_a_simple_query_with_several_statements_gives_each_result(pg: PostgresWay) -> None:
    with pg.connect() as session:
        cursor = session.execute("SELECT 1 AS a; SELECT 'two' AS b; SELECT 3, 4")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset() and cursor.fetchall() == [("two",)]
        assert cursor.nextset() and cursor.fetchall() == [(3, 4)]
        assert not cursor.nextset()


def test_an_empty_query_is_answered(pg: PostgresWay) -> None:
    with pg.connect() as session:
        assert session.execute("").statusmessage is None
        assert session.execute(" -- nothing\n").statusmessage is None
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_an_error_in_the_middle_of_several_statements_leaves_the_session(pg: PostgresWay) -> None:
    with pg.connect() as session:
        with pytest.raises(errors.DivisionByZero):
            session.execute("SELECT 1; SELECT 1/0; SELECT 3")
        assert session.info.transaction_status == pq.TransactionStatus.IDLE
        assert session.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("binary", [False, True])
def test_parameters_go_both_ways_in_text_and_in_binary(pg: PostgresWay, binary: bool) -> None:
    value = {"i": 7, "f": 2.5, "t": "naïve ✓", "b": bytes(range(256)), "n": None}
    with pg.connect() as session, session.cursor(row_factory=dict_row, binary=binary) as cursor:
        cursor.execute(
            "SELECT %(i)b::int AS i, %(f)b::float8 AS f, %(t)b::text AS t, %(b)b::bytea AS b,"
            " %(n)s::text AS n",
            value,
        )
        assert cursor.fetchone() == value


@pytest.mark.parametrize("threshold", [0, 1, None])
def test_prepared_statements_are_made_used_and_dropped(
    pg: PostgresWay, threshold: int | None
) -> None:
    with pg.connect() as session:
        session.prepare_threshold = threshold
        session.prepared_max = 3
        for number in range(8):
            for repeat in range(3):
                row = session.execute(f"SELECT %s + {number}", [repeat]).fetchone()
                assert row == (repeat + number,)
        kept = session.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False)
        # The one it drops is dropped with its next statement.
        assert (kept.fetchone() or [-1])[0] in ((0,) if threshold is None else (3, 4))


def test_prepare_and_execute_in_sql(pg: PostgresWay) -> None:
    with pg.connect() as session:
        session.execute("PREPARE p (int) AS SELECT $1 * 2")
        assert session.execute("EXECUTE p (21)").fetchone() == (42,)
        session.execute("DEALLOCATE p")


def test_many_rows_come_by_executemany(pg: PostgresWay) -> None:
    with pg.connect() as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE t (a int, b text)")
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(n, str(n)) for n in range(500)])
        assert cursor.rowcount == 500
        cursor.executemany("SELECT %s::int", [(1,), (2,)], returning=True)
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset() and cursor.fetchall() == [(2,)]


def test_a_row_of_3_mb_comes_whole(pg: PostgresWay) -> None:
    with pg.connect() as session:
        row = session.execute("SELECT repeat('x', %s), 1", [LARGE_BYTES]).fetchone()
    assert row is not None and len(row[0]) == LARGE_BYTES and row[1] == 1


def test_a_parameter_of_3_mb_goes_whole(pg: PostgresWay) -> None:
    with pg.connect() as session:
        row = session.execute("SELECT length(%b::bytea)", [b"x" * LARGE_BYTES]).fetchone()
    assert row == (LARGE_BYTES,)


def test_a_query_text_of_3_mb_goes_whole(pg: PostgresWay) -> None:
    text = "SELECT length('" + "y" * LARGE_BYTES + "'), 'end'"
    with pg.connect() as session:
        assert session.execute(text).fetchone() == (LARGE_BYTES, "end")


def test_many_rows_come_in_order(pg: PostgresWay) -> None:
    with pg.connect() as session:
        rows = session.execute("SELECT g, repeat('z', g % 97) FROM generate_series(1, 20000) g")
        assert all(row == (n, "z" * (n % 97)) for n, row in enumerate(rows, start=1))


def test_rows_stream_one_by_one(pg: PostgresWay) -> None:
    with pg.connect() as session, session.cursor() as cursor:
        seen = sum(row[0] for row in cursor.stream("SELECT generate_series(1, 3000)"))
        assert seen == 3000 * 3001 // 2


@pytest.mark.parametrize("hold", [False, True])
def test_server_cursors_fetch_scroll_and_close(pg: PostgresWay, hold: bool) -> None:
    with pg.connect(autocommit=False) as session:
        cursor = session.cursor("walk", scrollable=True, withhold=hold)
        cursor.execute("SELECT generate_series(1, 1000)")
        if hold:
            session.commit()
        cursor.itersize = 100
        assert cursor.fetchmany(3) == [(1,), (2,), (3,)]
        cursor.scroll(500)
        assert cursor.fetchone() == (504,)
        assert sum(1 for _ in cursor) == 496
        cursor.close()


def test_notices_reach_their_handler_in_order(pg: PostgresWay) -> None:
    heard: list[str] = []
    with pg.connect() as session:
        session.add_notice_handler(lambda notice: heard.append(notice.message_primary or ""))
        session.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
        session.execute("SELECT 1")
    assert heard == ["one", "two"]


def test_an_error_keeps_all_of_its_fields(pg: PostgresWay) -> None:
    with pg.connect() as session:
        session.execute("CREATE TEMP TABLE t (a int CONSTRAINT positive CHECK (a > 0))")
        with pytest.raises(errors.CheckViolation) as caught:
            session.execute("INSERT INTO t VALUES (-1)")
    diag = caught.value.diag
    assert (diag.sqlstate, diag.constraint_name, diag.table_name) == ("23514", "positive", "t")
    assert diag.message_detail and diag.severity == "ERROR"


# ── Transactions ─────────────────────────────────────────────────────────────


def test_transactions_commit_and_roll_back(pg: PostgresWay) -> None:
    with table(pg, "a int") as name, pg.connect(autocommit=False) as session:
        session.execute(f"INSERT INTO {name} VALUES (1)")
        session.commit()
        session.execute(f"INSERT INTO {name} VALUES (2)")
        assert session.info.transaction_status == pq.TransactionStatus.INTRANS
        session.rollback()
        assert session.execute(f"SELECT a FROM {name}").fetchall() == [(1,)]


def test_savepoints_take_an_error_back(pg: PostgresWay) -> None:
    with pg.connect(autocommit=False) as session:
        session.execute("CREATE TEMP TABLE t (a int)")
        with session.transaction():
            session.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(errors.DivisionByZero), session.transaction():
                session.execute("INSERT INTO t VALUES (2)")
                session.execute("SELECT 1/0")
            session.execute("INSERT INTO t VALUES (3)")
        assert session.execute("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (3,)]


def test_a_failed_transaction_says_so_until_its_end(pg: PostgresWay) -> None:
    with pg.connect(autocommit=False) as session:
        with pytest.raises(errors.UndefinedTable):
            session.execute("SELECT * FROM nowhere")
        assert session.info.transaction_status == pq.TransactionStatus.INERROR
        with pytest.raises(errors.InFailedSqlTransaction):
            session.execute("SELECT 1")
        session.rollback()
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_two_phase_commit(pg: PostgresWay) -> None:
    with table(pg, "a int") as name, pg.connect(autocommit=False) as session:
        xid = session.xid(1, new_name("g"), "b")
        session.tpc_begin(xid)
        session.execute(f"INSERT INTO {name} VALUES (1)")
        session.tpc_prepare()
        session.tpc_commit()
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (1,)
        session.rollback()
        assert xid not in session.tpc_recover()


# ── Pipelines ────────────────────────────────────────────────────────────────


def test_a_pipeline_gives_its_results_in_order(pg: PostgresWay) -> None:
    with pg.connect() as session, session.pipeline():
        cursors = [session.execute("SELECT %s::int", [n]) for n in range(200)]
        assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(200)]


def test_an_error_in_a_pipeline_skips_to_its_sync(pg: PostgresWay) -> None:
    with table(pg, "a int PRIMARY KEY") as name, pg.connect() as session:
        with pytest.raises(errors.DivisionByZero), session.pipeline() as pipeline:
            session.execute(f"INSERT INTO {name} VALUES (1)")
            session.execute("SELECT 1/0")
            session.execute(f"INSERT INTO {name} VALUES (2)")
            pipeline.sync()
        with session.pipeline() as pipeline:
            session.execute(f"INSERT INTO {name} VALUES (3)")
            pipeline.sync()
            session.execute(f"INSERT INTO {name} VALUES (4)")
        assert session.execute(f"SELECT a FROM {name} ORDER BY a").fetchall() == [(3,), (4,)]


def test_a_transaction_in_a_pipeline(pg: PostgresWay) -> None:
    with table(pg, "a int") as name, pg.connect() as session:
        with session.pipeline(), session.transaction():
            for number in range(50):
                session.execute(f"INSERT INTO {name} VALUES (%s)", [number])
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (50,)


# ── COPY ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["TEXT", "CSV", "BINARY"])
def test_copy_goes_in_and_comes_out(pg: PostgresWay, form: str) -> None:
    with pg.connect() as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE t (a int, b text)")
        cursor.execute(
            "INSERT INTO t SELECT g, repeat('v', g % 50) FROM generate_series(1,20000) g"
        )
        with cursor.copy(f"COPY t TO STDOUT (FORMAT {form})") as out:
            data = b"".join(bytes(block) for block in out)
        with cursor.copy(f"COPY t FROM STDIN (FORMAT {form})") as into:
            into.write(data)
        cursor.execute("SELECT count(*), count(DISTINCT a) FROM t")
        assert cursor.fetchone() == (40000, 20000)


def test_copy_in_by_rows_of_binary(pg: PostgresWay) -> None:
    with pg.connect() as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE t (a int4, b bytea)")
        with cursor.copy("COPY t FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "bytea"])
            for number in range(300):
                copy.write_row((number, bytes(number)))
        cursor.execute("SELECT sum(length(b)) FROM t")
        assert cursor.fetchone() == (sum(range(300)),)


def test_copy_in_that_the_client_gives_up_writes_nothing(pg: PostgresWay) -> None:
    with pg.connect() as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE t (a int)")
        with (
            pytest.raises(ZeroDivisionError),
            cursor.copy("COPY t FROM STDIN") as copy,
        ):
            copy.write("1\n")
            raise ZeroDivisionError
        assert cursor.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_copy_in_that_the_server_blocks_leaves_the_session(pg: PostgresWay) -> None:
    with pg.connect() as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE t (a int)")
        with (
            pytest.raises(errors.InvalidTextRepresentation),
            cursor.copy("COPY t FROM STDIN") as copy,
        ):
            for _ in range(2000):
                copy.write("not a number\n" * 100)
        assert cursor.execute("SELECT count(*) FROM t").fetchone() == (0,)


# ── What comes by itself, and from aside ─────────────────────────────────────


def test_notify_reaches_who_listens(pg: PostgresWay) -> None:
    channel = new_name("c")
    with pg.connect() as listener, pg.connect() as speaker:
        listener.execute(f"LISTEN {channel}")
        speaker.execute("SELECT pg_notify(%s, 'hello')", [channel])
        [heard] = listener.notifies(timeout=60, stop_after=1)
        assert (heard.channel, heard.payload) == (channel, "hello")


@pytest.mark.parametrize("how", ["cancel", "cancel_safe"])
def test_cancel_ends_what_runs(pg: PostgresWay, postgres: ExtendedServer, how: str) -> None:
    mark = new_name("cancel")
    with pg.connect() as session:

        def cancel_it() -> None:
            eventually(lambda: runs_on(postgres, mark))
            getattr(session, how)()

        helper = threading.Thread(target=cancel_it)
        helper.start()
        with pytest.raises(errors.QueryCanceled):
            session.execute(f"SELECT pg_sleep(600) /* {mark} */")
        helper.join()
        assert session.execute("SELECT 1").fetchone() == (1,)


async def test_the_async_connection_does_all_that(pg: PostgresWay) -> None:
    async with await pg.aconnect() as session:
        async with session.pipeline():
            cursors = [await session.execute("SELECT %s::int", [n]) for n in range(20)]
            assert [await c.fetchone() for c in cursors] == [(n,) for n in range(20)]
        async with session.cursor("named") as cursor, session.transaction():
            await cursor.execute("SELECT generate_series(1, 250)")
            assert len(await cursor.fetchall()) == 250
        async with session.cursor() as plain, plain.copy("COPY (SELECT 7) TO STDOUT") as copy:
            assert [row async for row in copy.rows()] == [("7",)]


async def test_an_async_task_that_is_cancelled_cancels_its_statement(
    pg: PostgresWay, postgres: ExtendedServer
) -> None:
    mark = new_name("task")
    async with await pg.aconnect() as session:
        task = asyncio.create_task(session.execute(f"SELECT pg_sleep(600) /* {mark} */"))
        await aeventually(lambda: runs_on(postgres, mark))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await aeventually(lambda: not runs_on(postgres, mark))


def test_many_sessions_at_once_do_not_mix(pg: PostgresWay) -> None:
    def work(number: int) -> list[Any]:
        with pg.connect() as session:
            return [session.execute("SELECT %s::int", [number]).fetchone() for _ in range(40)]

    found: dict[int, list[Any]] = {}
    threads = [threading.Thread(target=lambda n=n: found.setdefault(n, work(n))) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [(n,)] * 40 for n in range(24)}


def test_what_the_server_says_of_itself_comes_through(pg: PostgresWay) -> None:
    with pg.connect(application_name="parity-app") as session:
        assert session.info.server_version >= 180000
        assert session.info.parameter_status("application_name") == "parity-app"
        session.execute("SET application_name = 'later'")
        assert session.info.parameter_status("application_name") == "later"
        [row] = session.execute("SELECT pg_backend_pid()").fetchall()
        assert row[0] == session.info.backend_pid


def test_a_wrong_database_is_the_servers_own_error(pg: PostgresWay) -> None:
    with pytest.raises(psycopg.OperationalError, match='"nowhere" does not exist'):
        pg.connect(dbname="nowhere")


def test_the_large_object_functions_of_the_fastpath(pg: PostgresWay) -> None:
    with pg.connect(autocommit=False) as session:
        row = session.execute("SELECT lo_from_bytea(0, %b)", [b"large" * 1000]).fetchone()
        assert row is not None
        got = session.execute("SELECT lo_get(%s)", row).fetchone()
        assert got == (b"large" * 1000,)
