"""An agent, the command line and the SDK where nothing is as usual, all of it at once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from headgate import Client, HeadgateError
from tests.cli.scripted import ScriptedAgent
from tests.environment.starting import DEAF, HEADGATE, PATIENCE_S, Left, ran
from tests.environment.surroundings import ASCII, DATABASES, POOR, PROXIES
from tests.fixtures.agents import release_port, reserve_port
from tests.fixtures.eventually import eventually

# The agent's own database is asked for nothing: libpq heeds PGHOST and the like, as documented.
SETTINGS = """\
# Größe → ✖
[agent]
name = "größe"
listen = "127.0.0.1:{port}"
socket = "{folder}/a.sock"
socket_mode = "0666"
state = "{folder}/state.db"

[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1"

[databases.main.metrics.health]
url = "{url}/health"
pointer = "/p99"
threshold = 1

[databases.main.metrics.deaf]
command = ["sh", "-c", "test $(grep -c 'SigBlk:.0000000000000000' /proc/self/status) = 1 && echo 0"]
threshold = 1
"""
SDK = """
import asyncio, sys
from headgate import AsyncClient, Client

async def ask(url):
    async with AsyncClient("etl:nightly", database="main", url=url) as client:
        return await client.check()

for url in sys.argv[1:]:
    with Client("etl:nightly", database="main", url=url) as client:
        answer = client.check()
        assert answer and not answer.unthrottled, answer
    answer = asyncio.run(ask(url))
    assert answer and not answer.unthrottled, answer
"""
HOSTILE = {**ASCII, **PROXIES, **DATABASES, **POOR, "NOTIFY_SOCKET": "/nonexistent/notify"}


def test_an_agent_serves_whatever_surrounds_it(short_path: Path) -> None:
    folder = short_path / "a folder"
    folder.mkdir()
    left = Left(DEAF.ignored, DEAF.blocked, closed=(0, 1), umask=0o077, environment=HOSTILE)
    port = reserve_port()
    reading, writing = os.pipe()
    os.close(reading)  # Nobody reads its log.
    with ScriptedAgent().serving() as health:
        health.says("/health", {"p99": 0.1})
        settings = folder / "its settings.toml"
        told = SETTINGS.format(folder=folder, port=port, url=health.url)
        settings.write_text(told, encoding="utf-8")
        release_port(port)
        agent = subprocess.Popen(
            [*left.prefix, *HEADGATE, "agent", "-c", str(settings)], env=left.env, stderr=writing
        )
        os.close(writing)
        try:
            urls = (f"unix://{folder}/a.sock", f"http://127.0.0.1:{port}")
            eventually(lambda: _admits(urls[0]))
            assert stat.S_IMODE((folder / "a.sock").stat().st_mode) == 0o666
            _ask(left, urls)
            agent.send_signal(signal.SIGHUP)
            eventually(lambda: _admits(urls[1]))
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(timeout=PATIENCE_S) == 0
        finally:
            if agent.poll() is None:
                agent.kill()
            agent.wait(timeout=PATIENCE_S)


def _admits(url: str) -> bool:
    try:
        with Client("etl:nightly", database="main", url=url) as client:
            return bool(client.check())
    except HeadgateError:
        return False


def _ask(left: Left, urls: tuple[str, ...]) -> None:
    """The command line, and both clients of the SDK."""
    asking = Left(left.ignored, left.blocked, umask=left.umask, environment=HOSTILE)
    for url in urls:
        shown = ran(asking, *HEADGATE, "status", "--json", "--url", url)
        assert shown.returncode == 0, shown
        assert json.loads(shown.stdout)["agent"] == "größe"
    done = ran(asking, sys.executable, "-W", "error", "-c", SDK, *urls)
    assert (done.returncode, done.stderr) == (0, b"")
