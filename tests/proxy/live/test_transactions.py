"""Drivers that open a transaction before each piece of work are held to their share by the proxy,
before Postgres and before MariaDB (R93, R110, R165)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

from tests.fixtures.proxies import ProxyProcess, budget
from tests.proxy.live.conftest import MariaDBGate, PostgresGate
from tests.proxy.live.limits import JUDGED, MYSQL_BLOCKED, TAG

Run = Callable[[Sequence[str]], None]
"""One transaction, as the driver begins it without being told to."""
Driver = Callable[[Any], Iterator[Run]]
SHARE, SIZE_S = 0.08, 2.0
"""Of the proxy's four CPUs: 2 %, and 50 % of a second. On a busy machine a statement takes far
longer than it sleeps: one must fit into the size, and all must come to more than the share."""


def _psycopg(gate: PostgresGate) -> Iterator[Run]:
    with gate.way.connect(autocommit=False) as session:

        def run(statements: Sequence[str]) -> None:
            with session.transaction():
                for statement in statements:
                    session.execute(statement.encode())

        yield run


def _pymysql(gate: MariaDBGate) -> Iterator[Run]:
    with gate.way.pymysql(autocommit=False) as session:

        def run(statements: Sequence[str]) -> None:
            try:
                for statement in statements:
                    session.cursor().execute(statement)
                session.commit()
            except pymysql.err.MySQLError:
                session.rollback()
                raise

        yield run


def _sqlalchemy(gate: PostgresGate | MariaDBGate) -> Iterator[Run]:
    if isinstance(gate, PostgresGate):
        url, way = "postgresql+psycopg://", gate.way
        engine = sqlalchemy.create_engine(url, creator=lambda: way.connect(autocommit=False))
    else:
        my = gate.way
        engine = sqlalchemy.create_engine(
            "mysql+pymysql://", creator=lambda: my.pymysql(autocommit=False)
        )

    def run(statements: Sequence[str]) -> None:
        try:
            with engine.begin() as connection:
                for statement in statements:
                    connection.execute(sqlalchemy.text(statement))
        except sqlalchemy.exc.DBAPIError as error:
            assert error.orig is not None
            raise error.orig from error

    yield run
    engine.dispose()


def _is_block(error: Exception) -> bool:
    if isinstance(error, psycopg.Error):
        return isinstance(error, psycopg.errors.InsufficientResources)
    return bool(error.args[0] == MYSQL_BLOCKED)


def _held_to_its_share(proxy: ProxyProcess, run: Run, sleep: str) -> None:
    """All that ran is within share × time + size, but for the transaction that ran last."""
    proxy.publish(budget("driver", rules=JUDGED, rate=2, capacity=50))
    began_s, before_ns = time.monotonic(), proxy.counts("driver").charged_ns
    statements = [f"SELECT {sleep}({seconds}) AS rest {TAG}" for seconds in (0.01, 0.02, 0.03)]
    blocked, charges = 0, [0.0]
    with proxy.counting("driver") as risen:
        while blocked < 3 or len(charges) < 10:
            try:
                run(statements)
            except (psycopg.Error, pymysql.err.MySQLError) as error:
                assert _is_block(error), error
                blocked += 1
                time.sleep(0.05)
                continue
            charges.append((proxy.counts("driver").charged_ns - before_ns) / 1e9)
            last_s = charges[-1] - charges[-2]
            elapsed_s = time.monotonic() - began_s
            assert charges[-1] <= SHARE * elapsed_s + SIZE_S + last_s + 0.01
    assert risen["admitted"] >= 3 * 9
    assert charges[-1] > 9 * 0.05, "what ran inside transactions was not charged"


@pytest.mark.parametrize("driver", [_psycopg, _sqlalchemy])
def test_default_transactions_are_held_to_their_share_before_postgres(
    postgres_gate: PostgresGate, driver: Driver
) -> None:
    with contextmanager(driver)(postgres_gate) as run:
        _held_to_its_share(postgres_gate.proxy, run, "pg_sleep")


@pytest.mark.parametrize("driver", [_pymysql, _sqlalchemy])
def test_default_transactions_are_held_to_their_share_before_mariadb(
    mariadb_gate: MariaDBGate, driver: Driver
) -> None:
    with contextmanager(driver)(mariadb_gate) as run:
        _held_to_its_share(mariadb_gate.proxy, run, "SLEEP")
