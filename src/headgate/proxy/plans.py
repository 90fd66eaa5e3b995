"""What a pattern costs, by the planner's own word: EXPLAIN on a side connection, once a pattern.

    relay: a new pattern under a budget ──plan_wanted──► Plans ──EXPLAIN──► server
                                                           └──put_plan──► relay's table

Nothing waits for it: until a cost is known, a pattern counts as 1, and its price is learnt from
wall time. The text is a client's, so it is treated as one: whole texts of one statement that reads
or changes rows, prepared by the extended protocol (which takes one statement and no more) under a
generic plan with NULLs, in a transaction that is read-only and always rolled back, by a role of its
own. Nothing is ever executed: EXPLAIN without ANALYZE plans.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple, Protocol

import psycopg
import structlog
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from headgate.base.ports import Clock
from headgate.budgets.native.region import PatternView
from headgate.proxy.model import PlanTerms
from headgate.proxy.ports import ClientKey, PartState, Relay, WantedPlan

log = structlog.get_logger()

MAX_WAITING = 256
"""Patterns that wait; more are asked for again by their next statements."""
MAX_CONNECTIONS = 4
IDLE_S = 60.0
CONNECT_TIMEOUT_S = 5
RETRY_S, MAX_RETRY_S = 60.0, 3600.0
"""A pattern that could not be explained is tried again after this, then twice as long, …"""
CONNECT_RETRY_S, MAX_CONNECT_RETRY_S = 1.0, 60.0
MAX_PARAMETERS = 1000
MAX_COST = 1e15
_EXPLAINED = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE"})
_LEAD = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)*\(*\s*([A-Za-z]+)")
_NAME = "headgate_plan"


def may_be_explained(wanted: WantedPlan) -> bool:
    """Whole, and one of the statements that have a plan; the server decides about the rest."""
    lead = _LEAD.match(wanted.text)
    return wanted.whole and "\0" not in wanted.text and bool(lead and lead[1].upper() in _EXPLAINED)


class ExplainFailed(Exception):
    """Of one pattern: the server returned an error. Never leaves this module and its sessions."""


class NoSession(Exception):
    """Of a database: it could not be connected to, or the connection was lost."""


class PlanSession(Protocol):
    """A side connection to one database."""

    async def cost(self, text: str) -> float:
        """Of the statement's generic plan; ExplainFailed, NoSession."""
        ...

    async def close(self) -> None: ...


class PlanSessions(Protocol):
    async def open(self, database: str) -> PlanSession:
        """Or NoSession with why."""
        ...


class _Kept(NamedTuple):
    session: PlanSession
    used_at: float


class _Failing(NamedTuple):
    times: int
    not_before: float
    why: str


class Plans:
    name = "plans"

    def __init__(
        self,
        relay: Relay,
        terms: PlanTerms,
        sessions: PlanSessions,
        clock: Clock,
        patterns: Callable[[], Sequence[PatternView]] = lambda: (),
    ) -> None:
        """`patterns`: the region's, for how far estimates are off."""
        self._relay = relay
        self._terms = terms
        self._sessions = sessions
        self._clock = clock
        self._patterns = patterns
        self._waiting: deque[WantedPlan] = deque()
        self._queued: set[int] = set()
        self._wanted = asyncio.Event()
        self._known: OrderedDict[int, float] = OrderedDict()
        self._failing: OrderedDict[int, _Failing] = OrderedDict()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._away: dict[str, _Failing] = {}
        self.explained_total = self.failed_total = self.dropped_total = 0

    # --- called from outside ---------------------------------------------------------------

    def client_seen(self, client: ClientKey) -> None:
        return None

    def plan_wanted(self, wanted: WantedPlan) -> None:
        known = self._known.get(wanted.pattern)
        if known is not None:
            # The relay's table is smaller than ours, or new.
            self._relay.put_plan(wanted.pattern, known)
            return
        if wanted.pattern in self._queued or not self._is_due(wanted.pattern):
            return
        if not may_be_explained(wanted):
            self._fail(wanted.pattern, "no statement that has a plan, or not whole")
            return
        if len(self._waiting) >= MAX_WAITING:
            self.dropped_total += 1
            return
        self._waiting.append(wanted)
        self._queued.add(wanted.pattern)
        self._wanted.set()

    def _is_due(self, pattern: int) -> bool:
        failing = self._failing.get(pattern)
        return failing is None or self._clock.now().mono_s >= failing.not_before

    # --- the loop --------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self._rest()
            if self._waiting:
                wanted = self._waiting.popleft()
                self._queued.discard(wanted.pattern)
                await self.explain(wanted)
                await self._clock.sleep(1.0 / self._terms.per_s)

    async def _rest(self) -> None:
        """Until something is wanted; connections that nobody needs are closed meanwhile."""
        while not self._waiting:
            self._wanted.clear()
            waiting = asyncio.ensure_future(self._wanted.wait())
            sleeping = asyncio.ensure_future(self._clock.sleep(IDLE_S))
            try:
                await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                sleeping.cancel()
            await self._close_idle()

    async def explain(self, wanted: WantedPlan) -> None:
        away = self._away.get(wanted.database)
        if away is not None and self._clock.now().mono_s < away.not_before:
            return  # Asked for again by its next statement.
        try:
            session = await self._session(wanted.database)
            async with asyncio.timeout(self._terms.timeout_s + 1.0):
                cost = await session.cost(wanted.text)
        except ExplainFailed as fault:
            self._fail(wanted.pattern, str(fault))
        except (NoSession, TimeoutError) as fault:
            await self._drop(wanted.database)
            self._unreachable(wanted.database, str(fault) or "no answer in time")
        else:
            self._away.pop(wanted.database, None)
            self._learn(wanted.pattern, cost)

    def _learn(self, pattern: int, cost: float) -> None:
        self._known[pattern] = cost
        self._failing.pop(pattern, None)
        if len(self._known) > self._terms.max_known:
            self._known.popitem(last=False)
        self.explained_total += 1
        self._relay.put_plan(pattern, cost)

    def _fail(self, pattern: int, why: str) -> None:
        times = self._failing[pattern].times + 1 if pattern in self._failing else 1
        pause_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** (times - 1))
        self._failing[pattern] = _Failing(times, self._clock.now().mono_s + pause_s, why)
        self._failing.move_to_end(pattern)
        if len(self._failing) > self._terms.max_known:
            self._failing.popitem(last=False)
        self.failed_total += 1

    def _unreachable(self, database: str, why: str) -> None:
        before = self._away.get(database)
        times = before.times + 1 if before else 1
        if before is None:
            log.warning("plans.unreachable", database=database, detail=why)
        pause_s = min(MAX_CONNECT_RETRY_S, CONNECT_RETRY_S * 2.0 ** (times - 1))
        if len(self._away) >= MAX_WAITING and before is None:
            self._away.clear()
        self._away[database] = _Failing(times, self._clock.now().mono_s + pause_s, why)

    # --- connections -----------------------------------------------------------------------

    async def _session(self, database: str) -> PlanSession:
        kept = self._kept.pop(database, None)
        if kept is None:
            if len(self._kept) >= MAX_CONNECTIONS:
                await self._drop(next(iter(self._kept)))
            async with asyncio.timeout(CONNECT_TIMEOUT_S + 1.0):
                session = await self._sessions.open(database)
        else:
            session = kept.session
        self._kept[database] = _Kept(session, self._clock.now().mono_s)
        return session

    async def _drop(self, database: str) -> None:
        kept = self._kept.pop(database, None)
        if kept is not None:
            await kept.session.close()

    async def _close_idle(self) -> None:
        now = self._clock.now().mono_s
        for database, kept in list(self._kept.items()):
            if now - kept.used_at >= IDLE_S:
                await self._drop(database)

    # --- state -----------------------------------------------------------------------------

    def state(self) -> PartState:
        errors = [one.known.error for one in self._patterns() if one.known.calls > 1]
        off = median(errors) if errors else None
        away = "; ".join(f"{name}: {one.why}" for name, one in list(self._away.items())[:3])
        told = f"{len(self._known)} patterns explained, {len(self._failing)} that cannot be"
        error = "" if off is None else f"; estimates are off by {off:.0%} in the middle"
        summary = f"{told}{error}{f'; {away}' if away else ''}"
        return PartState(self.name, not away, summary, figures={
            "explained_total": self.explained_total,
            "failed_total": self.failed_total,
            "dropped_total": self.dropped_total,
            "waiting": len(self._waiting),
            "calibration_error": off,
        })  # fmt: skip

    def why_not(self, pattern: int) -> str:
        """Why a pattern has no plan cost; empty: it has, or no plan was requested."""
        failing = self._failing.get(pattern)
        return failing.why if failing is not None else ""

    async def close(self) -> None:
        for database in list(self._kept):
            await self._drop(database)


def cost_in(answer: object) -> float:
    """`[{"Plan": {"Total Cost": 8.3, …}}]`, as text or as what JSON makes of it."""
    try:
        document = json.loads(answer) if isinstance(answer, str | bytes) else answer
        cost = float(document[0]["Plan"]["Total Cost"])  # type: ignore[index]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ExplainFailed(f"the plan has no cost: {error}") from None
    if not 0 <= cost <= MAX_COST:
        raise ExplainFailed(f"the plan's cost is {cost:g}, at most {MAX_COST:g} is believed")
    # 0 means "not known" to the relay; what costs nothing costs little.
    return max(cost, 0.01)


# --- EXPLAIN -------------------------------------------------------------------------------------

# Side connections to Postgres, for Plans.   Plans ──PlanSession.cost──► PREPARE, EXPLAIN EXECUTE
#
# One way for every version: a statement that is prepared under `plan_cache_mode =
# force_generic_plan` and explained with NULLs has the plan that EXPLAIN (GENERIC_PLAN) of Postgres
# 16 shows, and PREPARE itself takes nothing but SELECT, INSERT, UPDATE, DELETE, MERGE and VALUES.
#
# The planner evaluates what does not depend on rows, and calls functions for estimates: a client
# that may create functions has them run with this connection's rights. So these must be few: a role
# that could do more than read is not used.

APPLICATION_NAME = "headgate-proxy"
LOCK_TIMEOUT_MS = 100
"""EXPLAIN does not wait for an exclusive lock: while it waits, it blocks others in the queue."""
_NAME_BYTES = b"headgate_plan"
_COUNT = (
    b"SELECT pg_catalog.cardinality(parameter_types) FROM pg_catalog.pg_prepared_statements "
    b"WHERE name OPERATOR(pg_catalog.=) 'headgate_plan'"
)
_MIGHTY = (
    b"SELECT rolname FROM pg_catalog.pg_roles"
    b" WHERE pg_catalog.pg_has_role(session_user, oid, 'MEMBER')"
    b" AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls"
    b" OR rolname OPERATOR(pg_catalog.=) ANY ('{pg_execute_server_program,pg_read_server_files,"
    b"pg_write_server_files,pg_write_all_data,pg_signal_backend,pg_checkpoint,pg_maintain,"
    b"pg_create_subscription,pg_database_owner}')) ORDER BY rolname LIMIT 1"
)
"""A role that may do more than read, and that this connection is, or may become."""


class PostgresSessions:
    def __init__(self, terms: PlanTerms) -> None:
        self._terms = terms

    async def open(self, database: str) -> PlanSession:
        terms = self._terms
        try:
            connection = await psycopg.AsyncConnection.connect(
                **_parameters(terms, database), autocommit=True, prepare_threshold=None
            )
        except (psycopg.Error, OSError) as error:
            raise NoSession(f"cannot connect to {database!r}: {_one_line(error)}") from None
        limit_ms = max(1, math.ceil(terms.timeout_s * 1000))
        session = PostgresPlanSession(connection)
        try:
            await session.limit(limit_ms)
            mighty = await session.mighty()
        except psycopg.Error as error:
            await session.close()
            raise NoSession(f"{database!r} cannot be used: {_one_line(error)}") from None
        if mighty:
            await session.close()
            raise NoSession(
                f"the role of [plans] dsn is not used: as {mighty!r} it may do more than read, and "
                "functions of clients run with its rights while statements are planned. Give it a "
                "login role with SELECT on the tables and nothing else"
            )
        return session


class PostgresPlanSession:
    def __init__(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        self._connection = connection

    async def limit(self, limit_ms: int) -> None:
        settings = {
            "default_transaction_read_only": "on",
            "statement_timeout": str(limit_ms),
            "idle_in_transaction_session_timeout": str(limit_ms + 1000),
            "lock_timeout": str(min(LOCK_TIMEOUT_MS, limit_ms)),
            "plan_cache_mode": "force_generic_plan",
            "client_encoding": "UTF8",
            # The client's literals are folded already or are parameters; ours are ours.
            "standard_conforming_strings": "on",
        }
        for name, value in settings.items():
            await self._run(sql.SQL("SET {} = {}").format(sql.Identifier(name), value).as_bytes())

    async def mighty(self) -> str:
        """The name of a role with rights that planning must not have; empty: there is none."""
        cursor = await self._connection.execute(_MIGHTY, binary=True)
        row = await cursor.fetchone()
        return "" if row is None else str(row[0])

    async def cost(self, text: str) -> float:
        try:
            return await self._cost(text.encode())
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if self._connection.broken or self._connection.closed:
                raise NoSession(f"the connection was lost: {_one_line(error)}") from None
            raise ExplainFailed(_one_line(error)) from None
        except psycopg.Error as error:
            raise ExplainFailed(_one_line(error)) from None

    async def _cost(self, text: bytes) -> float:
        await self._run(b"BEGIN READ ONLY")
        try:
            # A line of its own: the text may end with a comment.
            await self._run(b"PREPARE " + _NAME_BYTES + b" AS " + text + b"\n")
            count = int((await self._row(_COUNT))[0])
            if count > MAX_PARAMETERS:
                raise ExplainFailed(f"it has {count} parameters, at most {MAX_PARAMETERS}")
            values = b"(" + b", ".join([b"NULL"] * count) + b")" if count else b""
            row = await self._row(b"EXPLAIN (FORMAT JSON) EXECUTE " + _NAME_BYTES + values)
            return cost_in(row[0])
        finally:
            with suppress(psycopg.Error):
                # Prepared statements outlive a rollback.
                await self._run(b"ROLLBACK")
                await self._run(b"DEALLOCATE ALL")

    async def _run(self, statement: bytes) -> None:
        # Binary needs the extended protocol: `SELECT 1; DROP …` is rejected whole.
        await self._connection.execute(statement, binary=True)

    async def _row(self, statement: bytes) -> TupleRow:
        cursor = await self._connection.execute(statement, binary=True)
        row = await cursor.fetchone()
        if row is None:
            raise ExplainFailed("the server answers nothing")
        return row

    async def close(self) -> None:
        """Without a goodbye: a server that hangs would be waited for."""
        self._connection.pgconn.finish()


def _parameters(terms: PlanTerms, database: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(conninfo_to_dict(terms.dsn))
    found.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    found["application_name"] = APPLICATION_NAME
    if database:
        found["dbname"] = database
    if terms.password is not None:
        found["password"] = terms.password
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
