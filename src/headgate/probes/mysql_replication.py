"""Whether a MySQL or MariaDB server replicates, and from where."""

from __future__ import annotations

import re
from typing import Any

from headgate.probes.mysql_session import MysqlSession

FIRST_WITH_REPLICA_WORDS = (8, 0, 22)


async def replica_status(session: MysqlSession) -> list[dict[str, Any]]:
    """One row per source; none on a server that replicates from nowhere."""
    if session.is_mariadb:
        return await session.dicts("SHOW ALL SLAVES STATUS")
    numbers = tuple(int(part) for part in re.findall(r"\d+", session.version)[:3])
    words = "REPLICA" if numbers >= FIRST_WITH_REPLICA_WORDS else "SLAVE"
    return await session.dicts(f"SHOW {words} STATUS")


async def is_read_only(session: MysqlSession) -> bool:
    # Asked, not tried: an administrator's session may write all the same.
    [(read_only,)] = await session.rows("SELECT @@global.read_only")
    return bool(read_only)


async def is_primary(session: MysqlSession) -> bool:
    return not await is_read_only(session) and not await replica_status(session)
