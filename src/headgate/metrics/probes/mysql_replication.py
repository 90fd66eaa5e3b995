"""Whether a MySQL or MariaDB server replicates, from where, how far behind, and its role."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pymysql import err
from pymysql.constants import ER

from headgate.errors import Fault, InvalidSettings, ProbeFailed, WriteRejected
from headgate.metrics.probes import heartbeats
from headgate.metrics.probes.connections import Reader
from headgate.metrics.probes.heartbeats import (
    UTC,
    ClockSkew,
    HeartbeatRow,
    WithoutWriter,
    heartbeat_lag,
    zone_of,
)
from headgate.metrics.probes.mysql_session import (
    MISSING_CODES,
    NOT_ALLOWED_CODES,
    MysqlSession,
    code_of,
    create_statements,
    create_table,
    may_need_table,
    quoted,
)
from headgate.metrics.probes.numbers import one_line, value_of
from headgate.metrics.probes.server import HERE, Clocks, Options, split_table
from headgate.metrics.samples import Cause, Measured, Number
from headgate.shard.topology import Downstream, Role, RoleSeen

FIRST_WITH_REPLICA_WORDS = (8, 0, 22)


@dataclass(frozen=True, slots=True)
class Thread:
    name: str
    """As the server calls its state: Slave_IO_Running."""
    state: str
    """Yes, No, or what it is just trying."""
    error: str


@dataclass(frozen=True, slots=True)
class Channel:
    """One source of a replica."""

    name: str
    """Empty for the only one, usually."""
    upstream: str
    """host:port"""
    upstream_id: str
    """Its server_uuid, or its server_id where there are none of these (MariaDB)."""
    threads: tuple[Thread, Thread]
    seconds_behind: float | None
    position: tuple[str, ...] = ()
    """How far it has received from the source."""
    pulse: str = ""
    """Changes while the source is idle, too."""


def channel_of(row: Mapping[str, Any]) -> Channel:
    # MySQL 8.4 dropped the old words, MariaDB keeps them.
    old = "Slave_IO_Running" in row
    replica, source = ("Slave", "Master") if old else ("Replica", "Source")
    seconds = row[f"Seconds_Behind_{source}"]
    number = row.get(f"{source}_Server_Id") or ""
    return Channel(
        name=str(row.get("Connection_name") or row.get("Channel_Name") or ""),
        upstream=f"{row[f'{source}_Host']}:{row[f'{source}_Port']}",
        upstream_id=str(row.get(f"{source}_UUID", number)),
        threads=(
            _thread(row, f"{replica}_IO_Running", "Last_IO_Error"),
            _thread(row, f"{replica}_SQL_Running", "Last_SQL_Error"),
        ),
        seconds_behind=None if seconds is None else float(seconds),
        position=(str(row.get(f"{source}_Log_File")), str(row.get(f"Read_{source}_Log_Pos"))),
        pulse=str(row.get("Slave_received_heartbeats", "")),
    )


def _thread(row: Mapping[str, Any], state: str, error: str) -> Thread:
    return Thread(state, str(row[state]), str(row.get(error) or ""))


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
    return f"SHOW {'REPLICA' if has_replica_words(session) else 'SLAVE'} STATUS"


def has_replica_words(session: MysqlSession) -> bool:
    numbers = tuple(int(part) for part in re.findall(r"\d+", session.version)[:3])
    return not session.is_mariadb and numbers >= FIRST_WITH_REPLICA_WORDS


async def is_read_only(session: MysqlSession) -> bool:
    # By the setting, not by a write: an administrator's session may write all the same.
    [(read_only,)] = await session.rows("SELECT @@global.read_only")
    return is_on(read_only)


async def takes_writes(session: MysqlSession) -> bool:
    return not await is_read_only(session)


def is_on(setting: object) -> bool:
    """Newer MariaDB has words for it (NO_LOCK and the like are on, too)."""
    return setting not in (0, "0", "OFF", None)


async def is_primary(session: MysqlSession) -> bool:
    return not await is_read_only(session) and not await replica_status(session)


# --- the replicated heartbeat row in MySQL and MariaDB: ours, or one of pt-heartbeat's ---------
#     headgate.heartbeat     id, ts datetime(6) in UTC, server, interval_s, idle
#     pt-heartbeat           ts varchar(26), server_id, …   (a row per server; the newest counts)
#     pt-heartbeat --legacy  id, ts datetime
#
# pt-heartbeat writes local time unless it runs with --utc, and the row does not say which. Until
# one of the two readings is recent while the other is not, the answer is INVALID: guessing
# could turn a replica that stopped hours ago into one that is current.


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

    def __init__(self, table: tuple[str, ...], interval_s: float, required: bool) -> None:
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


# --- how far a MySQL or MariaDB replica is behind ----------------------------------------------
# Seconds_Behind_* counts whole seconds, and only from what the I/O thread has fetched: it
# reads 0 on a replica whose network is slow, and NULL or 0 on one whose threads have stopped. So
# both threads must run before the number counts; where one does not, lag is the time since
# the replica was last known to be current, and grows. Read strictly, it is the time since
# anything arrived once that is longer than QUIET_S. For more precision, use heartbeats.
#
# Only a replica has lag: a primary would find its own heartbeat, always fresh.


Monotonic = Callable[[], float]
# Longer than a busy primary is ever silent, shorter than any threshold that is advised.
QUIET_S = 2.0


def lag(options: Options, skew: ClockSkew) -> Reader[MysqlSession]:
    name = str(options.get("heartbeat_table", "headgate.heartbeat"))
    table = HeartbeatTable(split_table(name, place="lag.options.heartbeat_table"))
    native, strict = MysqlNativeLag(), MysqlNativeLag(strict=True)

    async def judged(
        heartbeat: HeartbeatRow,
        channels: Sequence[Channel],
        without_writer: WithoutWriter = lambda: None,
    ) -> Number:
        account = strict.judge_or_fail(channels)

        async def own_account() -> Number:
            if isinstance(account, ProbeFailed):
                raise account
            return account

        return await heartbeat_lag(heartbeat, skew, own_account, without_writer)

    async def auto(session: MysqlSession) -> Number:
        channels = await _channels(session)
        heartbeat = await table.newest_if_any(session)
        if heartbeat is None:
            return strict.judge(channels)
        return await judged(heartbeat, channels, lambda: strict.without_work_s(channels))

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

    def __init__(self, monotonic: Monotonic = time.monotonic, *, strict: bool = False) -> None:
        self._monotonic = monotonic
        self._strict = strict
        """Trust no silence: what has not arrived may be missing since the last sign of life."""
        self._current_at: dict[str, float] = {}
        """By source: the moment of which the replica had everything when last seen running."""
        self._alive: dict[str, tuple[object, float]] = {}
        self._moved: dict[str, tuple[object, float]] = {}
        """By source: its last sign of life, its last position, and when they were new."""

    def judge_or_fail(self, channels: Sequence[Channel]) -> Number | ProbeFailed:
        try:
            return self.judge(channels)
        except ProbeFailed as failure:
            return failure

    def judge(self, channels: Sequence[Channel]) -> Number:
        now_s = self._monotonic()
        known = {channel.name for channel in channels}
        self._current_at = {n: at for n, at in self._current_at.items() if n in known}
        self._alive = {n: seen for n, seen in self._alive.items() if n in known}
        self._moved = {n: seen for n, seen in self._moved.items() if n in known}
        return max((self._lag_of(channel, now_s) for channel in channels), key=value_of)

    def _lag_of(self, channel: Channel, now_s: float) -> Number:
        _note(self._moved, channel.name, channel.position, now_s)
        _note(self._alive, channel.name, (channel.position, channel.pulse), now_s)
        trouble, silent_s = trouble_of(channel), now_s - self._alive[channel.name][1]
        if trouble is None and channel.seconds_behind is not None:
            if self._strict and silent_s > max(QUIET_S, channel.seconds_behind):
                return Measured(silent_s, Cause.REPLICATION_SILENT, silence_of(channel, silent_s))
            self._current_at[channel.name] = now_s - channel.seconds_behind
            return channel.seconds_behind
        cause, detail = trouble or (Cause.FAILED, "seconds behind the source are NULL")
        current_at = self._current_at.get(channel.name)
        if current_at is None:
            raise ProbeFailed(cause, f"{detail}; since when is unknown, so is the lag")
        return Measured(max(0.0, now_s - current_at), cause, detail)

    def without_work_s(self, channels: Sequence[Channel]) -> float:
        """The longest that a source has sent nothing new, or what it sent is behind."""
        now_s = self._monotonic()
        return max(
            max(now_s - self._moved[one.name][1], one.seconds_behind or 0.0) for one in channels
        )


def _note(seen: dict[str, tuple[object, float]], name: str, sign: object, now_s: float) -> None:
    if name not in seen or seen[name][0] != sign:
        seen[name] = sign, now_s


def silence_of(channel: Channel, silent_s: float) -> str:
    return (
        f"nothing has arrived from {channel.upstream} for {silent_s:.0f} s: an idle primary and a "
        "dead network look the same. A heartbeat tells them apart: have the primary's agent write "
        "one (heartbeat_interval_s), or trust the silence with the option method = native"
    )


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


# --- whether a MySQL or MariaDB server is a primary or a replica, and who is near it -----------
# A primary replicates from nowhere and takes writes. A read_only server without a source is a
# fenced or a demoted one: not a primary, whatever else it may become.


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
        source = channels[0] if channels else None  # Of several, as the server lists them.
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
