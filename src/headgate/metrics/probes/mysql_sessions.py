"""Who is connected to a MySQL or MariaDB server, and who of them is at work.

The process list knows no program's name; where the server keeps what clients say of
themselves (performance_schema), `program_name` is taken from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymysql import err

from headgate.history.sessions import SessionGroup
from headgate.metrics.probes.mysql_session import (
    MISSING_CODES,
    NOT_ALLOWED_CODES,
    PROGRAM_NAME,
    MysqlSession,
    code_of,
)
from headgate.metrics.probes.sessions import MAX_GROUPS, group_of

# Replicas and the server's own threads are no clients. A user without PROCESS sees only itself.
SESSIONS = f"""
SELECT p.USER, {{program}}, SUBSTRING_INDEX(p.HOST, ':', 1), COUNT(*),
       SUM(p.COMMAND NOT IN ('Sleep')) AS active
FROM information_schema.PROCESSLIST AS p {{join}}
WHERE p.ID <> CONNECTION_ID() AND p.COMMAND NOT LIKE 'Binlog Dump%' AND p.COMMAND <> 'Daemon'
  AND p.USER NOT IN ('system user', 'event_scheduler') AND {{program}} <> '{PROGRAM_NAME}'
GROUP BY 1, 2, 3 ORDER BY active DESC, 4 DESC, 1, 2, 3 LIMIT {MAX_GROUPS}
"""  # noqa: S608 -- constants only
NAMED = SESSIONS.format(
    program="COALESCE(a.ATTR_VALUE, '')",
    join="LEFT JOIN performance_schema.session_connect_attrs AS a "
    "ON a.PROCESSLIST_ID = p.ID AND a.ATTR_NAME = 'program_name'",
)
NAMELESS = SESSIONS.format(program="''", join="")


async def mysql_sessions(session: MysqlSession) -> Sequence[SessionGroup]:
    try:
        rows = await session.rows(NAMED)
    except err.Error as error:
        if code_of(error) not in NOT_ALLOWED_CODES | MISSING_CODES:
            raise
        rows = await session.rows(NAMELESS)
    return [group_of(*row) for row in rows]
