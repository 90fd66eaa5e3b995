"""What PyMySQL can do with MariaDB directly, it can do through the proxy."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pytest
from pymysql.constants import CLIENT, ER
from pymysql.cursors import SSCursor

from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.proxy.live.conftest import one_way
from tests.proxy.live.ways import MariaDBWay

LARGE_BYTES = 17 * 1024**2
"""Over 16 MB: more than one packet holds."""
PACKET_BYTES = 2**24 - 1
ENDLESS = (
    "SELECT COUNT(*) FROM seq_1_to_1000000 a JOIN seq_1_to_1000000 b WHERE a.seq * b.seq % 7 = 9"
)


def new_name(prefix: str = "t") -> str:
    return f"{prefix}_{uuid.uuid4().hex[:12]}"


@contextmanager
def table(way: MariaDBWay, columns: str) -> Iterator[str]:
    name = new_name()
    with way.pymysql() as session, session.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} ({columns})")
        try:
            yield name
        finally:
            cursor.execute(f"DROP TABLE IF EXISTS {name}")


def runs_on(server: MariaDBServer, mark: str) -> bool:
    like = f"%{mark[:-1]}_%"
    sql = "SELECT count(*) AS n FROM information_schema.processlist WHERE info LIKE '{}'"
    rows = server.query(sql.format(like) + " AND info NOT LIKE '%processlist%'")
    return int(rows[0]["n"]) > 0


# ── Statements ───────────────────────────────────────────────────────────────


def test_values_come_as_they_went(my: MariaDBWay) -> None:
    with my.pymysql() as session, session.cursor() as cursor:
        cursor.execute("SELECT %s, %s, %s, %s", (7, 2.5, "naïve ✓", None))
        assert cursor.fetchone() == (7, 2.5, "naïve ✓", None)
        cursor.execute("SELECT %s", (bytes(range(256)),))
        assert cursor.fetchone() is not None


def test_an_error_keeps_its_number_and_the_session(my: MariaDBWay) -> None:
    with my.pymysql() as session, session.cursor() as cursor:
        with pytest.raises(pymysql.ProgrammingError) as caught:
            cursor.execute("SELECT * FROM nowhere")
        assert caught.value.args[0] == ER.NO_SUCH_TABLE
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_warnings_are_counted_and_shown(my: MariaDBWay) -> None:
    with my.pymysql() as session, session.cursor() as cursor:
        cursor.execute("SELECT 1/0")
        assert session.show_warnings()[0][1] == 1365


def test_several_statements_give_several_results(my: MariaDBWay) -> None:
    with (
        my.pymysql(client_flag=CLIENT.MULTI_STATEMENTS) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("SELECT 1; SET @x = 2; SELECT @x, 3; DO 1; SELECT 4")
        found = [cursor.fetchall()]
        while cursor.nextset():
            found.append(cursor.fetchall())
        assert [list(rows) for rows in found] == [[(1,)], [], [(2, 3)], [], [(4,)]]


def test_an_error_in_the_middle_of_several_statements(my: MariaDBWay) -> None:
    with (
        my.pymysql(client_flag=CLIENT.MULTI_STATEMENTS) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("SELECT 1; SELECT * FROM nowhere; SELECT 3")
        assert cursor.fetchall() == ((1,),)
        with pytest.raises(pymysql.ProgrammingError):
            cursor.nextset()
        cursor.execute("SELECT 5")
        assert cursor.fetchone() == (5,)


def test_a_procedure_gives_several_results(my: MariaDBWay) -> None:
    name = new_name("p")
    with my.pymysql() as session, session.cursor() as cursor:
        cursor.execute(f"CREATE PROCEDURE {name}() BEGIN SELECT 1; SELECT 2, 3; END")
        cursor.callproc(name)
        assert cursor.fetchall() == ((1,),)
        assert cursor.nextset() and cursor.fetchall() == ((2, 3),)
        while cursor.nextset():
            pass
        cursor.execute(f"DROP PROCEDURE {name}")


def test_many_rows_come_in_order(my: MariaDBWay) -> None:
    with my.pymysql() as session, session.cursor() as cursor:
        cursor.execute("SELECT seq, REPEAT('z', seq % 97) FROM seq_1_to_20000")
        assert all(row == (n, "z" * (n % 97)) for n, row in enumerate(cursor.fetchall(), start=1))


def test_rows_that_are_not_buffered(my: MariaDBWay) -> None:
    with my.pymysql(cursorclass=SSCursor) as session, session.cursor() as cursor:
        cursor.execute("SELECT seq FROM seq_1_to_5000")
        assert sum(row[0] for row in cursor) == 5000 * 5001 // 2


@pytest.mark.parametrize("my", ["tls"], indirect=True)
@pytest.mark.parametrize("extra", [0, LARGE_BYTES - PACKET_BYTES])
def test_a_statement_that_fills_packets_goes_whole(my: MariaDBWay, extra: int) -> None:
    """One byte for the command, 22 for the words around the text: at 0 the packet is just full.
    Under rules by tag, a text so long would be decided by all of them."""
    size = PACKET_BYTES - 1 - len("SELECT LENGTH(''), 'end'") + extra
    with my.pymysql() as session, session.cursor() as cursor:
        cursor.execute("SELECT LENGTH('" + "y" * size + "'), 'end'")
        assert cursor.fetchone() == (size, "end")
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


@one_way
def test_a_row_over_16_mb_comes_whole(my: MariaDBWay) -> None:
    with my.pymysql(max_allowed_packet=64 * 1024**2) as session, session.cursor() as cursor:
        cursor.execute(f"SELECT REPEAT('x', {LARGE_BYTES}), 1")
        row = cursor.fetchone()
        assert row is not None and len(row[0]) == LARGE_BYTES and row[1] == 1


def test_rows_by_executemany(my: MariaDBWay) -> None:
    with my.pymysql() as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE t (a INT, b TEXT)")
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(n, "v" * n) for n in range(300)])
        assert cursor.rowcount == 300
        cursor.execute("SELECT SUM(LENGTH(b)) FROM t")
        assert cursor.fetchone() == (sum(range(300)),)


def test_a_local_file_is_sent(my: MariaDBWay, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("".join(f"{n},row {n}\n" for n in range(10000)))
    with my.pymysql(local_infile=True) as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE t (a INT, b TEXT)")
        cursor.execute(f"LOAD DATA LOCAL INFILE '{source}' INTO TABLE t FIELDS TERMINATED BY ','")
        assert cursor.rowcount == 10000
        cursor.execute("SELECT COUNT(*) FROM t")
        assert cursor.fetchone() == (10000,)


def test_a_local_file_that_is_not_there_leaves_the_session(my: MariaDBWay) -> None:
    with my.pymysql(local_infile=True) as session, session.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE t (a INT)")
        with pytest.raises(pymysql.OperationalError):
            cursor.execute("LOAD DATA LOCAL INFILE '/nowhere/at/all' INTO TABLE t")
        cursor.execute("SELECT COUNT(*) FROM t")
        assert cursor.fetchone() == (0,)


# ── Transactions and the session ─────────────────────────────────────────────


def test_transactions_commit_and_roll_back(my: MariaDBWay) -> None:
    with table(my, "a INT") as name, my.pymysql(autocommit=False) as session:
        cursor = session.cursor()
        session.begin()
        cursor.execute(f"INSERT INTO {name} VALUES (1)")
        session.commit()
        cursor.execute(f"INSERT INTO {name} VALUES (2)")
        cursor.execute("SAVEPOINT s")
        cursor.execute(f"INSERT INTO {name} VALUES (3)")
        cursor.execute("ROLLBACK TO s")
        session.rollback()
        cursor.execute(f"SELECT a FROM {name}")
        assert cursor.fetchall() == ((1,),)


def test_autocommit_switched_off_in_the_session(my: MariaDBWay) -> None:
    with table(my, "a INT") as name:
        with my.pymysql(autocommit=False) as session, session.cursor() as cursor:
            cursor.execute("SELECT @@autocommit")
            assert cursor.fetchone() == (0,)
            cursor.execute(f"INSERT INTO {name} VALUES (1)")
        with my.pymysql() as session, session.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {name}")
            assert cursor.fetchone() == (0,)


def test_ping_and_another_database(my: MariaDBWay) -> None:
    with my.pymysql() as session, session.cursor() as cursor:
        session.ping(reconnect=False)
        session.select_db("mysql")
        cursor.execute("SELECT DATABASE()")
        assert cursor.fetchone() == ("mysql",)


def test_connection_attributes_reach_the_server_or_do_no_harm(my: MariaDBWay) -> None:
    with my.pymysql(program_name="parity-app") as session, session.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_what_the_server_says_of_itself_comes_through(my: MariaDBWay) -> None:
    with my.pymysql() as session, session.cursor() as cursor:
        assert "MariaDB" in session.get_server_info()
        cursor.execute("SELECT CONNECTION_ID()")
        assert cursor.fetchone() == (session.thread_id(),)


def test_kill_query_ends_what_runs(my: MariaDBWay, mariadb_server: MariaDBServer) -> None:
    mark = new_name("kill")
    with my.pymysql() as session, session.cursor() as cursor:

        def kill_it() -> None:
            eventually(lambda: runs_on(mariadb_server, mark))
            with my.pymysql() as other, other.cursor() as by:
                by.execute(f"KILL QUERY {session.thread_id()}")

        helper = threading.Thread(target=kill_it)
        helper.start()
        with pytest.raises(pymysql.OperationalError) as caught:
            cursor.execute(f"{ENDLESS} /* {mark} */")
        helper.join()
        assert caught.value.args[0] == ER.QUERY_INTERRUPTED
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_kill_ends_the_session(my: MariaDBWay) -> None:
    session = my.pymysql()
    with my.pymysql() as other, other.cursor() as by:
        by.execute(f"KILL {session.thread_id()}")

    def is_gone() -> bool:
        try:
            session.cursor().execute("SELECT 1")
        except pymysql.err.OperationalError:
            return True
        return False

    eventually(is_gone)
    with suppress(pymysql.err.Error):
        session.close()


def test_many_sessions_at_once_do_not_mix(my: MariaDBWay) -> None:
    found: dict[int, list[tuple[int]]] = {}

    def work(number: int) -> None:
        rows = []
        with my.pymysql() as session, session.cursor() as cursor:
            for _ in range(30):
                cursor.execute("SELECT %s", (number,))
                rows += list(cursor.fetchall())
        found[number] = rows

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [(n,)] * 30 for n in range(16)}
