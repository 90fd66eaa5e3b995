"""The replicated heartbeat row in Postgres: ours, or one of pt-heartbeat's.

    headgate.heartbeat     id, ts timestamptz, server, interval_s, idle
    pt-heartbeat           ts text or timestamp, server_id, …   (the newest row counts)
    pt-heartbeat --legacy  id, ts

Lag is the replica's own clock minus the row's time, so it holds for any way of
replicating, and grows when replication stops. A server that is no replica would
find its own row, always fresh, so the row is not read there. Every read is a statement of
its own and sees what has been replayed by then.
"""

from __future__ import annotations

import time

import psycopg

from headgate.errors import ProbeFailed
from headgate.metrics.probes import heartbeats
from headgate.metrics.probes.heartbeats import UTC, ClockSkew, HeartbeatRow, zone_of
from headgate.metrics.probes.messages import one_line
from headgate.metrics.probes.postgres_lag import Monotonic, StandbyLag
from headgate.metrics.probes.postgres_session import PostgresSession
from headgate.metrics.samples import Cause, Number

MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)

# A logical subscriber is not in recovery; its copy of the table is fed all the same.
IS_COPY = """
SELECT pg_is_in_recovery() AS in_recovery, pg_is_in_recovery()
    OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = to_regclass(%s)) AS is_copy
"""
# As JSON, since not every layout has every column. A time without a zone is UTC or local.
NEWEST = r"""
SELECT extract(epoch FROM now - CASE WHEN zoned THEN ts::timestamptz
           ELSE ts::timestamp AT TIME ZONE 'UTC' END)::float8,
       extract(epoch FROM now - CASE WHEN zoned THEN ts::timestamptz
           ELSE ts::timestamp AT TIME ZONE current_setting('TimeZone') END)::float8,
       zoned, (kept->>'interval_s')::float8, coalesce((kept->>'idle')::bool, false),
       coalesce(kept->>'server', '')
FROM (SELECT clock_timestamp() AS now, ts::text AS ts, to_jsonb(h) AS kept,
             pg_typeof(ts) = 'timestamptz'::regtype
          OR ts::text ~ ':\d\d(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$' AS zoned
      FROM {name} AS h ORDER BY h.ts DESC NULLS LAST LIMIT 1) AS newest
"""
OUR_COLUMNS = {"id", "ts", "server"}
COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped LIMIT 64
"""


class HeartbeatLag:
    """Age of the newest row, by the server's own clock and what is known of its error."""

    def __init__(
        self, table: tuple[str, ...], skew: ClockSkew, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._table = table
        self._name = quoted(table)
        self._query = NEWEST.replace("{name}", self._name)
        self._skew = skew
        self._monotonic = monotonic
        self._standby = StandbyLag()
        self._zone: str | None = None

    async def __call__(self, session: PostgresSession) -> Number:
        try:
            in_recovery, is_copy = await session.row(IS_COPY, [self._name])
            rows = await session.rows(self._query) if is_copy else []
        except psycopg.errors.InsufficientPrivilege as error:
            raise _needs(error, rights(self._table, "SELECT", session.user)) from None
        except MISSING:
            raise heartbeats.missing(self._name) from None
        if not is_copy:
            message = (
                f"this server is not a replica, so the heartbeat in {self._name} is its own: "
                "check on the replica"
            )
            raise ProbeFailed(Cause.UNSUPPORTED, message)
        if not rows:
            raise heartbeats.empty(self._name)

        async def native() -> Number:
            if not in_recovery:
                message = "a logical subscriber gives no account of its lag"
                raise ProbeFailed(Cause.UNSUPPORTED, message)
            return await self._standby.read(session, self._monotonic)

        return await heartbeats.heartbeat_lag(self._newest(*rows[0]), self._skew, native)

    def _newest(
        self,
        utc_age_s: float,
        local_age_s: float,
        zoned: bool,
        interval_s: float | None,
        resting: bool,
        server: str,
    ) -> HeartbeatRow:
        if self._zone is None:
            self._zone = UTC if zoned else zone_of(utc_age_s, local_age_s)
        age_s = utc_age_s if self._zone == UTC else local_age_s
        return HeartbeatRow(self._name, age_s, interval_s, resting, server)


class PostgresBeat:
    """Writes the row; answers whether it did (a replica does not)."""

    def __init__(self, table: tuple[str, ...], interval_s: float) -> None:
        self._table = table
        self._name = quoted(table)
        self._interval_s = interval_s
        self._keeps_narrow = False
        """The table has the earlier layout, and the role may not change it."""

    @property
    def create(self) -> str:
        schema = f"CREATE SCHEMA IF NOT EXISTS {quoted(self._table[:1])}; "
        columns = (
            "id int PRIMARY KEY DEFAULT 1, ts timestamptz NOT NULL, server text NOT NULL, "
            "interval_s float8, idle boolean NOT NULL DEFAULT false"
        )
        table = f"CREATE TABLE IF NOT EXISTS {self._name} ({columns})"
        return (schema if len(self._table) == 2 else "") + table

    @property
    def widen(self) -> str:
        """What the earlier layout lacks."""
        return (
            f"ALTER TABLE {self._name} ADD COLUMN IF NOT EXISTS interval_s float8, "
            "ADD COLUMN IF NOT EXISTS idle boolean NOT NULL DEFAULT false"
        )

    async def __call__(self, session: PostgresSession, resting: bool) -> bool:
        try:
            return await self._beat(session, resting)
        except psycopg.errors.InsufficientPrivilege as error:
            await session.run("ROLLBACK")
            granted = rights(self._table, "SELECT, INSERT, UPDATE", session.user)
            raise _needs(error, f"{self.create}; {granted}") from None

    async def _beat(self, session: PostgresSession, resting: bool) -> bool:
        _, is_copy = await session.row(IS_COPY, [self._name])
        if is_copy:
            return False
        if self._keeps_narrow and not resting:
            await session.run(self._narrow)
            return True
        try:
            await session.run(self._wide(resting))
        except MISSING:
            await session.run("ROLLBACK")
            await session.run(self.create)
            await session.run(self._wide(resting))
        except psycopg.errors.UndefinedColumn:
            await session.run("ROLLBACK")
            await self._beat_in_earlier_layout(session, resting)
        else:
            self._keeps_narrow = False
        return True

    async def _beat_in_earlier_layout(self, session: PostgresSession, resting: bool) -> None:
        columns = {name for [name] in await session.rows(COLUMNS, [self._name])}
        if not columns >= OUR_COLUMNS:
            raise heartbeats.not_ours(self._name)
        try:
            await session.run(self.widen)
        except psycopg.errors.InsufficientPrivilege as error:
            if resting:
                raise _needs(error, self.widen) from None
            self._keeps_narrow = True
            await session.run(self._narrow)
        else:
            await session.run(self._wide(resting))

    def _wide(self, resting: bool) -> str:
        return self._write(
            {"interval_s": f"{float(self._interval_s)!r}", "idle": str(resting).lower()}
        )

    @property
    def _narrow(self) -> str:
        return self._write({})

    def _write(self, more: dict[str, str]) -> str:
        server = "coalesce(host(inet_server_addr()), 'local') || ':' || current_setting('port')"
        values = {"ts": "clock_timestamp()", "server": server, **more}
        renewed = ", ".join(f"{name} = excluded.{name}" for name in values)
        # Local: a heartbeat that waited for a hung synchronous standby would hide the lag
        # of all the others. Not off: it should leave for the replicas at once.
        return f"""
            BEGIN;
            SET LOCAL synchronous_commit = local;
            INSERT INTO {self._name} (id, {", ".join(values)})
            VALUES (1, {", ".join(values.values())})
            ON CONFLICT (id) DO UPDATE SET {renewed};
            COMMIT"""  # noqa: S608 -- quoted


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
