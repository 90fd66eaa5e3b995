"""The examples run as they are printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from headgate.demo.postgres import PostgresServer
from tests.client import bodies
from tests.client.scripted import OK, REJECTED, Play, ScriptedAgent, answer
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.servers import Pair

ROOT = Path(__file__).parents[2]
NOW = answer(429, bodies.rejection(), Retry_After="0")

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def run(*command: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=stdin,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT / "src")} | env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def shell_loop(agent: ScriptedAgent, stdin: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "examples" / "plain_http.sh")
    return run(
        script, "etl:nightly", "main", "echo", "done",
        stdin=stdin, HEADGATE_URL=agent.url, UNAVAILABLE_AFTER="2",
    )  # fmt: skip


@needs_curl
def test_plain_http_checks_before_each_line() -> None:
    with ScriptedAgent([OK, NOW, NOW, OK]) as agent:
        done = shell_loop(agent, "a\nb c\n")
    assert (done.returncode, done.stdout) == (0, "done a\ndone b c\n")
    # curl's versions differ in the case of their escapes.
    lines = {heard.line.replace("%3a", "%3A") for heard in agent.heard}
    assert lines == {"GET /v1/check?app=etl%3Anightly&database=main HTTP/1.1"}
    assert len(agent.heard) == 4


@needs_curl
@pytest.mark.parametrize(
    ("play", "code", "message"),
    [
        (answer(503, body=b"", Retry_After="0"), 3, "no agent answered"),
        (answer(401, body=b""), 2, "does not accept the request: 401"),
    ],
)
def test_plain_http_stops_where_nobody_admits(play: Play, code: int, message: str) -> None:
    with ScriptedAgent(default=play) as agent:
        done = shell_loop(agent, "a\n")
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_backfill_checks_before_each_chunk(postgres_pair: Pair[PostgresServer]) -> None:
    """R30: 1,200 rows in chunks of 500 are three pieces of work."""
    primary = postgres_pair.primary
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE backfill_example")
    libpq = {"PGHOST": "127.0.0.1", "PGPORT": str(primary.port), "PGUSER": "postgres"}
    with psycopg.connect(primary.dsn("backfill_example"), autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int, total numeric, total_cents int)")
        connection.execute("INSERT INTO orders SELECT n, n * 0.01 FROM generate_series(1, 1200) n")
        with ScriptedAgent([REJECTED]) as agent:
            done = run(
                sys.executable, str(ROOT / "examples" / "backfill.py"),
                HEADGATE_URL=agent.url, PGDATABASE="backfill_example", **libpq,
            )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        filled = connection.execute("SELECT count(*) FROM orders WHERE total_cents = id")
        assert filled.fetchone() == (1200,)
    assert len(agent.heard) == 4
