"""The replicated heartbeat row in Postgres: written on the primary, read on a replica.

Lag is the replica's own clock minus the row's time, so it holds for any way of
replicating, and grows when replication stops (R20–R24). What clock skew adds is in it.
"""

from __future__ import annotations

import psycopg

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.connections import Reader
from headgate.probes.heartbeats import lag_of
from headgate.probes.postgres_session import PostgresSession

MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


def heartbeat_lag(table: tuple[str, ...]) -> Reader[PostgresSession]:
    name = quoted(table)
    query = f"SELECT extract(epoch FROM clock_timestamp() - max(ts))::float8 FROM {name}"  # noqa: S608 -- quoted

    async def read(session: PostgresSession) -> float:
        try:
            [age_s] = await session.row(query)
        except MISSING:
            raise ProbeFailed(
                Cause.FAILED,
                f"there is no heartbeat table {name}: set heartbeat_interval_s on the primary's "
                "agent, or give the option heartbeat_table",
            ) from None
        return lag_of(age_s, name)

    return read


class PostgresBeat:
    """Writes the row; answers whether it did (a standby does not)."""

    def __init__(self, table: tuple[str, ...]) -> None:
        self._table = table
        name = quoted(table)
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
        [in_recovery] = await session.row("SELECT pg_is_in_recovery()")
        if in_recovery:
            return False
        try:
            await session.run(self._write)
        except MISSING:
            await session.run("ROLLBACK")
            await self._create(session)
            await session.run(self._write)
        return True

    async def _create(self, session: PostgresSession) -> None:
        try:
            await session.run(self.create)
        except psycopg.errors.InsufficientPrivilege as error:
            message = f"{error}; as an administrator run: {self.create}; " + (
                f"GRANT SELECT, INSERT, UPDATE ON {quoted(self._table)} TO {session.user}"
            )
            raise ProbeFailed(Cause.FAILED, message) from None


def quoted(parts: tuple[str, ...]) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)
