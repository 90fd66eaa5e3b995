"""psycopg, against a real server: who asks when, and what the server sees."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from headgate import AsyncClient, Client
from headgate.integrations.psycopg import async_connection_class, connection_class
from tests.client.scripted import REJECTED, ScriptedAgent
from tests.integrations.conftest import APP

TAGS = {"app": APP}
COMMENT = "/*app='run42%3Aetl%3Anightly'*/"
SHOW = "SELECT current_query(), current_setting('application_name')"


def test_each_transaction_checks_once(agent: ScriptedAgent, gate: Client, database: str) -> None:
    agent.script.plays.append(REJECTED)
    with connection_class(gate, app=APP, tags=TAGS).connect(database) as connection:
        assert connection.execute(SHOW).fetchone() == (f"{SHOW} {COMMENT}", APP)
        connection.execute("CREATE TABLE t (n int)")
        connection.commit()
        assert len(agent.heard) == 2
        with connection.transaction():
            connection.cursor().executemany("INSERT INTO t VALUES (%s)", [(1,), (2,)])
            with connection.transaction():
                connection.execute("UPDATE t SET n = n + 1")
        assert len(agent.heard) == 3
        with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            copy.write_row((5,))
        with connection.cursor("named") as cursor:
            assert cursor.execute("SELECT n FROM t ORDER BY n").fetchall() == [(2,), (3,), (5,)]
        rows = connection.cursor().stream("SELECT n FROM t WHERE n > %s", (4,))
        assert list(rows) == [(5,)]
        assert len(agent.heard) == 4


def test_in_autocommit_each_statement_checks(
    agent: ScriptedAgent, gate: Client, database: str
) -> None:
    with connection_class(gate).connect(database, autocommit=True) as connection:
        connection.execute("SELECT 1")
        connection.execute("SELECT 1")
        assert len(agent.heard) == 2
        connection.execute("BEGIN")
        connection.execute("SELECT 1")
        connection.execute("COMMIT")
    assert len(agent.heard) == 3


def test_tags_leave_one_prepared_statement(
    agent: ScriptedAgent, gate: Client, database: str
) -> None:
    """Each text that differs would be prepared again, up to the cache's hundred."""
    with connection_class(gate, tags=TAGS).connect(database) as connection:
        for number in range(30):
            connection.execute("SELECT %s + 1", (number,))
        prepared = connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert prepared == [(f"SELECT $1 + 1 {COMMENT}",)]


def test_every_kind_of_query_is_tagged(agent: ScriptedAgent, gate: Client, database: str) -> None:
    with connection_class(gate, tags=TAGS).connect(database) as connection:
        composed = sql.SQL(SHOW + " WHERE %s = {}").format(1)
        hinted = connection.execute(sql.SQL("/*+ hint */ SELECT current_query()")).fetchone()
        assert hinted == ("/*+ hint */ SELECT current_query()",)
        queries: list[tuple[Any, Any]] = [(SHOW.encode(), None), (sql.SQL(SHOW), None)]
        for query, parameters in [*queries, (composed, (1,))]:
            shown = connection.execute(query, parameters).fetchone()
            assert shown is not None and shown[0].endswith(f" {COMMENT}")


async def test_async_connections_check_alike(
    agent: ScriptedAgent, async_gate: AsyncClient, database: str
) -> None:
    agent.script.plays.append(REJECTED)
    throttled = async_connection_class(async_gate, app=APP, tags=TAGS)
    async with await throttled.connect(database) as connection:
        shown = await (await connection.execute(SHOW)).fetchone()
        assert shown == (f"{SHOW} {COMMENT}", APP)
        await connection.execute("CREATE TABLE t (n int)")
        await connection.commit()
        assert len(agent.heard) == 2
        async with connection.transaction(), connection.cursor() as cursor:
            await cursor.executemany("INSERT INTO t VALUES (%s)", [(1,), (2,)])
            async with cursor.copy("COPY t FROM STDIN") as copy:
                await copy.write_row((5,))
            assert [row async for row in cursor.stream("SELECT max(n) FROM t")] == [(5,)]
            async with connection.cursor("named") as named:
                await named.execute("SELECT count(*) FROM t")
                assert await named.fetchone() == (3,)
        assert len(agent.heard) == 3
        await connection.tpc_begin("headgate-3")
        assert len(agent.heard) == 4
        await connection.tpc_rollback()


def test_every_kind_of_cursor_checks(agent: ScriptedAgent, gate: Client, database: str) -> None:
    """Placeholders of raw ones are $1: a doubled percent sign would stay doubled."""
    throttled = connection_class(gate, tags=TAGS)
    with throttled.connect(database, cursor_factory=psycopg.ClientCursor) as connection:
        assert isinstance(connection.cursor(), psycopg.ClientCursor)
        connection.cursor_factory = psycopg.RawCursor
        shown = connection.execute(f"{SHOW} WHERE 1 = $1", (1,)).fetchone()
        assert shown == (f"{SHOW} WHERE 1 = $1 {COMMENT}", APP)
        connection.commit()
        with connection.cursor("named") as named:
            assert named.execute("SELECT 1").fetchall() == [(1,)]
    assert len(agent.heard) == 2


def test_two_phases_and_pipelines_check(agent: ScriptedAgent, gate: Client, database: str) -> None:
    with connection_class(gate).connect(database) as connection:
        connection.tpc_begin("headgate-2")
        assert len(agent.heard) == 1
        connection.execute("SELECT 1")
        connection.tpc_rollback()
        with connection.pipeline():
            for _ in range(2):
                connection.execute("SELECT 1")
                connection.execute("SELECT 2")
                connection.commit()
        assert len(agent.heard) == 3
        for _ in range(3):
            connection.execute("SELECT %s::int", (1,), prepare=True)
        assert len(agent.heard) == 4


@pytest.mark.parametrize("tags", [{}, TAGS])
def test_bytes_may_be_in_any_encoding(
    agent: ScriptedAgent, gate: Client, database: str, tags: dict[str, str]
) -> None:
    """In UTF-8 the last byte of `à` is a no-break space to anyone who reads it as Latin-1."""
    with connection_class(gate, tags=tags).connect(database) as connection:
        shown = connection.execute("SELECT 1 AS à".encode())
        assert shown.description is not None and shown.description[0].name == "à"
        connection.execute("SET client_encoding TO latin1")
        assert connection.execute("SELECT 'é'".encode("latin-1")).fetchone() == ("é",)


def test_the_gates_name_is_the_connections_where_it_has_none(
    agent: ScriptedAgent, gate: Client, database: str
) -> None:
    for given, expected in (("", APP), ("?application_name=mine", "mine")):
        with connection_class(gate).connect(f"{database}{given}") as connection:
            name = connection.execute("SHOW application_name").fetchone()
            assert name == (expected,)


@pytest.mark.parametrize("every", [1, 5])
def test_a_batch_of_transactions_checks_once(
    agent: ScriptedAgent, gate: Client, database: str, every: int
) -> None:
    with connection_class(gate, every=every).connect(database, autocommit=True) as connection:
        for _ in range(10):
            connection.execute("SELECT 1")
    assert len(agent.heard) == 10 // every
