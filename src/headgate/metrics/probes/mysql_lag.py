"""How far a MySQL or MariaDB replica is behind.

Seconds_Behind_* counts whole seconds, and only from what the I/O thread has fetched: it
reads 0 on a replica whose network is slow, and NULL or 0 on one whose threads have stopped. So
both threads must run before the number counts; where one does not, lag is the time since
the replica was last known to be current, and grows. For more precision, use heartbeats.

Only a replica has lag: a primary would find its own heartbeat, always fresh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.metrics.probes.connections import Reader
from headgate.metrics.probes.heartbeats import ClockSkew, HeartbeatRow, heartbeat_lag
from headgate.metrics.probes.kit import Options
from headgate.metrics.probes.messages import one_line
from headgate.metrics.probes.mysql_heartbeat import HeartbeatTable
from headgate.metrics.probes.mysql_replication import Channel, channel_of, replica_status
from headgate.metrics.probes.mysql_session import MysqlSession
from headgate.metrics.probes.numbers import value_of
from headgate.metrics.probes.tables import split_table
from headgate.metrics.samples import Cause, Measured, Number

Monotonic = Callable[[], float]


def lag(options: Options, skew: ClockSkew) -> Reader[MysqlSession]:
    name = str(options.get("heartbeat_table", "headgate.heartbeat"))
    table = HeartbeatTable(split_table(name, place="lag.options.heartbeat_table"))
    native = MysqlNativeLag()

    async def judged(heartbeat: HeartbeatRow, channels: Sequence[Channel]) -> Number:
        async def own_account() -> Number:
            return native.judge(channels)

        return await heartbeat_lag(heartbeat, skew, own_account)

    async def auto(session: MysqlSession) -> Number:
        channels = await _channels(session)
        heartbeat = await table.newest_if_any(session)
        return await judged(heartbeat, channels) if heartbeat else native.judge(channels)

    async def by_heartbeat(session: MysqlSession) -> Number:
        channels = await _channels(session)
        return await judged(await table.newest(session), channels)

    async def natively(session: MysqlSession) -> Number:
        return native.judge(await _channels(session))

    methods: Mapping[object, Reader[MysqlSession]] = {
        "auto": auto,
        "native": natively,
        "heartbeat": by_heartbeat,
    }
    method = options.get("method", "auto")
    if method not in methods:
        message = f"is {method!r}, must be auto, native or heartbeat"
        raise InvalidSettings([Fault("lag.options.method", message)])
    return methods[method]


async def _channels(session: MysqlSession) -> list[Channel]:
    """One per source, at least one."""
    channels = [channel_of(row) for row in await replica_status(session)]
    if not channels:
        message = "this server is not a replica, so it has no lag of its own: check on the replica"
        raise ProbeFailed(Cause.UNSUPPORTED, message)
    return channels


class MysqlNativeLag:
    """The worst of the server's sources, by its own account."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._current_at: dict[str, float] = {}
        """By source: the moment of which the replica had everything when last seen running."""

    def judge(self, channels: Sequence[Channel]) -> Number:
        now_s = self._monotonic()
        known = {channel.name for channel in channels}
        self._current_at = {n: at for n, at in self._current_at.items() if n in known}
        return max((self._lag_of(channel, now_s) for channel in channels), key=value_of)

    def _lag_of(self, channel: Channel, now_s: float) -> Number:
        trouble = trouble_of(channel)
        if trouble is None and channel.seconds_behind is not None:
            self._current_at[channel.name] = now_s - channel.seconds_behind
            return channel.seconds_behind
        cause, detail = trouble or (Cause.FAILED, "seconds behind the source are NULL")
        current_at = self._current_at.get(channel.name)
        if current_at is None:
            raise ProbeFailed(cause, f"{detail}; since when is unknown, so is the lag")
        return Measured(max(0.0, now_s - current_at), cause, detail)


def trouble_of(channel: Channel) -> tuple[Cause, str] | None:
    """Why a source does not feed this server. A failed thread is worse than a stopped one."""
    standing = [thread for thread in channel.threads if thread.state != "Yes"]
    for thread in standing:
        if thread.error or thread.state != "No":
            said = f" ({one_line(thread.error)})" if thread.error else ""
            message = f"replication from {channel.upstream} is broken: "
            return Cause.REPLICATION_BROKEN, f"{message}{thread.name} is {thread.state}{said}"
    if standing:
        named = " and ".join(f"{thread.name} is {thread.state}" for thread in standing)
        message = f"replication from {channel.upstream} was stopped: {named}; START REPLICA"
        return Cause.REPLICATION_STOPPED, message
    return None
