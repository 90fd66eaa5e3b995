"""The replicated heartbeat row in MySQL and MariaDB: ours, or one of pt-heartbeat's.

    headgate.heartbeat     id, ts datetime(6) in UTC, server, interval_s, idle
    pt-heartbeat           ts varchar(26), server_id, …   (a row per server; the newest counts)
    pt-heartbeat --legacy  id, ts datetime

pt-heartbeat writes local time unless it runs with --utc, and the row does not say which. Until
one of the two readings is recent while the other is not, the answer is INVALID: guessing
could turn a replica that stopped hours ago into one that is current.
"""

from __future__ import annotations

from typing import Any

from pymysql import err
from pymysql.constants import ER

from headgate.errors import ProbeFailed, WriteRejected
from headgate.metrics.probes import heartbeats
from headgate.metrics.probes.heartbeats import UTC, HeartbeatRow, zone_of
from headgate.metrics.probes.mysql_replication import is_primary
from headgate.metrics.probes.mysql_session import (
    MISSING_CODES,
    NOT_ALLOWED_CODES,
    MysqlSession,
    code_of,
)
from headgate.metrics.probes.mysql_tables import (
    create_statements,
    create_table,
    may_need_table,
    quoted,
)
from headgate.metrics.samples import Cause

COLUMNS = """
SELECT LOWER(column_name) FROM information_schema.columns
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s LIMIT 64
"""


class HeartbeatTable:
    """Reads the newest row. Autocommit: each read is a snapshot of its own."""

    def __init__(self, table: tuple[str, ...]) -> None:
        self._name = quoted(table)
        self._zone: str | None = None
        ages = ", ".join(
            f"TIMESTAMPDIFF(MICROSECOND, CAST(ts AS DATETIME(6)), {now}) / 1e6 AS {name}"
            for name, now in (("utc_age_s", "UTC_TIMESTAMP(6)"), ("local_age_s", "NOW(6)"))
        )
        # All columns: not every layout has all of ours.
        self._query = f"SELECT h.*, {ages} FROM {self._name} AS h ORDER BY ts DESC LIMIT 1"  # noqa: S608

    async def newest(self, session: MysqlSession) -> HeartbeatRow:
        try:
            rows = await session.dicts(self._query)
        except err.Error as error:
            if code_of(error) not in MISSING_CODES:
                raise
            raise heartbeats.missing(self._name) from None
        if not rows:
            raise heartbeats.empty(self._name)
        return self._heartbeat({name.lower(): value for name, value in rows[0].items()})

    async def newest_if_any(self, session: MysqlSession) -> HeartbeatRow | None:
        """None where nobody writes heartbeats, or not for us to read."""
        try:
            rows = await session.dicts(self._query)
        except err.Error as error:
            if code_of(error) not in MISSING_CODES | NOT_ALLOWED_CODES | {ER.BAD_FIELD_ERROR}:
                raise
            return None
        return self._heartbeat({n.lower(): v for n, v in rows[0].items()}) if rows else None

    def _heartbeat(self, row: dict[str, Any]) -> HeartbeatRow:
        utc_age_s, local_age_s = row["utc_age_s"], row["local_age_s"]
        if utc_age_s is None or local_age_s is None:
            message = f"the newest ts in {self._name} is no time: {row['ts']!r}"
            raise ProbeFailed(Cause.INVALID, message)
        if self._zone is None:
            ours = "server" in row
            self._zone = UTC if ours else zone_of(float(utc_age_s), float(local_age_s))
        return HeartbeatRow(
            self._name,
            float(utc_age_s if self._zone == UTC else local_age_s),
            row.get("interval_s"),
            bool(row.get("idle")),
            str(row.get("server", "")),
        )


OUR_COLUMNS = {"id", "ts", "server"}
ADDED_COLUMNS = {
    "interval_s": "interval_s DOUBLE NULL",
    "idle": "idle BOOLEAN NOT NULL DEFAULT FALSE",
}
# The server, or the engine of the table, has become read only since the last look.
ER_READ_ONLY_MODE = 1836
READ_ONLY_CODES = {ER.OPTION_PREVENTS_STATEMENT, ER_READ_ONLY_MODE}
# By this a statement of ours is known in the process list.
MARK = "/* headgate heartbeat */"


class MysqlBeat:
    """Writes the row; answers whether it did.

    A replica that is left writable must not write: its own row would read as no lag, on it
    and below it. Of two servers that replicate from each other neither writes.
    """

    def __init__(self, table: tuple[str, ...], interval_s: float) -> None:
        self._table = table
        self._name = quoted(table)
        self._interval_s = interval_s
        self._narrow = self._insert("server")
        self._wide = self._insert("server", *ADDED_COLUMNS)
        self._keeps_narrow = False
        """The table has the earlier layout, and the user may not change it."""

    def _insert(self, *columns: str) -> str:
        renewed = ", ".join(f"{name} = VALUES({name})" for name in ("ts", *columns))
        return (
            f"INSERT {MARK} INTO {self._name} (id, ts, {', '.join(columns)})"  # noqa: S608
            f" VALUES (1, UTC_TIMESTAMP(6){', %s' * len(columns)})"
            f" ON DUPLICATE KEY UPDATE {renewed}"
        )

    @property
    def create(self) -> tuple[str, ...]:
        columns = (
            "id INT NOT NULL PRIMARY KEY DEFAULT 1, ts DATETIME(6) NOT NULL,"
            f" server VARCHAR(255) NOT NULL, {', '.join(ADDED_COLUMNS.values())}"
        )
        return create_statements(self._table, columns)

    async def __call__(self, session: MysqlSession, resting: bool) -> bool:
        if not await is_primary(session):
            return False
        try:
            return await self._write(session, resting)
        except err.Error as error:
            if code_of(error) in READ_ONLY_CODES:
                raise WriteRejected(Cause.FAILED, str(error.args[-1])) from None
            raise

    async def _write(self, session: MysqlSession, resting: bool) -> bool:
        if self._keeps_narrow and not resting:
            await session.run(self._narrow, [session.server])
            return True
        values = [session.server, self._interval_s, resting]
        try:
            await session.run(self._wide, values)
        except err.Error as error:
            if code_of(error) == ER.BAD_FIELD_ERROR:
                await self._beat_in_earlier_layout(session, values)
            elif may_need_table(error):
                await create_table(session, self._table, self.create)
                await session.run(self._wide, values)
            else:
                raise
        else:
            self._keeps_narrow = False
        return True

    async def _beat_in_earlier_layout(self, session: MysqlSession, values: list[Any]) -> None:
        *_, resting = values
        columns = await self._columns(session)
        if not columns >= OUR_COLUMNS:
            raise heartbeats.not_ours(self._name)
        lacking = [added for name, added in ADDED_COLUMNS.items() if name not in columns]
        widen = f"ALTER TABLE {self._name} ADD COLUMN {', ADD COLUMN '.join(lacking)}"
        try:
            await session.run(widen)
        except err.Error as error:
            if code_of(error) not in NOT_ALLOWED_CODES:
                raise
            if resting:
                message = f"{error.args[1]}; as an administrator run: {widen}"
                raise ProbeFailed(Cause.FAILED, message) from None
            self._keeps_narrow = True
            await session.run(self._narrow, [session.server])
        else:
            await session.run(self._wide, values)

    async def _columns(self, session: MysqlSession) -> set[str]:
        schema = self._table[0] if len(self._table) == 2 else None
        rows = await session.rows(COLUMNS, [schema, self._table[-1]])
        return {name for [name] in rows}


async def end_write(fresh: MysqlSession, stuck: MysqlSession) -> None:
    """KILL the connection of a write that was given up, if that is what its number still is."""
    rows = await fresh.rows(
        "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s"
        " AND USER = SUBSTRING_INDEX(USER(), '@', 1) AND (INFO = 'COMMIT' OR INFO LIKE %s)",
        [stuck.connection.thread_id(), f"INSERT {MARK}%"],
    )
    if rows:
        await fresh.run(f"KILL {int(stuck.connection.thread_id())}")
