"""R12, for real: what one metric misses, another sees, on both engines.

Single-metric blind spots. Each test breaks a real server in one way, and shows that the
metric which cannot see it stays healthy while the check as a whole is rejected.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pymysql

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, mysql_database, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import Pair

PATIENT = "interval_s=0.1, timeout_s=20"
"""What cannot see the fault stays healthy, however slow the machine is."""
COMMITS = "commit_delay: threshold='30s', interval_s=0.1, timeout_s=1"
LONG_S = 600


def dsn_of(server: MariaDBServer) -> str:
    return f"mysql://headgate_test@127.0.0.1:{server.port}/"


@contextmanager
def sleepers(dsn: str, count: int) -> Iterator[None]:
    """Slow queries: `count` sessions busy at once."""
    connections = [psycopg.connect(dsn, autocommit=True) for _ in range(count)]

    def run(connection: psycopg.Connection[object]) -> None:
        try:
            connection.execute(f"select pg_sleep({LONG_S})".encode())
        except psycopg.Error:
            return

    threads = [threading.Thread(target=run, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for connection in connections:
            connection.cancel_safe(timeout=60)
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.close()


class TestPostgres:
    def test_lag_misses_a_primary_commit_stall(
        self, agent: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        primary = lent_postgres.primary
        agent.write_settings(
            postgres_database(
                primary.dsn(), f"lag: {PATIENT}; threads_running: {PATIENT}; {COMMITS}"
            )
        )
        agent.start()
        eventually(agent.admitted)
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("alter system set synchronous_commit = on")
            connection.execute("alter system set synchronous_standby_names = 'nobody_there'")
            connection.execute("select pg_reload_conf()")
            rejected = eventually(lambda: _rejected(agent))
            assert [m["metric"] for m in rejected["metrics"] if m["state"] != "healthy"] == [
                "commit_delay"
            ]
            assert agent.admitted(metrics="lag")
            connection.execute("alter system reset synchronous_standby_names")
            connection.execute("select pg_reload_conf()")
        eventually(agent.admitted)

    def test_threads_running_misses_lag(
        self, agent: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        primary, replica = lent_postgres.primary, lent_postgres.replica
        metrics = (
            f"lag: threshold='0.5s', {PATIENT}; threads_running: {PATIENT}; pool_usage: {PATIENT}"
        )
        agent.write_settings(
            postgres_database(primary.dsn(), metrics)
            + postgres_database(replica.dsn(), f"lag: threshold='0.5s', {PATIENT}", name="replica")
        )
        agent.start()
        eventually(lambda: agent.admitted() and agent.admitted("replica"))
        with (
            psycopg.connect(replica.dsn(), autocommit=True) as on_replica,
            psycopg.connect(primary.dsn(), autocommit=True) as on_primary,
        ):
            on_replica.execute("select pg_wal_replay_pause()")
            on_primary.execute("create table t as select generate_series(1, 1000)")
            eventually(lambda: not agent.admitted() and not agent.admitted("replica"))
            assert agent.admitted(metrics="threads_running,pool_usage")
            assert agent.metric("lag")["state"] == "breached"
            on_replica.execute("select pg_wal_replay_resume()")
            on_primary.execute("drop table t")
        eventually(lambda: agent.admitted() and agent.admitted("replica"))

    def test_pool_misses_slow_queries(
        self, agent: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        dsn = lent_postgres.primary.dsn()
        metrics = f"pool_usage: {PATIENT}; threads_running: threshold=4, {PATIENT}"
        agent.write_settings(postgres_database(dsn, metrics))
        agent.start()
        eventually(agent.admitted)
        with sleepers(dsn, 6):
            eventually(lambda: not agent.admitted())
            assert agent.admitted(metrics="pool_usage")
            # Above the threshold of 4 it is not all of them yet: they connect one by one.
            eventually(lambda: agent.metric("threads_running")["value"] >= 6)
        eventually(agent.admitted)


class TestMariaDB:
    def test_lag_misses_a_primary_commit_stall(
        self, agent: AgentProcess, lent_mariadb: Pair[MariaDBServer]
    ) -> None:
        primary, replica = lent_mariadb.primary, lent_mariadb.replica
        agent.write_settings(
            mysql_database(dsn_of(primary), f"threads_running: {PATIENT}; {COMMITS}")
            + mysql_database(dsn_of(replica), f"lag: {PATIENT}", name="replica")
        )
        agent.start()
        eventually(lambda: agent.admitted() and agent.admitted("replica"))
        with primary.connect() as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            rejected = eventually(lambda: _rejected(agent))
            assert "commit_delay" in rejected["reason"]
            assert agent.admitted("replica", metrics="lag")
            cursor.execute("UNLOCK TABLES")
        eventually(agent.admitted)

    def test_threads_running_misses_lag(
        self, agent: AgentProcess, lent_mariadb: Pair[MariaDBServer]
    ) -> None:
        replica = lent_mariadb.replica
        metrics = f"lag: threshold='0.5s', {PATIENT}; threads_running: {PATIENT}"
        agent.write_settings(mysql_database(dsn_of(replica), metrics))
        agent.start()
        eventually(agent.admitted)
        replica.query("STOP SLAVE SQL_THREAD")
        eventually(lambda: not agent.admitted())
        assert agent.admitted(metrics="threads_running")
        assert agent.metric("lag")["value"] != 0 or agent.metric("lag")["cause"] is not None
        replica.query("START SLAVE SQL_THREAD")
        eventually(agent.admitted)

    def test_pool_misses_slow_queries(
        self, agent: AgentProcess, lent_mariadb: Pair[MariaDBServer]
    ) -> None:
        primary = lent_mariadb.primary
        metrics = f"pool_usage: {PATIENT}; threads_running: threshold=4, {PATIENT}"
        agent.write_settings(mysql_database(dsn_of(primary), metrics))
        agent.start()
        eventually(agent.admitted)
        with sleeping(primary, 6):
            eventually(lambda: not agent.admitted())
            assert agent.admitted(metrics="pool_usage")
        eventually(agent.admitted)


@contextmanager
def sleeping(server: MariaDBServer, count: int) -> Iterator[None]:
    """Slow queries: `count` sessions busy at once."""
    sleep = f"SELECT SLEEP({LONG_S})"

    def run() -> None:
        with suppress(pymysql.err.OperationalError):
            server.query(sleep)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    found = f"SELECT ID FROM information_schema.PROCESSLIST WHERE INFO = '{sleep}'"
    try:
        yield
    finally:
        eventually(lambda: len(server.query(found)) == count)
        for row in server.query(found):
            server.query(f"KILL QUERY {row['ID']}")
        for thread in threads:
            thread.join()


def _rejected(agent: AgentProcess) -> Any:
    """The answer, once it is a rejection."""
    answer = agent.check()
    return None if answer["admitted"] else answer
