"""The proxy before a real MySQL server: what MariaDB's tests ask of it, asked again (R152)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import mysql
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import CACHE_DIR
from tests.proxy.live import (
    test_mariadb_enforced,
    test_mysql_around,
    test_mysql_commands,
    test_mysql_drivers,
    test_pymysql,
    test_rules,
    test_same_meaning,
)
from tests.proxy.live.conftest import (
    Certificates,
    Proxies,
    owned_copies,
)
from tests.proxy.live.ways import DATABASE

OF_MARIADB_ALONE = {
    # Its own words: SHOW MASTER STATUS, CREATE OR REPLACE USER, a blank before a function's
    # arguments, a command that MySQL 9 has no more, a client library without caching_sha2.
    "test_what_the_server_says_of_itself_comes_through",
    "test_kill_query_ends_what_runs",
    "test_a_dump_of_the_log_comes_whole_and_the_session_goes_with_it",
    "test_long_data_goes_in_pieces",
    "test_mysqlclient_in_a_process_of_its_own",
    "test_a_command_that_is_work_by_another_name_is_decided",
    # Of both servers, or of Postgres.
    "test_both_block_the_same_but_for_what_their_dialects_say",
    "test_a_limit_of_zero_admits_nothing_in_either",
    "test_exempt_users_pass_in_either",
}
globals().update(
    (name, test)
    for module in (
        test_mariadb_enforced,
        test_mysql_around,
        test_mysql_commands,
        test_mysql_drivers,
        test_pymysql,
        test_rules,
        test_same_meaning,
    )
    for name, test in vars(module).items()
    if name.startswith("test_") and name not in OF_MARIADB_ALONE and "postgres" not in name
)
SEQUENCES = (25, 5000, 20000)
"""MariaDB has a table of each length by itself."""


@pytest.fixture(scope="module")
def mariadb_server(servers_dir: Path, certificates: Certificates) -> Iterator[MariaDBServer]:
    """In the place of MariaDB's, by the name that the tests ask for."""
    cert, key = owned_copies(certificates, servers_dir)
    options = (
        *(f"--ssl-ca={certificates.ca}", f"--ssl-cert={cert}", f"--ssl-key={key}"),
        "--max-allowed-packet=64M",
        "--local-infile=ON",
        "--max-connections=300",
        "--cte-max-recursion-depth=20000",
    )
    with mysql.start_primary(servers_dir, cache_dir=CACHE_DIR, options=options) as server:
        server.query(f"CREATE DATABASE {DATABASE}")
        for length in SEQUENCES:
            server.query(
                f"CREATE TABLE {DATABASE}.seq_1_to_{length} (seq INT PRIMARY KEY) AS"
                " WITH RECURSIVE s AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM s"
                f" WHERE seq < {length}) SELECT seq FROM s"
            )
        yield server


@pytest.fixture(scope="module")
def mariadb_proxies(mariadb_server: MariaDBServer, certificates: Certificates) -> Iterator[Proxies]:
    proxies = Proxies("mysql", mariadb_server.port, certificates)
    yield proxies
    proxies.close()


@pytest.fixture(scope="module")
def linked(mariadb_server: MariaDBServer) -> Iterator[test_rules.Linked]:
    with test_rules.linked_before("mysql", mariadb_server.port) as made:
        yield made
