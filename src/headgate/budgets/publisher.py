"""Publish the policy to its servers.   PolicyKeeper ──Edition──► Publisher ──► every PolicySink

A server that cannot be reached keeps its last good policy. That is never silent: it is in the
answer to the change, in the status, in the log and in the metrics. The agent tries again after a
pause that doubles.

Each second one looks at what lies there. What was published may be gone with its file, be older
after a restore, or be another's: then it is put back, and that is reported. Only the switch is not
ours: what an operator has switched off at the server stays off, and is shown to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from headgate.base.ports import Clock, PolicySink
from headgate.budgets.policy import Policy
from headgate.budgets.readings import BudgetReadings, Lying, Published
from headgate.errors import HeadgateError
from headgate.metrics.samples import Instant

log = structlog.get_logger()

PUBLISH_TIMEOUT_S = 3.0
"""Less than the command line waits, so that it can show the cause."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LOOK_TIMEOUT_S = 1.0
CALM_S = 60.0
"""Put back and left alone for so long: who changes it again is new, and is reported again."""


@dataclass(frozen=True, slots=True)
class WantedPolicy:
    """What is to be in force."""

    policy: Policy
    revision: int


@dataclass(slots=True)
class Retry:
    """When to try again what failed: after a pause that doubles."""

    at: float = float("-inf")
    """Monotonic."""
    pause_s: float = FIRST_PAUSE_S

    def failed(self, now_s: float) -> None:
        self.at = now_s + self.pause_s
        self.pause_s = min(LONGEST_PAUSE_S, self.pause_s * 2)


@dataclass(slots=True)
class Displaced:
    """What was found in place of a policy that had been published."""

    found: str = ""
    """What it was last; empty: nothing."""
    wall_s: float = 0.0
    total: int = 0
    at: float = float("-inf")
    """Monotonic: when it was last put back."""
    pause_s: float = FIRST_PAUSE_S

    def again(self, found: str, now: Instant) -> float | None:
        """Monotonic time before which it is not to be put back; None: at once. A program that
        replaces it once may do so again and again."""
        is_calm = now.mono_s - self.at >= CALM_S
        self.pause_s = FIRST_PAUSE_S if is_calm else min(LONGEST_PAUSE_S, self.pause_s * 2)
        self.found, self.wall_s, self.at = found, now.wall_s, now.mono_s
        self.total += 1
        return None if is_calm else now.mono_s + self.pause_s


class Outlet:
    """One sink, and what it has."""

    def __init__(self, database: str, sink: PolicySink, clock: Clock) -> None:
        self._database = database
        self._sink = sink
        self._clock = clock
        self._retry = Retry()
        self._under_way: tuple[WantedPolicy, asyncio.Future[Published]] | None = None
        self.where = sink.describe()
        self.published: Published | None = None
        self.told: WantedPolicy | None = None
        """What it last accepted."""
        self.fault = ""
        """Why it has not accepted the newest; empty: it has."""
        self.fault_since_s = 0.0
        """Wall clock."""
        self.failures_total = 0
        self.health_fault = ""
        self.lying: Lying | None = None
        """What was found there last, of any author."""
        self.look_fault = ""
        """Why it cannot be read."""
        self.displaced = Displaced()

    @property
    def off(self) -> bool:
        """Switched off at the server: whatever is published, no budget applies."""
        return self.lying is not None and self.lying.off

    @property
    def others(self) -> Lying | None:
        """A policy that is not the one that we gave."""
        return None if self._is_ours(self.lying) else self.lying

    def _is_ours(self, lying: Lying | None) -> bool:
        published = self.published
        return bool(lying and published and lying.content == published.content)

    async def look(self) -> None:
        """What hangs is not begun again beside itself: the sink sees to that."""
        was, fault = self.published, ""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                lying = await self._sink.look()
        except TimeoutError:
            fault = f"no answer in {LOOK_TIMEOUT_S:g} s; the disk may be slow or hang"
        except (HeadgateError, OSError) as error:
            fault = str(error)
        else:
            # Else, and while ours is on its way, what was found may be of before or of after.
            if self.published is was and self._under_way is None:
                self._found(lying)
        if fault and not self.look_fault:
            log.warning(
                "policy.not_looked_at", database=self._database, where=self.where, detail=fault
            )
        self.look_fault = fault

    def _found(self, lying: Lying | None) -> None:
        was_off, self.lying = self.off, lying
        if self.off is not was_off:
            log.warning("policy.switched", database=self._database, where=self.where, off=self.off)
        if self.published is None:
            return
        if lying is not None and self._is_ours(lying):
            self.published = self.published._replace(
                version=lying.version, checksum=lying.checksum, off=lying.off
            )
        else:
            self._displaced(_what_lies_there(lying, self.published))

    def compare(self, readings: BudgetReadings) -> None:
        """With what the server itself says that it goes by: of an older file it takes no notice."""
        published = self.published
        if published is None or readings.version < published.version:
            return
        if self._under_way is not None:  # It may go by that one already.
            return
        if (readings.version, readings.checksum) != (published.version, published.checksum):
            self._displaced(f"the server used version {readings.version} of another program")

    def _displaced(self, found: str) -> None:
        """To be put back: at once the first time, then later and later."""
        if self.told is None:
            return
        again_at = self.displaced.again(found, self._clock.now())
        if again_at is not None:
            self._retry.at = max(self._retry.at, again_at)
        else:
            log.warning("policy.put_back", database=self._database, where=self.where, detail=found)
        self.told = None

    async def publish(self, wanted: WantedPolicy) -> None:
        """What hangs is not begun again beside itself: an older one could come to its end last,
        and be in force."""
        if self._under_way is None:
            made = self._sink.publish(wanted.policy, wanted.revision)
            self._under_way = wanted, asyncio.ensure_future(made)
        asked, task = self._under_way
        done, _ = await asyncio.wait({task}, timeout=PUBLISH_TIMEOUT_S)
        if not done:
            self._failed(f"not done within {PUBLISH_TIMEOUT_S:g} s; the disk may be slow or hang")
            return
        self._under_way = None
        try:
            self.published = task.result()
        except (HeadgateError, OSError) as error:
            self._failed(str(error))
        else:
            self._succeeded(asked)
        if asked != wanted:
            await self.publish(wanted)

    def is_due(self, wanted: WantedPolicy) -> bool:
        return self.told != wanted and self._clock.now().mono_s >= self._retry.at

    async def tell_health(self, *, healthy: bool, until_ms: int) -> None:
        fault = ""
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await self._sink.tell_health(healthy, until_ms)
        except TimeoutError:
            fault = f"not reported within {PUBLISH_TIMEOUT_S:g} s"
        except (HeadgateError, OSError) as error:
            fault = str(error)
        if bool(fault) is not bool(self.health_fault):
            told = log.error if fault else log.info
            told("budgets.health", database=self._database, where=self.where, fault=fault)
        self.health_fault = fault

    def _failed(self, fault: str) -> None:
        now = self._clock.now()
        self.failures_total += 1
        self._retry.failed(now.mono_s)
        if not self.fault:
            self.fault_since_s = now.wall_s
        if fault != self.fault:
            log.error(
                "policy.not_published", database=self._database, where=self.where, detail=fault
            )
        self.fault = fault

    def _succeeded(self, wanted: WantedPolicy) -> None:
        published = self.published
        assert published is not None
        self.lying = Lying(published.version, published.checksum, published.content, published.off)
        self.told, self.fault, self._retry = wanted, "", Retry()
        log.info(
            "policy.published",
            database=self._database,
            where=self.where,
            revision=wanted.revision,
            version=published.version,
            off=published.off,
            budgets=len(wanted.policy.budgets),
        )


def _what_lies_there(lying: Lying | None, published: Published) -> str:
    if lying is None:
        return "the policy was missing, or the file had none"
    if lying.version < published.version:
        return f"an older policy was there, version {lying.version}"
    return f"another program's policy was there, version {lying.version}"


class Publisher:
    """For one database: all its sinks get the same, and none waits for another."""

    def __init__(self, database: str, sinks: Sequence[PolicySink], clock: Clock) -> None:
        self.outlets = tuple(Outlet(database, sink, clock) for sink in sinks)
        self._wanted: WantedPolicy | None = None
        self._turn = asyncio.Lock()
        """One at a time: an older policy must not overtake a newer one."""

    @property
    def wanted(self) -> WantedPolicy | None:
        return self._wanted

    async def publish(self, policy: Policy, revision: int) -> None:
        """Try it now. What fails is tried again by `tick`."""
        self._wanted = WantedPolicy(policy, revision)
        await self._to(lambda outlet: outlet.told != self._wanted)

    def hold(self, policy: Policy, revision: int) -> None:
        """Not now: `tick` will."""
        self._wanted = WantedPolicy(policy, revision)

    async def look(self) -> None:
        await asyncio.gather(*(outlet.look() for outlet in self.outlets))

    async def tick(self) -> None:
        wanted = self._wanted
        if wanted is not None and any(outlet.is_due(wanted) for outlet in self.outlets):
            await self._to(lambda outlet: outlet.is_due(wanted))

    async def tell_health(self, *, healthy: bool, until_ms: int) -> None:
        told = (outlet.tell_health(healthy=healthy, until_ms=until_ms) for outlet in self.outlets)
        await asyncio.gather(*told)

    async def _to(self, chosen: Callable[[Outlet], bool]) -> None:
        async with self._turn:
            wanted = self._wanted
            if wanted is not None:
                await asyncio.gather(*(o.publish(wanted) for o in self.outlets if chosen(o)))
