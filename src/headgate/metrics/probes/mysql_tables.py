"""The tables that Headgate writes in MySQL and MariaDB: quoted, and made where it may make them."""

from __future__ import annotations

from pymysql import err

from headgate.errors import ProbeFailed
from headgate.metrics.probes.mysql_session import (
    MISSING_CODES,
    NOT_ALLOWED_CODES,
    MysqlSession,
    code_of,
)
from headgate.metrics.samples import Cause


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
