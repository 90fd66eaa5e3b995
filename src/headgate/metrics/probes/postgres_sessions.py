"""Who is connected to a Postgres server, and who of them is at work."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.history.sessions import SessionGroup
from headgate.metrics.probes.postgres_session import APPLICATION_NAME, PostgresSession
from headgate.metrics.probes.sessions import MAX_GROUPS, group_of

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
