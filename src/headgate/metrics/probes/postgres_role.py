"""Whether a Postgres server is a primary or a standby, on which timeline, and who is near it.

The timeline of a standby is the one it replays. A receiver is asked for the timeline of the
position that replay needs next, so its own is right, in a cascade as well; without one, the
control file has those of the last restart point and of the last flushed page. They may be
older than what is replayed, never newer.
"""

from __future__ import annotations

import psycopg

from headgate.metrics.probes.postgres_lag import WalMarks
from headgate.metrics.probes.postgres_replication import PRIMARY_CONNINFO, upstream_of
from headgate.metrics.probes.postgres_session import PostgresSession, Row
from headgate.metrics.probes.roles import HERE, Clocks
from headgate.shard.topology import Downstream, Role, RoleSeen

# Physical standbys only, as for lag. A role without pg_monitor sees none of them.
ROLE_QUERY = f"""
WITH here AS MATERIALIZED (SELECT pg_is_in_recovery() AS standby),
     own AS (SELECT CASE WHEN standby
                 THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                 ELSE pg_current_wal_flush_lsn() END AS position FROM here)
SELECT standby, extract(epoch FROM clock_timestamp())::float8,
       {{cluster}},
       CASE WHEN NOT standby THEN pg_walfile_name(pg_current_wal_lsn()) END,
       coalesce(w.received_tli, CASE WHEN standby THEN {{replayed_timeline}} END),
       w.sender_host, w.sender_port, {PRIMARY_CONNINFO}, current_setting('port')::int,
       (SELECT pg_wal_lsn_diff(position, '0/0')::int8 FROM own),
       (SELECT coalesce(json_agg(json_build_array(name, host, behind)), '[]') FROM (
            SELECT r.application_name AS name, host(r.client_addr) AS host,
                   greatest(0, pg_wal_lsn_diff(own.position, r.replay_lsn))::int8 AS behind
            FROM pg_stat_replication AS r JOIN pg_stat_activity AS a USING (pid), own
            WHERE a.datid IS NULL AND r.state IN ('streaming', 'catchup')
              AND (r.replay_lsn IS NOT NULL OR r.write_lsn IS NULL)
            ORDER BY 1, 2, 3 LIMIT 256) AS below)
FROM here LEFT JOIN pg_stat_wal_receiver AS w ON standby
LIMIT 1
"""  # noqa: S608 -- constants only
FULL = ROLE_QUERY.format(
    cluster="(SELECT system_identifier::text FROM pg_control_system())",
    replayed_timeline="""(SELECT greatest(c.timeline_id, r.min_recovery_end_timeline)
                          FROM pg_control_checkpoint() AS c, pg_control_recovery() AS r)""",
)
# Every role may read control data, unless an administrator has taken that away.
WITHOUT_CONTROL_DATA = ROLE_QUERY.format(cluster="NULL", replayed_timeline="NULL::int")


class PostgresRole:
    def __init__(self, clocks: Clocks = HERE) -> None:
        self._clocks = clocks
        self._marks = WalMarks()
        self._restricted: PostgresSession | None = None
        """The session that may not read control data: the next one tries again."""

    async def __call__(self, session: PostgresSession) -> RoleSeen:
        trip = self._clocks.ask()
        if session is not self._restricted:
            try:
                row = await session.row(FULL)
            except psycopg.errors.InsufficientPrivilege:
                self._restricted = session
                return await self(session)
        else:
            row = await session.row(WITHOUT_CONTROL_DATA)
        return role_seen(row, trip.asked_at, trip.clock_ahead_s(row[1]), self._marks)


def role_seen(row: Row, taken_at: float, clock_ahead_s: float, marks: WalMarks) -> RoleSeen:
    standby, _, cluster, wal_file, timeline, host, port, conninfo, own_port, position, below = row
    if position is not None:
        marks.note(position, taken_at)
    return RoleSeen(
        Role.REPLICA if standby else Role.PRIMARY,
        taken_at,
        cluster=cluster or "",
        term=timeline if standby else int(wal_file[:8], 16),
        port=own_port,
        upstream=upstream_of(host, port, conninfo) if standby else "",
        downstream=tuple(
            Downstream(
                name or "", host or "", None, behind, _lag_s(marks, position, behind, taken_at)
            )
            for name, host, behind in below
        ),
        clock_ahead_s=clock_ahead_s,
    )


def _lag_s(marks: WalMarks, position: int | None, behind: int | None, now_s: float) -> float | None:
    """Since when we have known of log that it has not replayed; never too high."""
    if position is None or behind is None:
        return None
    return marks.lag_s(position - behind, now_s)
