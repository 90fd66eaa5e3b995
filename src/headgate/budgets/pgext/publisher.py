"""Put policies and health into a server's folder.   agent ──PolicySink──► files ──► every backend

Needs no connection, no signal and no CPU of the server's: a backend notices the new file before
its next statement, and a policy that is not sound it does not take.

What was switched off stays off: a policy that is published meanwhile takes its place, switched
off as well. Only `switch_on` (headgate pg enable) ends that, never an agent that did not know.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headgate.base.ports import Clock
from headgate.budgets.compiled import compile_policy
from headgate.budgets.pgext.directory import (
    HEALTH_FILE,
    MAX_POLICY_BYTES,
    MAX_VERSION,
    OFF_FILE,
    POLICY_FILE,
    Folder,
    PolicyHead,
    head_of,
    health_bytes,
    opened,
    stamped,
)
from headgate.budgets.pgext.meter import force_in, is_off_in
from headgate.budgets.pgext.threads import OneCall
from headgate.budgets.policy import Policy
from headgate.budgets.readings import Lying, Published
from headgate.errors import MeterFailed, PolicyRejected


class FilePolicySink:
    """The PolicySink of one server on this host."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._version = 0
        """The last one that we gave."""
        self.off = False
        """Whether what was published last is switched off."""
        self._seen: tuple[int, int, int] | None = None
        """Which file `_lying` is of: inode, time of change and size."""
        self._lying: Lying | None = None
        self._publishing = OneCall(f"publishing to {directory}", PolicyRejected)
        self._looking = OneCall(f"looking at {directory}", PolicyRejected)
        self._telling = OneCall(f"telling {directory} its health", PolicyRejected)

    def describe(self) -> str:
        return f"the file {self._directory / POLICY_FILE}"

    async def publish(self, policy: Policy, revision: int) -> Published:
        return await self._publishing.run(lambda: self.publish_now(policy))

    async def look(self) -> Lying | None:
        return await self._looking.run(self.look_now)

    async def tell_health(self, healthy: bool, until_ms: int) -> None:
        await self._telling.run(lambda: self.tell_health_now(healthy=healthy, until_ms=until_ms))

    def publish_now(self, policy: Policy) -> Published:
        # Compiled before others are kept waiting for the folder.
        body = compile_policy(policy, 0)
        with opened(self._directory) as folder:
            present = head_of(_present(folder))
            off = self._was_off(folder) if present is None else present.off
            return self._put(folder, body, present, off=off)

    def look_now(self) -> Lying | None:
        """What lies there; read only if it is another file than the last time. No lock: it is
        replaced as a whole."""
        path = self._directory / POLICY_FILE
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            self._seen = self._lying = None
            return None
        except OSError as error:
            raise PolicyRejected(f"{path} cannot be read: {error.strerror}") from None
        with os.fdopen(fd, "rb") as file:
            about = os.fstat(fd)
            seen = (about.st_ino, about.st_mtime_ns, about.st_size)
            if seen != self._seen:
                self._seen, self._lying = seen, _lying(head_of(file.read(MAX_POLICY_BYTES)))
        if self._lying is not None:
            self.off = self._lying.off
        return self._lying

    def switch_on(self, policy: Policy | None) -> Published:
        """That policy, or else the one that lies there."""
        body = None if policy is None else compile_policy(policy, 0)
        with opened(self._directory) as folder:
            there = _present(folder)
            present = head_of(there)
            if body is None and present is None:
                raise PolicyRejected(
                    f"there is no policy in {folder.path} to switch on: give one (--policy FILE)"
                )
            published = self._put(folder, body or there, present, off=False)
            folder.remove(OFF_FILE)
            return published

    def switch_off(self) -> Published:
        """The policy stays there to look at and to switch on again; nobody decides by it."""
        with opened(self._directory) as folder:
            there = _present(folder)
            present = head_of(there)
            if present is not None and present.off:
                self.off = True
                return self._published(present)
            body = there if present else compile_policy(Policy(), 0)
            return self._put(folder, body, present, off=True)

    def tell_health_now(self, *, healthy: bool, until_ms: int) -> None:
        body = health_bytes(healthy=healthy, until_ms=until_ms, written_ms=self._wall_ms())
        with opened(self._directory) as folder:
            folder.replace(HEALTH_FILE, body)

    def _put(
        self, folder: Folder, body: bytes, present: PolicyHead | None, *, off: bool
    ) -> Published:
        version = self._next_version(folder, present)
        whole = stamped(body, version, off=off)
        folder.replace(POLICY_FILE, whole)
        self._version, self.off = version, off
        head = head_of(whole)
        assert head is not None
        return self._published(head)

    def _published(self, head: PolicyHead) -> Published:
        return Published(head.version, head.checksum, self._wall_ms(), head.off, head.content)

    def _was_off(self, folder: Folder) -> bool:
        """Where the file is gone: a switch that was thrown stays so (disable --purge)."""
        if self.off or folder.has(OFF_FILE):
            return True
        with suppress(MeterFailed):
            return is_off_in(folder.path)
        return False

    def _next_version(self, folder: Folder, present: PolicyHead | None) -> int:
        """Above all that are known: the file may be gone, and the server have its policy still."""
        known = (self._version, present.version if present else 0, _in_force(folder.path))
        if max(known) >= MAX_VERSION:
            raise PolicyRejected(f"{folder.path}: version {max(known)} is the last that there is")
        return max(known) + 1

    def _wall_ms(self) -> int:
        return int(self._clock.now().wall_s * 1000)


def _present(folder: Folder) -> bytes:
    return folder.read(POLICY_FILE, MAX_POLICY_BYTES) or b""


def _lying(head: PolicyHead | None) -> Lying | None:
    if head is None:
        return None
    return Lying(head.version, head.checksum, head.content, head.off)


def _in_force(directory: Path) -> int:
    """0 where nobody can tell: a server that is down takes whatever it finds at its start."""
    try:
        return force_in(directory).version
    except MeterFailed:
        return 0
