"""`headgate …` as processes of their own, which start in a hundredth of a second.

    test ──one JSON line──► a process that has imported everything ──fork──► the command

What is forked is a process like any other: its own session, files and end. Only what Python takes
to start, and to read the same modules again, is spared.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from tests.fixtures.eventually import eventually

NEEDED = (
    "__main__",
    *(f"cli.{name}" for name in ("api", "ask", "job", "pacer", "run", "words")),
    *(f"client.{name}" for name in ("gathering", "runs", "sync_client", "unthrottled", "waits")),
)


class Forked:
    """As much of subprocess.Popen as tests use."""

    def __init__(self, forks: Forks, pid: int, folder: Path) -> None:
        self.pid = pid
        self._forks = forks
        self._folder = folder
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._forks.said(poll=self.pid)
        return self._code

    def wait(self, timeout_s: float = 10) -> int:
        eventually(lambda: self.poll() is not None, within_s=timeout_s)
        assert self._code is not None
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    @property
    def out(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self._folder / "err").read_text()


class Forks:
    """The process that forks; ends with its `with` block."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, folder: Path, *argv: str, **env: str) -> Forked:
        """`headgate …` in `folder`, where files keep what it says: pipes would outlive it."""
        job = {"argv": argv, "folder": str(folder), "env": {**os.environ, **env}}
        return Forked(self, self.said(start=job), folder)

    def said(self, **request: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate(timeout=10)


# --- the process that forks -------------------------------------------------------------------


def warm_up() -> None:
    """Also what Typer reads with the first command line: here one with a fault in it."""
    for name in NEEDED:
        importlib.import_module(f"headgate.{name}")
    from headgate.__main__ import main

    sys.argv = ["headgate", "run", "--as", "warm", "--mode", "none", "--", "true"]
    with redirect_stderr(StringIO()), suppress(SystemExit):
        main()


def serve() -> None:
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        answer = fork(request["start"]) if "start" in request else poll(request["poll"])
        print(json.dumps(answer), flush=True)


def fork(job: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(become(job))
    return pid


def become(job: Mapping[str, Any]) -> int:
    """The exit code. Without a terminal, as cron and systemd start it."""
    from headgate.__main__ import main

    os.setsid()
    os.chdir(job["folder"])
    for descriptor, name in enumerate((os.devnull, "out", "err")):
        opened = os.open(name, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv = ["headgate", *job["argv"]]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve()
