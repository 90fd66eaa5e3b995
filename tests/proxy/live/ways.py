"""How a client reaches a server: directly, or through a proxy in one of its set-ups."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiomysql
import asyncpg
import mysql.connector
import psycopg
import pymysql
from psycopg.conninfo import make_conninfo

HOST = "127.0.0.1"
DATABASE = "parity"
CONNECT_S = 60


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    port: int
    ca: Path | None = None
    """Set: TLS, verified."""

    @property
    def context(self) -> ssl.SSLContext | None:
        return None if self.ca is None else ssl.create_default_context(cafile=str(self.ca))


@dataclass(frozen=True, slots=True)
class PostgresWay(Way):
    def options(self, **given: Any) -> dict[str, Any]:
        tls: dict[str, Any] = {"sslmode": "disable"}
        if self.ca is not None:
            tls = {"sslmode": "verify-full", "sslrootcert": str(self.ca)}
        where = {"host": HOST, "port": self.port, "dbname": DATABASE, "user": "postgres"}
        return {**where, **tls, "connect_timeout": CONNECT_S, "gssencmode": "disable", **given}

    def dsn(self, **given: Any) -> str:
        return make_conninfo("", **self.options(**given))

    def connect(self, *, autocommit: bool = True, **given: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(**given), autocommit=autocommit)

    async def aconnect(
        self, *, autocommit: bool = True, **given: Any
    ) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self.dsn(**given), autocommit=autocommit)

    async def asyncpg(self, **given: Any) -> asyncpg.Connection:
        where = {"host": HOST, "port": self.port, "database": DATABASE, "user": "postgres"}
        secure: dict[str, Any] = {"ssl": self.context or False, "timeout": CONNECT_S}
        return await asyncpg.connect(**{**where, **secure, **given})

    @property
    def environment(self) -> dict[str, str]:
        """For libpq's own programs."""
        tls = {"PGSSLMODE": "disable"}
        if self.ca is not None:
            tls = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": str(self.ca)}
        where = {"PGHOST": HOST, "PGPORT": str(self.port), "PGDATABASE": DATABASE}
        return {**where, **tls, "PGUSER": "postgres", "PGGSSENCMODE": "disable"}


@dataclass(frozen=True, slots=True)
class MariaDBWay(Way):
    user: str = "headgate_test"

    def _where(self) -> dict[str, Any]:
        return {"host": HOST, "port": self.port, "user": self.user, "database": DATABASE}

    def pymysql(self, **given: Any) -> Any:
        """A pymysql.Connection; its stubs know less of it than the tests use."""
        tls: dict[str, Any] = {"ssl_disabled": True}
        if self.ca is not None:
            tls = {"ssl_ca": str(self.ca), "ssl_verify_cert": True, "ssl_verify_identity": True}
        chosen = {**self._where(), **tls, "autocommit": True, "connect_timeout": CONNECT_S, **given}
        return pymysql.connect(**chosen)

    def connector(self, **given: Any) -> Any:
        """Of mysql-connector-python, its pure form."""
        tls: dict[str, Any] = {"ssl_disabled": True}
        if self.ca is not None:
            tls = {"ssl_ca": str(self.ca), "ssl_verify_cert": True, "ssl_verify_identity": True}
        fixed = {"use_pure": True, "autocommit": True, "connection_timeout": CONNECT_S}
        charset = {"charset": "utf8mb4", "collation": "utf8mb4_general_ci"}
        return mysql.connector.connect(**{**self._where(), **tls, **fixed, **charset, **given})

    async def aiomysql(self, **given: Any) -> aiomysql.Connection:
        where = {**self._where(), "db": DATABASE}
        del where["database"]
        tls = {} if self.ca is None else {"ssl": self.context}
        fixed = {"autocommit": True, "connect_timeout": CONNECT_S}
        return await aiomysql.connect(**{**where, **tls, **fixed, **given})

    @property
    def arguments(self) -> list[str]:
        """For the mariadb program."""
        tls = ["--skip-ssl"]
        if self.ca is not None:
            tls = [f"--ssl-ca={self.ca}", "--ssl-verify-server-cert"]
        return [f"--host={HOST}", f"--port={self.port}", f"--user={self.user}", *tls]
