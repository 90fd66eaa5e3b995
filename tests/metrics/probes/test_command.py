"""Programs as probes: their number, their failures, and their end."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from headgate.errors import ProbeFailed
from headgate.metrics.probes.command import CommandProbe
from headgate.metrics.samples import Cause
from tests.fixtures.eventually import aeventually
from tests.metrics.probes.reading import cut_off, failure, within


def shell(script: str) -> CommandProbe:
    return CommandProbe(("/bin/sh", "-c", script))


@pytest.fixture(autouse=True)
async def _seen_off() -> AsyncIterator[None]:
    """The loop of a test outlives its programs: each is reaped by a thread that tells the loop."""
    yield
    await aeventually(lambda: not any("waitpid" in t.name for t in threading.enumerate()))
    for _ in range(3):
        await asyncio.sleep(0)


async def test_standard_output_is_the_number() -> None:
    assert await shell("echo ' 42.5 '").read() == 42.5


async def test_no_shell_is_in_between() -> None:
    assert (await failure(CommandProbe(("/bin/echo", "$(echo 1)")))).cause is Cause.INVALID


@pytest.mark.parametrize(
    ("script", "cause", "said"),
    [
        ("echo disk on fire >&2; exit 3", Cause.FAILED, "exited with 3: disk on fire"),
        ("kill -9 $$", Cause.FAILED, "exited with -9"),
        ("exit 0", Cause.INVALID, "no number"),
        ("echo 1; echo 2", Cause.INVALID, "no number"),
        ("echo nan", Cause.INVALID, "nan"),
        ("yes 1", Cause.INVALID, "more than 4096 bytes"),
    ],
)
async def test_what_is_no_number_says_why(script: str, cause: Cause, said: str) -> None:
    failed = await failure(shell(script))
    assert failed.cause is cause
    assert said in failed.detail


async def test_a_missing_program_is_a_failure() -> None:
    failed = await failure(CommandProbe(("/no/such/program",)))
    assert failed.cause is Cause.FAILED
    assert "No such file" in failed.detail


async def test_the_tail_of_stderr_is_kept_and_bounded() -> None:
    failed = await failure(shell("yes noise | head -c 300000 >&2; echo the reason >&2; exit 1"))
    assert len(failed.detail) < 1000


async def test_a_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    """R26: neither the program nor what it started outlives the read."""
    pids = tmp_path / "pids"
    probe = shell(f"sleep 300 & echo $! >> {pids}; echo $$ >> {pids}; wait")
    await cut_off(probe, lambda: len(numbers_in(pids)) == 2)
    await aeventually(lambda: all(map(is_over, numbers_in(pids))))


async def test_a_timeout_while_the_program_is_being_started_kills_the_whole_group(
    tmp_path: Path,
) -> None:
    """R26: asyncio alone would wait for as long as a child of the program holds its output."""
    pids = tmp_path / "pids"
    probe = shell(f"sleep 300 & echo $! >> {pids}; echo $$ >> {pids}; wait")
    for steps in range(6):
        reading = asyncio.ensure_future(probe.read())
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    await aeventually(lambda: all(map(is_over, numbers_in(pids))))


@pytest.mark.parametrize("way", ["setsid {child} &", "(setsid {child} &);"])
async def test_a_timeout_kills_a_child_that_left_the_session(tmp_path: Path, way: str) -> None:
    """R26: also where its parent is gone, so that nobody can tell whose child it was."""
    pid_file, go = tmp_path / "pid", tmp_path / "go"
    bystander = shell(f"while [ ! -e {go} ]; do sleep 0.05; done; echo 1")
    child = f"sh -c 'echo $$ > {pid_file}; exec sleep 300'"
    untouched = asyncio.create_task(bystander.read())
    await cut_off(shell(f"{way.format(child=child)} sleep 300"), lambda: bool(numbers_in(pid_file)))
    await aeventually(lambda: all(map(is_over, numbers_in(pid_file))))
    assert not untouched.done()
    go.touch()
    assert await untouched == 1


async def test_a_program_that_leaves_a_child_with_its_output_times_out_and_dies() -> None:
    with pytest.raises(TimeoutError):
        await within(shell("echo 1; sleep 300 & exit 0"), 0.3)


async def test_timeouts_leak_neither_processes_nor_pipes() -> None:
    before, mark = open_files(), f"sleeper-{uuid4().hex}"
    probe = CommandProbe((sys.executable, "-S", "-c", "import time; time.sleep(300)", mark))
    for _ in range(10):
        with pytest.raises(TimeoutError):
            await within(probe, 0.02)
    await aeventually(lambda: open_files() <= before)
    await aeventually(lambda: not called(mark))


async def test_reads_of_one_probe_do_not_mix() -> None:
    answers = await asyncio.gather(*(shell(f"echo {n}").read() for n in range(5)))
    assert answers == [0, 1, 2, 3, 4]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def numbers_in(path: Path) -> list[int]:
    """Those whose line is whole."""
    text = path.read_text() if path.exists() else ""
    return [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def called(mark: str) -> list[str]:
    """Processes that have it in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def test_a_failure_does_not_raise_anything_else() -> None:
    with pytest.raises(ProbeFailed):
        await shell("exit 1").read()
