"""The memory in which a server keeps its counts, mapped from outside: to be read, and by those who
charge budgets (debits.py) to be written.

    server.json ──pid, fd──► /proc/<pid>/fd/<n> ──mmap──► bytes

The writer of server.json chooses the process, so it has to be a process of the folder's owner: an
agent with more rights must not be led to another user's memory. It is a sealed memfd: it cannot
shrink under a reader. Reading takes no lock of the server's and needs no connection to it. Mapped
again for each reading, so that a restarted server is found again, and another process is not
mistaken for one that has ended.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.budgets.pgext.directory import NoServer, ServerFile, read_server_file
from headgate.errors import MeterFailed

MEMFD = "/memfd:"
MIN_BYTES = 4096
F_GET_SEALS, F_SEAL_SHRINK = 1034, 2


@contextmanager
def mapped_region(directory: Path) -> Iterator[tuple[ServerFile, memoryview]]:
    """The region of the server that runs on these files, or MeterFailed with what is in the way."""
    try:
        server = read_server_file(directory)
    except NoServer as error:
        raise MeterFailed(str(error)) from None
    with opened_region(server, directory) as fd:
        # Unmapped when the last view of it is gone; to close it before would be an error.
        region = mmap.mmap(fd, server.region_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        yield server, memoryview(region)


@contextmanager
def opened_region(server: ServerFile, directory: Path, *, writable: bool = False) -> Iterator[int]:
    """Its file, looked at; or MeterFailed."""
    if writable:
        _check_writes_as_owner(directory)
    _check_is_the_owners(server, directory)
    fd = _open(server, directory, os.O_RDWR if writable else os.O_RDONLY)
    try:
        _check_is_ours(server, fd)
        yield fd
    finally:
        os.close(fd)


def _check_writes_as_owner(directory: Path) -> None:
    """What the server's user can rewrite, nobody with more rights than that user writes to."""
    owner, me = _owner(directory), os.geteuid()
    if me != owner:
        raise MeterFailed(
            f"{directory} belongs to user {owner}, and this is user {me}: budgets are charged in "
            "the server's memory by the server's own user alone. Run the agent as that user"
        )


def _check_is_the_owners(server: ServerFile, directory: Path) -> None:
    owner = _owner(directory)
    try:
        found = _user_of(server.pid)
    except OSError:
        raise MeterFailed(_gone(server, directory)) from None
    if found != owner:
        raise MeterFailed(
            f"process {server.pid}, which {directory} names as its server, is user {found}'s; the "
            f"folder belongs to user {owner}. Restart the server, and see who else writes there"
        )


def _user_of(pid: int) -> int:
    """Its effective one. The owner of /proc/<pid> is root where a process may not be dumped."""
    status = Path(f"/proc/{pid}/status").read_bytes()
    line = next(line for line in status.splitlines() if line.startswith(b"Uid:"))
    return int(line.split()[2])


def _owner(directory: Path) -> int:
    try:
        return directory.stat().st_uid
    except OSError as error:
        raise MeterFailed(f"{directory} cannot be looked at: {error.strerror}") from None


def _open(server: ServerFile, directory: Path, access: int) -> int:
    if server.region_fd < 0:
        raise MeterFailed(
            f"process {server.pid} found no sealed memory file for its counters (see its log): "
            "they can be read by SQL alone (--server DSN)"
        )
    path = Path(f"/proc/{server.pid}/fd/{server.region_fd}")
    try:
        if not str(path.readlink()).startswith(MEMFD):
            raise MeterFailed(_gone(server, directory))
        return os.open(path, access | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MeterFailed(_gone(server, directory)) from None
    except PermissionError as error:
        # Of every user: what guards /proc/<pid>/fd is the right to trace, not the file's mode.
        raise MeterFailed(
            f"/proc/{server.pid}/fd cannot be read: {error.strerror}; it takes the server's own "
            f"user or the capability CAP_SYS_PTRACE, and this is user {os.geteuid()}"
        ) from None
    except OSError as error:
        raise MeterFailed(f"{path} cannot be opened: {error.strerror}") from None


def _gone(server: ServerFile, directory: Path) -> str:
    return (
        f"the server of {directory} is not running: process {server.pid} of its postmaster.pid "
        "has ended or is another program (or it runs in another PID namespace: share it, as with "
        "docker run --pid=container:…)"
    )


def _check_is_ours(server: ServerFile, fd: int) -> None:
    found_bytes = os.fstat(fd).st_size
    if not MIN_BYTES <= server.region_bytes <= found_bytes:
        raise MeterFailed(
            f"process {server.pid}: its region should have {server.region_bytes} bytes, and the "
            f"file has {found_bytes}"
        )
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        seals = 0
    if not seals & F_SEAL_SHRINK:
        raise MeterFailed(f"process {server.pid}: its region is not sealed, so it is none of ours")
