"""Read a server's budgets from outside.   region ──► RegionMeter ──BudgetReadings──► agent, status

No connection, no lock of the server's, no compiled library. What cannot be read is MeterFailed
with the reason, never a zero.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from headgate.budgets.bucket import server_ns
from headgate.budgets.compiled import read_compiled
from headgate.budgets.hashes import budget_key
from headgate.budgets.native.region import (
    BucketView,
    CountView,
    PatternView,
    RegionHead,
    RegionView,
)
from headgate.budgets.pgext.directory import ServerFile
from headgate.budgets.pgext.policyfile import head_of
from headgate.budgets.pgext.region import mapped_region
from headgate.budgets.pgext.threads import OneCall
from headgate.budgets.policy import Budget
from headgate.budgets.readings import (
    LIMITS,
    THRESHOLD,
    BucketReading,
    BudgetCounts,
    BudgetReadings,
    PatternReading,
    Seat,
    ServerHealth,
)
from headgate.errors import MeterFailed

MAX_PATTERNS = 1000
"""The most expensive ones; a server may know many thousands."""
_HEALTH = (ServerHealth.UNKNOWN, ServerHealth.HEALTHY, ServerHealth.UNHEALTHY)
Budgets = Mapping[int, Budget]
"""By key, as the region has it."""


@dataclass(frozen=True, slots=True)
class Force:
    """What a server goes by just now; cheap to read."""

    version: int
    checksum: int
    enabled: bool
    rejected: int
    rejection: str
    statements: int
    """Of the sessions that are there, while there was a policy. Moves whenever one runs."""


def force_in(directory: Path) -> Force:
    with mapped_region(directory) as (_, memory):
        region = RegionView(memory)
        head = region.head()
        return Force(
            version=head.version,
            checksum=head.crc,
            enabled=head.enabled,
            rejected=head.rejected_policies,
            rejection=head.rejection,
            statements=sum(seat.statements for seat in region.seats()),
        )


def is_off_in(directory: Path) -> bool:
    """Whether the policy that the server goes by has been switched off; reads all of it."""
    with mapped_region(directory) as (_, memory):
        found = head_of(RegionView(memory).policy() or b"")
        return found is not None and found.off


class RegionMeter:
    """The BudgetMeter of one server on this host, restarted or not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reading = OneCall(f"reading the counters of {directory}", MeterFailed)
        self._known = (0, 0)
        """Version and checksum of the policy that `_budgets` is of: reading one takes a while."""
        self._budgets: Budgets = MappingProxyType({})
        self.off = False
        """Whether the policy in force has been switched off."""

    async def read(self) -> BudgetReadings:
        _, readings = await self._reading.run(self.read_now)
        return readings

    def read_now(self) -> tuple[ServerFile, BudgetReadings]:
        with mapped_region(self._directory) as (server, memory):
            region = RegionView(memory)
            self._learn_budgets(region)
            found = _readings(region, self._budgets, time.monotonic_ns())
            return server, replace(found, off=self.off)

    def _learn_budgets(self, region: RegionView) -> None:
        head = region.head()
        if (head.version, head.crc) == self._known:
            return
        policy = region.policy()
        if policy is None:
            self._known, self._budgets, self.off = (0, 0), MappingProxyType({}), False
            return
        found = read_compiled(policy)
        self._budgets = {budget_key(budget.name): budget for budget in found.policy.budgets}
        self._known, self.off = (found.version, found.crc), found.off


def _readings(region: RegionView, budgets: Budgets, now_ns: int) -> BudgetReadings:
    head = region.head()
    # The first who counts claims the key, and only then writes the name.
    counts = [count for count in region.counts() if count.name]
    names = {count.key: count.name for count in counts}
    names |= {key: budget.name for key, budget in budgets.items()}
    live = (bucket for bucket in region.buckets(now_ns) if bucket.live)
    return BudgetReadings(
        version=head.version,
        checksum=head.crc,
        started_ms=head.started_ms,
        enabled=head.enabled,
        published_ms=head.published_ms,
        rejected=head.rejected_policies,
        rejection=head.rejection,
        health=_HEALTH[head.health] if head.health < len(_HEALTH) else ServerHealth.UNKNOWN,
        health_until_ms=head.health_until_ms,
        cpus_milli=head.cpus_milli,
        workers=head.workers,
        seats=tuple(Seat(seat.pid, seat.version, seat.crc) for seat in region.seats()),
        budgets=MappingProxyType({count.name: _counts(count) for count in counts}),
        buckets=tuple(_buckets(live, head, budgets, names)),
        patterns=tuple(_patterns(region.patterns())),
    )


def _counts(words: CountView) -> BudgetCounts:
    over_threshold, *warned = words.warned
    early, *blocked = words.blocked
    return BudgetCounts(
        admitted=words.admitted,
        estimated_ns=words.estimated_ns,
        charged_ns=words.charged_ns,
        passed=words.passed,
        sleeping=words.sleeping,
        forgiven_ns=words.forgiven_ns,
        evicted=words.evicted,
        unpinned=words.unpinned,
        warned=MappingProxyType(
            dict(zip(LIMITS, warned, strict=True)) | {THRESHOLD: over_threshold}
        ),
        blocked=MappingProxyType(dict(zip(LIMITS, blocked, strict=True))),
        early=early,
        delayed=words.delayed,
        delayed_ns=words.delayed_ns,
        last_violation_ms=words.last_violation_ms,
    )


def _buckets(
    found: Iterable[BucketView], head: RegionHead, budgets: Budgets, names: Mapping[int, str]
) -> Iterator[BucketReading]:
    for bucket in found:
        name = names.get(bucket.budget_key)
        if name is None:
            continue  # of a policy that is gone, and never counted: nobody knows it any more
        budget = budgets.get(bucket.budget_key)
        yield BucketReading(
            budget=name,
            label=bucket.label.decode(errors="replace"),
            owed_ns=bucket.owed_ns,
            capacity_ns=_capacity_ns(budget, head.cpus_milli),
            fill=bucket.fill,
            running=bucket.workers,
            max_workers=None if budget is None else budget.workers_allowed(head.workers),
        )


def _capacity_ns(budget: Budget | None, cpus_milli: int) -> int | None:
    if budget is None or budget.capacity_mpcts is None:
        return None
    return server_ns(budget.capacity_mpcts, cpus_milli)


def _patterns(found: Iterable[PatternView]) -> Iterator[PatternReading]:
    for pattern in heapq.nlargest(MAX_PATTERNS, found, key=lambda pattern: pattern.cpu_ns):
        yield PatternReading(
            query_id=pattern.query_id,
            database=pattern.database,
            calls=pattern.calls,
            k=pattern.k,
            cpu_mean_ns=pattern.cpu_ema_ns,
            error=pattern.error,
            cpu_total_ns=pattern.cpu_ns,
        )
