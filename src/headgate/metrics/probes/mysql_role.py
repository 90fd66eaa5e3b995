"""Whether a MySQL or MariaDB server is a primary or a replica, and who is near it.

A primary replicates from nowhere and takes writes. A read_only server without a source is a
fenced or a demoted one: not a primary, whatever else it may become.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pymysql import err

from headgate.metrics.probes.mysql_replication import (
    Channel,
    channel_of,
    has_replica_words,
    is_on,
    replica_status,
)
from headgate.metrics.probes.mysql_session import NOT_ALLOWED_CODES, MysqlSession, code_of
from headgate.metrics.probes.roles import HERE, Clocks
from headgate.shard.topology import Downstream, Role, RoleSeen

# A role must be known within a moment, who replicates from here need not.
DOWNSTREAM_EVERY_S = 1.0
MAX_DOWNSTREAM = 256
SELF = """
SELECT @@global.read_only, {server_id},
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6
"""
DUMP_THREADS = f"""
SELECT HOST FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'
LIMIT {MAX_DOWNSTREAM}
"""  # noqa: S608 -- constants only


class MysqlRole:
    def __init__(self, clocks: Clocks = HERE) -> None:
        self._clocks = clocks
        self._downstream: tuple[Downstream, ...] = ()
        self._listed_at: float | None = None

    async def __call__(self, session: MysqlSession) -> RoleSeen:
        trip = self._clocks.ask()
        own_id = "@@global.server_id" if session.is_mariadb else "@@global.server_uuid"
        [(read_only, server_id, server_wall_s)] = await session.rows(SELF.format(server_id=own_id))
        ahead_s = trip.clock_ahead_s(float(server_wall_s))
        channels = [channel_of(row) for row in await replica_status(session)]
        source = _upstream(channels)
        return RoleSeen(
            Role.REPLICA if channels or is_on(read_only) else Role.PRIMARY,
            trip.asked_at,
            server_id=str(server_id),
            upstream_id=source.upstream_id if source else "",
            upstream=source.upstream if source else "",
            downstream=await self._listed(session, trip.asked_at),
            clock_ahead_s=ahead_s,
        )

    async def _listed(self, session: MysqlSession, now_s: float) -> tuple[Downstream, ...]:
        if self._listed_at is None or now_s - self._listed_at >= DOWNSTREAM_EVERY_S:
            self._downstream = await downstream_of(session)
            self._listed_at = now_s
        return self._downstream


def _upstream(channels: Sequence[Channel]) -> Channel | None:
    """Of several sources the first, as the server lists them."""
    return channels[0] if channels else None


async def downstream_of(session: MysqlSession) -> tuple[Downstream, ...]:
    """As they register (report_host), and by the address that they connect from."""
    registered = await _registered(session)
    # A user without PROCESS sees only its own threads here: nobody.
    rows = await session.rows(DUMP_THREADS)
    addresses = [str(host).rpartition(":")[0] for [host] in rows]
    # Nothing says which thread serves which replica, except that all come from one address.
    if len(set(addresses)) == 1 and len(registered) == len(addresses):
        return tuple(replace(replica, host=addresses[0]) for replica in registered)
    if not registered or not all(replica.name for replica in registered):
        return tuple(Downstream("", address) for address in addresses) or registered
    return registered


async def _registered(session: MysqlSession) -> tuple[Downstream, ...]:
    words = "SHOW REPLICAS" if has_replica_words(session) else "SHOW SLAVE HOSTS"
    try:
        rows = await session.rows(words)
    except err.Error as error:
        if code_of(error) not in NOT_ALLOWED_CODES:
            raise
        return ()
    return tuple(_replica(session, row) for row in rows[:MAX_DOWNSTREAM])


def _replica(session: MysqlSession, row: Sequence[Any]) -> Downstream:
    """`Server_id, Host, Port, Source_id`, and in MySQL `Replica_UUID`."""
    number, host, port, *more = row
    own_id = number if session.is_mariadb else (more[1:] or [""])[0]
    return Downstream(str(host), str(host), port or None, server_id=str(own_id))
