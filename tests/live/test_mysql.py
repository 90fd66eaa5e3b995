"""The probes of MariaDB's tests on a real MySQL server: its version, its words, its replication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import mysql
from tests.fixtures.agents import AgentProcess, mysql_database
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import CACHE_DIR, Pair
from tests.live import test_probes_mysql as of_mariadb
from tests.live import test_probes_mysql_causes as causes_of_mariadb
from tests.system import test_heartbeat as heartbeat_of_mariadb
from tests.system.test_blind_spots import dsn_of

OF_MARIADB_ALONE = {
    # How it is brought about or said is MariaDB's: its sequences, a status variable, the end of
    # SLEEP by the time limit (which is no error in MySQL), the one applier's error, the settings
    # of semi-synchronous replication, a third server.
    "test_custom_sql_that_is_no_number_is_invalid",
    "test_a_statement_that_the_server_ends_is_a_timeout",
    "test_broken_replication_carries_the_servers_error",
    "test_a_semi_sync_stall_is_given_up_and_does_not_block_a_demotion",
    "test_a_measured_commit_that_stalls_does_not_block_a_demotion_either",
    "test_too_many_clients_is_a_failure",
}
MODULES = (of_mariadb, causes_of_mariadb)
no_table_is_left = causes_of_mariadb.no_table_is_left
globals().update(
    (name, test)
    for module in MODULES
    for name, test in vars(module).items()
    if name.startswith("test_") and name not in OF_MARIADB_ALONE
)


async def in_sync(pair: Pair[Any]) -> None:
    mysql.await_applied(pair.replica, pair.primary)


test_lag_by_heartbeat = heartbeat_of_mariadb.test_mariadb_lag_by_heartbeat


def test_a_promotion_moves_the_lead(agent: AgentProcess, mariadb_pair: Pair[MariaDBServer]) -> None:
    """R45, R53, with one agent of both: roles come from what MySQL says of itself."""
    primary, replica = mariadb_pair.primary, mariadb_pair.replica
    more = 'shard = "commerce/-80"'
    lag = 'lag: threshold="60s", interval_s=0.2, timeout_s=20'
    agent.write_settings(
        mysql_database(dsn_of(primary), lag, name="a", more=more)
        + mysql_database(dsn_of(replica), lag, name="b", more=more)
    )
    agent.start()

    eventually(lambda: agent.admitted("a", metrics="shard/lag"))
    primary.query("SET GLOBAL read_only = ON")
    eventually(lambda: not agent.admitted("a", metrics="shard/lag"))
    replica.promote()
    mysql.follow(primary, replica)
    eventually(lambda: agent.admitted("b", metrics="shard/lag"))
    replica.query("SET GLOBAL read_only = ON")
    eventually(lambda: not agent.admitted("b", metrics="shard/lag"))
    primary.promote()
    mysql.follow(replica, primary)
    eventually(lambda: agent.admitted("a", metrics="shard/lag"))


@pytest.fixture(scope="module")
def mariadb_pair(servers_dir: Path) -> Iterator[Pair[MariaDBServer]]:
    """In the place of MariaDB's, by the name that the tests ask for."""
    with (
        mysql.start_primary(servers_dir, cache_dir=CACHE_DIR) as primary,
        mysql.start_replica(primary, servers_dir, cache_dir=CACHE_DIR) as replica,
        pytest.MonkeyPatch.context() as patched,
    ):
        for module in MODULES:
            patched.setattr(module, "in_sync", in_sync)
        yield Pair(primary, replica)


@pytest.fixture
def lent_mariadb(mariadb_pair: Pair[MariaDBServer]) -> Iterator[Pair[MariaDBServer]]:
    yield mariadb_pair
    for server in (mariadb_pair.primary, mariadb_pair.replica):
        server.resume()
        if not server.is_running():
            server.start()
    mysql.follow(mariadb_pair.replica, mariadb_pair.primary)
