"""The tables that Headgate writes in MySQL and MariaDB: quoted, and made where it may make them."""

from __future__ import annotations

from pymysql import err

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.mysql_session import NOT_ALLOWED_CODES, MysqlSession, code_of


def create_statements(table: tuple[str, ...], columns: str) -> tuple[str, ...]:
    schema = f"CREATE DATABASE IF NOT EXISTS {quoted(table[:1])}"
    create = f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({columns}) ENGINE=InnoDB"
    return (schema, create) if len(table) == 2 else (create,)


async def create_table(session: MysqlSession, statements: tuple[str, ...]) -> None:
    try:
        for statement in statements:
            await session.run(statement)
    except err.Error as error:
        if code_of(error) not in NOT_ALLOWED_CODES:
            raise
        message = f"{error.args[1]}; as an administrator run: {'; '.join(statements)}"
        raise ProbeFailed(Cause.FAILED, message) from None


def quoted(parts: tuple[str, ...]) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
