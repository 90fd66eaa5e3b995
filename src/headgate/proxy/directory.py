"""The proxy's state directory, served as a server with the extension serves its own.

    policy.hgp, health.hgs ─inotify, then stat─► DirectoryWatcher ─► NativeRelay ─►
        the next statement
    server.json ◄── the proxy: where its memory is, for an agent on this host

A thread waits, looks and reads: a file system that hangs holds up neither statements nor the API.
It looks every 50 ms only while a file waits for another try, and where there is no inotify: that
takes 0.25 % of a core.
`health_of`, passed in by the composition root, decodes the health file.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from headgate.errors import RelayFault
from headgate.proxy.memory import SharedMemory
from headgate.proxy.ports import PartState
from headgate.proxy.relay import NativeRelay
from headgate.version import VERSION

log = structlog.get_logger()

POLICY_FILE, HEALTH_FILE, SERVER_FILE = "policy.hgp", "health.hgs", "server.json"
FORMAT = 1
LOOK_S = 0.05
SLOW_LOOK_S = 1.0
"""While the kernel says what changes: should it not have."""
MAX_HEALTH_BYTES = 4096
STOP_S = 1.0
_IN_TOLD = 0x2 | 0x80 | 0x100  # IN_MODIFY, IN_MOVED_TO, IN_CREATE
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Stamp = tuple[int, int, int]
"""Of a file: inode, time of change and size. Another one: another file."""


class HealthTold(NamedTuple):
    healthy: bool
    until_ms: int


HealthOf = Callable[[bytes], HealthTold | None]


def make_private(directory: Path) -> None:
    """There, ours, and closed to others: who may write here rules the traffic."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise RelayFault(f"directory {directory} cannot be made: {error.strerror}") from None
    if found.st_uid != os.geteuid():
        raise RelayFault(
            f"directory {directory} belongs to user {found.st_uid}, and this is user "
            f"{os.geteuid()}: give it to the proxy's own user (chown)"
        )
    if found.st_mode & 0o077:
        raise RelayFault(
            f"directory {directory} is open to others than its owner (mode "
            f"{found.st_mode & 0o777:04o}), who could set the policy: chmod 0700 {directory}"
        )


def tell_where(directory: Path, memory: SharedMemory) -> None:
    """server.json, as pg_headgate writes it. server_version_num 0: it is a proxy."""
    head = memory.region.head()
    said = {
        "pid": os.getpid(),
        "region_fd": memory.fd,
        "region_bytes": memory.laid.region_bytes,
        "format": FORMAT,
        "extension": f"proxy {VERSION}",
        "server_version_num": 0,
        "max_connections": head.workers,
        "cpus_milli": head.cpus_milli,
    }
    staged = directory / f"{SERVER_FILE}.{os.getpid()}.new"
    try:
        staged.write_text(json.dumps(said) + "\n", encoding="utf-8")
        staged.chmod(0o600)
        staged.replace(directory / SERVER_FILE)
    except OSError as error:
        raise RelayFault(f"{directory / SERVER_FILE} cannot be written: {error.strerror}") from None


def forget_where(directory: Path) -> None:
    """Only if it is still ours: a process that took over has written its own."""
    path = directory / SERVER_FILE
    with suppress(OSError, ValueError, KeyError):
        if json.loads(path.read_bytes())["pid"] == os.getpid():
            path.unlink()


class DirectoryWatcher:
    """The Part that follows the two files."""

    name = "directory"

    def __init__(self, directory: Path, relay: NativeRelay, health_of: HealthOf) -> None:
        self._directory = directory
        self._paths = {name: os.fspath(directory / name) for name in (POLICY_FILE, HEALTH_FILE)}
        self._relay = relay
        self._health_of = health_of
        self._stamps: dict[str, Stamp | None] = {POLICY_FILE: None, HEALTH_FILE: None}
        self._changed = asyncio.Event()
        self._ended = threading.Event()
        self.rejection = ""
        """Why the last policy was not taken."""
        self.taken = 0
        self.health_fault = ""

    def look_now(self, *, force: bool = False) -> None:
        """At the start, and after a policy was written. `force`: also an older one."""
        for name in self._stamps:
            found = self._read(name)
            if found is not None and self._take(name, found[1], force=force):
                self._stamps[name] = found[0]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended.clear()
        thread = threading.Thread(target=self._watch, args=(loop,), name="directory", daemon=True)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._ended.set()

    async def changed(self) -> None:
        """Until a policy has been accepted or rejected."""
        self._changed.clear()
        await self._changed.wait()

    def state(self) -> PartState:
        fault = self.rejection or self.health_fault
        summary = f"{self._directory}: {fault}" if fault else str(self._directory)
        return PartState(self.name, not fault, summary, figures={"policies_taken": self.taken})

    async def close(self) -> None:
        self._ended.set()

    # --- in the thread ---------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        changes = _Changes(self._directory)
        new = True  # Before there was a watch.
        while not self._ended.wait(LOOK_S):
            if not new:
                changes.wait(SLOW_LOOK_S)
            new = not self._ended.is_set() and self._look(loop)
        changes.close()

    def _look(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether there was something new: it may have to be looked at again."""
        new = False
        for name in self._paths:
            found = self._read(name)
            if found is None:
                continue
            new = True
            with suppress(RuntimeError):  # The loop was closed meanwhile.
                loop.call_soon_threadsafe(self._seen, name, *found)
        return new

    def _read(self, name: str) -> tuple[Stamp, bytes] | None:
        """None: it is not there, or is what was seen already."""
        path = self._paths[name]
        with suppress(OSError):
            if _stamp(os.lstat(path)) == self._stamps[name]:
                return None
            with os.fdopen(os.open(path, _FLAGS), "rb") as file:
                stamp = _stamp(os.fstat(file.fileno()))
                return stamp, file.read(self._most_bytes(name) + 1)
        return None

    def _most_bytes(self, name: str) -> int:
        if name == HEALTH_FILE:
            return MAX_HEALTH_BYTES
        return int(self._relay.memory.laid.region_bytes)

    # --- on the loop -----------------------------------------------------------------------

    def _seen(self, name: str, stamp: Stamp, body: bytes) -> None:
        if self._ended.is_set() or self._stamps[name] == stamp:
            return
        if self._take(name, body, force=False):
            self._stamps[name] = stamp

    def _take(self, name: str, body: bytes, *, force: bool) -> bool:
        """False: worth another try, the next look finds it again."""
        if name == HEALTH_FILE:
            self._take_health(body)
            return True
        rejected = self._relay.publish(body, force=force)
        if rejected is not None and rejected.again:
            return False
        self.rejection = "" if rejected is None else f"{POLICY_FILE} is invalid: {rejected.why}"
        self.taken += rejected is None
        if rejected is not None:
            log.error("policy.rejected", detail=rejected.why, stays="the last good one")
        else:
            version = self._relay.memory.region.head().version
            log.info("policy.in_force", version=version, policy_bytes=len(body))
        self._changed.set()
        return True

    def _take_health(self, body: bytes) -> None:
        told = self._health_of(body)
        if told is None:
            self.health_fault = f"{HEALTH_FILE} is no whole health file"
            return
        self.health_fault = ""
        self._relay.tell_health(told.healthy, told.until_ms)
        self._relay.stir()


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size


class _Changes:
    """What happens to the files of a directory, as the kernel tells it (inotify); nothing, if no
    watch is left for this user."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self._fd >= 0 and libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_TOLD) < 0:
            self.close()

    def wait(self, most_s: float) -> None:
        """Until something changes; not at all where nobody tells."""
        if self._fd < 0:
            return
        asked = select.poll()
        asked.register(self._fd, select.POLLIN)
        if asked.poll(most_s * 1000):
            with suppress(BlockingIOError):
                os.read(self._fd, 4096)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
