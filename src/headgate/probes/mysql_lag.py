"""How far a MySQL or MariaDB replica is behind, by its own account.

Seconds_Behind_* counts whole seconds, and only from what the I/O thread has fetched: it
reads 0 on a replica whose network is slow, and NULL or 0 on one whose threads stand. So
both threads must run before the number counts; where more is asked, use heartbeats.

Only a replica has lag: a primary would find its own heartbeat, always fresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.samples import Cause
from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.probes.connections import Reader
from headgate.probes.kit import Options
from headgate.probes.messages import one_line
from headgate.probes.mysql_heartbeat import HeartbeatLag
from headgate.probes.mysql_replication import replica_status
from headgate.probes.mysql_session import MysqlSession
from headgate.probes.tables import split_table

# MySQL 8.4 dropped the old words, MariaDB answers in them for ever.
OLD_WORDS = {
    "lag": "Seconds_Behind_Master",
    "io": "Slave_IO_Running",
    "sql": "Slave_SQL_Running",
}
NEW_WORDS = {
    "lag": "Seconds_Behind_Source",
    "io": "Replica_IO_Running",
    "sql": "Replica_SQL_Running",
}


def lag(options: Options) -> Reader[MysqlSession]:
    table = str(options.get("heartbeat_table", "headgate.heartbeat"))
    heartbeat = HeartbeatLag(split_table(table, place="lag.options.heartbeat_table"))

    async def auto(session: MysqlSession) -> float:
        if await heartbeat.is_written(session):
            return await heartbeat_lag(session)
        return await native_lag(session)

    async def heartbeat_lag(session: MysqlSession) -> float:
        await _channels(session)
        return await heartbeat(session)

    methods: Mapping[object, Reader[MysqlSession]] = {
        "auto": auto,
        "native": native_lag,
        "heartbeat": heartbeat_lag,
    }
    method = options.get("method", "auto")
    if method not in methods:
        message = f"is {method!r}, must be auto, native or heartbeat"
        raise InvalidSettings([Fault("lag.options.method", message)])
    return methods[method]


async def native_lag(session: MysqlSession) -> float:
    """The worst of the server's sources."""
    return max(_seconds_behind(channel) for channel in await _channels(session))


async def _channels(session: MysqlSession) -> list[dict[str, Any]]:
    """One row per source, at least one."""
    channels = await replica_status(session)
    if not channels:
        message = "this server is no replica, so it has no lag of its own: ask on the replica"
        raise ProbeFailed(Cause.UNSUPPORTED, message)
    return channels


def _seconds_behind(channel: Mapping[str, Any]) -> float:
    words = OLD_WORDS if OLD_WORDS["io"] in channel else NEW_WORDS
    for thread in ("io", "sql"):
        state = channel[words[thread]]
        if state != "Yes":
            said = one_line(channel.get(f"Last_{thread.upper()}_Error") or "no error given")
            message = f"replication does not run: {words[thread]} is {state} ({said})"
            raise ProbeFailed(Cause.FAILED, message)
    seconds = channel[words["lag"]]
    if seconds is None:
        raise ProbeFailed(Cause.FAILED, f"replication does not run: {words['lag']} is NULL")
    return float(seconds)
