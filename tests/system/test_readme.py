"""A new user's way: the README's own settings and commands, run as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import headgate
from headgate.demo import postgres, servers
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.forking import forked_agents
from tests.fixtures.servers import CACHE_DIR, Pair

README = (Path(__file__).parents[2] / "README.md").read_text()
STEPS = README[README.index("## Five minutes to a first check") : README.index("## In a job")]
SECRET = "it's a 'secret' %40"


def block(kind: str, holding: str) -> str:
    found: list[str] = re.findall(rf"```{kind}\n(.*?)```", STEPS, re.DOTALL)
    return next(text.replace("\n   ", "\n") for text in found if holding in text)


def commands(holding: str) -> list[str]:
    """Without what their comments say that they print."""
    lines = [line.strip() for line in block("console", holding).splitlines()]
    return [re.sub(r"\s+#.*", "", line[2:]) for line in lines if line.startswith("$ ")]


@pytest.fixture
def primary(servers_dir: Path) -> Iterator[PostgresServer]:
    with postgres.start_primary(servers_dir, durable=False, cache_dir=CACHE_DIR) as server:
        yield server


@pytest.fixture
def folder(primary: PostgresServer) -> Iterator[Path]:
    """A folder of one's own, and a server with the role that the README asks for."""
    home = servers.make_folder(Path("/tmp"), "hg-")
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        created = block("sql", "create role").replace("'…'", "%s")
        quoted = psycopg.sql.Literal(SECRET).as_string(connection)
        connection.execute(created.replace("%s", quoted))
        connection.execute("create database app")
    hba = primary.data_dir / "pg_hba.conf"
    hba.write_text("host all headgate 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
    primary.restart()
    yield home
    servers.remove_folders([home])


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    bin_dir = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}", "PWD": str(folder)}
    export = commands("export HEADGATE_URL")[0]
    return subprocess.run(
        ["bash", "-c", f"{export}; {command}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )


def forked(folder: Path, *command: str) -> str:
    """What the README does not print, in a process that starts sooner."""
    place = Path(tempfile.mkdtemp(dir=folder))
    done = forked_agents().start(place, *command, "--url", f"unix://{folder}/headgate.sock")
    assert done.wait(timeout=60) == 0, done.err
    return done.out


def is_admitted(folder: Path) -> bool:
    """Checked as often as one likes: a whole command each time would take long."""
    url = f"unix://{folder}/headgate.sock"
    with headgate.Client("test:ready", database="main", url=url, timeout_s=60.0) as gate:
        try:
            return gate.check().admitted
        except headgate.ThrottlerUnavailable:
            return False


def write_settings(primary: PostgresServer, folder: Path) -> None:
    """By the README's command, with this server's port and password; on a port that is free."""
    [init] = commands("headgate init")
    *words, dsn = shlex.split(init)
    dsn = make_conninfo(dsn, port=primary.port, password=SECRET)
    made = run(shlex.join([*words, dsn, "--yes"]), folder)
    assert made.returncode == 0, made.stderr
    settings = folder / "headgate.toml"
    port = next(servers.free_ports())
    settings.write_text(settings.read_text().replace(":8087", f":{port}"))
    assert (folder / "main.password").read_text() == f"{SECRET}\n"


def test_from_nothing_to_a_rejected_check_and_back(primary: PostgresServer, folder: Path) -> None:
    write_settings(primary, folder)
    doctor, start = commands("headgate doctor")
    tried = run(doctor, folder)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", *start.split()], cwd=folder, stdout=log, stderr=log
        )
    try:
        _, ask, status, top = commands("export HEADGATE_URL")
        eventually(lambda: is_admitted(folder) and run(ask, folder).returncode == 0)
        for command in (status, f"{top} --once"):
            assert run(command, folder).returncode == 0, command
        change, ask, explain, revert = commands("metrics set")
        assert run(change, folder).returncode == 0
        rejected = eventually(lambda: ran if (ran := run(ask, folder)).returncode == 10 else None)
        assert rejected is not None
        assert "commit_delay is" in rejected.stdout and "above its threshold" in rejected.stdout
        eventually(lambda: "commit_delay must fall" in run(explain, folder).stdout)
        assert run(revert, folder).returncode == 0
        eventually(lambda: is_admitted(folder) and run(ask, folder).returncode == 0)
        assert "main/commit_delay" in forked(folder, "audit")
        assert "etl:nightly" in forked(folder, "history", "nightly")
        assert SECRET not in (folder / "agent.log").read_text()
    finally:
        agent.terminate()
        agent.wait(timeout=60)


def test_calibration_proposes_a_threshold(
    agent: AgentProcess, postgres_pair: Pair[PostgresServer]
) -> None:
    """R15"""
    agent.write_settings(postgres_database(postgres_pair.primary.dsn(), "commit_delay"))
    calibrate = ("metrics", "calibrate", "main", "--config", str(agent.settings), "--json")
    done = forked_agents().start(agent.folder, *calibrate)
    assert done.wait(timeout=60) == 0, done.err
    assert "suggested_threshold_s" in done.out
