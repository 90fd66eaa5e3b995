"""The agent's host from /proc, and how full the file system of the data directory is."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
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
    group = _own_group(files)
    found = []
    while group.is_relative_to(files.cgroup):
        found.extend(_quota(group / "cpu.max"))
        group = group.parent
    return found


def _own_group(files: HostFiles) -> Path:
    """Our cgroup (v2); the root's folder where there is none."""
    try:
        lines = _read(files.proc / "self" / "cgroup").splitlines()
    except ProbeFailed:
        return files.cgroup
    inside = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return files.cgroup / inside.strip("/")


def _quota(path: Path) -> list[float]:
    try:
        quota_us, period_us = _read(path).split()
        return [int(quota_us) / int(period_us)]
    except (ProbeFailed, ValueError, ZeroDivisionError):
        return []  # no such file in a root cgroup, and "max" where there is no quota


def pressure(resource: str) -> Callable[[HostFiles], float]:
    """Share of the last 10 s in which some task waited for `resource`: on the host, or in our
    cgroup where the host's files are hidden."""

    def measure(files: HostFiles) -> float:
        path, inside = files.proc / "pressure" / resource, _own_group(files)
        if not path.exists() and (inside / f"{resource}.pressure").exists():
            path = inside / f"{resource}.pressure"
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


def runnable(files: HostFiles) -> float:
    """Tasks that run or wait for a core, per core; the one that reads this is not counted."""
    for line in _read(files.proc / "stat").splitlines():
        if line.startswith("procs_running "):
            return max(0, int(line.split()[1]) - 1) / cores(files)
    raise ProbeFailed(Cause.UNSUPPORTED, f"{files.proc}/stat has no line `procs_running`")


HOST_METRICS: dict[str, Callable[[HostFiles], float]] = {
    "loadavg": loadavg,
    "psi_cpu": pressure("cpu"),
    "psi_io": pressure("io"),
    "psi_memory": pressure("memory"),
}


# --- what needs more than one look --------------------------------------------------------------

RUNNABLE_LOOKS = 5
Monotonic = Callable[[], float]


class RunQueueProbe:
    """The mean of the last looks: a single one jumps."""

    def __init__(self, files: HostFiles = HERE) -> None:
        self._files = files
        self._looks: deque[float] = deque(maxlen=RUNNABLE_LOOKS)

    async def read(self) -> float:
        self._looks.append(runnable(self._files))
        return sum(self._looks) / len(self._looks)

    async def close(self) -> None:
        """Holds nothing open."""


Counters = Callable[[HostFiles], Mapping[str, float]]


class CounterProbe:
    """How fast counters of the kernel grow, in a second; of several, the fastest."""

    def __init__(
        self, count: Counters, files: HostFiles = HERE, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._count = count
        self._files = files
        self._monotonic = monotonic
        self._before: tuple[float, Mapping[str, float]] | None = None

    async def read(self) -> float:
        now_s, counts = self._monotonic(), self._count(self._files)
        before, self._before = self._before, (now_s, counts)
        if before is None or now_s <= before[0]:
            message = "a rate needs two looks, and this was the first"
            raise ProbeFailed(Cause.WARMING_UP, message)
        then_s, earlier = before
        # A counter that goes back is another device, or started again.
        grown = [count - earlier[name] for name, count in counts.items() if name in earlier]
        return max((one for one in grown if one >= 0), default=0.0) / (now_s - then_s)

    async def close(self) -> None:
        """Holds nothing open."""


def disk_time(device: str = "") -> Counters:
    """Seconds in which each disk had something to do; of one device, if it is named."""

    def count(files: HostFiles) -> dict[str, float]:
        found = {}
        for line in _read(files.proc / "diskstats").splitlines():
            fields = line.split()
            name = fields[2]
            if name == device or (not device and not name.startswith(NO_DISKS)):
                found[name] = int(fields[12]) / 1000
        if not found:
            which = f"no device {device}" if device else "no disk"
            raise ProbeFailed(Cause.UNSUPPORTED, f"{files.proc}/diskstats has {which}")
        return found

    return count


NO_DISKS = ("loop", "ram", "zram", "sr", "fd")


def refaults(files: HostFiles) -> dict[str, float]:
    """Pages of files that had been evicted from the page cache and were read again: in our cgroup
    where it counts them, else on the host."""
    for path in (_own_group(files) / "memory.stat", files.proc / "vmstat"):
        if not path.exists():
            continue
        for line in _read(path).splitlines():
            name, _, value = line.partition(" ")
            if name in ("workingset_refault_file", "workingset_refault"):
                return {str(path): float(value)}
    raise ProbeFailed(Cause.UNSUPPORTED, "the kernel does not count refaults of the page cache")


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
