"""Whether a Postgres server replicates, from where, how far behind, and its role."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headgate.errors import ProbeFailed
from headgate.metrics.probes import heartbeats
from headgate.metrics.probes.heartbeats import UTC, ClockSkew, HeartbeatRow, WithoutWriter, zone_of
from headgate.metrics.probes.numbers import one_line
from headgate.metrics.probes.postgres_session import PostgresSession, Row
from headgate.metrics.probes.server import HERE, Clocks
from headgate.metrics.samples import Cause, Measured, Number
from headgate.shard.topology import Downstream, Role, RoleSeen

# The setting holds a password, so that not every role may see it.
PRIMARY_CONNINFO = """
CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE')
     THEN current_setting('primary_conninfo', true) END
"""


def upstream_of(host: str | None, port: int | None, conninfo: str | None) -> str:
    """host:port of the receiver's sender, else what is set; nothing else of the setting."""
    if host:
        return f"{host}:{port or 5432}"
    return _address_in(conninfo or "")


def _address_in(conninfo: str) -> str:
    # libpq quotes the part it cannot read, which may be the password.
    with suppress(psycopg.Error):
        params = conninfo_to_dict(conninfo)
        host = str(params.get("host") or params.get("hostaddr") or "")
        # Of several hosts, which one it is going to be nobody knows.
        if host and "," not in host:
            return f"{host}:{params.get('port') or 5432}"
    return ""


def may_not_see(session: PostgresSession, view: str) -> str:
    return (
        f"role {session.user} may not see other sessions in {view}, and what it cannot see is "
        f"not 0: GRANT pg_monitor TO {session.user}"
    )


# --- how far a Postgres replica is behind, from write-ahead-log positions ----------------------
# On a standby: 0 while it streams and has replayed all it received; otherwise the time
# since it was last known to be current, which grows while nothing is replayed. With a
# paused replay or a lost primary the number says so. Read strictly, it is the time since the
# last message from the primary once that is longer than QUIET_S.
#
# On a primary: when did the primary pass the position that a standby has replayed? Each
# read marks (time, position); the answer is the age of the first mark beyond the standby's
# position, so it is never too high and at most one probe interval too low. Not
# pg_stat_replication.replay_lag: that is how long the last replayed record took, so it
# keeps its last small value while replay is stuck, and is NULL on an idle server.
#
# A silent network is noticed by the WAL receiver after wal_receiver_timeout only, so `native`
# alone is not the default: `auto` reads the heartbeat, and strictly where there is none.


MAX_MARKS = 4096
MAX_REPLICAS = 256
# Long enough for a reboot; a replica that is gone for good must not stop work for hours.
REMEMBER_REPLICA_S = 600.0
# Lint warns about lag thresholds above this, so "at least 30 s" is a breach wherever it matters.
TELLING_HISTORY_S = 30.0

Monotonic = Callable[[], float]


class PostgresNativeLag:
    """Reads as a standby or as a primary, whichever the server is just now."""

    def __init__(
        self,
        *,
        heartbeat: HeartbeatLag | None = None,
        remember_s: float = REMEMBER_REPLICA_S,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._heartbeat = heartbeat
        """A standby reads it where one is written, and is read strictly where nobody does."""
        self._remember_s = remember_s
        self._monotonic = monotonic
        self._role: StandbyLag | PrimaryLag | None = None

    async def __call__(self, session: PostgresSession) -> Number:
        [in_recovery] = await session.row("SELECT pg_is_in_recovery()")
        wanted = StandbyLag if in_recovery else PrimaryLag
        # A promoted or demoted server starts over: what was seen in the other role is void.
        if not isinstance(self._role, wanted):
            strict = self._heartbeat is not None
            self._role = StandbyLag(strict) if in_recovery else PrimaryLag(self._remember_s)
        if in_recovery and self._heartbeat:
            written = await self._heartbeat.of_standby(session)
            if written is not None:
                return written
        return await self._role.read(session, self._monotonic)


# --- on a standby --------------------------------------------------------------------------

# Longer than a busy primary's walsender is ever silent, shorter than any threshold that is advised.
QUIET_S = 2.0
STANDBY_QUERY = f"""
SELECT r.pid IS NOT NULL, r.status,
       pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn(),
       extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8,
       extract(epoch FROM clock_timestamp() - r.last_msg_receipt_time)::float8,
       extract(epoch FROM current_setting('wal_receiver_timeout')::interval)::float8,
       CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
       r.sender_host, r.sender_port, {PRIMARY_CONNINFO}
FROM (SELECT 1) AS always LEFT JOIN pg_stat_wal_receiver AS r ON true
LIMIT 1
"""  # noqa: S608 -- constants only


@dataclass(frozen=True, slots=True)
class StandbyState:
    has_receiver: bool
    status: str | None
    replayed_all: bool
    since_replay_s: float | None
    """Age of the last replayed commit; on an idle primary that says nothing about lag."""
    silent_s: float | None
    receiver_timeout_s: float
    paused: bool = False
    sender_host: str | None = None
    sender_port: int | None = None
    conninfo: str | None = field(default=None, repr=False)
    """None where the role may not see it; empty on a standby that is fed from an archive."""

    @property
    def is_current(self) -> bool:
        # One that is paused misses what comes next: it is stopped, even with nothing to replay.
        return not self.paused and self.replayed_all and self.streams

    @property
    def streams(self) -> bool:
        return self.status == "streaming" and not self.is_cut_off

    @property
    def is_cut_off(self) -> bool:
        """A silent receiver sends a request after half its timeout; no answer, no connection."""
        if not self.receiver_timeout_s or self.silent_s is None:
            return False
        return self.silent_s > self.receiver_timeout_s / 2 + 1.0

    @property
    def trouble(self) -> tuple[Cause, str] | None:
        """Why it falls behind, where that is not just the work."""
        if not self.streams and (self.has_receiver or self.conninfo != ""):
            return Cause.REPLICATION_BROKEN, self._broken
        if self.paused:
            message = "replay is paused: SELECT pg_wal_replay_resume() on the replica"
            return Cause.REPLICATION_STOPPED, message
        return None

    @property
    def silence(self) -> str:
        return (
            f"the WAL receiver has received nothing for {self.silent_s:.0f} s: an idle primary and "
            "a dead network look the same. A heartbeat tells them apart: have the primary's agent "
            "write one (heartbeat_interval_s), or trust the silence with the option method = native"
        )

    @property
    def _broken(self) -> str:
        upstream = upstream_of(self.sender_host, self.sender_port, self.conninfo)
        source = f" from {upstream}" if upstream else ""
        what = f"the WAL receiver{source} is {self.status or 'not running'}"
        if self.status == "streaming":
            what = f"the WAL receiver{source} has received nothing for {self.silent_s:.0f} s"
        paused = "; replay is paused, too" if self.paused else ""
        return f"{what}{paused}; look at the primary, primary_conninfo and the server's log"


class StandbyLag:
    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        """Trust no silence: what has not arrived may be missing since the last message."""
        self._current_at: float | None = None
        self.since_replay_s: float | None = None
        """At the last read."""

    async def read(self, session: PostgresSession, monotonic: Monotonic) -> Number:
        state = StandbyState(*await session.row(STANDBY_QUERY))
        self.since_replay_s = state.since_replay_s
        if state.has_receiver and state.status is None:
            raise ProbeFailed(Cause.FAILED, may_not_see(session, "pg_stat_wal_receiver"))
        return self.judge(state, monotonic())

    def judge(self, state: StandbyState, now_s: float) -> Number:
        if state.is_current:
            if self._strict and state.silent_s is not None and state.silent_s > QUIET_S:
                return Measured(state.silent_s, Cause.REPLICATION_SILENT, state.silence)
            self._current_at = now_s
            return 0.0
        lag_s = self._bound_s(state, now_s)
        if state.trouble is None:
            return lag_s
        return Measured(lag_s, *state.trouble)

    def _bound_s(self, state: StandbyState, now_s: float) -> float:
        # Each is an upper bound: no commit newer than the last replayed one is missing for
        # longer than that one's age, and nothing was missing when we saw it current. The
        # second keeps the first commit after a quiet hour from reading as an hour of lag.
        bounds = [state.since_replay_s]
        if self._current_at is not None:
            bounds.append(now_s - self._current_at)
        known = [bound for bound in bounds if bound is not None]
        if not known:
            cause, why = state.trouble or (Cause.FAILED, "it replays what it has received")
            message = "nothing has been replayed since the server started, so the lag is unknown"
            raise ProbeFailed(cause, f"{message}: {why}")
        return max(0.0, min(known))


# --- on a primary --------------------------------------------------------------------------

# Only physical standbys: a logical subscriber is bound to a database, pg_receivewal writes
# and never replays, pg_basebackup is in another state. A new standby has no position yet.
PRIMARY_QUERY = """
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::int8,
       pg_has_role('pg_read_all_stats', 'USAGE'),
       r.application_name || '@' || coalesce(r.client_addr::text, 'local'),
       pg_wal_lsn_diff(r.replay_lsn, '0/0')::int8
FROM (SELECT 1) AS always
LEFT JOIN (pg_stat_replication AS r JOIN pg_stat_activity AS a USING (pid))
  ON a.datid IS NULL AND r.state IN ('streaming', 'catchup')
  AND (r.replay_lsn IS NOT NULL OR r.write_lsn IS NULL)
ORDER BY 3, 4 DESC NULLS LAST
LIMIT 256
"""


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    replayed: int
    at_s: float


class WalMarks:
    """When the primary was first seen at which position. Old marks are thinned, never lost."""

    def __init__(self, limit: int = MAX_MARKS) -> None:
        self._limit = limit
        self._positions: list[int] = []
        self._times_s: list[float] = []

    def note(self, position: int, now_s: float) -> None:
        if self._positions and position < self._positions[-1]:
            # Another server, or an older one restored: its past is not this one's.
            self._positions, self._times_s = [], []
        if self._positions and position == self._positions[-1]:
            return
        self._positions.append(position)
        self._times_s.append(now_s)
        if len(self._positions) > self._limit:
            self._thin()

    def history_s(self, now_s: float) -> float:
        return now_s - self._times_s[0]

    def reaches_back_to(self, position: int) -> bool:
        return position >= self._positions[0]

    def lag_s(self, replayed: int, now_s: float) -> float:
        index = bisect.bisect_right(self._positions, replayed)
        return now_s - self._times_s[index] if index < len(self._times_s) else 0.0

    def _thin(self) -> None:
        half = len(self._positions) // 2
        self._positions[1:half] = self._positions[1:half:2]
        self._times_s[1:half] = self._times_s[1:half:2]


class PrimaryLag:
    """The worst of the standbys. One that has vanished counts on, for `remember_s`."""

    def __init__(self, remember_s: float = REMEMBER_REPLICA_S) -> None:
        self._remember_s = remember_s
        self._marks = WalMarks()
        self._seen: dict[str, ReplayPosition] = {}

    async def read(self, session: PostgresSession, monotonic: Monotonic) -> float:
        rows = await session.rows(PRIMARY_QUERY)
        flushed, sees_all = rows[0][:2]
        if not sees_all:
            raise ProbeFailed(Cause.FAILED, may_not_see(session, "pg_stat_replication"))
        return self.judge(flushed, _by_name(rows), monotonic())

    def judge(self, flushed: int, replayed: Mapping[str, int | None], now_s: float) -> float:
        self._marks.note(flushed, now_s)
        self._remember(replayed, now_s)
        if replayed and not self._seen:
            message = f"replica {next(iter(replayed))} has just connected and not reported yet"
            raise ProbeFailed(Cause.WARMING_UP, message)
        if not self._seen:
            raise ProbeFailed(
                Cause.UNSUPPORTED,
                "no replica streams from this primary, nor has one since measuring began: "
                "connect one, or leave this metric out here",
            )
        return max(self._lag_of(name, seen, now_s) for name, seen in self._seen.items())

    def _remember(self, replayed: Mapping[str, int | None], now_s: float) -> None:
        for name, position in replayed.items():
            if position is not None:
                self._seen[name] = ReplayPosition(position, now_s)
        fresh = {n: s for n, s in self._seen.items() if now_s - s.at_s <= self._remember_s}
        newest = sorted(fresh, key=lambda name: fresh[name].at_s, reverse=True)[:MAX_REPLICAS]
        self._seen = {name: fresh[name] for name in newest}

    def _lag_of(self, name: str, seen: ReplayPosition, now_s: float) -> float:
        at_least_s = max(self._marks.lag_s(seen.replayed, now_s), now_s - seen.at_s)
        history_s = self._marks.history_s(now_s)
        # A standby that was behind before we looked: how far, the marks cannot tell yet.
        if not self._marks.reaches_back_to(seen.replayed) and history_s < TELLING_HISTORY_S:
            raise ProbeFailed(
                Cause.WARMING_UP,
                f"replica {name} was behind already when measuring began {history_s:.1f} s ago: "
                f"at least {at_least_s:.1f} s",
            )
        return at_least_s


def _by_name(rows: Iterable[Row]) -> dict[str, int | None]:
    """Standbys of one name (`walreceiver` is everybody's) are distinguished by rank."""
    ranks: Counter[str] = Counter()
    replayed: dict[str, int | None] = {}
    for _, _, name, position in rows:
        if name is not None:
            ranks[name] += 1
            replayed[f"{name}#{ranks[name]}"] = position
    return replayed


# --- the replicated heartbeat row in Postgres: ours, or one of pt-heartbeat's ------------------
#     headgate.heartbeat     id, ts timestamptz, server, interval_s, idle
#     pt-heartbeat           ts text or timestamp, server_id, …   (the newest row counts)
#     pt-heartbeat --legacy  id, ts
#
# Lag is the replica's own clock minus the row's time, so it holds for any way of
# replicating, and grows when replication stops. A server that is no replica would
# find its own row, always fresh, so the row is not read there. Every read is a statement of
# its own and sees what has been replayed by then.


MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)

# A logical subscriber is not in recovery; its copy of the table is fed all the same.
IS_COPY = """
SELECT pg_is_in_recovery() AS in_recovery, pg_is_in_recovery()
    OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = to_regclass(%s)) AS is_copy
"""
# As JSON, since not every layout has every column. A time without a zone is UTC or local.
NEWEST = r"""
SELECT extract(epoch FROM now - CASE WHEN zoned THEN ts::timestamptz
           ELSE ts::timestamp AT TIME ZONE 'UTC' END)::float8,
       extract(epoch FROM now - CASE WHEN zoned THEN ts::timestamptz
           ELSE ts::timestamp AT TIME ZONE current_setting('TimeZone') END)::float8,
       zoned, (kept->>'interval_s')::float8, coalesce((kept->>'idle')::bool, false),
       coalesce(kept->>'server', '')
FROM (SELECT clock_timestamp() AS now, ts::text AS ts, to_jsonb(h) AS kept,
             pg_typeof(ts) = 'timestamptz'::regtype
          OR ts::text ~ ':\d\d(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$' AS zoned
      FROM {name} AS h ORDER BY h.ts DESC NULLS LAST LIMIT 1) AS newest
"""
OUR_COLUMNS = {"id", "ts", "server"}
COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped LIMIT 64
"""


# Looked up first where a table need not be there: a failed query would fill the server's log.
IS_GRANTED = """
SELECT EXISTS (
    SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relname = %s AND n.nspname = coalesce(%s, current_schema())
      AND has_schema_privilege(n.oid, 'USAGE')
      AND (SELECT bool_and(has_table_privilege(c.oid, verb)) FROM unnest(%s::text[]) AS verb))
"""


async def is_granted(session: PostgresSession, table: tuple[str, ...], *verbs: str) -> bool:
    schema = table[0] if len(table) == 2 else None
    [granted] = await session.row(IS_GRANTED, [table[-1], schema, list(verbs)])
    return bool(granted)


class HeartbeatLag:
    """Age of the newest row, by the server's own clock and what is known of its error."""

    def __init__(
        self, table: tuple[str, ...], skew: ClockSkew, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._table = table
        self._name = quoted(table)
        self._query = NEWEST.replace("{name}", self._name)
        self._skew = skew
        self._monotonic = monotonic
        self._standby = StandbyLag(strict=True)
        self._zone: str | None = None
        self._is_readable = False

    async def of_standby(self, session: PostgresSession) -> Number | None:
        """None where nobody writes heartbeats, or not for us to read."""
        if not self._is_readable:
            self._is_readable = await is_granted(session, self._table, "SELECT")
        try:
            rows = await session.rows(self._query) if self._is_readable else []
        except (*MISSING, psycopg.errors.InsufficientPrivilege):
            self._is_readable = False
            return None
        return await self._judge(session, rows[0], True, self._since_commit_s) if rows else None

    def _since_commit_s(self) -> float | None:
        """Every commit that arrives says as much as a heartbeat."""
        age_s = self._standby.since_replay_s
        return None if age_s is None else max(0.0, age_s - (self._skew.ahead_s or 0.0))

    async def __call__(self, session: PostgresSession) -> Number:
        try:
            in_recovery, is_copy = await session.row(IS_COPY, [self._name])
            rows = await session.rows(self._query) if is_copy else []
        except psycopg.errors.InsufficientPrivilege as error:
            raise _needs(error, rights(self._table, "SELECT", session.user)) from None
        except MISSING:
            raise heartbeats.missing(self._name) from None
        if not is_copy:
            message = (
                f"this server is not a replica, so the heartbeat in {self._name} is its own: "
                "check on the replica"
            )
            raise ProbeFailed(Cause.UNSUPPORTED, message)
        if not rows:
            raise heartbeats.empty(self._name)
        return await self._judge(session, rows[0], in_recovery)

    async def _judge(
        self,
        session: PostgresSession,
        row: Row,
        in_recovery: bool,
        without_writer: WithoutWriter = lambda: None,
    ) -> Number:
        async def native() -> Number:
            if not in_recovery:
                message = "a logical subscriber gives no account of its lag"
                raise ProbeFailed(Cause.UNSUPPORTED, message)
            return await self._standby.read(session, self._monotonic)

        newest = self._newest(*row)
        return await heartbeats.heartbeat_lag(newest, self._skew, native, without_writer)

    def _newest(
        self,
        utc_age_s: float,
        local_age_s: float,
        zoned: bool,
        interval_s: float | None,
        resting: bool,
        server: str,
    ) -> HeartbeatRow:
        if self._zone is None:
            self._zone = UTC if zoned else zone_of(utc_age_s, local_age_s)
        age_s = utc_age_s if self._zone == UTC else local_age_s
        return HeartbeatRow(self._name, age_s, interval_s, resting, server)


WRITES = ("SELECT", "INSERT", "UPDATE")


class PostgresBeat:
    """Writes the row; answers whether it did (a replica does not)."""

    def __init__(self, table: tuple[str, ...], interval_s: float, required: bool) -> None:
        self._table = table
        self._name = quoted(table)
        self._interval_s = interval_s
        self._required = required
        self._keeps_narrow = False
        """The table has the earlier layout, and the role may not change it."""
        self._lacks = ""
        """What to run; the table is not tried before it was: each try is an error in the log."""

    @property
    def create(self) -> str:
        schema = f"CREATE SCHEMA IF NOT EXISTS {quoted(self._table[:1])}; "
        columns = (
            "id int PRIMARY KEY DEFAULT 1, ts timestamptz NOT NULL, server text NOT NULL, "
            "interval_s float8, idle boolean NOT NULL DEFAULT false"
        )
        table = f"CREATE TABLE IF NOT EXISTS {self._name} ({columns})"
        return (schema if len(self._table) == 2 else "") + table

    @property
    def widen(self) -> str:
        """What the earlier layout lacks."""
        return (
            f"ALTER TABLE {self._name} ADD COLUMN IF NOT EXISTS interval_s float8, "
            "ADD COLUMN IF NOT EXISTS idle boolean NOT NULL DEFAULT false"
        )

    async def __call__(self, session: PostgresSession, resting: bool) -> bool:
        if self._lacks and not await is_granted(session, self._table, *WRITES):
            return await self._pulse(session, self._lacks, resting)
        try:
            return await self._beat(session, resting)
        except psycopg.errors.InsufficientPrivilege as error:
            await session.run("ROLLBACK")
            granted = rights(self._table, ", ".join(WRITES), session.user)
            self._lacks = _needs(error, f"{self.create}; {granted}").detail
            return await self._pulse(session, self._lacks, resting)

    async def _pulse(self, session: PostgresSession, lacks: str, resting: bool) -> bool:
        """Without the right to write a row: a record in the log, which any role may write. It
        shows standbys that the connection works, and so bounds what they can be missing."""
        [in_recovery] = await session.row("SELECT pg_is_in_recovery()")
        if in_recovery:
            return False
        if not resting:
            await session.run("SELECT pg_logical_emit_message(true, 'headgate', 'heartbeat')")
        if self._required:
            raise ProbeFailed(Cause.FAILED, lacks)
        return True

    async def _beat(self, session: PostgresSession, resting: bool) -> bool:
        _, is_copy = await session.row(IS_COPY, [self._name])
        if is_copy:
            return False
        if self._keeps_narrow and not resting:
            await session.run(self._narrow)
            return True
        try:
            await session.run(self._wide(resting))
        except MISSING:
            await session.run("ROLLBACK")
            await session.run(self.create)
            await session.run(self._wide(resting))
        except psycopg.errors.UndefinedColumn:
            await session.run("ROLLBACK")
            await self._beat_in_earlier_layout(session, resting)
        else:
            self._keeps_narrow = False
        return True

    async def _beat_in_earlier_layout(self, session: PostgresSession, resting: bool) -> None:
        columns = {name for [name] in await session.rows(COLUMNS, [self._name])}
        if not columns >= OUR_COLUMNS:
            raise heartbeats.not_ours(self._name)
        try:
            await session.run(self.widen)
        except psycopg.errors.InsufficientPrivilege as error:
            if resting:
                raise _needs(error, self.widen) from None
            self._keeps_narrow = True
            await session.run(self._narrow)
        else:
            await session.run(self._wide(resting))

    def _wide(self, resting: bool) -> str:
        return self._write(
            {"interval_s": f"{float(self._interval_s)!r}", "idle": str(resting).lower()}
        )

    @property
    def _narrow(self) -> str:
        return self._write({})

    def _write(self, more: dict[str, str]) -> str:
        server = "coalesce(host(inet_server_addr()), 'local') || ':' || current_setting('port')"
        values = {"ts": "clock_timestamp()", "server": server, **more}
        renewed = ", ".join(f"{name} = excluded.{name}" for name in values)
        # Local: a heartbeat that waited for a hung synchronous standby would hide the lag
        # of all the others. Not off: it should leave for the replicas at once.
        return f"""
            BEGIN;
            SET LOCAL synchronous_commit = local;
            INSERT INTO {self._name} (id, {", ".join(values)})
            VALUES (1, {", ".join(values.values())})
            ON CONFLICT (id) DO UPDATE SET {renewed};
            COMMIT"""  # noqa: S608 -- quoted


def rights(table: tuple[str, ...], verbs: str, user: str) -> str:
    grant = f"GRANT {verbs} ON {quoted(table)} TO {quoted((user,))}"
    if len(table) == 1:
        return grant
    return f"GRANT USAGE ON SCHEMA {quoted(table[:1])} TO {quoted((user,))}; {grant}"


def _needs(error: Exception, statements: str) -> ProbeFailed:
    message = f"{one_line(error)}; as an administrator run: {statements}"
    return ProbeFailed(Cause.FAILED, message)


def quoted(parts: tuple[str, ...]) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


# --- whether a Postgres server is a primary or a standby, on which timeline ----------------
# The timeline of a standby is the one it replays. A receiver is asked for the timeline of the
# position that replay needs next, so its own is right, in a cascade as well; without one, the
# control file has those of the last restart point and of the last flushed page. They may be
# older than what is replayed, never newer.


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
