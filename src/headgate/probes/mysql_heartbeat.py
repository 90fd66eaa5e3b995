"""The replicated heartbeat row in MySQL and MariaDB: ours, or one of pt-heartbeat's.

    headgate.heartbeat   id, ts datetime(6) in UTC, server
    pt-heartbeat         ts varchar(26), server_id, …   (a row per server; the newest counts)
    pt-heartbeat --legacy  id, ts datetime

pt-heartbeat writes local time unless told --utc, and the row does not say which. Until
one of the two readings is recent while the other is not, the answer is INVALID: guessing
could turn a replica that stopped hours ago into one that is current.
"""

from __future__ import annotations

from pymysql import err

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.heartbeats import TOLERATED_SKEW_S, lag_of
from headgate.probes.mysql_replication import is_primary
from headgate.probes.mysql_session import MISSING_CODES, MysqlSession, code_of
from headgate.probes.mysql_tables import create_statements, create_table, may_need_table, quoted

RECENT_S = 60.0
UTC, LOCAL = "utc", "local"

COLUMNS = """
SELECT LOWER(column_name) FROM information_schema.columns
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s LIMIT 64
"""


class HeartbeatLag:
    """Age of the newest row, by the server's own clock."""

    def __init__(self, table: tuple[str, ...]) -> None:
        self._table = table
        self._name = quoted(table)
        self._zone: str | None = None
        newest = "CAST(MAX(ts) AS DATETIME(6))"
        ages = ", ".join(
            f"TIMESTAMPDIFF(MICROSECOND, {newest}, {now}) / 1e6"
            for now in ("UTC_TIMESTAMP(6)", "NOW(6)")
        )
        self._query = f"SELECT {ages} FROM {self._name}"  # noqa: S608 -- quoted

    async def __call__(self, session: MysqlSession) -> float:
        try:
            [(utc_age_s, local_age_s)] = await session.rows(self._query)
        except err.ProgrammingError as error:
            if code_of(error) not in MISSING_CODES:
                raise
            message = f"there is no heartbeat table {self._name}: set heartbeat_interval_s on the "
            message += "primary's agent, or give the option heartbeat_table"
            raise ProbeFailed(Cause.FAILED, message) from None
        if utc_age_s is None:
            return lag_of(None, self._name)
        if self._zone is None:
            columns = await self._columns(session)
            self._zone = UTC if "server" in columns else zone_of(utc_age_s, local_age_s)
        return lag_of(utc_age_s if self._zone == UTC else local_age_s, self._name)

    async def is_written(self, session: MysqlSession) -> bool:
        if "ts" not in await self._columns(session):
            return False
        return bool(await session.rows(f"SELECT 1 FROM {self._name} LIMIT 1"))  # noqa: S608

    async def _columns(self, session: MysqlSession) -> set[str]:
        schema = self._table[0] if len(self._table) == 2 else None
        rows = await session.rows(COLUMNS, [schema, self._table[-1]])
        return {name for [name] in rows}


def zone_of(utc_age_s: float, local_age_s: float) -> str:
    """Which clock pt-heartbeat wrote by."""
    if utc_age_s == local_age_s:
        return UTC
    recent = [
        zone
        for zone, age_s in ((UTC, utc_age_s), (LOCAL, local_age_s))
        if -TOLERATED_SKEW_S <= age_s <= RECENT_S
    ]
    if len(recent) == 1:
        return recent[0]
    raise ProbeFailed(
        Cause.INVALID,
        f"the heartbeat is {utc_age_s:.1f} s old if written in UTC and {local_age_s:.1f} s old if "
        "in local time, and neither is recent enough to tell: look whether pt-heartbeat runs",
    )


class MysqlBeat:
    """Writes the row; answers whether it did.

    A replica that is left writable must not write: its own row would read as no lag, on it
    and below it. Of two servers that replicate from each other neither writes.
    """

    def __init__(self, table: tuple[str, ...]) -> None:
        self._table = table
        name = quoted(table)
        self._write = (
            f"INSERT INTO {name} (id, ts, server) VALUES (1, UTC_TIMESTAMP(6), %s)"  # noqa: S608
            " ON DUPLICATE KEY UPDATE ts = VALUES(ts), server = VALUES(server)"
        )

    @property
    def create(self) -> tuple[str, ...]:
        columns = (
            "id INT NOT NULL PRIMARY KEY DEFAULT 1,"
            " ts DATETIME(6) NOT NULL, server VARCHAR(255) NOT NULL"
        )
        return create_statements(self._table, columns)

    async def __call__(self, session: MysqlSession) -> bool:
        if not await is_primary(session):
            return False
        try:
            await session.run(self._write, [session.server])
        except err.Error as error:
            if not may_need_table(error):
                raise
            await create_table(session, self._table, self.create)
            await session.run(self._write, [session.server])
        return True
