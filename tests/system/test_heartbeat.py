"""Lag by heartbeat, end to end: the primary's agent writes, the replica's row is read."""

from __future__ import annotations

import time

import psycopg

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, mysql_database, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import Pair
from tests.system.test_blind_spots import dsn_of

LAG = 'lag: threshold=1.5, interval_s=0.1, timeout_s=0.5, options={method="heartbeat"}'
WRITES = "heartbeat_interval_s = 0.1"


def test_postgres_lag_by_heartbeat(
    agent: AgentProcess, fresh_postgres: Pair[PostgresServer]
) -> None:
    """R20–R22: grows while replay is paused, and falls back; nobody writes but the primary."""
    primary, replica = fresh_postgres.primary, fresh_postgres.replica
    agent.write_settings(
        postgres_database(primary.dsn(), "threads_running", more=WRITES)
        + postgres_database(replica.dsn(), LAG, name="replica", more=WRITES)
    )
    agent.start()
    eventually(lambda: agent.admitted("replica"), within_s=10)
    with psycopg.connect(replica.dsn(), autocommit=True) as connection:
        connection.execute("select pg_wal_replay_pause()")
        eventually(lambda: not agent.admitted("replica"), within_s=8)
        assert agent.metric("lag", "replica")["value"] > 1.5
        connection.execute("select pg_wal_replay_resume()")
    eventually(lambda: agent.admitted("replica"), within_s=10)
    beats = agent.get("/metrics").body.decode()
    assert 'headgate_heartbeats_total{database="replica"} 0.0' in beats


def test_mariadb_lag_by_heartbeat(agent: AgentProcess, fresh_mariadb: Pair[MariaDBServer]) -> None:
    """R22: a stopped thread is growing lag, not 0 and not a NULL."""
    primary, replica = fresh_mariadb.primary, fresh_mariadb.replica
    agent.write_settings(
        mysql_database(dsn_of(primary), "threads_running", more=WRITES)
        + mysql_database(dsn_of(replica), LAG, name="replica")
    )
    agent.start()
    eventually(lambda: agent.admitted("replica"), within_s=10)
    replica.query("STOP SLAVE SQL_THREAD")
    eventually(lambda: agent.metric("lag", "replica")["state"] == "breached", within_s=8)
    first = agent.metric("lag", "replica")["value"]
    eventually(lambda: agent.metric("lag", "replica")["value"] > first, within_s=3)
    replica.query("START SLAVE SQL_THREAD")
    eventually(lambda: agent.admitted("replica"), within_s=10)


# --- one agent for a whole shard ---------------------------------------------------------------

SHORT_LEASE = f'{WRITES}\nheartbeat_lease_s = 1\nshard = "commerce/-80"'


def test_questions_about_a_replica_keep_its_primarys_heartbeat_alive(
    agent: AgentProcess, fresh_mariadb: Pair[MariaDBServer]
) -> None:
    """R60: where one agent looks after both, and nobody asks about the primary."""
    primary, replica = fresh_mariadb.primary, fresh_mariadb.replica
    agent.write_settings(
        mysql_database(dsn_of(primary), "threads_running", more=SHORT_LEASE)
        + mysql_database(dsn_of(replica), LAG, name="replica", more=SHORT_LEASE)
    )
    agent.start()
    eventually(lambda: _cause(agent) is None)
    started = time.monotonic()

    def has_long_been_asked() -> bool:
        assert _cause(agent) is None, agent.metric("lag", "replica")
        return time.monotonic() - started > 3

    eventually(has_long_been_asked)
    # And once they end, it rests with their lease; the next one wakes it.
    eventually(lambda: _rests(replica), within_s=15)
    eventually(lambda: _cause(agent) is None and not _rests(replica))


def _rests(server: MariaDBServer) -> bool:
    [row] = server.query("SELECT resting FROM headgate.heartbeat")
    return bool(row["resting"])


def _cause(agent: AgentProcess) -> str | None:
    cause: str | None = agent.check("replica", metrics="host/lag")["metrics"][0]["cause"]
    return cause
