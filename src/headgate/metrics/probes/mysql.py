"""The metrics of a MySQL or MariaDB server, and an operator's own queries.

A user with PROCESS, REPLICATION CLIENT (MariaDB: SLAVE MONITOR) and, for commit_delay and
heartbeats, write access to the schema `headgate` can read all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from pymysql import err

from headgate.errors import ProbeFailed
from headgate.history.sessions import MAX_GROUPS, SessionGroup
from headgate.metrics.probes.connections import Reader
from headgate.metrics.probes.heartbeats import ClockSkew, Enders
from headgate.metrics.probes.mysql_replication import (
    MysqlBeat,
    MysqlRole,
    end_write,
    is_read_only,
    lag,
    takes_writes,
)
from headgate.metrics.probes.mysql_session import (
    MISSING_CODES,
    NOT_ALLOWED_CODES,
    PROGRAM_NAME,
    MysqlConnector,
    MysqlSession,
    code_of,
    create_statements,
    create_table,
    may_need_table,
    quoted,
)
from headgate.metrics.probes.numbers import number_of, one_number, one_shown
from headgate.metrics.probes.server import Kit, MakeReader, Options, group_of, plain, split_table
from headgate.metrics.samples import Cause

MAX_CUSTOM_ROWS = 2


async def status(session: MysqlSession, name: str) -> float:
    rows = await session.rows("SHOW GLOBAL STATUS WHERE Variable_name = %s", [name])
    if not rows:
        raise ProbeFailed(Cause.UNSUPPORTED, f"this server has no status variable {name}")
    return one_shown(rows)


async def threads_running(session: MysqlSession) -> float:
    return max(0.0, await status(session, "Threads_running") - 1)  # without this very statement


async def pool_usage(session: MysqlSession) -> float:
    [(most,)] = await session.rows("SELECT @@global.max_connections")
    return await status(session, "Threads_connected") / float(most)


# Row locks from InnoDB; metadata and table locks from the process list, because
# performance_schema is off by default in MariaDB. The two never show one session twice.
# InnoDB renews INNODB_TRX only when nobody has read it for 0.1 s: probing these metrics
# several times a second would read the same old answer again and again.
LOCK_WAITS = """
SELECT COUNT(*), COALESCE(MAX(waited_s), 0) FROM (
    SELECT TIMESTAMPDIFF(MICROSECOND, trx_wait_started, NOW(6)) / 1e6 AS waited_s
    FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'
    UNION ALL
    SELECT {waited_s} FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for%lock'
) AS waits
"""


async def _lock_waits(session: MysqlSession) -> tuple[float, float]:
    waited_s = "TIME_MS / 1000" if session.is_mariadb else "TIME"
    [(count, longest_s)] = await session.rows(LOCK_WAITS.format(waited_s=waited_s))
    return number_of(count), max(0.0, number_of(longest_s))


async def lock_waits(session: MysqlSession) -> float:
    return (await _lock_waits(session))[0]


async def longest_lock_wait(session: MysqlSession) -> float:
    return (await _lock_waits(session))[1]


async def oldest_transaction(session: MysqlSession) -> float:
    """0 is a true value: no transaction is open."""
    [(age_s,)] = await session.rows(
        "SELECT COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, trx_started, NOW(6))) / 1e6, 0)"
        " FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id <> CONNECTION_ID()"
    )
    return max(0.0, number_of(age_s))


async def history_list_length(session: MysqlSession) -> float:
    if session.is_mariadb:
        return await status(session, "Innodb_history_list_length")
    rows = await session.rows(
        "SELECT `COUNT` FROM information_schema.INNODB_METRICS"
        " WHERE NAME = 'trx_rseg_history_len' AND STATUS = 'enabled'"
    )
    if not rows:
        hint = "SET GLOBAL innodb_monitor_enable = 'trx_rseg_history_len'"
        raise ProbeFailed(Cause.UNSUPPORTED, f"the InnoDB counter is switched off: {hint}")
    return one_number(rows)


class CommitDelay:
    """The round trip of COMMIT alone, for a transaction that writes one row."""

    def __init__(self, options: Options, enders: Enders[MysqlSession]) -> None:
        self._enders = enders
        name = str(options.get("table", "headgate.commit_probe"))
        self._table = split_table(name, place="commit_delay.options.table")
        # A row per server: in a Galera cluster the nodes' probes must not collide.
        self._write = f"REPLACE INTO {quoted(self._table)} VALUES (%s, UTC_TIMESTAMP(6))"  # noqa: S608

    async def __call__(self, session: MysqlSession) -> float:
        if await is_read_only(session):
            message = "the server is read_only and takes no commits: measure on its primary"
            raise ProbeFailed(Cause.UNSUPPORTED, message)
        await self._begin(session)
        started_s = time.perf_counter()
        try:
            await session.run("COMMIT")
        except asyncio.CancelledError:
            self._enders.give_up(session)
            raise
        return time.perf_counter() - started_s

    async def _begin(self, session: MysqlSession) -> None:
        try:
            await self._begin_and_write(session)
        except err.Error as error:
            if not may_need_table(error):
                raise
            await session.run("ROLLBACK")
            columns = "server VARCHAR(255) NOT NULL PRIMARY KEY, ts DATETIME(6) NOT NULL"
            await create_table(session, self._table, create_statements(self._table, columns))
            await self._begin_and_write(session)

    async def _begin_and_write(self, session: MysqlSession) -> None:
        await session.run("START TRANSACTION")
        await session.run(self._write, [session.server])


class FlowControl:
    """Galera: share of the time since the last read that was spent paused."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: tuple[float, float] | None = None

    async def __call__(self, session: MysqlSession) -> float:
        rows = await session.rows("SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on'")
        if not rows or rows[0][1] != "ON":
            message = "wsrep_on is not ON: flow control is a matter of Galera clusters"
            raise ProbeFailed(Cause.UNSUPPORTED, message)
        return self.judge(await status(session, "wsrep_flow_control_paused_ns"), self._monotonic())

    def judge(self, paused_ns: float, now_s: float) -> float:
        last, self._last = self._last, (paused_ns, now_s)
        if last is None or paused_ns < last[0] or now_s <= last[1]:
            raise ProbeFailed(Cause.WARMING_UP, "a share of time needs two reads of the counter")
        return (paused_ns - last[0]) / 1e9 / (now_s - last[1])


async def data_directory(session: MysqlSession) -> str:
    [(directory,)] = await session.rows("SELECT @@global.datadir")
    return str(directory)


def custom(query: str) -> Reader[MysqlSession]:
    """An operator's query: read only, one statement, and no more rows than tell one from many."""
    number = one_shown if query.lstrip()[:4].lower() == "show" else one_number

    async def read(session: MysqlSession) -> float:
        await session.run("START TRANSACTION READ ONLY")
        rows = await session.first_rows(query, MAX_CUSTOM_ROWS)
        if not session.is_gone():
            await session.run("ROLLBACK")
        return number(rows)

    return read


METRICS: Mapping[str, MakeReader[MysqlSession]] = {
    "threads_running": plain(threads_running),
    "pool_usage": plain(pool_usage),
    "lock_waits": plain(lock_waits),
    "longest_lock_wait": plain(longest_lock_wait),
    "oldest_transaction": plain(oldest_transaction),
    "history_list_length": plain(history_list_length),
    "flow_control": lambda options: FlowControl(),
}


def kit(name: str, dsn: str, password: str | None, skew: ClockSkew) -> Kit[MysqlSession]:
    connector = MysqlConnector(name, dsn, password)
    enders = Enders(connector, end_write)
    return Kit(
        connector=connector,
        metrics={
            **METRICS,
            "lag": lambda options: lag(options, skew),
            "commit_delay": lambda options: CommitDelay(options, enders),
        },
        custom=custom,
        data_directory=data_directory,
        beat=MysqlBeat,
        enders=enders,
        role=MysqlRole,
        sessions=mysql_sessions,
        fence=takes_writes,
    )


# --- who is connected to a MySQL or MariaDB server, and who of them is at work -----------------
# The process list knows no program's name; where the server keeps what clients say of
# themselves (performance_schema), `program_name` is taken from there.


# Replicas, the server's own threads and logins under way are no clients. A user without PROCESS
# sees only itself.
SESSIONS = f"""
SELECT p.USER, {{program}}, SUBSTRING_INDEX(p.HOST, ':', 1), COUNT(*),
       SUM(p.COMMAND NOT IN ('Sleep')) AS active
FROM information_schema.PROCESSLIST AS p {{join}}
WHERE p.ID <> CONNECTION_ID() AND p.COMMAND NOT LIKE 'Binlog Dump%' AND p.COMMAND <> 'Daemon'
  AND p.USER NOT IN ('system user', 'event_scheduler', 'unauthenticated user')
  AND {{program}} <> '{PROGRAM_NAME}'
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
