"""Any DB-API 2.0 driver.   connect(driver, gate, …) ──► the driver's connection, with checks

    connection = connect(sqlite3, gate, "app.db", tags={"app": "etl:nightly"})

It checks where no transaction is open and something is about to run. The driver says whether one
is open; if the driver does not know, the statements seen here decide. Everything else is the
driver's own, attribute by attribute, read and written.

Methods that run something are known by their names in DB-API and the drivers' additions to it. A
check precedes them wherever they are called: on a cursor, or on the connection as a shortcut.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from headgate import Client
from headgate.errors import Fault, InvalidSettings
from headgate.integrations.sqlcommenter import Tags, as_tags
from headgate.integrations.transactions import (
    TransactionBatch,
    begins,
    ends,
    in_transaction,
    is_autocommit,
)

_PERCENT_STYLES = frozenset({"format", "pyformat"})
# How drivers call a statement and its parameters.
_STATEMENT = ("operation", "query", "statement", "sql")
_PARAMETERS = ("parameters", "params", "args", "vars", "seq_of_parameters", "params_seq")

# Their first argument is a statement, which is tagged; then come its parameters.
STATEMENTS = frozenset(
    {
        "execute",
        "executemany",
        "query",  # PyMySQL, mysqlclient
        "cmd_query",  # MySQL Connector/Python
        "copy",  # psycopg
        "stream",
        "copy_expert",  # psycopg2
    }
)
# They run something, too, but what that is cannot be tagged: several statements, or none of ours.
OTHERS = frozenset(
    {
        "callproc",
        "callfunc",  # python-oracledb
        "executescript",  # sqlite3
        "backup",
        "iterdump",
        "blobopen",
        "copy_from",  # psycopg2
        "copy_to",
        "lobject",
    }
)
# They begin a transaction, and it stays open.
BEGINNINGS = frozenset({"begin", "start_transaction", "transaction", "tpc_begin"})
ENDINGS = frozenset({"commit", "rollback", "tpc_commit", "tpc_rollback"})
# Ways to the server below those above: nobody could say when a transaction begins there.
REJECTED = frozenset({"cmd_query_iter", "cmd_stmt_execute", "send_query", "real_query"})


def connect(
    driver: ModuleType,
    gate: Client,
    *args: Any,
    tags: Mapping[str, str] | None = None,
    every: int = 1,
    **settings: Any,
) -> ThrottledDbapiConnection:
    """`driver.connect(*args, **settings)`, throttled."""
    return throttled(driver.connect(*args, **settings), driver, gate, tags=tags, every=every)


def throttled(
    connection: Any,
    driver: ModuleType,
    gate: Client,
    *,
    tags: Mapping[str, str] | None = None,
    every: int = 1,
) -> ThrottledDbapiConnection:
    """A connection that is open already, such as one from a pool."""
    if inspect.iscoroutinefunction(getattr(connection, "commit", None)):
        message = f"{type(connection).__name__} is asynchronous, and a wait would block its loop"
        raise InvalidSettings([Fault("connection", message)])
    doubles = driver.paramstyle in _PERCENT_STYLES
    return ThrottledDbapiConnection(
        connection, TransactionGate(connection, gate, every), as_tags(tags), doubles
    )


class TransactionGate:
    """Of one connection: whether a transaction is open, and the wait before one."""

    def __init__(self, connection: Any, gate: Client, every: int) -> None:
        self._connection = connection
        self._gate = gate
        self._batch = TransactionBatch(every)
        self._open = False
        """As far as it went through here; looked at only where the driver does not tell."""

    def before(self, statement: str) -> None:
        """Waits, if a transaction begins with this statement."""
        ending = ends(statement)
        was_open = self.is_open()
        if not was_open and not ending:
            self._ask()
        stays = was_open or begins(statement) or not is_autocommit(self._connection)
        self._open = not ending and stays

    def before_beginning(self) -> None:
        if not self.is_open():
            self._ask()
        self._open = True

    def is_open(self) -> bool:
        told = in_transaction(self._connection)
        return self._open if told is None else told

    def over(self) -> None:
        self._open = False

    def _ask(self) -> None:
        if not self._batch.is_due():
            return
        try:
            self._gate.wait()
        except BaseException:
            self._batch.rejected()
            raise


class StatementCall(NamedTuple):
    """Of something that takes a statement and its parameters, by place or by name."""

    args: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def statement(self) -> Any:
        return self.args[0] if self.args else self.named.get(self._name)

    @property
    def has_parameters(self) -> bool:
        if len(self.args) > 1:
            return self.args[1] is not None
        return any(self.named.get(name) is not None for name in _PARAMETERS)

    def saying(self, statement: Any) -> StatementCall:
        """The same with another statement; the driver rejects a call without any."""
        if self.args:
            return self._replace(args=(statement, *self.args[1:]))
        return self._replace(named={**self.named, self._name: statement} if self._name else {})

    @property
    def _name(self) -> str:
        return next((name for name in _STATEMENT if name in self.named), "")


class _Through:
    """The driver's object with its own attributes; those that run something check first."""

    __slots__ = ("_connection", "_object")
    _connection: ThrottledDbapiConnection
    _object: Any

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(self._object, name)
        if name in REJECTED:
            message = "bypasses the checks and the tags; use execute, or driver_connection"
            raise InvalidSettings([Fault(name, message)])
        return self._connection.asking(self, name, theirs)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._object, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._object, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._object)})


class ThrottledDbapiConnection(_Through):
    __slots__ = ("_doubles", "_leave", "tags")
    _doubles: bool
    _leave: TransactionGate
    tags: Tags

    def __init__(self, connection: Any, leave: TransactionGate, tags: Tags, doubles: bool) -> None:
        own = {"_object": connection, "_connection": self, "_leave": leave, "tags": tags}
        for name, value in {**own, "_doubles": doubles}.items():
            object.__setattr__(self, name, value)

    @property
    def driver_connection(self) -> Any:
        return self._object

    def cursor(self, *args: Any, **settings: Any) -> ThrottledCursor:
        return ThrottledCursor(self, self._object.cursor(*args, **settings))

    def asking(self, owner: _Through, name: str, theirs: Any) -> Any:
        """The attribute of this name or, if it runs something, a function that checks first."""
        if name in STATEMENTS:
            return self._running(owner, theirs)
        if name in OTHERS:
            return self._calling(owner, theirs, lambda: self._leave.before(""))
        if name in BEGINNINGS:
            return self._calling(owner, theirs, self._leave.before_beginning)
        return self._ending(theirs) if name in ENDINGS else theirs

    def _running(self, owner: _Through, run: Callable[..., Any]) -> Callable[..., Any]:
        def running(*args: Any, **named: Any) -> Any:
            call = StatementCall(args, named)
            statement = call.statement
            self._leave.before(text_of(statement))
            written = call.saying(self._written(statement, call.has_parameters))
            return self._theirs(owner, run(*written.args, **written.named))

        return running

    def _calling(
        self, owner: _Through, call: Callable[..., Any], first: Callable[[], None]
    ) -> Callable[..., Any]:
        def calling(*args: Any, **settings: Any) -> Any:
            first()
            return self._theirs(owner, call(*args, **settings))

        return calling

    def _ending(self, end: Callable[..., Any]) -> Callable[..., Any]:
        def ending(*args: Any, **settings: Any) -> Any:
            result = end(*args, **settings)
            self._leave.over()
            return result

        return ending

    def _theirs(self, owner: _Through, result: Any) -> Any:
        """Drivers answer with the cursor itself, or with a new one: neither may get past us."""
        if result is owner._object:
            return owner
        is_cursor = hasattr(result, "execute") and hasattr(result, "fetchone")
        return ThrottledCursor(self, result) if is_cursor else result

    def _written(self, statement: Any, has_parameters: bool) -> Any:
        doubled = self._doubles and has_parameters
        if isinstance(statement, str):
            return self.tags.on(statement, doubled=doubled)
        if isinstance(statement, bytes):
            return self.tags.on_bytes(statement, doubled=doubled)
        return statement  # a driver's own kind, such as psycopg's sql.Composed

    def __enter__(self) -> ThrottledDbapiConnection:
        self._object.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        # Drivers differ in what this does; with all of them the transaction is over.
        self._leave.over()
        return self._object.__exit__(kind, error, trace)


class ThrottledCursor(_Through):
    __slots__ = ()

    def __init__(self, connection: ThrottledDbapiConnection, cursor: Any) -> None:
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_object", cursor)

    @property
    def connection(self) -> ThrottledDbapiConnection:
        return self._connection

    @property
    def driver_cursor(self) -> Any:
        return self._object

    def __iter__(self) -> Any:
        return iter(self._object)

    def __next__(self) -> Any:
        return next(self._object)

    def __enter__(self) -> ThrottledCursor:
        return self

    def __exit__(self, *_: object) -> None:
        self._object.close()


def text_of(statement: Any) -> str:
    """For its first word; what is neither text nor bytes begins and ends no transaction."""
    if isinstance(statement, bytes):
        return statement.decode("latin-1")
    return statement if isinstance(statement, str) else ""
