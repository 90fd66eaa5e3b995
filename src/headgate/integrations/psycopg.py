"""psycopg 3, sync and async.   connection_class(gate) ──► a Connection that checks

    with connection_class(gate, app="etl:nightly").connect("dbname=app") as connection: …
    ConnectionPool("dbname=app", connection_class=connection_class(gate))

It checks where the connection is idle and a statement, a COPY, a `transaction()` block or
`tpc_begin` is about to begin a transaction. libpq's own state of the connection decides, so that no
other way to begin one is missed. `app` goes out of band, as application_name; `tags` go with each
statement, and a fixed set of them leaves one prepared statement for each text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import psycopg
from psycopg import sql
from psycopg.abc import Params
from psycopg.pq import TransactionStatus

from headgate import AsyncClient, Client
from headgate.integrations.sqlcommenter import Tags, application_name, as_tags
from headgate.integrations.transactions import TransactionBatch, checked_every


class Manner(NamedTuple):
    """How the connections of one class check."""

    tags: Tags
    every: int
    names: Mapping[str, str]
    """Settings of libpq: a name that was asked for, or one for where there is no other."""


def _manner(
    gate: Client | AsyncClient, app: str | None, tags: Mapping[str, str] | None, every: int
) -> Manner:
    setting = "fallback_application_name" if app is None else "application_name"
    names = {setting: application_name(app or gate.app)}
    return Manner(as_tags(tags), checked_every(every), names)


def connection_class(
    gate: Client,
    *,
    app: str | None = None,
    tags: Mapping[str, str] | None = None,
    every: int = 1,
) -> type[ThrottledConnection]:
    """For `.connect(…)`, and for a pool's `connection_class`. Without `app` the gate's name is
    the application_name of those that have no other."""
    settings = {"gate": gate, "manner": _manner(gate, app, tags, every)}
    return type("ThrottledConnection", (ThrottledConnection,), settings)


def async_connection_class(
    gate: AsyncClient,
    *,
    app: str | None = None,
    tags: Mapping[str, str] | None = None,
    every: int = 1,
) -> type[ThrottledAsyncConnection]:
    settings = {"gate": gate, "manner": _manner(gate, app, tags, every)}
    return type("ThrottledAsyncConnection", (ThrottledAsyncConnection,), settings)


# --- what both kinds share --------------------------------------------------------------------


# They leave `%` alone, whatever they are given: their placeholders are $1, $2.
_RAW = (
    psycopg.RawCursor,
    psycopg.RawServerCursor,
    psycopg.AsyncRawCursor,
    psycopg.AsyncRawServerCursor,
)


class _Tagging:
    """Before a kind of cursor, in the order of its bases."""

    connection: Any

    def _tagged(self, query: Any, params: Any) -> Any:
        """psycopg reads `%` in a text only where it is given parameters."""
        tags: Tags = self.connection.manner.tags
        doubled = params is not None and not isinstance(self, _RAW)
        if not tags.comment:
            return query
        if isinstance(query, sql.Composable):
            query = query.as_bytes(self.connection)  # as psycopg does next, with all it is given
        if isinstance(query, bytes):
            return tags.on_bytes(query, doubled=doubled)
        # Template strings are left alone: psycopg reads them by their parts.
        return tags.on(query, doubled=doubled) if isinstance(query, str) else query


@lru_cache(maxsize=64)
def throttled_kind(kind: type[Any], asking: type[_Tagging]) -> type[Any]:
    """The same kind of cursor (server-side, client-side binding, your own), which checks."""
    if issubclass(kind, asking):
        return kind
    return type(f"Throttled{kind.__name__}", (asking, kind), {})


class _Kinds:
    """The cursors that a connection makes. Whichever kinds are set, throttled ones are made."""

    _asking: ClassVar[type[_Tagging]]
    _kind: type[Any]
    _server_kind: type[Any]

    @property
    def cursor_factory(self) -> type[Any]:
        return self._kind

    @cursor_factory.setter
    def cursor_factory(self, kind: type[Any]) -> None:
        self._kind = self._throttled(kind)

    @property
    def server_cursor_factory(self) -> type[Any]:
        return self._server_kind

    @server_cursor_factory.setter
    def server_cursor_factory(self, kind: type[Any]) -> None:
        self._server_kind = self._throttled(kind)

    def _throttled(self, kind: type[Any]) -> type[Any]:
        return throttled_kind(kind, self._asking)  # type: ignore[arg-type] # classes are hashable


# For mypy, those that come after ours in the order of bases.
if TYPE_CHECKING:
    _AnyCursor: TypeAlias = psycopg.Cursor[Any]
    _AnyAsyncCursor: TypeAlias = psycopg.AsyncCursor[Any]
else:
    _AnyCursor = _AnyAsyncCursor = object


# --- sync ------------------------------------------------------------------------------------


class Asking(_Tagging, _AnyCursor):
    connection: Any

    def execute(self, query: Any, params: Params | None = None, **more: Any) -> Any:
        self.connection.admit()
        return super().execute(self._tagged(query, params), params, **more)

    def executemany(self, query: Any, params_seq: Iterable[Params], **more: Any) -> None:
        self.connection.admit()
        super().executemany(self._tagged(query, ()), params_seq, **more)

    def stream(self, query: Any, params: Params | None = None, **more: Any) -> Iterator[Any]:
        self.connection.admit()
        yield from super().stream(self._tagged(query, params), params, **more)

    @contextmanager
    def copy(self, statement: Any, params: Params | None = None, **more: Any) -> Iterator[Any]:
        self.connection.admit()
        with super().copy(self._tagged(statement, params), params, **more) as copy:
            yield copy


class ThrottledConnection(_Kinds, psycopg.Connection[Any]):
    gate: ClassVar[Client]
    manner: ClassVar[Manner]
    _asking = Asking

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._batch = TransactionBatch(self.manner.every)

    @classmethod
    def connect(cls, conninfo: str = "", **settings: Any) -> ThrottledConnection:
        connection = super().connect(conninfo, **{**cls.manner.names, **settings})
        assert isinstance(connection, ThrottledConnection)
        return connection

    def admit(self) -> None:
        """Waits, if a transaction begins with what comes next."""
        if self.info.transaction_status != TransactionStatus.IDLE or not self._batch.is_due():
            return
        try:
            self.gate.wait()
        except BaseException:
            self._batch.rejected()
            raise

    @contextmanager
    def transaction(self, *args: Any, **settings: Any) -> Iterator[Any]:
        self.admit()
        with super().transaction(*args, **settings) as transaction:
            yield transaction

    def tpc_begin(self, xid: Any) -> None:
        self.admit()
        super().tpc_begin(xid)


# --- async -----------------------------------------------------------------------------------


class AsyncAsking(_Tagging, _AnyAsyncCursor):
    connection: Any

    async def execute(self, query: Any, params: Params | None = None, **more: Any) -> Any:
        await self.connection.admit()
        return await super().execute(self._tagged(query, params), params, **more)

    async def executemany(self, query: Any, params_seq: Iterable[Params], **more: Any) -> None:
        await self.connection.admit()
        await super().executemany(self._tagged(query, ()), params_seq, **more)

    async def stream(
        self, query: Any, params: Params | None = None, **more: Any
    ) -> AsyncIterator[Any]:
        await self.connection.admit()
        async for row in super().stream(self._tagged(query, params), params, **more):
            yield row

    @asynccontextmanager
    async def copy(
        self, statement: Any, params: Params | None = None, **more: Any
    ) -> AsyncIterator[Any]:
        await self.connection.admit()
        async with super().copy(self._tagged(statement, params), params, **more) as copy:
            yield copy


class ThrottledAsyncConnection(_Kinds, psycopg.AsyncConnection[Any]):
    gate: ClassVar[AsyncClient]
    manner: ClassVar[Manner]
    _asking = AsyncAsking

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._batch = TransactionBatch(self.manner.every)

    @classmethod
    async def connect(cls, conninfo: str = "", **settings: Any) -> ThrottledAsyncConnection:
        connection = await super().connect(conninfo, **{**cls.manner.names, **settings})
        assert isinstance(connection, ThrottledAsyncConnection)
        return connection

    async def admit(self) -> None:
        """Waits, if a transaction begins with what comes next."""
        if self.info.transaction_status != TransactionStatus.IDLE or not self._batch.is_due():
            return
        try:
            await self.gate.wait()
        except BaseException:
            self._batch.rejected()
            raise

    @asynccontextmanager
    async def transaction(self, *args: Any, **settings: Any) -> AsyncIterator[Any]:
        await self.admit()
        async with super().transaction(*args, **settings) as transaction:
            yield transaction

    async def tpc_begin(self, xid: Any) -> None:
        await self.admit()
        await super().tpc_begin(xid)
