"""Read a server's budgets from outside.   region ──► RegionMeter ──BudgetReadings──► agent, status

No connection, no lock of the server's, no compiled library. What cannot be read is MeterFailed
with the reason, never a zero.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.budgets.bucket import server_ns
from headgate.budgets.compiled import read_compiled
from headgate.budgets.cost import exp2
from headgate.budgets.model import Limit, StatementIdentity, StatementVerdict, budget_key
from headgate.budgets.native.layout import HgRegion
from headgate.budgets.native.region import (
    BucketView,
    CountView,
    PatternView,
    RegionHead,
    RegionView,
)
from headgate.budgets.pgext.directory import ServerFile, head_of
from headgate.budgets.pgext.region import mapped_region
from headgate.budgets.pgext.threads import OneCall
from headgate.budgets.policy import Budget
from headgate.budgets.readings import (
    LIMITS,
    THRESHOLD,
    BucketReading,
    BudgetCounts,
    BudgetReadings,
    ClientTally,
    PatternReading,
    Seat,
    ServerHealth,
)
from headgate.budgets.traces import Trace, TraceBatch
from headgate.errors import MeterFailed

OTHERS = "others"
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
        clients=MappingProxyType(
            {
                tally.name or OTHERS: ClientTally(
                    tally.admitted,
                    tally.by_budget,
                    tally.by_rule,
                    names.get(tally.last_budget, ""),
                )
                for tally in region.tallies()
            }
        ),
    )


def _counts(words: CountView) -> BudgetCounts:
    over_threshold, *warned = words.warned
    early, *blocked = words.blocked
    return BudgetCounts(
        admitted=words.admitted,
        estimated_ns=words.estimated_ns,
        charged_ns=words.charged_ns,
        wall_ns=words.wall_ns,
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
            debt_ns=bucket.debt_ns,
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
    for pattern in heapq.nlargest(MAX_PATTERNS, found, key=lambda pattern: pattern.known.cpu_ns):
        known, whole = pattern.known, pattern.known.whole
        cost = whole.typical_estimate
        yield PatternReading(
            query_id=pattern.query_id,
            database=pattern.database,
            calls=known.calls,
            k=exp2(whole.typical - whole.plan_cost) if whole.calls else None,
            cpu_mean_ns=float(cost.mean_ns) if whole.calls else 0.0,
            cpu_p90_ns=float(cost.p90_ns) if whole.calls else 0.0,
            error=known.error,
            cpu_total_ns=known.cpu_ns,
            wall_total_ns=pattern.wall_ns,
        )


# --- traces --------------------------------------------------------------------------------------

# The ring of traces in a server's region, read while it is written.   region ──► Trace
#
# Each has a stamp: odd while it is written, and its number once it is whole. It is looked at before
# and after, so that a half-written one is lost and not believed.

TRACE = Struct("<QqQQQQQQdfIHBBBB16sBBBxHH402s")
STAMP = Struct("<Q")
MAX_BLOCKED = 2000.0
"""In the 10 ms that one trace covers: not even a blocked statement takes less than 5 us."""
MAX_KNOWN = 4096
"""Clients and sets of tags that are kept once, however many traces name them."""


class TraceReader:
    """The TraceSource of one server on this host, restarted or not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reading = OneCall(f"reading the traces of {directory}", MeterFailed)

    async def traces_since(self, sequence: int, started_ms: int) -> TraceBatch:
        return await self._reading.run(lambda: self.read_now(sequence, started_ms))

    def read_now(self, sequence: int, started_ms: int) -> TraceBatch:
        """From the `sequence`-th of the server that started then; of another, from its first."""
        with mapped_region(self._directory) as (_, memory):
            return traces_in(memory, sequence, started_ms)


def traces_in(memory: memoryview, sequence: int, started_ms: int) -> TraceBatch:
    ring = _Ring.of(memory)
    wanted = sequence if started_ms == ring.started_ms else 0
    first = max(wanted, ring.written - ring.places)
    found = tuple(_each(memory, ring, first)) if ring.places else ()
    lost = ring.written - wanted - len(found) if ring.places else 0
    return TraceBatch(found, ring.written, max(0, lost), ring.started_ms)


class _Ring(NamedTuple):
    at: int
    places: int
    """A power of two, or 0: none are kept."""
    written: int
    """Ever."""
    started_ms: int

    @classmethod
    def of(cls, memory: memoryview) -> _Ring:
        RegionView(memory)  # whether it is one at all
        head = HgRegion.from_buffer_copy(memory)
        ring = cls(head.traces_at, head.sizes.traces, head.traced, head.started_ms)
        end = ring.at + ring.places * TRACE.size
        if ring.places & (ring.places - 1) or end > min(len(memory), head.length):
            raise MeterFailed("the server's memory cannot be read: its traces lie outside of it")
        return ring


def _each(memory: memoryview, ring: _Ring, first: int) -> Iterator[Trace]:
    for number in range(first, ring.written):
        at = ring.at + (number & (ring.places - 1)) * TRACE.size
        whole = 2 * number + 2
        if STAMP.unpack_from(memory, at)[0] != whole:
            continue
        raw = bytes(memory[at : at + TRACE.size])
        # Copied, and the same still: nobody began to write another over it meanwhile.
        if STAMP.unpack_from(memory, at)[0] == whole and (trace := read_trace(raw)) is not None:
            yield trace


def read_trace(raw: bytes) -> Trace | None:
    """None: it says what no trace says."""
    words = TRACE.unpack(raw)
    stamp, wall_ms, query_id, fingerprint, estimate_ns, p90_ns, actual_ns, wall_ns = words[:8]
    plan_cost, weight, budget, workers, verdict, limit, flags, family, address = words[8:17]
    if verdict >= len(StatementVerdict) or limit >= len(Limit) or not weight > 0:
        return None
    names = _names(words)
    if names is None:
        return None
    username, database, application, tags = names
    return Trace(
        sequence=stamp // 2 - 1,
        wall_ms=wall_ms,
        who=_who(username, database, application, family, address),
        tags=_tags(tags),
        tags_left_out=words[21],
        query_id=query_id,
        fingerprint=fingerprint,
        plan_cost=plan_cost,
        estimate_ns=estimate_ns,
        p90_ns=p90_ns,
        actual_ns=actual_ns,
        wall_ns=wall_ns,
        workers=max(1, workers),
        weight=max(1.0, min(weight, MAX_BLOCKED) if verdict == StatementVerdict.BLOCK else weight),
        verdict=StatementVerdict(verdict),
        limit=Limit(limit),
        budget=budget,
        flags=flags,
    )


def _names(words: tuple[Any, ...]) -> tuple[bytes, bytes, bytes, bytes] | None:
    lengths, text = (*words[17:20], words[20]), words[22]
    if sum(lengths) > len(text):
        return None
    ends = [sum(lengths[: at + 1]) for at in range(len(lengths))]
    username, database, application, tags = (
        text[end - length : end] for end, length in zip(ends, lengths, strict=True)
    )
    return username, database, application, tags


@lru_cache(MAX_KNOWN)
def _who_of(parts: tuple[bytes, bytes, bytes], address: bytes) -> StatementIdentity:
    username, database, application = (part.decode("utf-8", "surrogateescape") for part in parts)
    return StatementIdentity(
        username or None, database or None, application or None, _address(address)
    )


def _address(packed: bytes) -> IPv4Address | IPv6Address | None:
    if not packed:
        return None
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


@lru_cache(MAX_KNOWN)
def _tags(raw: bytes) -> tuple[tuple[bytes, bytes], ...]:
    words = raw.split(b"\0")[:-1]
    return tuple(zip(words[::2], words[1::2], strict=False))


def _who(
    username: bytes, database: bytes, application: bytes, family: int, address: bytes
) -> StatementIdentity:
    width = {4: 4, 6: 16}.get(family, 0)
    return _who_of((username, database, application), address[:width])
