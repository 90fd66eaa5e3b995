"""Percona Toolkit's own programs, with our plug-in and with `headgate run`, on real MariaDB."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.client import bodies
from tests.client.scripted import OK, ScriptedAgent, answer
from tests.fixtures.mariadb import USER, MariaDBServer
from tests.fixtures.servers import Pair

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "percona"
# Where the package is unpacked without root: as MariaDB's are, below .cache.
UNPACKED = Path(os.environ.get("HEADGATE_PERCONA", ROOT / ".cache" / "percona"))
Ran = subprocess.CompletedProcess[str]
NOW = answer(429, bodies.rejection(), Retry_After="0")
SOON = answer(429, bodies.rejection(), Retry_After="1")


def program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(UNPACKED / "usr" / "bin"))


pytestmark = pytest.mark.skipif(
    program("pt-archiver") is None,
    reason="percona-toolkit is not installed (Debian: apt-get install percona-toolkit)",
)


def run(name: str, *argv: str, wrap: Sequence[str] = (), **env: str) -> Ran:
    """`wrap`: options of a `headgate run` around it."""
    perl = [EXAMPLES, *UNPACKED.glob("usr/lib/*/perl5/*"), UNPACKED / "usr" / "share" / "perl5"]
    found = {
        "PERL5LIB": ":".join(map(str, perl)),
        "LD_LIBRARY_PATH": ":".join(map(str, UNPACKED.glob("usr/lib/*-linux-gnu"))),
        "HOME": "/nonexistent",
    }
    around = [sys.executable, "-m", "headgate", "run", *wrap, "--"] if wrap else []
    return subprocess.run(
        [*around, "perl", str(program(name)), *argv],
        env={**os.environ, **found, **env},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def table(mariadb_pair: Pair[MariaDBServer]) -> Iterator[Pair[MariaDBServer]]:
    """shop.orders with 1,000 rows, on a primary and its replica."""
    primary = mariadb_pair.primary
    for statement in (
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, total int)",
        "INSERT INTO shop.orders WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL"
        " SELECT n + 1 FROM numbers WHERE n < 1000) SELECT n, n FROM numbers",
        "CREATE TABLE shop.dsns (id int PRIMARY KEY, parent_id int, dsn varchar(255))",
        f"INSERT INTO shop.dsns VALUES (1, NULL, '{address(mariadb_pair.replica)}')",
    ):
        primary.query(statement)
    yield mariadb_pair
    primary.query("DROP DATABASE shop")


def address(server: MariaDBServer) -> str:
    return f"h=127.0.0.1,P={server.port},u={USER}"


def dsn(server: MariaDBServer, more: str = "") -> str:
    return f"{address(server)},D=shop,t=orders{more}"


def count(server: MariaDBServer, where: str = "1") -> int:
    return int(server.query(f"SELECT count(*) AS n FROM shop.orders WHERE {where}")[0]["n"])


def test_pt_archiver_checks_before_each_chunk(
    agent: ScriptedAgent, table: Pair[MariaDBServer]
) -> None:
    agent.script.plays.extend([NOW, NOW])
    ran = run(
        "pt-archiver", "--source", dsn(table.primary, ",m=Headgate"), "--where", "id <= 450",
        "--purge", "--limit", "100", "--commit-each", "--no-check-charset",
        HEADGATE_APP="orders:pt-archiver",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (count(table.primary), len(agent.heard)) == (550, 5 + 2)
    assert "app=orders%3Apt-archiver&database=main" in agent.heard[0].line


def test_pt_archiver_ends_where_no_agent_answers(
    agent: ScriptedAgent, table: Pair[MariaDBServer]
) -> None:
    agent.stop()
    ran = run(
        "pt-archiver", "--source", dsn(table.primary, ",m=Headgate"), "--where", "id <= 450",
        "--purge", "--limit", "100", "--commit-each", "--no-check-charset",
        HEADGATE_UNAVAILABLE_AFTER="0.1",
    )  # fmt: skip
    assert ran.returncode != 0
    assert "headgate: no agent answered at" in ran.stderr
    assert count(table.primary) == 1000


def test_pt_online_schema_change_checks_after_each_chunk(
    agent: ScriptedAgent, table: Pair[MariaDBServer]
) -> None:
    agent.script.plays.append(NOW)
    recursion = f"dsn={address(table.primary)},D=shop,t=dsns"
    ran = run(
        "pt-online-schema-change", dsn(table.primary), "--alter", "ADD COLUMN done int",
        "--plugin", str(EXAMPLES / "Headgate.pm"), "--execute", "--chunk-size", "200",
        "--chunk-time", "0", "--recursion-method", recursion, "--check-interval", "1",
        "--set-vars", "lock_wait_timeout=5",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert count(table.primary, "done IS NULL") == 1000
    assert len(agent.heard) >= 1 + 1 + 5, "before the first of five chunks, and about each"


def test_headgate_run_stops_pt_archiver_between_its_transactions(
    agent: ScriptedAgent, table: Pair[MariaDBServer]
) -> None:
    """Without a plug-in: every row is a transaction, and a stop lasts no longer than configured."""
    agent.script.plays.extend([OK, SOON])
    ran = run(
        "pt-archiver", "--source", dsn(table.primary), "--where", "id <= 200", "--purge",
        "--limit", "100", "--commit-each", "--no-check-charset", "--sleep", "1",
        wrap=("--as", "orders:purge", "--every", "100ms", "--steady", "0"),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert count(table.primary) == 800
    assert "stopped once, for " in ran.stderr
