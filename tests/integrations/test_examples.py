"""The examples of the integrations run as they are printed, and the page prints them."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.client.scripted import REJECTED, ScriptedAgent
from tests.fixtures.mariadb import USER, MariaDBServer
from tests.fixtures.servers import Pair

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = "".join(page.read_text() for page in sorted(ROOT.glob("docs/*/integrations.md")))


@pytest.fixture
def orders(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int, total numeric, total_cents int)")
        connection.execute("INSERT INTO orders SELECT n, n * 0.01 FROM generate_series(1, 1200) n")
    return database


def count(database: str, where: str) -> int:
    with psycopg.connect(database) as connection:
        found = connection.execute(f"SELECT count(*) FROM orders WHERE {where}").fetchone()
    assert found is not None
    return int(found[0])


def run(name: str, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def libpq(database: str) -> dict[str, str]:
    host, _, name = database.removeprefix("postgresql://postgres@").partition("/")
    address, _, port = host.partition(":")
    return {"PGHOST": address, "PGPORT": port, "PGUSER": "postgres", "PGDATABASE": name}


def test_sqlalchemy(agent: ScriptedAgent, orders: str) -> None:
    """R30: 1,200 rows by 500 are three pieces of work, and one that finds nothing."""
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    agent.script.plays.append(REJECTED)
    run("sqlalchemy_backfill.py", DATABASE_URL=orders.replace("sql:", "sql+psycopg:"))
    assert (count(orders, "total_cents IS NULL"), len(agent.heard)) == (0, 1 + 4)


def test_psycopg(agent: ScriptedAgent, orders: str) -> None:
    agent.script.plays.append(REJECTED)
    run("psycopg_purge.py", **libpq(orders))
    assert (count(orders, "true"), len(agent.heard)) == (601, 1 + 3)


def test_dbapi(agent: ScriptedAgent, mariadb_pair: Pair[MariaDBServer]) -> None:
    primary = mariadb_pair.primary
    primary.query("DROP DATABASE IF EXISTS shop")
    primary.query("CREATE DATABASE shop")
    primary.query(
        "CREATE TABLE shop.orders AS WITH RECURSIVE n AS (SELECT 1 AS total UNION ALL"
        " SELECT total + 1 FROM n WHERE total < 1000) SELECT total FROM n"
    )
    run("pymysql_purge.py", MYSQL_PORT=str(primary.port), MYSQL_USER=USER)
    left = primary.query("SELECT count(*) AS n FROM shop.orders")
    primary.query("DROP DATABASE shop")
    assert (left, len(agent.heard)) == ([{"n": 401}], 3)


def test_django(agent: ScriptedAgent, orders: str) -> None:
    pytest.importorskip("django", reason="Django is not installed")
    from django.core.management import call_command
    from django.db import connection

    from tests.integrations import django_project

    django_project.set_up(orders)
    command = runpy.run_path(str(EXAMPLES / "django_purge.py"), run_name="purge_orders")["Command"]
    call_command(command(), "--max-wait", "60")
    connection.close()
    assert (count(orders, "true"), len(agent.heard)) == (601, 3)
    assert "app=purge_orders%3Ashop" in agent.heard[0].line


def test_celery(agent: ScriptedAgent) -> None:
    pytest.importorskip("celery", reason="Celery is not installed")
    from headgate.integrations import celery as integration

    purge = runpy.run_path(str(EXAMPLES / "celery_tasks.py"))["purge"]
    assert purge.apply(args=(1,)).get() == 501
    integration._gates.forget()
    assert "app=orders.purge%3Anightly" in agent.heard[0].line


PYTHON = re.compile(r"```python\n# (examples/[a-z_]+\.py)\n(.*?)```", re.DOTALL)


def test_the_page_prints_the_examples() -> None:
    blocks = PYTHON.findall(PAGES)
    assert {path for path, _ in blocks} == {
        f"examples/{name}.py"
        for name in (
            *("sqlalchemy_backfill", "psycopg_purge", "pymysql_purge", "django_purge"),
            *("celery_tasks", "airflow_dag", "alembic_env"),
        )
    }
    for path, block in blocks:
        text = (ROOT / path).read_text()
        missing = [line for line in block.splitlines() if line.strip() and line not in text]
        assert missing == [], f"{path} has no such lines"
