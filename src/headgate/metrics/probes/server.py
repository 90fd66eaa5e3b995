"""What is read from a server besides its metrics: role, sessions, statements, facts about itself.

And `Kit`: all that the code of an engine (mysql, postgres) brings.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.history.sessions import SessionGroup
from headgate.metrics.model import Engine, Option
from headgate.metrics.probes.connections import Connector, Lane, Reader, S, Session
from headgate.metrics.probes.heartbeats import Beat, Enders
from headgate.metrics.samples import Cause
from headgate.shard.topology import RoleSeen

# --- roles ---------------------------------------------------------------------------------
# What a server is just now, and that its connection is gone, as soon as that is so.
#
#     agent ──► SqlRoleProbe.read ──► Lane of one ──► the engine's RoleReader ──► RoleSeen
#           └─► SqlRoleProbe.lost ◄── LossWatch ◄── the idle connection's socket
#
# A role is only as good as the connection that reported it: between queries the event loop watches
# the socket, and the end of the server is known without a query. While a query is under way
# the watch is off, and the query itself fails.


RoleReader = Callable[[S], Awaitable[RoleSeen]]
FenceReader = Callable[[S], Awaitable[bool]]
"""True: the server takes writes."""


class SqlRoleProbe(Generic[S]):
    """Reads one at a time, on a connection of its own: a slow probe must not delay a role."""

    def __init__(self, lane: Lane[S], reader: RoleReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s
        self._lost = asyncio.Event()
        self._watch: LossWatch | None = None

    async def read(self) -> RoleSeen:
        self._unwatch()
        self._lost.clear()
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    seen = await self._reader(session)
        except TimeoutError:
            message = f"{self._lane.label}: did not report its role in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None
        self._watch_over(session)
        return seen

    async def lost(self) -> None:
        """Returns once the server has closed the connection; not while there is none yet."""
        await self._lost.wait()

    async def close(self) -> None:
        self._unwatch()
        await self._lane.close()

    def _watch_over(self, session: S) -> None:
        if session.is_gone():
            self._lost.set()
        else:
            self._watch = LossWatch(session, self._lost)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class SqlFenceProbe(Generic[S]):
    """Whether a server takes writes: one short statement, on a connection of its own."""

    def __init__(self, lane: Lane[S], reader: FenceReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s

    async def read(self) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._reader(session)
        except TimeoutError:
            message = f"{self._lane.label}: did not report read_only in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None

    async def close(self) -> None:
        await self._lane.close()


class LossWatch:
    """Sets `lost` when the server hangs up on an idle session."""

    def __init__(self, session: Session, lost: asyncio.Event) -> None:
        self._session = session
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        # A descriptor of our own: the driver adds and removes a reader of its own on the
        # other one, and uvloop lends out none that a transport uses.
        self._fd: int | None = os.dup(session.fileno())
        self._loop.add_reader(self._fd, self._look)

    def _look(self) -> None:
        # Called again while there is something to read, so nothing is missed if the driver's
        # own reader comes second.
        if self._session.has_hung_up():
            self.close()
            self._lost.set()

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


# --- two clocks compared -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clocks:
    """The agent's own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # noqa: TID251 -- what a server's clock is compared with

    def ask(self) -> RoundTrip:
        return RoundTrip(self, self.monotonic(), self.wall())


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A question under way: the server looked at its clock about half-way."""

    clocks: Clocks
    asked_at: float
    asked_wall_s: float

    def clock_ahead_s(self, server_wall_s: float) -> float:
        """To be called when the answer is there."""
        half_s = (self.clocks.monotonic() - self.asked_at) / 2
        return server_wall_s - (self.asked_wall_s + half_s)


HERE = Clocks()


# --- sessions ------------------------------------------------------------------------------
# The sessions a server lists, by user, program and host, whether their clients check or not.


MAX_NAME_CHARS = 128
SessionReader = Callable[[S], Awaitable[Sequence[SessionGroup]]]
"""At most MAX_GROUPS, the most active first, without our own."""


class SqlSessionsProbe(Generic[S]):
    def __init__(self, lane: Lane[S], reader: SessionReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s

    async def read(self) -> Sequence[SessionGroup]:
        """Or ProbeFailed with the cause."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._reader(session)
        except TimeoutError:
            message = f"{self._lane.label}: did not list its sessions in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None

    async def close(self) -> None:
        """Nothing of its own: the connections belong to the lane."""


def group_of(
    user: object, application: object, host: object, sessions: object, active: object
) -> SessionGroup:
    return SessionGroup(
        _name(user), _name(application), _name(host), int(str(sessions)), int(str(active))
    )


def _name(told: object) -> str:
    return str(told or "")[:MAX_NAME_CHARS]


# --- statements ----------------------------------------------------------------------------
# What statements a server runs, by its number of them: see budgets/statements.py.


MAX_ROWS = 500
StatementReader = Callable[[S, Sequence[int]], Awaitable[Sequence[tuple[int, str]]]]
"""Of what runs, and of those that are wanted; at most MAX_ROWS of each."""


class SqlStatementsProbe(Generic[S]):
    def __init__(self, lane: Lane[S], reader: StatementReader[S], timeout_s: float) -> None:
        self._lane = lane
        self._reader = reader
        self._timeout_s = timeout_s

    async def read(self, wanted: Sequence[int]) -> Sequence[tuple[int, str]]:
        """Or ProbeFailed with the cause."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._reader(session, wanted)
        except TimeoutError:
            message = f"{self._lane.label}: did not list its statements in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None


# --- facts ---------------------------------------------------------------------------------
# What a server says of itself: version, extension, role, clock. For people, not for loops.


MAX_FACT_CHARS = 512
POSTGRES = """
SELECT 'version', version()
UNION ALL SELECT 'extension', coalesce(
  (SELECT extversion FROM pg_extension WHERE extname = 'pg_headgate'), 'not created here')
UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text
UNION ALL SELECT 'clock', clock_timestamp()::text
UNION ALL SELECT 'started', pg_postmaster_start_time()::text
UNION ALL SELECT 'user', current_user::text
UNION ALL SELECT 'may_monitor', pg_has_role('pg_monitor', 'USAGE')::text
UNION ALL SELECT 'service', (SELECT string_agg(name, ',') FROM (
  SELECT rolname::text AS name FROM pg_roles
  WHERE rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'alloydbsuperuser', 'azure_pg_admin')
  UNION SELECT 'aurora' FROM pg_proc WHERE proname = 'aurora_version') AS marks)
UNION ALL SELECT 'heartbeat_table', (SELECT format('%s.%s', nspname, relname)
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
  WHERE relname = 'heartbeat' AND nspname IN ('headgate', 'percona') ORDER BY nspname LIMIT 1)
UNION ALL SELECT name, setting FROM pg_settings WHERE name IN
  ('shared_preload_libraries', 'max_connections', 'wal_level', 'TimeZone')
"""
MYSQL = """
SELECT 'version', VERSION() UNION ALL SELECT 'comment', @@version_comment
UNION ALL SELECT 'read_only', @@read_only UNION ALL SELECT 'clock', UTC_TIMESTAMP(6)
UNION ALL SELECT 'max_connections', @@max_connections
UNION ALL SELECT 'performance_schema', @@performance_schema
UNION ALL SELECT 'user', CURRENT_USER()
UNION ALL SELECT 'privileges', (SELECT GROUP_CONCAT(privilege_type)
  FROM information_schema.user_privileges
  WHERE grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), ''''))
UNION ALL SELECT 'service', CONCAT(@@basedir, ' ', @@version_comment, ' ', VERSION())
UNION ALL SELECT 'heartbeat_table', (SELECT CONCAT(table_schema, '.', table_name)
  FROM information_schema.tables
  WHERE table_name = 'heartbeat' AND table_schema IN ('headgate', 'percona')
  ORDER BY table_schema LIMIT 1)
"""
QUERIES = {Engine.POSTGRES: POSTGRES, Engine.MYSQL: MYSQL}


class ServerFacts:
    def __init__(self, lane: Lane[Any], engine: Engine, timeout_s: float) -> None:
        self._lane = lane
        self._query = QUERIES[engine]
        self._timeout_s = timeout_s

    async def read(self) -> Mapping[str, str]:
        """Or ProbeFailed with the cause."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    rows = await session.rows(self._query)
        except TimeoutError:
            message = f"{self._lane.label}: no answer in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None
        known = ((name, value) for name, value in rows if value is not None)
        return {_text(name): _text(value)[:MAX_FACT_CHARS] for name, value in known}


def _text(value: object) -> str:
    """MySQL may have bytes for what a UNION mixes: their letters, and no b'…'."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# --- names of tables: `table` or `schema.table` --------------------------------------------


def split_table(text: str, *, place: str) -> tuple[str, ...]:
    parts = tuple(text.split("."))
    if len(parts) > 2 or not all(parts) or "\0" in text:
        message = f"is {text!r}, must read like `schema.table` or `table`"
        raise InvalidSettings([Fault(place, message)])
    return parts


# --- what an engine brings -----------------------------------------------------------------


Options = Mapping[str, Option]
MakeReader = Callable[[Options], Reader[S]]


@dataclass(frozen=True, slots=True)
class Kit(Generic[S]):
    connector: Connector[S]
    metrics: Mapping[str, MakeReader[S]]
    custom: Callable[[str], Reader[S]]
    """The reader of an operator's own query."""
    data_directory: Callable[[S], Awaitable[str]]
    beat: Callable[[tuple[str, ...], float, bool], Beat[S]]
    """The writer of a heartbeat into a table, every so many seconds, required or not."""
    enders: Enders[S]
    """For writes that were given up while the server still holds them."""
    role: Callable[[], RoleReader[S]]
    sessions: SessionReader[S]
    """Who is connected, and at work."""
    statements: StatementReader[S] | None = None
    """What they run, by the server's number of it; None: it has none."""
    fence: FenceReader[S] | None = None
    """For a server that can become a replica and keep its connections; None: it cannot."""


def plain(reader: Reader[S]) -> MakeReader[S]:
    """A metric without options and without memory."""
    return lambda options: reader
