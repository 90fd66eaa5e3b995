"""Side connections to Postgres, for Plans.   Plans ──PlanSession.cost──► PREPARE, EXPLAIN EXECUTE

One way for every version: a statement that is prepared under `plan_cache_mode =
force_generic_plan` and explained with NULLs has the plan that EXPLAIN (GENERIC_PLAN) of Postgres 16
shows, and PREPARE itself takes nothing but SELECT, INSERT, UPDATE, DELETE, MERGE and VALUES.

The planner evaluates what does not depend on rows, and calls functions for estimates: a client that
may create functions has them run with this connection's rights. So these must be few: a role that
could do more than read is not used.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from headgate.proxy.model import PlanTerms
from headgate.proxy.plans import (
    CONNECT_TIMEOUT_S,
    MAX_PARAMETERS,
    ExplainFailed,
    NoSession,
    PlanSession,
    cost_in,
)

APPLICATION_NAME = "headgate-proxy"
LOCK_TIMEOUT_MS = 100
"""EXPLAIN does not wait for an exclusive lock: while it waits, it blocks others in the queue."""
_NAME = b"headgate_plan"
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
            await self._run(b"PREPARE " + _NAME + b" AS " + text + b"\n")
            count = int((await self._row(_COUNT))[0])
            if count > MAX_PARAMETERS:
                raise ExplainFailed(f"it has {count} parameters, at most {MAX_PARAMETERS}")
            values = b"(" + b", ".join([b"NULL"] * count) + b")" if count else b""
            row = await self._row(b"EXPLAIN (FORMAT JSON) EXECUTE " + _NAME + values)
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
