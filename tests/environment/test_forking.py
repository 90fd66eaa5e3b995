"""Commands that tests fork end with the tests, however those end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.fixtures.eventually import eventually
from tests.fixtures.forking import Forks


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_command_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    forks = Forks()
    nobody = ("--url", "http://127.0.0.1:9", "--unavailable-after", "10m")
    command = forks.start(tmp_path, "wait", "--as", "job", *nobody)
    assert is_running(command.pid)
    os.kill(forks.pid, signal.SIGKILL)
    eventually(lambda: not is_running(command.pid))
    forks.end()
