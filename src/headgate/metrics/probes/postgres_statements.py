"""Texts of statements from Postgres: what sessions run now, and what pg_stat_statements keeps."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from headgate.metrics.probes.postgres_session import APPLICATION_NAME, PostgresSession
from headgate.metrics.probes.statements import MAX_ROWS

WITH_QUERY_ID = 140000
MAX_CHARS = 8000
"""Of a raw text: what is kept of it is far less."""
# An idle session shows its last statement, so that short ones are seen, too. Texts of other
# databases come in encodings of their own, in which `left` may find no end and fail: they are
# taken whole or not at all.
RUNNING = f"""
SELECT query_id, CASE WHEN octet_length(query) <= {MAX_CHARS} THEN query
  WHEN datname = current_database() THEN left(query, {MAX_CHARS}) ELSE '' END
FROM pg_stat_activity
WHERE query_id <> 0 AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND application_name <> '{APPLICATION_NAME}'
LIMIT {MAX_ROWS}
"""  # noqa: S608 -- constants only
WHERE_KEPT = """
SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_stat_statements'
"""
KEPT = "SELECT queryid, left(query, {}) FROM {}.pg_stat_statements WHERE queryid = ANY(%s) LIMIT {}"


async def postgres_statements(
    session: PostgresSession, wanted: Sequence[int]
) -> Sequence[tuple[int, str]]:
    if session.version < WITH_QUERY_ID:
        return []
    running = [(int(row[0]), str(row[1])) for row in await session.rows(RUNNING)]
    return [*running, *(await _kept(session, wanted) if wanted else [])]


async def _kept(session: PostgresSession, wanted: Sequence[int]) -> list[tuple[int, str]]:
    places = await session.rows(WHERE_KEPT)
    if not places:
        return []
    query = KEPT.format(MAX_CHARS, places[0][0], MAX_ROWS)
    try:
        rows = await session.rows(query, [[_signed(query_id) for query_id in wanted]])
    except (
        psycopg.errors.ObjectNotInPrerequisiteState,  # Created, but not preloaded.
        psycopg.errors.InsufficientPrivilege,
        # One text of a database in another encoding, which this one has no letters for: the
        # extension then tells none at all.
        psycopg.errors.CharacterNotInRepertoire,
        psycopg.errors.UntranslatableCharacter,
    ):
        return []
    return [(int(row[0]), str(row[1])) for row in rows]


def _signed(query_id: int) -> int:
    low = query_id % 2**64
    return low - 2**64 if low >= 2**63 else low
