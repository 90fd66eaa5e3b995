"""Sessions as real servers list them: who is at work, and who never checks (R138)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiomysql
import psycopg
import pytest

from headgate.demo.postgres import PostgresServer
from headgate.errors import ProbeFailed
from headgate.history.sessions import Presence, SessionGroup, suspects
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.samples import Cause
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import Pair
from tests.metrics.probes.reading import becomes

WORK_S = 600


def probes_of(server: PostgresServer | MariaDBServer) -> DatabaseProbes:
    if isinstance(server, PostgresServer):
        return DatabaseProbes("main", Engine.POSTGRES, server.dsn())
    dsn = f"mysql://{server.user}@{server.host}:{server.port}/"
    return DatabaseProbes("main", Engine.MYSQL, dsn)


@asynccontextmanager
async def postgres_work(server: PostgresServer, application: str) -> AsyncIterator[None]:
    connection = await psycopg.AsyncConnection.connect(
        server.dsn(), application_name=application, autocommit=False
    )
    try:
        await connection.execute("SELECT 1")  # In a transaction from here on.
        yield
    finally:
        await connection.close()


async def test_postgres_reports_who_works_by_user_program_and_host(
    postgres_pair: Pair[PostgresServer],
) -> None:
    server = postgres_pair.primary
    probes = probes_of(server)
    try:
        async with postgres_work(server, "nightly-import"):
            groups = await probes.sessions(timeout_s=60).read()
            mine = [g for g in groups if g.application == "nightly-import"]
            assert [(g.user, g.sessions, g.active) for g in mine] == [("postgres", 1, 1)]
            assert not [g for g in groups if g.application == "headgate"]
            presence = Presence().after(groups, keep=0.98)
            names = {s.who.application for s in suspects(presence, frozenset({"etl"}))}
            assert "nightly-import" in names
            known = suspects(presence, frozenset({"nightly-import", "etl"}))
            assert "nightly-import" not in {s.who.application for s in known}
    finally:
        await probes.close()


async def test_mariadb_reports_who_works_by_user_and_host(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    server = mariadb_pair.primary
    probes = probes_of(server)
    rogue = await aiomysql.connect(host=server.host, port=server.port, user=server.user)
    try:
        cursor = await rogue.cursor()
        work = cursor.execute(f"SELECT SLEEP({WORK_S})")
        task = asyncio.ensure_future(work)

        found: list[SessionGroup] = []

        async def at_work() -> bool:
            found[:] = [g for g in await probes.sessions(timeout_s=60).read() if g.active]
            return bool(found)

        await becomes(at_work)
        assert [group.user for group in found] == [server.user]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        rogue.close()  # Which the server would only notice in a while.
        for row in server.query("SHOW PROCESSLIST"):
            if row["Info"] == f"SELECT SLEEP({WORK_S})":
                server.query(f"KILL {row['Id']}")
        await probes.close()


async def test_a_login_that_is_under_way_is_no_client(mariadb_pair: Pair[MariaDBServer]) -> None:
    server = mariadb_pair.primary
    probes = probes_of(server)
    _, silent = await asyncio.open_connection(server.host, server.port)
    try:

        async def is_listed() -> bool:
            return "unauthenticated user" in str(server.query("SHOW PROCESSLIST"))

        await becomes(is_listed)
        groups = await probes.sessions(timeout_s=60).read()
        assert "unauthenticated user" not in {group.user for group in groups}
    finally:
        silent.close()
        await probes.close()


async def test_a_server_that_is_gone_is_a_failure_and_no_empty_list() -> None:
    probes = DatabaseProbes("main", Engine.POSTGRES, "host=127.0.0.1 port=1 dbname=x user=x")
    with pytest.raises(ProbeFailed) as caught:
        await probes.sessions().read()
    assert caught.value.cause is Cause.FAILED
    await probes.close()
