"""Programs as probes: their number, their failures, and their end."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.command import CommandProbe
from tests.fixtures.eventually import aeventually
from tests.probes.reading import failure, within


def shell(script: str) -> CommandProbe:
    return CommandProbe(("/bin/sh", "-c", script))


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
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await within(probe, 0.3)
    assert time.monotonic() - started < 0.6
    both = [int(pid) for pid in pids.read_text().split()]
    assert len(both) == 2
    await aeventually(lambda: all(map(is_over, both)))


@pytest.mark.parametrize("way", ["setsid {child} &", "(setsid {child} &);"])
async def test_a_timeout_kills_a_child_that_left_the_session(tmp_path: Path, way: str) -> None:
    """R26: also where its parent is gone, so that nobody can tell whose child it was."""
    pid_file, bystander = tmp_path / "pid", shell("sleep 1; echo 1")
    child = f"sh -c 'echo $$ > {pid_file}; exec sleep 300'"
    untouched = asyncio.create_task(bystander.read())
    with pytest.raises(TimeoutError):
        await within(shell(f"{way.format(child=child)} sleep 300"), 0.4)
    pid = int(pid_file.read_text())
    await aeventually(lambda: is_over(pid))
    assert await untouched == 1


async def test_a_program_that_leaves_a_child_with_its_output_times_out_and_dies() -> None:
    with pytest.raises(TimeoutError):
        await within(shell("echo 1; sleep 300 & exit 0"), 0.3)


async def test_timeouts_leak_neither_processes_nor_pipes() -> None:
    before = open_files()
    probe = CommandProbe((sys.executable, "-S", "-c", "import time; time.sleep(60)"))
    for _ in range(10):
        with pytest.raises(TimeoutError):
            await within(probe, 0.02)
    await aeventually(lambda: open_files() <= before)
    await aeventually(lambda: not children())


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


def children() -> list[str]:
    """Sleepers of ours that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"time.sleep(60)" in entry.read_bytes():
                found.append(entry.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def test_a_failure_does_not_raise_anything_else() -> None:
    with pytest.raises(ProbeFailed):
        await shell("exit 1").read()
