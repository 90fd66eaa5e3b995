"""A program whose standard output is one number.

It runs without a shell, in a session of its own, so that it and whatever it starts can be
killed together when time is up. A child may leave that session and outlive its parent; what
it keeps is the environment it was given, so each run is marked there.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.metrics.probes.numbers import number_in_text, one_line
from headgate.metrics.probes.threads import OneThread
from headgate.metrics.samples import Cause

MAX_OUTPUT_BYTES = 4096
GONE_WITHIN_S = 0.1
MARK = "HEADGATE_COMMAND_RUN"
# One that forks while it is being looked for is found in the next round.
MAX_ROUNDS = 5
STDOUT, STDERR = 1, 2


def found_program(argv: tuple[str, ...]) -> tuple[str, ...]:
    """InvalidSettings where there is no such program on this host."""
    if shutil.which(argv[0]) is None:
        message = f"there is no program {argv[0]!r} that the agent may run on this host"
        raise InvalidSettings([Fault("command", message)])
    return argv


class CommandProbe:
    def __init__(self, argv: tuple[str, ...]) -> None:
        self._argv = argv
        self._label = f"command {Path(argv[0]).name}"

    async def read(self) -> float:
        mark = secrets.token_hex(16)
        transport, run = await self._started(mark)
        try:
            await run.over
        finally:
            has_ended = transport.get_returncode() is not None and run.over.done()
            await _end(transport, run)
            if not has_ended:
                await _kill_escaped(mark)
        return self._number(run, transport.get_returncode())

    async def _started(self, mark: str) -> Started:
        """Never given up halfway: asyncio would kill the program alone, and then wait for a pipe
        that the program's own children hold."""
        starting = asyncio.ensure_future(self._start(mark))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            ending = asyncio.ensure_future(_end_started(starting, mark))
            _ending.add(ending)
            ending.add_done_callback(_ending.discard)
            await asyncio.wait([ending], timeout=GONE_WITHIN_S)
            raise

    async def _start(self, mark: str) -> Started:
        loop = asyncio.get_running_loop()
        try:
            return await loop.subprocess_exec(
                CommandRun,
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, MARK: mark},  # noqa: TID251 -- handed on, not read
            )
        except OSError as error:
            message = f"{self._label} cannot be started: {error.strerror}"
            raise ProbeFailed(Cause.FAILED, message) from None

    async def close(self) -> None:
        """A run ends with its read."""

    def _number(self, run: CommandRun, exit_code: int | None) -> float:
        if run.overflowed:
            message = f"{self._label} wrote more than {MAX_OUTPUT_BYTES} bytes"
            raise ProbeFailed(Cause.INVALID, message)
        if exit_code != 0:
            said = one_line(run.text(STDERR)) if run.text(STDERR).strip() else "nothing on stderr"
            raise ProbeFailed(Cause.FAILED, f"{self._label} exited with {exit_code}: {said}")
        try:
            return number_in_text(run.text(STDOUT))
        except ProbeFailed as failure:
            raise ProbeFailed(failure.cause, f"{self._label} {failure.detail}") from None


class CommandRun(asyncio.SubprocessProtocol):
    """Keeps the head of stdout and the tail of stderr; `over` when both and the program ended."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.overflowed = False
        self._output = {STDOUT: b"", STDERR: b""}

    def text(self, fd: int) -> str:
        return self._output[fd].decode(errors="replace")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        kept = self._output[fd] + data
        if fd == STDOUT and len(kept) > MAX_OUTPUT_BYTES:
            self.overflowed = True
            self._finish()
        self._output[fd] = kept[-MAX_OUTPUT_BYTES:]

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


Started: TypeAlias = tuple[asyncio.SubprocessTransport, CommandRun]
_ending: set[asyncio.Task[None]] = set()
"""Of programs whose reader left before they had been started: something has to hold the task."""


async def _end_started(starting: asyncio.Future[Started], mark: str) -> None:
    try:
        transport, run = await starting
    except ProbeFailed:
        return
    await _end(transport, run)
    await _kill_escaped(mark)


async def _end(transport: asyncio.SubprocessTransport, run: CommandRun) -> None:
    """Kill the whole group, let go of its pipes, and see the program off."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    transport.close()
    # Bounded: a program in uninterruptible sleep dies later, and the loop reaps it then.
    await asyncio.wait([run.exited], timeout=GONE_WITHIN_S)


async def _kill_escaped(mark: str) -> None:
    thread: OneThread[None] = OneThread(f"end of run {mark}")
    with suppress(TimeoutError):
        async with asyncio.timeout(GONE_WITHIN_S):
            await thread.run(lambda: kill_marked(mark))


def kill_marked(mark: str) -> None:
    """Kill every process that was started with `mark`, wherever it went."""
    line = f"{MARK}={mark}".encode()
    for _ in range(MAX_ROUNDS):
        found = [pid for pid in _pids() if line in _environment(pid)]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """Empty for the dead, and for those of other users."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
