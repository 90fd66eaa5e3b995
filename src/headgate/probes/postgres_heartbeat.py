"""The replicated heartbeat row in Postgres: written on the primary, read on a replica.

Lag is the replica's own clock minus the row's time, so it holds for any way of
replicating, and grows when replication stops (R20–R24). What clock skew adds is in it.
A server that is no replica would find its own row, always fresh, so it is not asked.
"""

from __future__ import annotations

import psycopg

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.connections import Reader
from headgate.probes.heartbeats import lag_of
from headgate.probes.messages import one_line
from headgate.probes.postgres_session import PostgresSession

MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)

# A logical subscriber is not in recovery; its copy of the table is fed all the same.
IS_COPY = """
SELECT pg_is_in_recovery()
    OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = to_regclass(%s))
"""


def heartbeat_lag(table: tuple[str, ...]) -> Reader[PostgresSession]:
    name = quoted(table)
    query = f"SELECT extract(epoch FROM clock_timestamp() - max(ts))::float8 FROM {name}"  # noqa: S608 -- quoted

    async def read(session: PostgresSession) -> float:
        try:
            [is_copy] = await session.row(IS_COPY, [name])
            [age_s] = await session.row(query) if is_copy else [None]
        except psycopg.errors.InsufficientPrivilege as error:
            raise _needs(error, rights(table, "SELECT", session.user)) from None
        except MISSING:
            raise ProbeFailed(
                Cause.FAILED,
                f"there is no heartbeat table {name}: set heartbeat_interval_s on the primary's "
                "agent, or give the option heartbeat_table",
            ) from None
        if not is_copy:
            message = (
                f"this server is no replica, so the heartbeat in {name} is its own: "
                "ask on the replica"
            )
            raise ProbeFailed(Cause.UNSUPPORTED, message)
        return lag_of(age_s, name)

    return read


class PostgresBeat:
    """Writes the row; answers whether it did (a replica does not)."""

    def __init__(self, table: tuple[str, ...]) -> None:
        self._table = table
        self._name = name = quoted(table)
        # Local: a heartbeat that waited for a hung synchronous standby would hide the lag
        # of all the others. Not off: it should leave for the replicas at once.
        self._write = f"""
            BEGIN;
            SET LOCAL synchronous_commit = local;
            INSERT INTO {name} AS kept (id, ts, server)
            VALUES (1, clock_timestamp(),
                    coalesce(host(inet_server_addr()), 'local') || ':' || current_setting('port'))
            ON CONFLICT (id) DO UPDATE SET ts = excluded.ts, server = excluded.server;
            COMMIT"""  # noqa: S608 -- quoted

    @property
    def create(self) -> str:
        schema = f"CREATE SCHEMA IF NOT EXISTS {quoted(self._table[:1])}; "
        columns = "id int PRIMARY KEY DEFAULT 1, ts timestamptz NOT NULL, server text NOT NULL"
        table = f"CREATE TABLE IF NOT EXISTS {quoted(self._table)} ({columns})"
        return (schema if len(self._table) == 2 else "") + table

    async def __call__(self, session: PostgresSession) -> bool:
        try:
            return await self._beat(session)
        except psycopg.errors.InsufficientPrivilege as error:
            await session.run("ROLLBACK")
            granted = rights(self._table, "SELECT, INSERT, UPDATE", session.user)
            raise _needs(error, f"{self.create}; {granted}") from None

    async def _beat(self, session: PostgresSession) -> bool:
        [is_copy] = await session.row(IS_COPY, [self._name])
        if is_copy:
            return False
        try:
            await session.run(self._write)
        except MISSING:
            await session.run("ROLLBACK")
            await session.run(self.create)
            await session.run(self._write)
        return True


def rights(table: tuple[str, ...], verbs: str, user: str) -> str:
    grant = f"GRANT {verbs} ON {quoted(table)} TO {quoted((user,))}"
    if len(table) == 1:
        return grant
    return f"GRANT USAGE ON SCHEMA {quoted(table[:1])} TO {quoted((user,))}; {grant}"


def _needs(error: Exception, statements: str) -> ProbeFailed:
    message = f"{one_line(error)}; as an administrator run: {statements}"
    return ProbeFailed(Cause.FAILED, message)


def quoted(parts: tuple[str, ...]) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)
