"""Keep what is known of the fleet on disk.   LogFollower ──copy──► LogCopies ──► LogCache

An item that changes is written within a second or so; that the store still lives, once a minute.
What could not be written is tried again until it can.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from headgate.base.ports import Clock
from headgate.changes.follower import LogFollower
from headgate.changes.log_copy import LogCopy
from headgate.changes.model import BEAT
from headgate.check.demand import first_of
from headgate.errors import StoreUnavailable

log = structlog.get_logger()

COALESCED_S = 1.0
REFRESHED_S = 60.0
AGAIN_S = 10.0
"""Pause after a copy that could not be written."""


class LogCopyFile(Protocol):
    """Where the copy lies."""

    @property
    def name(self) -> str: ...

    async def load(self) -> LogCopy | None:
        """None: there is none. StoreUnavailable with the reason where it cannot be used."""
        ...

    async def save(self, copy: LogCopy) -> None:
        """The whole copy or nothing of it; StoreUnavailable, and then the last one stays."""
        ...


class LogCopies:
    def __init__(self, follower: LogFollower, file: LogCopyFile, clock: Clock) -> None:
        self._follower = follower
        self._file = file
        self._clock = clock
        self._changed: asyncio.Future[None] | None = None
        self._due = self._failed = False
        self.saved_at: float | None = None
        """Wall-clock seconds of the last copy written."""
        self.fault = ""
        """Why the last read or write of the copy failed; empty: it did not."""
        follower.watch(self._note)

    async def recall(self) -> None:
        """Apply the stored copy at once: before any request to the store, and before the first
        check. A copy that cannot be used is reported, and does not prevent the start."""
        try:
            copy = await self._file.load()
        except StoreUnavailable as error:
            self._mark(str(error))
            return
        if copy is not None:
            self._follower.recall(copy)
        self._due = False

    async def run(self) -> None:
        while True:
            if not self._due or self._failed:
                self._changed = asyncio.get_running_loop().create_future()
                wait_s = AGAIN_S if self._failed else REFRESHED_S
                await first_of(self._clock, wait_s, self._changed)
                self._changed = None
            if self._due or not self._follower.is_stale:
                await self._clock.sleep(COALESCED_S)
                await self.save()

    async def save(self) -> None:
        """Now; also the last thing before the agent ends."""
        copy, self._due, self._failed = self._follower.copy(), False, False
        if copy is None:
            return
        try:
            await self._file.save(copy)
        except StoreUnavailable as error:
            self._due = self._failed = True
            self._mark(str(error))
        else:
            self._mark("")
            self.saved_at = self._clock.now().wall_s

    def _note(self, changed: frozenset[str]) -> None:
        if len(changed) == 1 and BEAT in changed:
            return
        self._due = True
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _mark(self, fault: str) -> None:
        if fault and fault != self.fault:
            log.warning("fleet.copy_fault", file=self._file.name, detail=fault)
        self.fault = fault
