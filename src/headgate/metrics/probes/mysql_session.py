"""A MySQL or MariaDB connection as probes need it: bounded on the server, dropped at once."""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import aiomysql
from pymysql import err
from pymysql.constants import CLIENT, ER

from headgate.base.paths import expanded
from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.metrics.model import DsnParts
from headgate.metrics.probes.numbers import one_line
from headgate.metrics.samples import Cause

PROGRAM_NAME = "headgate"
CONNECT_TIMEOUT_S = 5.0
# Statement timeouts do not end every wait for a lock (COMMIT, DDL); 1 s is the least they take.
# NOW() must speak the zone in which InnoDB reports the start of transactions: the system's.
ON_CONNECT = (
    "SET SESSION time_zone = 'SYSTEM', SESSION lock_wait_timeout = 1,"
    " SESSION innodb_lock_wait_timeout = 1"
)
MARIADB_STATEMENT_TIMEOUT, MYSQL_QUERY_TIMEOUT, TLS_REJECTED = 1969, 3024, 2026
TIMEOUT_CODES = {MARIADB_STATEMENT_TIMEOUT, MYSQL_QUERY_TIMEOUT, ER.LOCK_WAIT_TIMEOUT}
NOT_ALLOWED_CODES = {
    ER.DBACCESS_DENIED_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
}
MISSING_CODES = {ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR}

# Far more than any row we want (the longest are replicas' GTID sets), far less than hurts.
MAX_PACKET_BYTES = 1 << 20

Row = tuple[Any, ...]


class MysqlProbeConnection(aiomysql.Connection):  # type: ignore[misc]  # aiomysql is untyped
    """One statement per query, bounded packets, and no silent fall-back to plain text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.client_flag &= ~CLIENT.MULTI_STATEMENTS

    async def open(self) -> None:
        try:
            await self._connect()
        except BaseException:
            self.close()
            raise

    async def _request_authentication(self) -> None:
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            message = "the server offers no TLS, but ssl_ca demands it"
            raise err.OperationalError(TLS_REJECTED, message)
        await super()._request_authentication()

    async def _read_bytes(self, num_bytes: int) -> bytes:
        # A packet's length comes before it: what is too long is never received.
        if num_bytes > MAX_PACKET_BYTES:
            self.close()
            message = f"answered a row of {num_bytes} bytes or more, which is no number"
            raise ProbeFailed(Cause.INVALID, message)
        data: bytes = await super()._read_bytes(num_bytes)
        return data

    async def show_warnings(self) -> None:
        """None: a cursor would spend a round trip on them and print them."""

    def fileno(self) -> int:
        fd: int = self._writer.get_extra_info("socket").fileno()
        return fd

    def has_hung_up(self) -> bool:
        # Not at_eof(): a server may send a last error packet before it closes.
        return self.closed or self._reader.eof_received or self._reader.exception() is not None


@dataclass(slots=True)
class MysqlSession:
    connection: MysqlProbeConnection
    version: str = ""
    server: str = ""
    """`host:port` as the server calls itself."""
    _limit_s: float | None = field(default=None, init=False)

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.version.lower()

    @property
    def schema(self) -> str | None:
        """The one that the DSN names."""
        return self.connection.db or None

    async def account(self) -> str:
        """As GRANT wants it: `'user'@'host'`; the user alone would mean another account."""
        [(account,)] = await self.rows("SELECT CURRENT_USER()")
        user, _, host = str(account).rpartition("@")
        return "@".join("'" + part.replace("'", "''") + "'" for part in (user, host))

    async def introduce(self) -> None:
        await self.run(ON_CONNECT)
        [(self.version, self.server)] = await self.rows(
            "SELECT @@version, CONCAT(@@hostname, ':', @@port)"
        )

    def is_gone(self) -> bool:
        return self.connection.has_hung_up()

    def fileno(self) -> int:
        return self.connection.fileno()

    def has_hung_up(self) -> bool:
        return self.connection.has_hung_up()

    async def limit(self, timeout_s: float) -> None:
        if timeout_s == self._limit_s:
            return
        milliseconds = max(1, math.ceil(timeout_s * 1000))
        await self.run(
            f"SET SESSION max_statement_time = {milliseconds / 1000}"
            if self.is_mariadb
            else f"SET SESSION max_execution_time = {milliseconds}"
        )
        self._limit_s = timeout_s

    async def run(self, statement: str, params: Sequence[object] | None = None) -> None:
        await self._execute(statement, params, aiomysql.Cursor)

    async def rows(self, query: str, params: Sequence[object] | None = None) -> list[Row]:
        """All rows; for queries whose answer the server bounds."""
        cursor = await self._execute(query, params, aiomysql.Cursor)
        return list(await cursor.fetchall())

    async def dicts(self, query: str) -> list[dict[str, Any]]:
        cursor = await self._execute(query, None, aiomysql.DictCursor)
        return list(await cursor.fetchall())

    async def first_rows(self, query: str, count: int) -> list[Row]:
        """At most `count` rows, unbuffered. If there may be more, the session is over."""
        cursor = await self._execute(query, None, aiomysql.SSCursor)
        rows = list(await cursor.fetchmany(count))
        if len(rows) == count:
            self.discard()
        return rows

    async def _execute(self, query: str, params: Sequence[object] | None, kind: type) -> Any:
        cursor = await self.connection.cursor(kind)
        await cursor.execute(query, params)
        return cursor

    def discard(self) -> None:
        self.connection.close()

    async def leave(self) -> None:
        await self.connection.ensure_closed()


@dataclass(frozen=True, slots=True)
class Address:
    """`mysql://user[:password]@host:port/schema?socket=…&ssl_ca=…`, taken apart."""

    host: str
    port: int
    user: str | None
    password: str = field(repr=False)
    schema: str | None
    socket: str | None = None
    ssl_ca: str | None = None

    def __str__(self) -> str:
        where = self.socket or f"{self.host}:{self.port}"
        return f"{where}/{self.schema or ''}"


class MysqlConnector:
    def __init__(self, name: str, dsn: str, password: str | None = None) -> None:
        place = f"databases.{name}.dsn"
        self._address = parse_address(dsn, password, place)
        self._ssl = _ssl_context(self._address.ssl_ca, place)
        self.label = f"{name} at {self._address}"

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        # RuntimeError is what aiomysql and asyncio raise on a transport that is going down.
        return (err.Error, OSError, RuntimeError)

    async def connect(self) -> MysqlSession:
        address = self._address
        connection = MysqlProbeConnection(
            host=address.host,
            port=address.port,
            unix_socket=address.socket,
            user=address.user,
            password=address.password,
            db=address.schema,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            program_name=PROGRAM_NAME,
            ssl=self._ssl,
        )
        session = MysqlSession(connection)
        try:
            await connection.open()
            await session.introduce()
        except BaseException:
            session.discard()
            raise
        return session

    def explain(self, error: Exception) -> ProbeFailed:
        code = code_of(error)
        said = error.args[1] if code is not None and len(error.args) > 1 else error
        detail = f"{self.label}: {one_line(said, self._address.password)}"
        if isinstance(error.__cause__, OSError):
            detail += f": {_reason(error.__cause__)}"
        return ProbeFailed(Cause.TIMED_OUT if code in TIMEOUT_CODES else Cause.FAILED, detail)


def _reason(cause: OSError) -> str:
    # asyncio words ECONNREFUSED its own way; TLS and name errors use other numbers.
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    return one_line(cause)


def code_of(error: Exception) -> int | None:
    code = error.args[0] if isinstance(error, err.Error) and error.args else None
    return code if isinstance(code, int) else None


def parse_address(dsn: str, password: str | None, place: str) -> Address:
    try:
        return _parsed(dsn, password)
    except ValueError as error:
        raise InvalidSettings([Fault(place, str(error))]) from None


def _parsed(dsn: str, password: str | None) -> Address:
    """Faults name the part, never the text: it holds the password."""
    url = urlsplit(dsn)
    if url.scheme not in ("mysql", "mariadb"):
        raise ValueError("must begin with mysql://, such as mysql://headgate@127.0.0.1:3306/app")
    try:
        port = url.port or 3306
    except ValueError:
        raise ValueError("has a port that is no number from 0 to 65535") from None
    query = dict(parse_qsl(url.query))
    if unknown := sorted(query.keys() - {"socket", "ssl_ca"}):
        raise ValueError(f"has unknown parts {', '.join(unknown)}; known: socket, ssl_ca")
    return Address(
        host=url.hostname or "127.0.0.1",
        port=port,
        user=unquote(url.username) if url.username else None,
        password=unquote(url.password or "") if password is None else password,
        schema=unquote(url.path.lstrip("/")) or None,
        socket=query.get("socket"),
        ssl_ca=query.get("ssl_ca"),
    )


def parts_of(name: str, dsn: str) -> DsnParts:
    address = parse_address(dsn, None, f"databases.{name}.dsn")
    url = urlsplit(dsn)
    account, at, place = url.netloc.rpartition("@")
    kept = url._replace(netloc=f"{account.partition(':')[0]}{at}{place}").geturl()
    host = "" if address.socket else address.host
    return DsnParts(kept, address.password or None, address.user or "", host, str(address))


def _ssl_context(ssl_ca: str | None, place: str) -> ssl.SSLContext | None:
    if ssl_ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(expanded(ssl_ca)))
    except ValueError as error:
        raise InvalidSettings([Fault(place, f"names an ssl_ca that {error}")]) from None
    except OSError as error:
        message = f"names ssl_ca = {ssl_ca}, which cannot be used: {error.strerror or error}"
        raise InvalidSettings([Fault(place, message)]) from None


# --- the tables that Headgate writes -----------------------------------------------------------


def create_statements(table: tuple[str, ...], columns: str) -> tuple[str, ...]:
    schema = f"CREATE DATABASE IF NOT EXISTS {quoted(table[:1])}"
    create = f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({columns}) ENGINE=InnoDB"
    return (schema, create) if len(table) == 2 else (create,)


def may_need_table(error: Exception) -> bool:
    """A server that lets us write nothing says "denied" even where there is no table."""
    return code_of(error) in MISSING_CODES | NOT_ALLOWED_CODES


async def create_table(
    session: MysqlSession, table: tuple[str, ...], statements: tuple[str, ...]
) -> None:
    try:
        for statement in statements:
            await session.run(statement)
    except err.Error as error:
        if code_of(error) not in NOT_ALLOWED_CODES:
            raise
        rights = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {quoted(table)}"
        to_run = [*statements, f"{rights} TO {await session.account()}"]
        if len(table) == 1 and session.schema:
            to_run.insert(0, f"USE {quoted((session.schema,))}")
        message = f"{error.args[1]}; as an administrator run: {'; '.join(to_run)}"
        raise ProbeFailed(Cause.FAILED, message) from None


def quoted(parts: tuple[str, ...]) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
