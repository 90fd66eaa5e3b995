"""How full the file system of the data directory is, seen from the agent's host."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from headgate.errors import ProbeFailed
from headgate.metrics.probes.threads import OneThread
from headgate.metrics.samples import Cause


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
