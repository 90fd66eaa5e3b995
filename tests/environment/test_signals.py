"""Commands hear signals, and pass on usual ones, whatever their parent ignored or blocked."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.client import bodies
from tests.client.scripted import OK, ScriptedAgent, answer
from tests.environment.starting import DEAF, HEADGATE, Left, ran, started
from tests.fixtures.agents import HOST_ONLY, release_port, reserve_port
from tests.fixtures.eventually import eventually

HELD = answer(429, bodies.rejection(retry_after_ms=3_600_000), Retry_After="3600")
NOBODY = "http://127.0.0.1:1"
NOHUP = Left(ignored=("SIGHUP", "SIGINT"))
RUN = (*HEADGATE, "run", "--as", "etl:nightly", "--every", "50ms", "--quiet")


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with ScriptedAgent(default=OK) as agent:
        yield agent


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("top",), "AGENT UNREACHABLE"),
        (("budget", "top", "main"), "AGENT UNREACHABLE"),
        (("fleet", "status", "--watch"), "AGENT UNREACHABLE"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_control_c_ends_what_watches(tmp_path: Path, argv: tuple[str, ...], shown: str) -> None:
    with started(DEAF, tmp_path, *HEADGATE, *argv, "--url", NOBODY) as running:
        running.until(shown)
        assert running.end(signal.SIGINT) == 0
        assert "Traceback" not in running.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wait_for_permission_can_be_ended(
    agent: ScriptedAgent, tmp_path: Path, number: signal.Signals
) -> None:
    agent.script.default = HELD
    wait = (*HEADGATE, "wait", "--as", "etl:nightly", "--url", agent.url)
    with started(DEAF, tmp_path, *wait) as running:
        running.until("waits: ")
        # The second as any program ends by it: there is nothing to put in order.
        assert running.end(number) == (130 if number == signal.SIGINT else -number)
        assert "Traceback" not in running.said


def test_an_agent_reloads_on_hangup_and_stops(short_path: Path) -> None:
    settings = short_path / "headgate.toml"
    settings.write_text(f'[agent]\nsocket = "{short_path}/a.sock"\nlisten = ""\n{HOST_ONLY}')
    left = Left(ignored=(*DEAF.ignored, "SIGHUP"), blocked=DEAF.blocked)
    with started(left, short_path, *HEADGATE, "agent", "-c", str(settings)) as running:
        running.until("agent.serving")
        running.process.send_signal(signal.SIGHUP)
        running.until("settings.reloaded")
        assert running.end(signal.SIGTERM) == 0


def test_a_proxy_reloads_on_hangup_and_stops(short_path: Path) -> None:
    settings, port = short_path / "proxy.toml", reserve_port()
    settings.write_text(
        f'[proxy]\nprotocol = "postgres"\ndirectory = "{short_path}/state"\n'
        f'[[listen]]\naddress = "127.0.0.1:{port}"\n[[server]]\naddress = "127.0.0.1:1"\n'
        '[control]\naddress = ""\n'
    )
    release_port(port)
    left = Left(ignored=(*DEAF.ignored, "SIGHUP"), blocked=DEAF.blocked)
    with started(left, short_path, *HEADGATE, "proxy", "run", str(settings)) as running:
        running.until("proxy.serving")
        running.process.send_signal(signal.SIGHUP)
        running.until("settings.reloaded")
        assert running.end(signal.SIGINT) == 0


# --- what a job of `headgate run` gets -------------------------------------------------------


def signals_of(status: bytes) -> tuple[set[int], set[int]]:
    """(ignored, blocked), of /proc/PID/status."""
    masks = dict(re.findall(r"^(SigIgn|SigBlk):\s*(\w+)$", status.decode(), re.MULTILINE))
    ignored, blocked = (int(masks[name], 16) for name in ("SigIgn", "SigBlk"))
    return {n for n in range(1, 65) if ignored >> (n - 1) & 1}, {
        n for n in range(1, 65) if blocked >> (n - 1) & 1
    }


@pytest.mark.parametrize(
    ("left", "mode"), [(DEAF, "stop"), (DEAF, "env"), (NOHUP, "stop"), (NOHUP, "start")]
)
def test_a_job_finds_its_signals_as_they_should_be(
    agent: ScriptedAgent, left: Left, mode: str
) -> None:
    """Of `nohup` it keeps what that is for."""
    done = ran(left, *RUN, "--url", agent.url, "--mode", mode, "--", "cat", "/proc/self/status")
    assert done.returncode == 0, done.stderr
    ignored, blocked = signals_of(done.stdout)
    assert ignored == ({signal.SIGHUP} if left is NOHUP else set())
    assert blocked == set()


def test_a_jobs_exit_code_is_known_although_ends_of_children_were_ignored(
    agent: ScriptedAgent,
) -> None:
    done = ran(DEAF, *RUN, "--url", agent.url, "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr


def test_a_running_job_is_ended_by_control_c(agent: ScriptedAgent, tmp_path: Path) -> None:
    job = ("sh", "-c", "echo begun; exec sleep 180")
    with started(DEAF, tmp_path, *RUN, "--url", agent.url, "--", *job) as running:
        running.until("begun")
        assert running.end(signal.SIGINT) == 128 + signal.SIGINT


def test_a_job_under_nohup_is_still_throttled_after_a_hangup(
    agent: ScriptedAgent, tmp_path: Path
) -> None:
    job = ("sh", "-c", "echo $$ > pid; echo begun; exec sleep 180")
    options = ("--url", agent.url, "--steady", "0")
    with started(NOHUP, tmp_path, *RUN, *options, "--", *job) as running:
        running.until("begun")
        pid = int((tmp_path / "pid").read_text())
        running.process.send_signal(signal.SIGHUP)
        agent.script.default = answer(429, bodies.rejection(retry_after_ms=10), Retry_After="1")
        eventually(lambda: state_of(pid) == "T")
        assert running.process.poll() is None
        assert running.end(signal.SIGTERM) == 128 + signal.SIGTERM


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- readers that leave ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "argv"),
    [
        (Left(), ("token",)),
        (Left(), ("--help",)),
        (Left(ignored=("SIGPIPE",)), ("lint", "/dev/null")),
    ],
)
def test_a_reader_that_left_is_no_reason_for_words(left: Left, argv: tuple[str, ...]) -> None:
    """As of `headgate … | head -1`, when that has seen enough."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = ran(
            left, *HEADGATE, *argv, capture_output=False, stdout=writing, stderr=subprocess.PIPE
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_job_is_run_to_its_end_although_nobody_reads(
    agent: ScriptedAgent, tmp_path: Path
) -> None:
    """Where `headgate run` complains into a pipe without a reader, the job stays in its care."""
    agent.script.default = OK
    reading, writing = os.pipe()
    os.close(reading)
    command = [*RUN[:-1], "--url", agent.url, "--", "sh", "-c", "sleep 0.1; touch done; exit 5"]
    try:
        done = ran(
            Left(), *command, cwd=tmp_path, capture_output=False, stdout=writing, stderr=writing
        )
    finally:
        os.close(writing)
    assert done.returncode == 5
    assert (tmp_path / "done").exists()


FRAGILE = """
import asyncio, signal, sys
from contextlib import suppress
from headgate import AsyncClient, Client, ThrottlerUnavailable

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
about = {"database": "main", "url": sys.argv[1]}

async def ask():
    async with AsyncClient("etl:nightly", **about) as client:
        await client.check()

for _ in range(20):
    with suppress(ThrottlerUnavailable), Client("etl:nightly", **about) as client:
        client.check()
    with suppress(ThrottlerUnavailable):
        asyncio.run(ask())
print("alive")
"""


def test_a_job_that_may_die_of_a_pipe_does_not_die_of_an_agent(short_path: Path) -> None:
    """A script that sets SIGPIPE to its default, as those for pipes do, and uses the SDK."""
    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as closing:
        listening.bind(str(short_path / "a.sock"))
        listening.listen(64)
        ended = closing.submit(_hang_up_on_all, listening)
        done = ran(Left(), sys.executable, "-c", FRAGILE, f"unix://{short_path}/a.sock")
        listening.shutdown(socket.SHUT_RDWR)
        ended.result()
    assert (done.returncode, done.stdout) == (0, b"alive\n"), done.stderr


def _hang_up_on_all(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listening.accept()[0].close()
