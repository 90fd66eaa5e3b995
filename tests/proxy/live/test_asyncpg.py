"""What asyncpg can do with Postgres directly, it can do through the proxy."""

from __future__ import annotations

import asyncio
import io

import asyncpg
import pytest

from tests.fixtures.eventually import aeventually
from tests.fixtures.pgkits import ExtendedServer
from tests.proxy.live.test_psycopg import new_name, runs_on
from tests.proxy.live.ways import PostgresWay


async def test_prepared_statements_with_binary_values(pg: PostgresWay) -> None:
    session = await pg.asyncpg()
    try:
        statement = await session.prepare("SELECT $1::int + 1 AS a, $2::text[] AS b, $3::bytea")
        for number in range(20):
            row = await statement.fetchrow(number, ["x", None], b"\0\xff")
            assert tuple(row) == (number + 1, ["x", None], b"\0\xff")
    finally:
        await session.close()


async def test_many_and_their_failure_is_one_transaction(pg: PostgresWay) -> None:
    session = await pg.asyncpg()
    try:
        await session.execute("CREATE TEMP TABLE t (a int PRIMARY KEY, b text)")
        rows = [(n, "r" * (n % 40)) for n in range(2000)]
        await session.executemany("INSERT INTO t VALUES ($1, $2)", rows)
        assert await session.fetchval("SELECT count(*) FROM t") == 2000
        with pytest.raises(asyncpg.UniqueViolationError):
            await session.executemany("INSERT INTO t VALUES ($1, 'x')", [(5000,), (1,)])
        assert await session.fetchval("SELECT count(*) FROM t") == 2000
    finally:
        await session.close()


async def test_cursors_and_nested_transactions(pg: PostgresWay) -> None:
    session = await pg.asyncpg()
    try:
        async with session.transaction():
            seen = [
                r[0] async for r in session.cursor("SELECT generate_series(1, 333)", prefetch=50)
            ]
            assert seen == list(range(1, 334))
            cursor = await session.cursor("SELECT generate_series(1, 100)")
            await cursor.forward(10)
            assert [r[0] for r in await cursor.fetch(2)] == [11, 12]
            with pytest.raises(asyncpg.DivisionByZeroError):
                async with session.transaction():
                    await session.execute("SELECT 1/0")
            assert await session.fetchval("SELECT 1") == 1
    finally:
        await session.close()


async def test_copy_both_ways(pg: PostgresWay) -> None:
    session = await pg.asyncpg()
    try:
        await session.execute("CREATE TEMP TABLE t (a int, b text)")
        records = [(n, f"row {n}") for n in range(5000)]
        await session.copy_records_to_table("t", records=records)
        out = io.BytesIO()
        await session.copy_from_query("SELECT * FROM t ORDER BY a", output=out, format="csv")
        out.seek(0)
        await session.copy_to_table("t", source=out, format="csv")
        assert await session.fetchval("SELECT count(*) FROM t") == 10000
    finally:
        await session.close()


async def test_listen_receives_what_another_says(pg: PostgresWay) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    channel = new_name("c")
    listener, speaker = await pg.asyncpg(), await pg.asyncpg()
    try:
        await listener.add_listener(channel, lambda *args: heard.put_nowait(args[3]))
        await speaker.execute(f"NOTIFY {channel}, 'news'")
        assert await asyncio.wait_for(heard.get(), 60) == "news"
    finally:
        await listener.close()
        await speaker.close()


async def test_a_timeout_cancels_the_statement_and_keeps_the_session(
    pg: PostgresWay, postgres: ExtendedServer
) -> None:
    mark = new_name("late")
    session = await pg.asyncpg()
    try:
        with pytest.raises(TimeoutError):
            await session.execute(f"SELECT pg_sleep(600) /* {mark} */", timeout=0.2)
        await aeventually(lambda: not runs_on(postgres, mark))
        assert await session.fetchval("SELECT 1") == 1
    finally:
        await session.close()


async def test_a_pool_resets_what_it_takes_back(pg: PostgresWay) -> None:
    where = {"host": "127.0.0.1", "port": pg.port, "user": "postgres", "database": "parity"}
    async with asyncpg.create_pool(
        **where, ssl=pg.context or False, min_size=2, max_size=6
    ) as pool:
        got = await asyncio.gather(*(pool.fetchval("SELECT $1::int", n) for n in range(60)))
        assert got == list(range(60))
        async with pool.acquire() as session:
            await session.execute("SET statement_timeout = 1234")
        async with pool.acquire() as session:
            assert await session.fetchval("SHOW statement_timeout") == "0"


async def test_large_values_both_ways(pg: PostgresWay) -> None:
    session = await pg.asyncpg()
    try:
        blob = bytes(range(256)) * 65536
        assert await session.fetchval("SELECT $1::bytea", blob) == blob
    finally:
        await session.close()
