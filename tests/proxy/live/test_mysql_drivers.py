"""mysql-connector-python, aiomysql and mysqlclient: directly and through the proxy."""

from __future__ import annotations

import asyncio
import io
import sys
from contextlib import suppress
from pathlib import Path

import aiomysql
import mysql.connector
import pytest

from tests.fixtures import peers
from tests.proxy.live.ways import MariaDBWay

SCRIPTS = Path(__file__).parent / "scripts"


# ── mysql-connector-python ───────────────────────────────────────────────────


def test_prepared_statements_with_binary_values(my: MariaDBWay) -> None:
    session = my.connector()
    try:
        with session.cursor(prepared=True) as cursor:
            for number in range(10):
                cursor.execute("SELECT ? + 1, ?, ?", (number, "naïve ✓", None))
                assert cursor.fetchall() == [(number + 1, "naïve ✓", None)]
        with session.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchall() == [(1,)]
    finally:
        session.close()


def test_long_data_goes_in_pieces(my: MariaDBWay) -> None:
    """A stream as a value becomes COM_STMT_SEND_LONG_DATA, which has no answer."""
    blob = bytes(range(256)) * 8192
    session = my.connector()
    try:
        with session.cursor(prepared=True) as cursor:
            cursor.execute("SELECT LENGTH(?), MD5(?)", (io.BytesIO(blob), io.BytesIO(b"abc")))
            [row] = cursor.fetchall()
            assert row[0] == len(blob)
            assert row[1] == "900150983cd24fb0d6963f7d28e17f72"
    finally:
        session.close()


def test_an_error_of_a_prepared_statement_leaves_the_session(my: MariaDBWay) -> None:
    session = my.connector()
    try:
        with session.cursor(prepared=True) as cursor:
            with pytest.raises(mysql.connector.Error) as caught:
                cursor.execute("SELECT * FROM nowhere WHERE a = ?", (1,))
            assert caught.value.errno == 1146
        with session.cursor(prepared=True) as cursor:
            cursor.execute("SELECT ?", (5,))
            assert cursor.fetchall() == [(5,)]
    finally:
        session.close()


def test_reset_connection_forgets_what_the_session_had(my: MariaDBWay) -> None:
    session = my.connector()
    try:
        with session.cursor() as cursor:
            cursor.execute("SET @mine = 7")
        session.cmd_reset_connection()
        with session.cursor() as cursor:
            cursor.execute("SELECT @mine")
            assert cursor.fetchall() == [(None,)]
    finally:
        session.close()


def test_change_user_becomes_another_and_keeps_the_connection(my: MariaDBWay) -> None:
    session = my.connector()
    try:
        session.cmd_change_user(username="headgate_app", password="", database="parity")
        with session.cursor() as cursor:
            cursor.execute("SELECT USER()")
            [(user,)] = cursor.fetchall()
            assert user.startswith("headgate_app@")
        if my.name != "proxy":
            return  # The server makes who is wrong wait for a second: once is enough.
        with pytest.raises(mysql.connector.Error) as caught:
            session.cmd_change_user(username="nobody_at_all", password="x", database="parity")
        assert caught.value.errno == 1045
    finally:
        session.close()


def test_commands_besides_queries(my: MariaDBWay) -> None:
    session = my.connector()
    try:
        assert "Uptime" in str(session.cmd_statistics())
        session.ping()
        session.cmd_init_db("mysql")
        assert session.database == "mysql"
    finally:
        session.close()


def test_several_results_of_one_text(my: MariaDBWay) -> None:
    session = my.connector()
    try:
        found = []
        with session.cursor() as cursor:
            cursor.execute("SELECT 1; SELECT 2, 3; DO 1")
            for _, results in cursor.fetchsets():
                found.append(results)
        assert found[:2] == [[(1,)], [(2, 3)]]
    finally:
        session.close()


async def closed(session: aiomysql.Connection) -> None:
    """Until its transport is gone: after a goodbye where there is TLS, which aiomysql leaves
    to the loop, and which the end of a test's loop may cut short."""
    writer = session._writer
    await session.ensure_closed()
    with suppress(OSError):
        async with asyncio.timeout(60):
            await writer.wait_closed()


# ── aiomysql ─────────────────────────────────────────────────────────────────


async def test_aiomysql_pools_and_transactions(my: MariaDBWay) -> None:
    session = await my.aiomysql(autocommit=False)
    try:
        async with session.cursor() as cursor:
            await cursor.execute("CREATE TEMPORARY TABLE t (a INT)")
            await cursor.executemany("INSERT INTO t VALUES (%s)", [(n,) for n in range(50)])
            await session.rollback()
            await cursor.execute("SELECT COUNT(*) FROM t")
            assert await cursor.fetchone() == (0,)
    finally:
        await closed(session)


async def test_aiomysql_many_sessions_at_once(my: MariaDBWay) -> None:
    async def one(number: int) -> int:
        session = await my.aiomysql()
        try:
            async with session.cursor() as cursor:
                await cursor.execute("SELECT %s", (number,))
                row = await cursor.fetchone()
                return int(row[0])
        finally:
            await closed(session)

    assert await asyncio.gather(*(one(n) for n in range(30))) == list(range(30))


# ── mysqlclient ──────────────────────────────────────────────────────────────


def test_mysqlclient_in_a_process_of_its_own(my: MariaDBWay) -> None:
    env = {"PYTHONPATH": str(peers.mysqldb_path()), **peers.environment()}
    ca = [str(my.ca)] if my.ca is not None else []
    ran = peers.run([sys.executable, SCRIPTS / "mysqlclient.py", str(my.port), *ca], env=env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["values", "results", "transaction", "change_user", "kill"]
