"""Loads on a Postgres server by a C program, and what they saw.

    build ─► Program.start(server, "SELECT …", connections=8) ─► Running ─► Counts, trace

A client in Python would need more of the machine than the server that it measures.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
GRACE_S = 130.0
"""A statement that has begun is awaited for two minutes."""


class LoadFailed(RuntimeError):
    """A load ended before its time."""


@dataclass(frozen=True, slots=True)
class Load:
    """Who asks what, how, and for how long."""

    statements: tuple[str, ...]
    seconds: float
    connections: int = 1
    user: str = "postgres"
    application: str = "pg_load"
    prepared: bool = False
    rows: int = 100_000
    pause_us: int = 0
    blocked_pause_us: int = 0
    comes_back: bool = False
    waits: bool = False
    """It begins when it is told to; see Running.begin."""
    nice: int = 0

    def argv(self, program: Path, socket: Path, trace: Path | None) -> list[str]:
        flags = {"-e": self.prepared, "-k": self.comes_back, "-g": self.waits}
        values = {"-h": socket, "-U": self.user, "-a": self.application, "-c": self.connections,
                  "-s": self.seconds, "-r": self.rows, "-p": self.pause_us,
                  "-w": self.blocked_pause_us, "-t": trace}  # fmt: skip
        words = [str(program), *(flag for flag, on in flags.items() if on)]
        for option, value in values.items():
            words += [] if value is None else [option, str(value)]
        return [*words, *self.statements]

    def lasting(self, seconds: float) -> Load:
        return replace(self, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Counts:
    seconds: float
    ok: int
    blocked: int
    cancelled: int
    lost: int
    other: int

    @property
    def ok_per_s(self) -> float:
        return self.ok / self.seconds


class Seen(NamedTuple):
    """One statement, as its client saw it. Times are Unix time."""

    connection: int
    statement: int
    sent_s: float
    done_s: float
    outcome: str
    values: tuple[int, int]
    """The first two columns, where they are whole numbers."""

    @property
    def took_s(self) -> float:
        return self.done_s - self.sent_s


@dataclass(slots=True)
class Running:
    """A load under way; all its connections are open."""

    process: subprocess.Popen[str]
    trace: Path | None
    _counts: Counts | None = field(default=None)

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait(self) -> Counts:
        """Until it has ended by itself."""
        if self._counts is None:
            out, _ = self.process.communicate(timeout=GRACE_S + self._longest_s())
            if self.process.returncode != 0:
                raise LoadFailed(f"pg_load ended with {self.process.returncode}: {out[-300:]}")
            self._counts = Counts(**json.loads(out))
        return self._counts

    def end(self) -> Counts:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def seen(self) -> list[Seen]:
        assert self.trace is not None, "this load keeps no trace"
        self.wait()
        with self.trace.open() as lines:
            return [_seen(line.split()) for line in lines]

    def _longest_s(self) -> float:
        argv = self.process.args
        assert isinstance(argv, list)
        return float(argv[argv.index("-s") + 1])


def _seen(words: Sequence[str]) -> Seen:
    connection, statement, sent_us, done_us, outcome, first, second = words
    times = int(sent_us) / 1e6, int(done_us) / 1e6
    return Seen(int(connection), int(statement), *times, outcome, (int(first), int(second)))


@dataclass(frozen=True, slots=True)
class Program:
    path: Path
    folder: Path

    @contextmanager
    def running(self, load: Load, socket: Path, *, trace: str = "") -> Iterator[Running]:
        """The load, once all its connections are open; ended at the latest when the block ends."""
        to = self.folder / f"{trace}.trace" if trace else None
        argv = load.argv(self.path, socket, to)
        nice = ["nice", "-n", str(load.nice)] if load.nice else []
        process = subprocess.Popen(
            [*nice, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise LoadFailed(f"{load.connections} connections could not be opened")
            yield Running(process, to)
        finally:
            _finish(process)

    def run(self, load: Load, socket: Path) -> Counts:
        with self.running(load, socket) as running:
            return running.wait()


def _finish(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    except ValueError:
        process.wait()  # Its output has been read to the end before.


def build(folder: Path) -> Program:
    program = folder / "pg_load"
    command = ["cc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([*command, "-o", str(program), str(SOURCE)], check=True)
    return Program(program, folder)
