"""The agent's host from /proc, and how full the file system of the data directory is."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from headgate.errors import ProbeFailed
from headgate.metrics.probes.threads import OneThread
from headgate.metrics.samples import Cause

MAX_FILE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class HostFiles:
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    allowed_cores: Callable[[], int] = field(default=lambda: len(os.sched_getaffinity(0)))


HERE = HostFiles()


@dataclass(frozen=True, slots=True)
class HostProbe:
    measure: Callable[[HostFiles], float]
    files: HostFiles = HERE

    async def read(self) -> float:
        return self.measure(self.files)  # a few lines of /proc, which is memory: never blocks

    async def close(self) -> None:
        """Holds nothing open."""


def loadavg(files: HostFiles) -> float:
    one_minute = float(_read(files.proc / "loadavg").split()[0])
    return one_minute / cores(files)


def cores(files: HostFiles) -> float:
    """What the scheduler grants us: the affinity mask, or a smaller quota of our cgroup."""
    return min([float(files.allowed_cores()), *_quotas(files)])


def _quotas(files: HostFiles) -> list[float]:
    """The cpu.max of our cgroup (v2) and of each one around it, in cores."""
    try:
        lines = _read(files.proc / "self" / "cgroup").splitlines()
    except ProbeFailed:
        return []
    inside = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = files.cgroup / inside.strip("/")
    found = []
    while group.is_relative_to(files.cgroup):
        found.extend(_quota(group / "cpu.max"))
        group = group.parent
    return found


def _quota(path: Path) -> list[float]:
    try:
        quota_us, period_us = _read(path).split()
        return [int(quota_us) / int(period_us)]
    except (ProbeFailed, ValueError, ZeroDivisionError):
        return []  # no such file in a root cgroup, and "max" where there is no quota


def pressure(resource: str) -> Callable[[HostFiles], float]:
    """Share of the last 10 s in which some task waited for `resource`."""

    def measure(files: HostFiles) -> float:
        path = files.proc / "pressure" / resource
        for line in _read(path).splitlines():
            kind, *fields = line.split()
            if kind == "some":
                return float(dict(item.split("=") for item in fields)["avg10"]) / 100
        raise ProbeFailed(Cause.UNSUPPORTED, f"{path} has no line `some`")

    return measure


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        if path.parent.name == "pressure":
            message += "; the kernel needs PSI (boot with psi=1)"
        raise ProbeFailed(Cause.UNSUPPORTED, message) from None


HOST_METRICS: dict[str, Callable[[HostFiles], float]] = {
    "loadavg": loadavg,
    "psi_cpu": pressure("cpu"),
    "psi_io": pressure("io"),
    "psi_memory": pressure("memory"),
}


# --- how full the file system of the data directory is, seen from the agent's host -------------


class DiskProbe:
    def __init__(self, label: str, directory: Callable[[], Awaitable[str]]) -> None:
        self._label = label
        self._ask = directory
        self._directory: str | None = None
        # A dead network file system blocks without end.
        self._thread: OneThread[float] = OneThread(f"{label}: disk_used")

    async def read(self) -> float:
        # Queried once: where the data lies does not change, and the disk matters most
        # when the server no longer answers.
        if self._directory is None:
            self._directory = await self._ask()
        directory = self._directory
        try:
            return await self._thread.run(lambda: used_share(directory))
        except OSError as error:
            self._directory = None
            raise ProbeFailed(
                Cause.UNSUPPORTED,
                f"{self._label}: {directory} cannot be read on the agent's host "
                f"({error.strerror}): run the agent beside the server, or give the option `path`",
            ) from None

    async def close(self) -> None:
        """Holds nothing open."""


def used_share(directory: str) -> float:
    """As df counts: what is reserved for root is not free."""
    found = os.statvfs(directory)
    used = found.f_blocks - found.f_bfree
    total = used + found.f_bavail
    if total == 0:
        raise ProbeFailed(Cause.UNSUPPORTED, f"{directory} lies on a file system without a size")
    return used / total
