"""Budgets from a file, followed as it changes.   policy.toml ──► PolicyFile ──► PolicyTaker"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from headgate.base.ports import Clock
from headgate.budgets.policy import Policy
from headgate.errors import InvalidSettings, PolicyRejected
from headgate.proxy.ports import PartState, PolicyTaker

log = structlog.get_logger()

LOOK_S = 1.0


class PolicyFile:
    name = "policy"

    def __init__(
        self, path: Path, load: Callable[[Path], Policy], taker: PolicyTaker, clock: Clock
    ) -> None:
        """`load`: InvalidSettings with every fault of the file."""
        self._path = path
        self._load = load
        self._taker = taker
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self.fault = ""
        self.taken = 0

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self, *, again: bool = False) -> None:
        """`again`: also a file that has been seen (a reload)."""
        stamp = await asyncio.to_thread(_stamp, self._path)
        if stamp == self._seen and not again:
            return
        self._seen = stamp
        try:
            policy = await asyncio.to_thread(self._load, self._path)
            published = await self._taker.take(policy, 0, str(self._path))
        except (InvalidSettings, PolicyRejected) as error:
            self._failed(str(error))
            return
        self.fault = ""
        self.taken += 1
        log.info("policy.file_taken", file=str(self._path), version=published.version)

    def _failed(self, detail: str) -> None:
        self.fault = detail
        log.error("policy.file_rejected", detail=detail, stays="the last good one")

    def state(self) -> PartState:
        told = f"{self.fault}; the last good one stays" if self.fault else f"file {self._path}"
        return PartState(self.name, not self.fault, told, figures={"taken": self.taken})

    async def close(self) -> None:
        return None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 -- followed: it may be a link, as Kubernetes has them
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
