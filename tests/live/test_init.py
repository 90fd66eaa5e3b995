"""`headgate init` against real servers: a file that an agent starts with, and nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headgate.demo.postgres import PostgresServer
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import Pair

SECRET = "p w/@:1"
IN_URL = "p%20w%2F%40%3A1"


def headgate(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headgate", *argv],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


def mysql_dsn(server: MariaDBServer, account: str = "") -> str:
    return f"mysql://{account or server.user}@{server.host}:{server.port}/"


@pytest.fixture
def lean_account(mariadb_pair: Pair[MariaDBServer]) -> Iterator[str]:
    """One that has a password and no rights."""
    mariadb_pair.primary.query(f"CREATE USER lean@'127.0.0.1' IDENTIFIED BY '{SECRET}'")
    yield "lean"
    mariadb_pair.primary.query("DROP USER lean@'127.0.0.1'")


@pytest.fixture
def lean_role(postgres_pair: Pair[PostgresServer]) -> Iterator[str]:
    with psycopg.connect(postgres_pair.primary.dsn(), autocommit=True) as admin:
        admin.execute("CREATE ROLE lean LOGIN")
        admin.execute("CREATE SCHEMA IF NOT EXISTS percona")  # Which it may not look into.
        admin.execute("CREATE TABLE IF NOT EXISTS percona.heartbeat (ts timestamptz)")
        yield "lean"
        admin.execute("DROP SCHEMA percona CASCADE; DROP ROLE lean")


def test_a_first_file_for_postgres(postgres_pair: Pair[PostgresServer], tmp_path: Path) -> None:
    dsn = postgres_pair.primary.dsn()
    made = headgate("init", dsn, "--yes", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "a primary, 1 replica connected" in made.stdout
    assert "archive_mode is off" in made.stdout
    assert "headgate agent --config headgate.toml" in made.stdout
    written = tomllib.loads((tmp_path / "headgate.toml").read_text())
    metrics = written["databases"]["main"]["metrics"]
    assert {"lag", "threads_running", "commit_delay", "pool_usage"} <= metrics.keys()
    assert "archive_backlog" not in metrics
    assert metrics["commit_delay"]["threshold"] == "50ms"
    assert not (tmp_path / "main.password").exists(), "no password was given"
    linted = headgate("lint", "--connect", "headgate.toml", cwd=tmp_path)
    assert linted.returncode == 0, linted.stdout
    assert "no faults, no advice" in linted.stdout


def test_a_file_that_is_there_is_never_written_over(
    postgres_pair: Pair[PostgresServer], tmp_path: Path
) -> None:
    (tmp_path / "headgate.toml").write_text("mine")
    made = headgate("init", postgres_pair.primary.dsn(), "--yes", cwd=tmp_path)
    assert made.returncode == 1
    assert "headgate.toml exists, and nothing was written" in made.stderr
    assert (tmp_path / "headgate.toml").read_text() == "mine"


def test_the_password_goes_to_a_file_of_its_own(
    mariadb_pair: Pair[MariaDBServer], lean_account: str, tmp_path: Path
) -> None:
    """And the rights that are missing are told as an administrator types them."""
    dsn = mysql_dsn(mariadb_pair.primary, f"{lean_account}:{IN_URL}")
    made = headgate("init", dsn, "--yes", "--database-name", "orders", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    text, password = (tmp_path / "headgate.toml"), (tmp_path / "orders.password")
    assert password.read_text() == f"{SECRET}\n"
    assert password.stat().st_mode & 0o777 == 0o600
    assert IN_URL not in text.read_text() and SECRET not in text.read_text() + made.stdout
    assert tomllib.loads(text.read_text())["databases"]["orders"]["password_file"] == password.name
    grant = "grant process, replication client, slave monitor on *.* to 'lean'@'127.0.0.1';"
    assert grant in made.stdout
    assert "grant all on headgate.* to 'lean'@'127.0.0.1';" in made.stdout


def test_a_role_that_may_not_monitor(
    postgres_pair: Pair[PostgresServer], lean_role: str, tmp_path: Path
) -> None:
    dsn = postgres_pair.primary.dsn().replace("user=postgres", f"user={lean_role}")
    made = headgate("init", dsn, "--yes", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "grant pg_monitor to lean;" in made.stdout
    assert "Then run init again" in made.stdout
    assert "no replica" not in made.stdout, "it may not see the one that there is"
    assert "heartbeat table" in made.stdout
    metrics = tomllib.loads((tmp_path / "headgate.toml").read_text())["databases"]["main"][
        "metrics"
    ]
    assert "threads_running" not in metrics, "what it cannot see would count as 0"


def test_a_replica_of_mariadb_as_json(mariadb_pair: Pair[MariaDBServer], tmp_path: Path) -> None:
    made = headgate("init", mysql_dsn(mariadb_pair.replica), "--json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert found["server"].startswith("MariaDB ") and found["is_replica"] is True
    readings = {one["metric"]: one for one in found["readings"]}
    assert readings["lag"]["value"] is not None
    assert readings["commit_delay"]["cause"] == "unsupported"
    assert headgate("lint", "--connect", "headgate.toml", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1 port=1 user=headgate password=hunter2",
        "mysql://headgate:hunter2@127.0.0.1:1/",
    ],
)
def test_a_server_that_is_away_leaves_nothing_behind(dsn: str, tmp_path: Path) -> None:
    said = _rejected(dsn, tmp_path)
    assert "nothing was written" in said and "hunter2" not in said
    assert "create" not in said, "it is not the role that is missing"


def test_a_login_that_is_rejected_shows_the_role_to_create(
    postgres_pair: Pair[PostgresServer],
    mariadb_pair: Pair[MariaDBServer],
    lean_account: str,
    tmp_path: Path,
) -> None:
    dsn = postgres_pair.primary.dsn()
    said = _rejected(dsn.replace("user=postgres", "user=Head-gate"), tmp_path)
    assert """create role "Head-gate" login password '…' in role pg_monitor;""" in said
    assert "create role" not in _rejected(dsn.replace("dbname=postgres", "dbname=no"), tmp_path)
    said = _rejected(mysql_dsn(mariadb_pair.primary, f"{lean_account}:hunter2"), tmp_path)
    assert "grant process, replication client, slave monitor on *.* to 'lean'@'127.0.0.1';" in said
    # As it is created, it may use no schema but the agent's.
    said = _rejected(
        f"{mysql_dsn(mariadb_pair.primary, f'{lean_account}:{IN_URL}')}mysql", tmp_path
    )
    assert "The agent needs no schema of yours" in said and "create user" not in said


def test_nothing_is_asked_of_a_server_for_a_file_that_cannot_be(tmp_path: Path) -> None:
    away = "host=127.0.0.1 port=1"
    assert "mkdir -p no-folder" in _rejected(away, tmp_path, "-o", "no-folder/x.toml")
    assert "database name 'a b' must be" in _rejected(away, tmp_path, "--database-name", "a b")


def _rejected(dsn: str, folder: Path, *more: str) -> str:
    made = headgate("init", dsn, "--yes", *more, cwd=folder)
    assert made.returncode in (1, 2)
    assert list(folder.iterdir()) == []
    return made.stderr


def test_without_a_terminal_it_says_how_to_confirm(
    postgres_pair: Pair[PostgresServer], tmp_path: Path
) -> None:
    made = headgate("init", postgres_pair.primary.dsn(), cwd=tmp_path)
    assert made.returncode == 2 and "add --yes" in made.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_database_whose_name_has_a_dot(
    postgres_pair: Pair[PostgresServer], tmp_path: Path
) -> None:
    dsn, folder = postgres_pair.primary.dsn(), tmp_path / "my agent"
    folder.mkdir()
    words = ("--yes", "--database-name", "shop.eu", "-o", "my agent/x.toml")
    made = headgate("init", dsn, *words, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "headgate agent --config 'my agent/x.toml'" in made.stdout
    assert "shop.eu" in tomllib.loads((folder / "x.toml").read_text())["databases"]


def test_a_password_file_that_is_there_is_never_written_over(
    postgres_pair: Pair[PostgresServer], tmp_path: Path
) -> None:
    (tmp_path / "main.password").mkdir()
    made = headgate("init", postgres_pair.primary.dsn(), "--yes", cwd=tmp_path)
    assert made.returncode == 1 and "main.password exists" in made.stderr
