"""SQLAlchemy 2, sync and asyncio.   throttle(engine, gate) ──► its transactions check first

    throttle(engine, gate, tags={"app": "etl:nightly"})

Opt in and out where SQLAlchemy has its execution options:

    engine.execution_options(headgate=False)        an engine on the same pool without checks
    connection.execution_options(headgate=False)    before its transaction begins
    …execution_options(headgate_tags=Tags(…))       other tags for these statements

With `by_default=False` only those with `headgate=True` check and are tagged, such as the one
session of an application that belongs to a job: `Session(engine.execution_options(headgate=True))`.
`headgate="tags"` tags without a check, for code that does its own.

In autocommit SQLAlchemy's transactions do not exist on the server: there each statement checks,
unless it is within a BEGIN by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import AdaptedConnection, ExecutionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from headgate import AsyncClient, Client
from headgate.errors import Fault, InvalidSettings
from headgate.integrations.sqlcommenter import Tags, as_tags
from headgate.integrations.transactions import (
    TransactionBatch,
    checked_every,
    ends,
    in_transaction,
    is_autocommit,
)

OPTION = "headgate"
TAGS_ONLY = "tags"
TAGS_OPTION = "headgate_tags"
_PERCENT_STYLES = frozenset({"format", "pyformat"})
_IN_BEGIN = "_Connection__in_begin"


def throttle(
    engine: Engine | AsyncEngine,
    gate: Client | AsyncClient,
    *,
    tags: Mapping[str, str] | None = None,
    every: int = 1,
    by_default: bool = True,
) -> EngineThrottle:
    """Every transaction of `engine` waits until it is admitted, before it begins."""
    asynchronous = isinstance(engine, AsyncEngine)
    if asynchronous != isinstance(gate, AsyncClient):
        needed = "headgate.AsyncClient" if asynchronous else "headgate.Client"
        raise InvalidSettings([Fault("gate", f"{type(engine).__name__} needs a {needed}")])
    wait = _async_wait(gate) if isinstance(gate, AsyncClient) else _wait(gate)
    throttling = EngineThrottle(wait, as_tags(tags), checked_every(every), by_default)
    throttling.install(engine.sync_engine if isinstance(engine, AsyncEngine) else engine)
    return throttling


def _wait(gate: Client) -> Callable[[Connection], object]:
    return lambda _: gate.wait()


def _async_wait(gate: AsyncClient) -> Callable[[Connection], object]:
    def wait(connection: Connection) -> object:
        # We are called from within SQLAlchemy's greenlet: this is how one awaits from there.
        adapted = cast(AdaptedConnection, connection.connection.dbapi_connection)
        return adapted.run_async(lambda _: gate.wait())

    return wait


class EngineThrottle:
    """What was installed on an engine; `remove()` takes it off again."""

    def __init__(
        self, wait: Callable[[Connection], object], tags: Tags, every: int, by_default: bool
    ) -> None:
        self._wait = wait
        self._tags = tags
        self._every = every
        self._by_default = by_default
        self._engine: Engine | None = None

    def install(self, engine: Engine) -> None:
        self._engine = engine
        event.listen(engine, "begin", self._begin)
        event.listen(engine, "begin_twophase", self._begin)
        event.listen(engine, "before_cursor_execute", self._write, retval=True)

    def remove(self) -> None:
        assert self._engine is not None, "it was installed by throttle()"
        event.remove(self._engine, "begin", self._begin)
        event.remove(self._engine, "begin_twophase", self._begin)
        event.remove(self._engine, "before_cursor_execute", self._write)

    def _begin(self, connection: Connection, *_: object) -> None:
        if not _autocommits(connection):
            self._ask(connection, connection.get_execution_options())

    def _ask(self, connection: Connection, options: Mapping[str, Any]) -> None:
        wanted = options.get(OPTION, self._by_default)
        # Of the driver's connection, as `info` is: SQLAlchemy's own is new at each checkout.
        batch = connection.info.setdefault(self, TransactionBatch(self._every))
        assert isinstance(batch, TransactionBatch)
        if not wanted or wanted == TAGS_ONLY or not batch.is_due():
            return
        try:
            self._wait(connection)
        except BaseException:
            batch.rejected()
            _leave_begin(connection)
            raise

    def _write(
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        context: ExecutionContext | None,
        executemany: bool,
    ) -> tuple[str, Any]:
        options: Mapping[str, Any] = connection.get_execution_options()
        if context is not None:
            options = {**options, **context.execution_options}
        if not options.get(OPTION, self._by_default):
            return statement, parameters
        alone = _autocommits(connection) and not ends(statement)
        if alone and not in_transaction(connection.connection.driver_connection):
            self._ask(connection, options)
        tags = as_tags(options.get(TAGS_OPTION, self._tags))
        unread = options.get("no_parameters") and not parameters
        doubled = connection.dialect.paramstyle in _PERCENT_STYLES and not unread
        return tags.on(statement, doubled=doubled), parameters


def _autocommits(connection: Connection) -> bool:
    """As the driver has it, however it came to be set; asyncpg's is kept by SQLAlchemy alone."""
    pooled = connection.connection
    return is_autocommit(pooled.driver_connection) or is_autocommit(pooled.dbapi_connection)


def _leave_begin(connection: Connection) -> None:
    """What is raised by a listener to `begin` leaves SQLAlchemy (2.0, 2.1) within that begin: it
    would run what comes next without a transaction and a check, and commit nothing of it."""
    if hasattr(connection, _IN_BEGIN):
        setattr(connection, _IN_BEGIN, False)
    else:
        connection.close()  # a version with another name for it: better no connection than that
