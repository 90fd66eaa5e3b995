"""Whether a MySQL or MariaDB server replicates, and from where."""

from __future__ import annotations

import re
from typing import Any

from pymysql import err

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.mysql_session import NOT_ALLOWED_CODES, MysqlSession, code_of

FIRST_WITH_REPLICA_WORDS = (8, 0, 22)


async def replica_status(session: MysqlSession) -> list[dict[str, Any]]:
    """One row per source; none on a server that replicates from nowhere."""
    try:
        return await session.dicts(_show_status(session))
    except err.Error as error:
        if code_of(error) not in NOT_ALLOWED_CODES:
            raise
        right = "SLAVE MONITOR" if session.is_mariadb else "REPLICATION CLIENT"
        statement = f"GRANT {right} ON *.* TO {await session.account()}"
        message = f"{error.args[1]}; as an administrator run: {statement}"
        session.discard()  # rights on *.* reach new sessions only
        raise ProbeFailed(Cause.FAILED, message) from None


def _show_status(session: MysqlSession) -> str:
    if session.is_mariadb:
        return "SHOW ALL SLAVES STATUS"
    numbers = tuple(int(part) for part in re.findall(r"\d+", session.version)[:3])
    return f"SHOW {'REPLICA' if numbers >= FIRST_WITH_REPLICA_WORDS else 'SLAVE'} STATUS"


async def is_read_only(session: MysqlSession) -> bool:
    # Asked, not tried: an administrator's session may write all the same.
    [(read_only,)] = await session.rows("SELECT @@global.read_only")
    return bool(read_only)


async def is_primary(session: MysqlSession) -> bool:
    return not await is_read_only(session) and not await replica_status(session)
