"""Real commands, started by a parent that left them something unusual."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.eventually import eventually

LAUNCHER = Path(__file__).with_name("launcher.py")
HEADGATE = (sys.executable, "-m", "headgate")
PATIENCE_S = 240
"""For what hangs; a loaded machine is slow, and that is no failure."""


@dataclass(frozen=True)
class Left:
    """What a command inherits besides its arguments."""

    ignored: Sequence[str] = ()
    """Signals, by name: SIGINT …"""
    blocked: Sequence[str] = ()
    closed: Sequence[int] = ()
    umask: int | None = None
    environment: Mapping[str, str | None] | None = None
    """On top of ours; None takes a name away."""

    @property
    def prefix(self) -> list[str]:
        told = {
            "ignored": self.ignored,
            "blocked": self.blocked,
            "closed": self.closed,
            "umask": self.umask,
        }
        return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(told)]

    @property
    def env(self) -> dict[str, str]:
        named: dict[str, str | None] = {**os.environ, **(self.environment or {})}
        return {name: value for name, value in named.items() if value is not None}


# As a script's `command &` and some CI runners do it, and then some.
DEAF = Left(
    ignored=("SIGINT", "SIGQUIT", "SIGTERM", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGTSTP"),
    blocked=("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGCONT", "SIGUSR2", "SIGALRM"),
)


def ran(left: Left, *argv: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """A command to its end."""
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": PATIENCE_S, **how}
    return subprocess.run([*left.prefix, *argv], env=left.env, check=False, **how)


class Running:
    """A command that goes on; what it says is in a file."""

    def __init__(self, process: subprocess.Popen[bytes], says: Path) -> None:
        self.process = process
        self._says = says

    @property
    def said(self) -> str:
        return self._says.read_text(encoding="utf-8", errors="replace")

    def until(self, words: str) -> str:
        def is_said() -> str:
            assert words in self.said or self.process.poll() is None, self.said
            return self.said if words in self.said else ""

        return eventually(is_said, within_s=PATIENCE_S)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)


@contextmanager
def started(left: Left, folder: Path, *argv: str) -> Iterator[Running]:
    """In a session of its own, as a service: a terminal of ours is none of its."""
    says = folder / "says"
    with says.open("ab") as file:
        process = subprocess.Popen(
            [*left.prefix, *argv],
            env=left.env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield Running(process, says)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=PATIENCE_S)
