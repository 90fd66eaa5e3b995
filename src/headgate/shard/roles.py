"""Watch what one server is in its shard.   role probe ──► RoleWatcher ──► Shard

Read every `interval_s` while a client needs it. If the server closes the connection, the role is
void at once: a primary that goes away is no primary from that moment on, not from the next read
on. The role is void, too, when another part sees that the server takes no writes: the heartbeat,
or the fence (FenceWatcher).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headgate.base.ports import Clock, FenceProbe, RoleProbe
from headgate.check.demand import NEVER, Demand, Work
from headgate.check.model import Activity
from headgate.errors import ProbeFailed
from headgate.metrics.samples import Absent, Cause
from headgate.shard.topology import Role, RoleSeen

log = structlog.get_logger()

CLOSE_TIMEOUT_S = 1.0


class RoleWatcher:
    def __init__(
        self,
        database: str,
        probe: RoleProbe,
        clock: Clock,
        demand: Demand,
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self.database = database
        self._probe = probe
        self._clock = clock
        self._demand = demand
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self.seen: RoleSeen | Absent = Absent(
            Cause.NEVER_READ, "the server's role has not been read yet", clock.now().mono_s
        )
        self.on_change: Callable[[], None] = lambda: None
        """Called after each reading, changed or not, because ages count."""
        self.on_read: Callable[[], None] = lambda: None
        """Called after those."""
        self._void_at = NEVER
        """A primary that was read before this time does not count."""
        self._rejected = ""
        """The server's answer to a write, if it has taken none since."""
        self._voided = asyncio.Event()

    @property
    def max_age_s(self) -> float:
        """A role that was not confirmed for longer than this is not known any more."""
        return 2 * self._demand.stretch(self._interval_s) + self._timeout_s

    @property
    def strict_age_s(self) -> float:
        """No answer may use a role that was confirmed longer ago than this."""
        return 2 * self._interval_s + self._timeout_s

    @property
    def is_primary(self) -> bool:
        return isinstance(self.seen, RoleSeen) and self.seen.role is Role.PRIMARY

    def void(self, detail: str) -> None:
        """The server was seen to take no writes, on another connection: its role is read again."""
        self._void_at = self._now()
        if self.is_primary:
            self._publish(Absent(Cause.FAILED, detail, self._now()))
        self._voided.set()

    def write_rejected(self, detail: str) -> None:
        """Of the heartbeat. Until one is written, or the server calls itself a replica, it is no
        primary, whatever its settings say."""
        self._rejected = f"the server rejected the heartbeat: {detail}"
        self.void(self._rejected)

    def write_done(self) -> None:
        """The heartbeat was written, or none is wanted any more."""
        if self._rejected:
            self._rejected = ""
            self._voided.set()

    async def run(self) -> None:
        try:
            while True:
                self._voided.clear()
                self._publish(await self._read())
                await self._pause()
        except asyncio.CancelledError:
            # Only then: after a crash it goes on with the same probe.
            await _close(self._probe, "role.close_failed", self.database)
            raise

    async def _read(self) -> RoleSeen | Absent:
        self._demand.count(Work.PROBES)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._probe.read()
        except ProbeFailed as error:
            return Absent(error.cause, error.detail, self._now())
        except TimeoutError:
            detail = f"the server did not report its role in {self._timeout_s:g} s"
            return Absent(Cause.TIMED_OUT, detail, self._now())

    async def _pause(self) -> None:
        """Until the next reading is due; a lost connection is read again at once."""
        lost = asyncio.ensure_future(self._probe.lost())
        voided = asyncio.ensure_future(self._voided.wait())
        pause = asyncio.ensure_future(self._demand.pause(self._demand.stretch(self._interval_s)))
        try:
            await asyncio.wait({lost, voided, pause}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and lost.exception() is not None:
                log.error("role.watch_failed", database=self.database, error=str(lost.exception()))
            if lost.done() and not pause.done():
                self._publish(
                    Absent(Cause.UNREACHABLE, "the server closed the connection", self._now())
                )
                if self._demand.state is Activity.HIBERNATING:
                    await pause
        finally:
            lost.cancel()
            voided.cancel()
            pause.cancel()

    def _publish(self, seen: RoleSeen | Absent) -> None:
        before, self.seen = self.seen, self._believed(seen)
        seen = self.seen
        if _words(before) != _words(seen):
            log.info("role.changed", database=self.database, was=_words(before), now=_words(seen))
        self.on_change()
        self.on_read()

    def _believed(self, seen: RoleSeen | Absent) -> RoleSeen | Absent:
        if isinstance(seen, Absent):
            return seen
        if seen.role is Role.REPLICA:
            self._rejected = ""
            return seen
        if self._rejected:
            return Absent(Cause.FAILED, self._rejected, self._now())
        if seen.taken_at <= self._void_at:
            detail = "the server took no writes a moment ago; its role is being read again"
            return Absent(Cause.FAILED, detail, self._now())
        return seen

    def _now(self) -> float:
        return self._clock.now().mono_s


async def _close(probe: RoleProbe | FenceProbe, failed: str, database: str) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await probe.close()
    except (TimeoutError, ProbeFailed, OSError) as error:
        log.warning(failed, database=database, error=str(error))


def _words(seen: RoleSeen | Absent) -> str:
    if isinstance(seen, Absent):
        return f"unknown ({seen.cause.value})"
    return seen.role.value if seen.term is None else f"{seen.role.value}, timeline {seen.term}"


# --- fences --------------------------------------------------------------------------------------

# See quickly that a primary has become read only.   FenceProbe ──► FenceWatcher ──► RoleWatcher
#
# A MySQL or MariaDB server becomes a replica without closing a connection, so nothing tells the
# agent. While clients check the shard, one short statement every 25 ms finds out, on a connection
# that no other probe can delay. Otherwise it is idle. If it fails, the role is still read every
# `collect_interval_s`, and `fault` says so.

LOOK_EVERY_S = 0.025
AGAIN_S = 1.0
"""Pause after a look that failed."""


class FenceWatcher:
    def __init__(
        self, watcher: RoleWatcher, probe: FenceProbe, clock: Clock, demand: Demand
    ) -> None:
        self._watcher = watcher
        self._probe = probe
        self._clock = clock
        self._demand = demand
        self._stirred = asyncio.Event()
        self.fault = ""
        """Why the last look failed; empty: it did not."""
        watcher.on_read = self._stirred.set

    async def run(self) -> None:
        try:
            while True:
                now = self._clock.now().mono_s
                is_awake = self._demand.shard_state(now) is Activity.AWAKE
                if self._watcher.is_primary and is_awake:
                    await self._look()
                    await self._clock.sleep(AGAIN_S if self.fault else LOOK_EVERY_S)
                else:
                    self._stirred.clear()
                    await self._stirred.wait()
        except asyncio.CancelledError:
            await _close(self._probe, "fence.close_failed", self._watcher.database)
            raise

    async def _look(self) -> None:
        self._demand.count(Work.PROBES)
        try:
            takes_writes = await self._probe.read()
        except ProbeFailed as error:
            self._mark(error.detail)
            return
        self._mark("")
        if not takes_writes:
            self._watcher.void("the server has become read only; its role is being read again")

    def _mark(self, fault: str) -> None:
        if fault and not self.fault:
            log.warning("fence.away", database=self._watcher.database, detail=fault)
        elif self.fault and not fault:
            log.info("fence.back", database=self._watcher.database)
        self.fault = fault
