"""The metrics of a Postgres server, one small query each, and an operator's own queries.

A role with pg_monitor can read all of them. What such a role cannot see of others'
sessions must not count as 0, so those queries ask for the right to see along with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import psycopg

from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.history.sessions import MAX_GROUPS, SessionGroup
from headgate.metrics.probes.connections import Reader
from headgate.metrics.probes.heartbeats import ClockSkew, Enders
from headgate.metrics.probes.numbers import number_of, one_line, one_number, one_shown
from headgate.metrics.probes.postgres_replication import (
    REMEMBER_REPLICA_S,
    HeartbeatLag,
    PostgresBeat,
    PostgresNativeLag,
    PostgresRole,
    may_not_see,
)
from headgate.metrics.probes.postgres_session import (
    APPLICATION_NAME,
    PostgresConnector,
    PostgresSession,
    Row,
)
from headgate.metrics.probes.server import (
    MAX_ROWS,
    Kit,
    MakeReader,
    Options,
    group_of,
    plain,
    split_table,
)
from headgate.metrics.samples import Cause, Number

NOT_OURS = f"NOT (application_name = '{APPLICATION_NAME}' AND usename = current_user)"
MAX_CUSTOM_ROWS = 2
MAX_CUSTOM_ROW_BYTES = 65536


async def monitored(session: PostgresSession, query: str) -> Row:
    """The only row of one of our own queries, which any monitoring role may run."""
    try:
        return await session.row(query)
    except psycopg.errors.InsufficientPrivilege as error:
        message = f"{one_line(error)}: GRANT pg_monitor TO {session.user}"
        raise ProbeFailed(Cause.FAILED, message) from None


def scalar(expression: str) -> Reader[PostgresSession]:
    async def read(session: PostgresSession) -> float:
        [value] = await monitored(session, f"SELECT ({expression})::float8")
        return number_of(value)

    return read


def of_activity(expression: str) -> Reader[PostgresSession]:
    """A scalar over pg_stat_activity or a view like it, which hides others' rows."""

    async def read(session: PostgresSession) -> float:
        sees_all, value = await monitored(
            session, f"SELECT pg_has_role('pg_read_all_stats', 'USAGE'), ({expression})::float8"
        )
        if not sees_all:
            raise ProbeFailed(Cause.FAILED, may_not_see(session, "pg_stat_activity"))
        return number_of(value)

    return read


threads_running = of_activity(f"""
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND state IN ('active', 'fastpath function call')
      AND {NOT_OURS}""")  # noqa: S608 -- constants only

# Our own sessions take places, too.
pool_usage = of_activity("""
    SELECT count(*)::float8 / (
        current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0))
    FROM pg_stat_activity WHERE backend_type = 'client backend'""")

# A prepared transaction delays vacuum as any other; 0 is a true value here.
oldest_transaction = of_activity(f"""
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(began)), 0) FROM (
        SELECT xact_start AS began FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND {NOT_OURS}
        UNION ALL SELECT prepared FROM pg_prepared_xacts) AS open""")  # noqa: S608 -- constants

lock_waits = scalar("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")

_longest_lock_wait = scalar("""
    SELECT greatest(0, coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0))
    FROM pg_locks WHERE NOT granted""")


async def longest_lock_wait(session: PostgresSession) -> Number:
    if session.version < 140000:
        raise ProbeFailed(
            Cause.UNSUPPORTED, "needs Postgres 14, which reports when a wait for a lock began"
        )
    return await _longest_lock_wait(session)


# Durable even where the server's default is off: the point is to feel the disk.
BEGIN_COMMIT = """
BEGIN;
SELECT set_config('synchronous_commit', 'local', true)
WHERE current_setting('synchronous_commit') = 'off';
SELECT pg_logical_emit_message(true, 'headgate', 'commit_delay')"""


async def commit_delay(session: PostgresSession) -> float:
    """The round trip of COMMIT alone, for a transaction that writes one small WAL record."""
    [in_recovery] = await session.row("SELECT pg_is_in_recovery()")
    if in_recovery:
        raise ProbeFailed(Cause.UNSUPPORTED, "a standby takes no commits: measure on its primary")
    await session.run(BEGIN_COMMIT)
    started_s = time.perf_counter()
    await session.run("COMMIT")
    return time.perf_counter() - started_s


async def archive_backlog(session: PostgresSession) -> Number:
    [mode] = await session.row("SELECT current_setting('archive_mode')")
    if mode == "off":
        raise ProbeFailed(Cause.UNSUPPORTED, "archive_mode is off: there is nothing to archive")
    return await _archive_backlog(session)


_archive_backlog = scalar(
    "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'"
)

any_autovacuum = of_activity(
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
)
AUTOVACUUM_ON_TABLES = """
WITH named AS (SELECT name, to_regclass(name) AS oid FROM unnest(%s::text[]) AS name),
     wanted AS (SELECT oid FROM named
                UNION SELECT reltoastrelid FROM pg_class WHERE oid IN (SELECT oid FROM named)),
     at_work AS (SELECT pid, datid, relid FROM pg_stat_progress_vacuum
                 UNION SELECT pid, datid, relid FROM pg_stat_progress_analyze)
SELECT pg_has_role('pg_read_all_stats', 'USAGE'),
       (SELECT string_agg(name, ', ') FROM named WHERE oid IS NULL),
       (SELECT count(DISTINCT pid) FROM at_work JOIN pg_stat_activity AS a USING (pid)
        WHERE a.backend_type = 'autovacuum worker' AND a.datname = current_database()
          AND relid IN (SELECT oid FROM wanted))
"""


def autovacuum(options: Options) -> Reader[PostgresSession]:
    tables = options.get("tables", ())
    names = (
        [tables] if isinstance(tables, str) else list(tables if isinstance(tables, tuple) else ())
    )

    async def read(session: PostgresSession) -> float:
        sees_all, missing, workers = await session.row(AUTOVACUUM_ON_TABLES, [names])
        if not sees_all:
            raise ProbeFailed(Cause.FAILED, may_not_see(session, "pg_stat_progress_vacuum"))
        if missing:
            raise ProbeFailed(Cause.FAILED, f"no table {missing} in database {session.database}")
        return number_of(workers)

    return read if names else any_autovacuum


def _remember_s(options: Options) -> float:
    seconds = options.get("remember_s", REMEMBER_REPLICA_S)
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= 86400
    ):
        message = f"is {seconds!r}, must be seconds from 0 to 86400"
        raise InvalidSettings([Fault("lag.options.remember_s", message)])
    return float(seconds)


def lag(options: Options, skew: ClockSkew) -> Reader[PostgresSession]:
    method = options.get("method", "auto")
    table = str(options.get("heartbeat_table", "headgate.heartbeat"))
    heartbeat = HeartbeatLag(split_table(table, place="lag.options.heartbeat_table"), skew)
    if method == "heartbeat":
        return heartbeat
    # On a primary both are by positions, which are exact and need no writes.
    if method == "auto":
        return PostgresNativeLag(heartbeat=heartbeat, remember_s=_remember_s(options))
    if method == "native":
        return PostgresNativeLag(remember_s=_remember_s(options))
    message = f"is {method!r}, must be auto, native or heartbeat"
    raise InvalidSettings([Fault("lag.options.method", message)])


async def data_directory(session: PostgresSession) -> str:
    [directory] = await monitored(session, "SELECT current_setting('data_directory')")
    return str(directory)


# The row comes as one value, with the types of its columns in it, or not at all if it is
# large: what has left the server must be read to its end.
BOUNDED = f"""
SELECT pg_column_size(headgate_row),
       CASE WHEN pg_column_size(headgate_row) <= {MAX_CUSTOM_ROW_BYTES} THEN headgate_row END
FROM (SELECT * FROM (
{{query}}
) AS headgate_query LIMIT {MAX_CUSTOM_ROWS}) AS headgate_row
"""  # noqa: S608 -- an operator's query is meant to stand in there


def custom(query: str) -> Reader[PostgresSession]:
    """An operator's query: read only, one statement, and no more than tells one row from many."""
    is_show = query.lstrip()[:4].lower() == "show"
    bounded = BOUNDED.replace("{query}", query)

    async def read(session: PostgresSession) -> float:
        await session.run("BEGIN READ ONLY")
        rows = await session.rows(query if is_show else bounded)
        await session.run("ROLLBACK")
        return one_shown(rows) if is_show else one_number([_whole(*row) for row in rows])

    return read


def _whole(size_bytes: int, row: Row | None) -> Row:
    if row is None:
        message = f"answered a row of {size_bytes} bytes, which is no number"
        raise ProbeFailed(Cause.INVALID, message)
    return row


METRICS: Mapping[str, MakeReader[PostgresSession]] = {
    "threads_running": plain(threads_running),
    "commit_delay": plain(commit_delay),
    "pool_usage": plain(pool_usage),
    "lock_waits": plain(lock_waits),
    "longest_lock_wait": plain(longest_lock_wait),
    "oldest_transaction": plain(oldest_transaction),
    "archive_backlog": plain(archive_backlog),
    "autovacuum": autovacuum,
}


def kit(name: str, dsn: str, password: str | None, skew: ClockSkew) -> Kit[PostgresSession]:
    connector = PostgresConnector(name, dsn, password)
    return Kit(
        connector=connector,
        metrics={**METRICS, "lag": lambda options: lag(options, skew)},
        custom=custom,
        data_directory=data_directory,
        beat=PostgresBeat,
        # None needed: statement_timeout ends what we leave behind, a synchronous commit as well.
        enders=Enders(connector, None),
        role=PostgresRole,
        sessions=postgres_sessions,
        statements=postgres_statements,
    )


# --- who is connected to a Postgres server, and who of them is at work -------------------------


# Without pg_monitor, the state of another role's session is not visible: NULL, no work.
SESSIONS = f"""
SELECT usename, application_name, coalesce(host(client_addr), 'local'), count(*)::int8,
       (count(*) FILTER (WHERE state IN ('active', 'idle in transaction',
                                         'fastpath function call')))::int8 AS active
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND application_name <> '{APPLICATION_NAME}'
GROUP BY 1, 2, 3 ORDER BY active DESC, 4 DESC, 1, 2, 3 LIMIT {MAX_GROUPS}
"""  # noqa: S608 -- constants only


async def postgres_sessions(session: PostgresSession) -> Sequence[SessionGroup]:
    return [group_of(*row) for row in await session.rows(SESSIONS)]


# --- texts of statements -----------------------------------------------------------------------
# Texts of statements from Postgres: what sessions run now, and what pg_stat_statements keeps.


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
