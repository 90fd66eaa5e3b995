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

LAG = 'lag: threshold="1.5s", interval_s=0.1, timeout_s=20, options={method="heartbeat"}'
WRITES = "heartbeat_interval_s = 0.1"


def test_postgres_lag_by_heartbeat(
    agent: AgentProcess, lent_postgres: Pair[PostgresServer]
) -> None:
    """R20–R22: grows while replay is paused, and falls back; nobody writes but the primary."""
    primary, replica = lent_postgres.primary, lent_postgres.replica
    agent.write_settings(
        postgres_database(primary.dsn(), "threads_running", more=WRITES)
        + postgres_database(replica.dsn(), LAG, name="replica", more=WRITES)
    )
    agent.start()
    eventually(lambda: agent.admitted("replica"))
    with psycopg.connect(replica.dsn(), autocommit=True) as connection:
        connection.execute("select pg_wal_replay_pause()")
        eventually(lambda: agent.metric("lag", "replica")["state"] == "breached")
        assert agent.metric("lag", "replica")["value"] > 1.5
        connection.execute("select pg_wal_replay_resume()")
    eventually(lambda: agent.admitted("replica"))
    beats = agent.get("/metrics").body.decode()
    assert 'headgate_heartbeats_total{database="replica"} 0.0' in beats


def test_mariadb_lag_by_heartbeat(agent: AgentProcess, lent_mariadb: Pair[MariaDBServer]) -> None:
    """R22: a stopped thread is growing lag, not 0 and not a NULL."""
    primary, replica = lent_mariadb.primary, lent_mariadb.replica
    agent.write_settings(
        mysql_database(dsn_of(primary), "threads_running", more=WRITES)
        + mysql_database(dsn_of(replica), LAG, name="replica")
    )
    agent.start()
    eventually(lambda: agent.admitted("replica"))
    replica.query(f"STOP {replica.replica_word} SQL_THREAD")
    eventually(lambda: agent.metric("lag", "replica")["state"] == "breached")
    first = agent.metric("lag", "replica")["value"]
    eventually(lambda: agent.metric("lag", "replica")["value"] > first)
    replica.query(f"START {replica.replica_word} SQL_THREAD")
    eventually(lambda: agent.admitted("replica"))


def test_whoever_never_checks_pays_nothing(
    agent: AgentProcess, lent_postgres: Pair[PostgresServer]
) -> None:
    """R35: no setting, trigger, function, rule or lock stands between a session and its work."""
    between = {
        "settings": "select name, setting from pg_settings where name not like '%transaction%'",
        "triggers": "select oid from pg_trigger where not tgisinternal",
        "event triggers": "select oid from pg_event_trigger",
        "functions": "select proname from pg_proc where oid >= 16384",
        "rules": "select rulename from pg_rules where schemaname not in ('pg_catalog')",
    }
    with psycopg.connect(lent_postgres.primary.dsn(), autocommit=True) as session:

        def found() -> dict[str, list[tuple[object, ...]]]:
            return {
                name: session.execute(f"{sql} order by 1").fetchall()
                for name, sql in between.items()
            }

        before = found()
        agent.write_settings(
            postgres_database(
                lent_postgres.primary.dsn(), "threads_running; commit_delay", more=WRITES
            )
        )
        agent.start()
        eventually(agent.admitted)
        eventually(
            lambda: (
                'headgate_heartbeats_total{database="main"} 0.0'
                not in agent.get("/metrics").body.decode()
            )
        )
        assert found() == before
        strong = (
            "select mode from pg_locks join pg_stat_activity using (pid)"
            " where application_name = 'headgate'"
            " and mode not in ('AccessShareLock', 'RowExclusiveLock', 'ExclusiveLock')"
        )
        assert session.execute(strong).fetchall() == []


# --- one agent for a whole shard ---------------------------------------------------------------

LEASE_S = 4.0
"""Longer than a busy machine holds up a beat, as is the interval."""
SHORT_LEASE = f'heartbeat_interval_s = 1\nheartbeat_lease_s = {LEASE_S}\nshard = "commerce/-80"'


def test_checks_of_a_replica_keep_its_primarys_heartbeat_alive(
    agent: AgentProcess, lent_mariadb: Pair[MariaDBServer]
) -> None:
    """R60: where one agent looks after both, and nobody checks the primary."""
    primary, replica = lent_mariadb.primary, lent_mariadb.replica
    agent.write_settings(
        mysql_database(dsn_of(primary), "threads_running", more=SHORT_LEASE)
        + mysql_database(dsn_of(replica), LAG, name="replica", more=SHORT_LEASE)
    )
    agent.start()
    served_at = time.monotonic()
    eventually(lambda: _cause(agent) is None)

    def has_outlived_a_lease() -> bool:
        assert _cause(agent) is None, agent.metric("lag", "replica")
        return time.monotonic() - served_at > 1.2 * LEASE_S

    eventually(has_outlived_a_lease)
    # And once they end, it rests with their lease; the next one wakes it.
    eventually(lambda: _rests(replica))
    eventually(lambda: _cause(agent) is None and not _rests(replica))


def _rests(server: MariaDBServer) -> bool:
    [row] = server.query("SELECT idle FROM headgate.heartbeat")
    return bool(row["idle"])


def _cause(agent: AgentProcess) -> str | None:
    cause: str | None = agent.check("replica", metrics="host/lag")["metrics"][0]["cause"]
    return cause
