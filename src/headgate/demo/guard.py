"""Stand between us and a server, so that the server cannot outlive us.

    us ──pipe──► guard ──parent of──► server ──► its workers

Run as a script by servers.py. Its stdin is a pipe that only we hold open: the kernel
closes it however we die, SIGKILL included, and the guard then ends the server and
removes its folders. PR_SET_PDEATHSIG in our own children would be shorter, but it
fires when the *thread* that started the server ends, and needs a preexec_fn, which is
unsafe in a process with threads. The guard has one thread, so there it is safe, and
covers the guard's own death.

Standard library only, and nothing of Headgate: it starts in 25 ms, with -I -S.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_ORDER = b"k"
QUIT_GRACE_S = 3.0


def children_of(parent_pid: int) -> list[int]:
    """The live children of a process, zombies included."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if parent_of(pid) == parent_pid]


def parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is a program name in brackets and may itself hold brackets.
    return int(stat.rpartition(b")")[2].split()[1])


def signal_each(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def start(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        spec["argv"],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # the log: what the guard itself says belongs there too
        env=spec["env"],
        cwd=spec["cwd"],
        user=spec["uid"],
        group=spec["gid"],
        extra_groups=None if spec["uid"] is None else [],
        # After the change of user, which would clear it.
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 one thread
    )


def end_children() -> None:
    """Kill until there is none: as subreaper, the guard inherits each orphaned worker."""
    with suppress(ChildProcessError):
        while pids := children_of(os.getpid()):
            signal_each(pids, signal.SIGKILL)
            os.waitpid(-1, 0)


def quit_politely(pid: int, pidfd: int, number: int) -> None:
    """Let the server give back what outlives a process, such as shared memory."""
    signal_each([pid], number)
    signal_each([pid, *children_of(pid)], signal.SIGCONT)
    select.select([pidfd], [], [], QUIT_GRACE_S)


def main() -> None:
    spec = json.loads(sys.argv[1])
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = start(spec)
    pidfd = os.pidfd_open(server.pid)
    print(server.pid, flush=True)
    ready, _, _ = select.select([0, pidfd], [], [])
    orphaned = pidfd not in ready and os.read(0, 1) != KILL_ORDER
    if orphaned:
        quit_politely(server.pid, pidfd, spec["quit_signal"])
    end_children()
    for folder in spec["folders"] if orphaned else []:
        shutil.rmtree(folder, ignore_errors=True)
    # Without interpreter shutdown: Popen has not seen the exit that waitpid took.
    os._exit(0)


if __name__ == "__main__":
    main()
