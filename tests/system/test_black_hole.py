"""Misleading-zero lag: the network between a primary and its replica swallows everything.

No connection ends and no server notices: the replica has replayed all that it received. Its lag
must grow all the same, with the settings that nobody has to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, mysql_database, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.network import Network
from tests.fixtures.servers import Pair
from tests.system.test_blind_spots import dsn_of

SHARD = 'shard = "commerce/-80"'
BY_DEFAULT, WITHOUT_HEARTBEATS = SHARD, f"{SHARD}\nheartbeat_interval_s = 0"
LAG = 'lag: threshold="3s", timeout_s=20'


@contextmanager
def far_postgres(pair: Pair[PostgresServer]) -> Iterator[Network]:
    """The replica reaches its primary through a network of its own."""
    network = Network(pair.primary.port)
    port = network.url.rpartition(":")[2]
    with psycopg.connect(pair.replica.dsn(), autocommit=True) as session:
        [near] = session.execute("select current_setting('primary_conninfo')").fetchone() or [""]
        far = near.replace(f"port={pair.primary.port}", f"port={port}")
        assert far != near

        def repoint(conninfo: str) -> None:
            session.execute(f"alter system set primary_conninfo = '{conninfo}'")
            session.execute("select pg_reload_conf()")

        def port_of_sender() -> str:
            row = session.execute("select sender_port from pg_stat_wal_receiver").fetchone()
            return str(row[0]) if row else ""

        repoint(far)
        try:
            eventually(lambda: port_of_sender() == port and _streams(pair.replica))
            yield network
        finally:
            network.heal()
            repoint(near)
            eventually(lambda: port_of_sender() == str(pair.primary.port))
            network.close()


def _streams(replica: PostgresServer) -> bool:
    with psycopg.connect(replica.dsn(), autocommit=True) as session:
        row = session.execute("select status from pg_stat_wal_receiver").fetchone()
        return row == ("streaming",)


@contextmanager
def far_mariadb(pair: Pair[MariaDBServer]) -> Iterator[Network]:
    """Put back by the fixture of the pair. The server itself is patient, so that it stays deceived
    for as long as a busy machine takes to look."""
    network = Network(pair.primary.port)
    [[patience_s]] = [row.values() for row in pair.replica.query("SELECT @@slave_net_timeout")]
    port = network.url.rpartition(":")[2]
    pair.replica.query("STOP SLAVE")
    pair.replica.query("SET GLOBAL slave_net_timeout = 600")
    pair.replica.query(f"CHANGE MASTER TO MASTER_PORT = {port}, MASTER_HEARTBEAT_PERIOD = 2")
    pair.replica.query("START SLAVE")
    try:
        eventually(lambda: _replicates(pair.replica))
        yield network
    finally:
        network.heal()
        network.close()
        pair.replica.query(f"SET GLOBAL slave_net_timeout = {patience_s}")


def _replicates(replica: MariaDBServer) -> bool:
    [row] = replica.query("SHOW SLAVE STATUS")
    return bool(row["Slave_IO_Running"] == row["Slave_SQL_Running"] == "Yes")


def _grows_and_rejects(agent: AgentProcess, is_deceived: Callable[[], bool]) -> None:
    """At both scopes, while the server itself still says that it replicates."""
    scopes = ("host/lag", "shard/lag")

    def lag(scope: str) -> float | None:
        found = agent.check("replica", metrics=scope)["metrics"][0]
        # A shard without a value is as closed as one with a high value.
        return float(found["value"]) if found["value"] is not None else None

    eventually(lambda: not any(agent.admitted("replica", metrics=one) for one in scopes))
    assert is_deceived(), "the server has noticed by itself, so that this shows nothing"
    first = lag("host/lag")
    assert first is not None and first > 3.0
    eventually(lambda: (lag("host/lag") or 0.0) > first + 1.0)
    assert not any(agent.admitted("replica", metrics=one) for one in scopes)


@pytest.mark.parametrize("more", [BY_DEFAULT, WITHOUT_HEARTBEATS])
def test_misleading_zero_lag_of_postgres_behind_a_black_hole(
    agent: AgentProcess, lent_postgres: Pair[PostgresServer], more: str
) -> None:
    """R22: by the heartbeat that is written by default, and where none may be written."""
    primary, replica = lent_postgres.primary, lent_postgres.replica
    agent.write_settings(
        postgres_database(primary.dsn(), f"{LAG}; commit_delay", more=more)
        + postgres_database(replica.dsn(), LAG, name="replica", more=more)
    )
    with far_postgres(lent_postgres) as network:
        agent.start()
        eventually(lambda: agent.admitted("replica", metrics="host/lag"))
        eventually(lambda: agent.admitted("replica", metrics="shard/lag"))
        network.swallow()
        _grows_and_rejects(agent, lambda: _streams(replica))
        network.heal()
        eventually(lambda: agent.admitted("replica", metrics="host/lag"))


@pytest.mark.parametrize("more", [BY_DEFAULT, WITHOUT_HEARTBEATS])
def test_misleading_zero_lag_of_mariadb_behind_a_black_hole(
    agent: AgentProcess, lent_mariadb: Pair[MariaDBServer], more: str
) -> None:
    """R22"""
    primary, replica = lent_mariadb.primary, lent_mariadb.replica
    agent.write_settings(
        mysql_database(dsn_of(primary), f"{LAG}; commit_delay", more=more)
        + mysql_database(dsn_of(replica), LAG, name="replica", more=more)
    )
    with far_mariadb(lent_mariadb) as network:
        agent.start()
        eventually(lambda: agent.admitted("replica", metrics="host/lag"))
        eventually(lambda: agent.admitted("replica", metrics="shard/lag"))
        network.swallow()
        _grows_and_rejects(agent, lambda: _replicates(replica))
        network.heal()
        eventually(lambda: agent.admitted("replica", metrics="host/lag"))
