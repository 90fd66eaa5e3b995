"""dbt on a real Postgres. dbt is too large for the lock: `pip install dbt-postgres` runs this."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dbt.adapters.postgres", reason="dbt-postgres is not installed")

from tests.client import bodies
from tests.client.scripted import REJECTED, ScriptedAgent, answer

EXAMPLE = Path(__file__).parents[2] / "examples" / "dbt"
LATER = answer(429, bodies.rejection(retry_after_ms=60_000), Retry_After="60")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "dbt"))


def dbt(
    project: Path, database: str, agent: ScriptedAgent, *argv: str, **env: str
) -> subprocess.CompletedProcess[str]:
    host, _, name = database.removeprefix("postgresql://postgres@").partition("/")
    of_database = {"PGHOST": host.split(":")[0], "PGPORT": host.split(":")[1], "PGDATABASE": name}
    return subprocess.run(
        [sys.executable, "-m", "headgate.integrations.dbt", *argv],
        cwd=project,
        env={**os.environ, **of_database, "HEADGATE_URL": agent.url, **env,
             "DBT_PROFILES_DIR": str(project), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"},
        capture_output=True,
        text=True,
        timeout=110,
    )  # fmt: skip


def test_each_node_waits_and_is_tagged(agent: ScriptedAgent, project: Path, database: str) -> None:
    agent.script.plays.append(REJECTED)
    ran = dbt(project, database, agent, "build", HEADGATE_APP="nightly:dbt")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(agent.heard) == 4, "two models, one test, one rejection"
    assert "app=nightly%3Adbt&database=main" in agent.heard[0].line
    log = (project / "logs" / "dbt.log").read_text()
    assert "/* app='nightly%3Adbt',controller='numbers',framework='dbt' */" in log


def test_a_node_that_waits_too_long_does_not_run(
    agent: ScriptedAgent, project: Path, database: str
) -> None:
    agent.script.default = LATER
    ran = dbt(project, database, agent, "run", HEADGATE_MAX_WAIT_S="0.2")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "dbt on main: not admitted within" in ran.stdout
    assert "PASS=0 WARN=0 ERROR=1 SKIP=1" in ran.stdout
