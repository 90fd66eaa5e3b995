"""A Postgres connection as probes need it: bounded on the server, dropped without waiting."""

from __future__ import annotations

import asyncio
import difflib
import math
import re
import select
from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import AdaptContext, Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, Format
from psycopg.rows import TupleRow

from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.metrics.model import DsnParts
from headgate.metrics.probes.numbers import one_line
from headgate.metrics.samples import Cause

APPLICATION_NAME = "headgate"
CONNECT_TIMEOUT_S = 5
ADDED = {"connect_timeout", "application_name"}
"""What _params_of adds."""
# How often psycopg looks for more than its socket; only cancellation interrupts us.
_WAKE_EVERY_S = 0.1

RV = TypeVar("RV")
Row = tuple[Any, ...]

_TEXT_TYPES = ("bpchar", "name", "text", "varchar", '"char"')
_AS_THEY_ARE = "ascii"
"""What psycopg calls SQL_ASCII: bytes in whatever encoding their writer had."""


class TextLoader(Loader):
    """Always `str`. psycopg itself gives bytes where a database says SQL_ASCII, and raises at a
    byte that its encoding does not have: a server's views tell texts and names of all its
    databases, each in the encoding of its own.
    """

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        encoding = self.connection.info.encoding if self.connection else _AS_THEY_ARE
        self._encoding = "utf-8" if encoding == _AS_THEY_ARE else encoding

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(self._encoding, errors="replace")


class BinaryTextLoader(TextLoader):
    format = Format.BINARY


class PostgresProbeConnection(psycopg.AsyncConnection[TupleRow]):
    """When cancelled, psycopg sends a cancel request and waits for it; this closes the connection.

    The server ends the statement by its own statement_timeout; a frozen server would
    have kept us for seconds.
    """

    async def wait(
        self, gen: PQGen[RV], interval: float = _WAKE_EVERY_S, timeout: float | None = None
    ) -> RV:
        bound = {} if timeout is None else {"timeout": timeout}  # older versions know none
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, **bound)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise


class PostgresSession:
    def __init__(self, connection: PostgresProbeConnection) -> None:
        self._connection = connection
        self._limit_ms: int | None = None

    @property
    def version(self) -> int:
        """Such as 150004."""
        return self._connection.info.server_version

    @property
    def user(self) -> str:
        return self._connection.info.user

    @property
    def database(self) -> str:
        return self._connection.info.dbname

    def is_gone(self) -> bool:
        """An idle server has nothing to say but that it is going."""
        if self._connection.closed:
            return True
        poller = select.poll()
        poller.register(self._connection.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    def fileno(self) -> int:
        return self._connection.fileno()

    def has_hung_up(self) -> bool:
        """Takes in what an idle server may say: a changed setting, or that it is going."""
        try:
            self._connection.pgconn.consume_input()
        except psycopg.Error:
            return True
        return bool(self._connection.closed)

    async def limit(self, timeout_s: float) -> None:
        limit_ms = max(1, math.ceil(timeout_s * 1000))
        if limit_ms == self._limit_ms:
            return
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        await self.run("; ".join(f"SET {name} = {limit_ms}" for name in names))
        self._limit_ms = limit_ms

    async def run(self, statements: str) -> None:
        await self._connection.execute(statements.encode())

    async def row(self, query: str, params: Sequence[object] | None = None) -> Row:
        """The only row of a query that always answers one."""
        cursor = await self._connection.execute(query.encode(), params)
        row = await cursor.fetchone()
        assert row is not None, "the query answers one row by its form"
        return row

    async def rows(self, query: str, params: Sequence[object] | None = None) -> list[Row]:
        """All rows; for queries whose answer the server bounds."""
        # Binary needs the extended protocol, which takes one statement only:
        # `SELECT 1; DROP …` is rejected whole.
        cursor = await self._connection.execute(query.encode(), params, binary=True)
        return await cursor.fetchall()

    def discard(self) -> None:
        self._connection.pgconn.finish()

    async def leave(self) -> None:
        await self._connection.close()


class PostgresConnector:
    def __init__(self, name: str, dsn: str, password: str | None = None) -> None:
        self._params = _params_of(name, dsn, password)
        self._secret = str(self._params.get("password") or "")
        self.label = f"{name} at {_address(self._params)}"

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (psycopg.Error, OSError)

    async def connect(self) -> PostgresSession:
        try:
            connection = await PostgresProbeConnection.connect(
                autocommit=True, prepare_threshold=None, **self._params
            )
        except asyncio.CancelledError as cancelled:
            # Without its frames nothing holds the half-open socket: it closes here and now.
            raise cancelled.with_traceback(None) from None
        for name in _TEXT_TYPES:
            connection.adapters.register_loader(name, TextLoader)
            connection.adapters.register_loader(name, BinaryTextLoader)
        return PostgresSession(connection)

    def explain(self, error: Exception) -> ProbeFailed:
        ended = isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable)
        detail = f"{self.label}: {one_line(error, self._secret)}"
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            user = self._params.get("user", "the probing role")
            detail += f" (grant {user} what the query reads, such as GRANT SELECT ON … TO {user})"
        return ProbeFailed(Cause.TIMED_OUT if ended else Cause.FAILED, detail)


def _misspelled(told: str) -> str:
    """libpq quotes the part that it cannot read, which may be of the password: only what is nearly
    one of its own words is repeated."""
    match = re.search(r'"([a-z_]{1,20})"', told)
    known = [option.keyword.decode() for option in Conninfo.get_defaults()]
    near = difflib.get_close_matches(match[1], known, n=1, cutoff=0.6) if match else []
    if match is None or not near:
        return ""
    return f"has {match[1]!r}, which libpq does not know; did you mean {near[0]!r}?"


def _params_of(name: str, dsn: str, password: str | None) -> dict[str, Any]:
    try:
        params: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        message = _misspelled(str(error)) or (
            "is no libpq connection string: postgresql://… or host=… port=… dbname=… user=…"
        )
        raise InvalidSettings([Fault(f"databases.{name}.dsn", message)]) from None
    for port in str(params.get("port") or "").split(","):  # libpq looks only when it connects.
        if port and not (port.isdecimal() and 0 < int(port) < 65536):
            message = f"has the port {port!r}, must be a number from 1 to 65535"
            raise InvalidSettings([Fault(f"databases.{name}.dsn", message)])
    params.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    params["application_name"] = APPLICATION_NAME
    if password is not None:
        params["password"] = password
    return params


def parts_of(name: str, dsn: str) -> DsnParts:
    """The password may stand in the string or in the environment, as libpq reads it."""
    params = _params_of(name, dsn, None)
    kept = {key: params[key] for key in params if key not in ADDED | {"password"}}
    defaults = {option.keyword.decode(): option.val for option in Conninfo.get_defaults()}
    password = str(params.get("password") or _decoded(defaults.get("password")))
    user = str(params.get("user") or _decoded(defaults.get("user")))
    host = str(params.get("host") or params.get("hostaddr") or "")
    host = "" if host.startswith(("/", "@")) else host
    return DsnParts(make_conninfo("", **kept), password or None, user, host, _address(params))


def _decoded(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _address(params: dict[str, Any]) -> str:
    host = params.get("host") or params.get("hostaddr") or "local socket"
    return f"{host}:{params.get('port', 5432)}/{params.get('dbname', params.get('user', ''))}"
