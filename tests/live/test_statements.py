"""Texts of statements as a real Postgres tells them: of sessions, at work or at rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headgate.budgets.statements import shape_text
from headgate.demo.postgres import PostgresServer
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.probes.postgres_session import PostgresConnector
from tests.fixtures.servers import Pair

WORK = "SELECT 'of-a-statement' AS told"


async def test_an_idle_session_reports_its_last_statement(
    postgres_pair: Pair[PostgresServer],
) -> None:
    dsn = postgres_pair.primary.dsn()
    probes = DatabaseProbes("main", Engine.POSTGRES, dsn)
    probe = probes.statements(timeout_s=60)
    assert probe is not None
    options = "-c compute_query_id=on"
    try:
        async with await psycopg.AsyncConnection.connect(
            dsn, application_name="told", autocommit=True, options=options
        ) as session:
            await session.execute(WORK)
            seen = dict(await probe.read([7]))
            assert WORK in seen.values() and 0 not in seen
            (query_id,) = [one for one, text in seen.items() if text == WORK]
            assert await probe.read([query_id]), "no pg_stat_statements there, and no fault"
    finally:
        await probes.close()


def test_an_engine_that_numbers_no_statements_has_no_such_probe() -> None:
    assert DatabaseProbes("main", Engine.MYSQL, "mysql://x@127.0.0.1:1/").statements() is None


# --- encodings -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["SQL_ASCII", "LATIN1"])
def elsewhere(
    request: pytest.FixtureRequest, postgres_pair: Pair[PostgresServer]
) -> Iterator[tuple[str, str]]:
    """Where a database in that encoding is, and the encoding."""
    encoding = str(request.param)
    dsn, name = postgres_pair.primary.dsn(), f"texts_{encoding.lower()}"
    with psycopg.connect(dsn, autocommit=True) as owner:
        made = f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        owner.execute(made.encode())
        yield make_conninfo(dsn, dbname=name), encoding
        owner.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def told(dsn: str) -> Sequence[str]:
    probes = DatabaseProbes("main", Engine.POSTGRES, dsn)
    probe = probes.statements(timeout_s=60)
    assert probe is not None
    try:
        return [text for _, text in await probe.read([7])]
    finally:
        await probes.close()


async def test_no_encoding_makes_a_literal_a_name_or_ends_the_look(
    elsewhere: tuple[str, str], postgres_pair: Pair[PostgresServer]
) -> None:
    """psycopg has bytes for a text of SQL_ASCII, and no letter for a stray byte of LATIN1;
    from either side of it, the text is seen, and its literal is not."""
    dsn, encoding = elsewhere
    options = "-c compute_query_id=on"
    with psycopg.connect(
        dsn, application_name="told", autocommit=True, options=options, client_encoding=encoding
    ) as session:
        session.pgconn.exec_(b"SELECT 1 AS planted WHERE 'caf\xe9 4111' <> 'y'")
        for asked in (dsn, postgres_pair.primary.dsn()):
            (text,) = [one for one in await told(asked) if "planted" in one]
            assert text.startswith("SELECT 1 AS planted WHERE 'caf"), "no bytes, no b'...'"
            assert shape_text(text) == "select ? as planted where ? <> ?"


async def test_every_text_of_a_session_is_text_whatever_the_encoding(
    elsewhere: tuple[str, str],
) -> None:
    """Names of users and programs, too: rogues are told by them."""
    session = await PostgresConnector("main", elsewhere[0]).connect()
    try:
        query = "SELECT current_user, 'a'::text, 'b'::varchar, 'c'::bpchar, 'd'::\"char\""
        assert {type(one) for one in (await session.rows(query))[0]} == {str}
        assert {type(one) for one in await session.row(query)} == {str}
    finally:
        await session.leave()
