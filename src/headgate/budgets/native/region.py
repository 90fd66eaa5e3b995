"""A foreign region, read out of band: no lock, no call, nothing written.   mmap ──► RegionView

Others write while this reads. Each word is whole; what belongs together is bracketed by its key
(buckets, patterns) or its checksum (the policy). Nothing in it is trusted to lie in bounds.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Iterator
from ctypes import Structure, c_uint64
from dataclasses import dataclass
from typing import TypeVar

from headgate.budgets.bucket import cpu_ns, debt_ns, server_ns
from headgate.budgets.cost import NO_LINE, CostLine, Pattern
from headgate.budgets.native.layout import (
    POLICY_MAGIC,
    REGION_FORMAT,
    REGION_MAGIC,
    SET_CAPACITY,
    TAKEN_KEY,
    HgBucket,
    HgBudget,
    HgCount,
    HgLine,
    HgPattern,
    HgPolicyHead,
    HgRegion,
    HgSeat,
    HgTally,
)
from headgate.errors import MeterFailed

_Words = TypeVar("_Words", bound=Structure)
_POLICY_TRIES = 4
_CRC_AT = HgPolicyHead.crc.offset
_WORD = ctypes.sizeof(c_uint64)


@dataclass(frozen=True, slots=True)
class RegionHead:
    version: int
    """Of the policy in force; 0: none."""
    crc: int
    enabled: bool
    published_ms: int
    rejected_policies: int
    rejection: str
    """Why the last one was."""
    health: int
    """0 not reported yet, 1 healthy, 2 unhealthy."""
    health_until_ms: int
    cpus_milli: int
    workers: int
    started_ns: int
    started_ms: int
    host: CostLine
    """Of all patterns: the guess for one that has never run."""
    pattern_evictions: int
    counts_full: int

    def healthy(self, wall_ms: int) -> bool | None:
        known = self.health and wall_ms < self.health_until_ms
        return self.health == 1 if known else None


@dataclass(frozen=True, slots=True)
class SeatView:
    index: int
    pid: int
    version: int
    crc: int
    statements: int
    matched: int
    ignored_tags: int
    duplicate_tags: int
    left_out: int
    bypassed: int


@dataclass(frozen=True, slots=True)
class CountView:
    key: int
    name: str
    """Empty for a moment, as the first statement is counted."""
    admitted: int
    estimated_ns: int
    charged_ns: int
    passed: int
    sleeping: int
    forgiven_ns: int
    evicted: int
    warned: tuple[int, ...]
    """By limit; 0: crossed the warning threshold only."""
    blocked: tuple[int, ...]
    """By limit; 0: of them, before planning."""
    delayed: int
    delayed_ns: int
    unpinned: int
    last_violation_ms: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class BucketView:
    key: int
    budget_key: int
    label: bytes
    debt_ns: int
    """Of CPU."""
    fill: float | None
    """debt / capacity by the policy in force; None: it has no capacity, or no such budget."""
    statements: int
    workers: int
    admitted: int
    rate_mpct: int
    epoch: int
    empty_at_ns: int
    refunded_ns: int

    @property
    def live(self) -> bool:
        """Else it is a free place, for another bucket."""
        return self.debt_ns > 0 or self.statements > 0


@dataclass(frozen=True, slots=True)
class TallyView:
    name: str
    """Empty: all that have no place of their own."""
    admitted: int
    by_budget: int
    by_rule: int
    passed: int
    last_budget: int


@dataclass(frozen=True, slots=True)
class PatternView:
    key: int
    query_id: int
    database: int
    wall_ns: int
    known: Pattern


class RegionView:
    def __init__(self, buffer: memoryview | bytes | bytearray) -> None:
        self._memory = memoryview(buffer).cast("B").toreadonly()
        self._places = self._header()
        if fault := _fault(self._places, len(self._memory)):
            raise MeterFailed(f"this memory cannot be read as a region: {fault}")

    @property
    def places(self) -> HgRegion:
        """Sizes and places, as they were found in order when it was first looked at."""
        return self._places

    @property
    def seat_count(self) -> int:
        return int(self._places.sizes.seats)

    def head(self) -> RegionHead:
        head = self._header()
        return RegionHead(
            version=head.version,
            crc=head.crc,
            enabled=bool(head.enabled),
            published_ms=head.published_ms,
            rejected_policies=head.rejected_policies,
            rejection=head.rejection.decode(errors="replace"),
            health=head.health,
            health_until_ms=head.health_until_ms,
            cpus_milli=head.cpus_milli,
            workers=head.workers,
            started_ns=head.started_ns,
            started_ms=head.started_ms,
            host=line_of(head.host),
            pattern_evictions=head.pattern_evictions,
            counts_full=head.counts_full,
        )

    def seats(self) -> list[SeatView]:
        """Those that are taken."""
        places = self._places
        return [
            SeatView(
                index=index,
                **_fields(seat, "pid", "version", "crc", "statements", "matched"),
                **_fields(seat, "ignored_tags", "duplicate_tags", "left_out", "bypassed"),
            )
            for index, seat in self._each(HgSeat, places.seats_at, places.sizes.seats)
            if seat.pid
        ]

    def counts(self) -> list[CountView]:
        places = self._places
        return [
            _count_view(count)
            for _, count in self._each(HgCount, places.counts_at, places.sizes.budgets)
            if count.key > TAKEN_KEY
        ]

    def tallies(self) -> list[TallyView]:
        """Of clients; the first is of those that have no place."""
        places = self._places
        return [
            TallyView(
                name=tally.name.decode(errors="replace"),
                **_fields(tally, "admitted", "by_budget", "by_rule", "passed", "last_budget"),
            )
            for at, tally in self._each(HgTally, places.clients_at, places.sizes.clients)
            if at == 0 or tally.key > TAKEN_KEY
        ]

    def buckets(self, now_ns: int) -> list[BucketView]:
        """All that are in the table; `live` are those in debt or in use."""
        capacities = self._capacities_ns()
        keys = self._keys()
        return [
            view
            for index, key in enumerate(keys)
            if key > TAKEN_KEY and (view := self._bucket(index, key, capacities, now_ns))
        ]

    def patterns(self) -> list[PatternView]:
        places = self._places
        return [
            PatternView(
                known=_pattern(pattern),
                **_fields(pattern, "key", "query_id", "database", "wall_ns"),
            )
            for at, pattern in self._each(HgPattern, places.patterns_at, places.sizes.patterns)
            if pattern.key > TAKEN_KEY and self._still(places.patterns_at, at, pattern)
        ]

    def policy(self) -> bytes | None:
        """The compiled one in force; None: there is none, or it changes faster than one reads."""
        for _ in range(_POLICY_TRIES):
            area = self._header().area
            if area not in (1, 2):
                return None
            if (policy := self._area(area)) is not None:
                return policy
        return None

    # --- in bounds, whatever is written there ---------------------------------------------------

    def _header(self) -> HgRegion:
        if len(self._memory) < ctypes.sizeof(HgRegion):
            raise MeterFailed(
                f"this memory cannot be read as a region: it has {len(self._memory)} bytes"
            )
        return HgRegion.from_buffer_copy(self._memory)

    def _each(self, kind: type[_Words], at: int, count: int) -> Iterator[tuple[int, _Words]]:
        size = ctypes.sizeof(kind)
        for index in range(count):
            yield index, kind.from_buffer_copy(self._memory, at + index * size)

    def _keys(self) -> list[int]:
        at, count = self._places.bucket_keys_at, self._places.sizes.buckets
        return list((c_uint64 * count).from_buffer_copy(self._memory, at))

    def _word(self, at: int) -> int:
        return int(c_uint64.from_buffer_copy(self._memory, at).value)

    def _bucket(
        self, index: int, key: int, capacities_ns: dict[int, int], now_ns: int
    ) -> BucketView | None:
        at = self._places.buckets_at + index * ctypes.sizeof(HgBucket)
        bucket = HgBucket.from_buffer_copy(self._memory, at)
        if self._word(self._places.bucket_keys_at + index * _WORD) != key:
            return None  # it has become another's while it was read
        owed = debt_ns(bucket.empty_at_ns, now_ns)
        owed = cpu_ns(owed, bucket.rate_mpct, self._places.cpus_milli)
        capacity_ns = capacities_ns.get(bucket.budget_key)
        return BucketView(
            key=key,
            label=bytes(bucket.label[: bucket.label_length]),
            debt_ns=owed,
            fill=owed / capacity_ns if capacity_ns else None,
            **_fields(bucket, "budget_key", "statements", "workers", "admitted"),
            **_fields(bucket, "rate_mpct", "epoch", "empty_at_ns", "refunded_ns"),
        )

    def _still(self, table_at: int, index: int, pattern: HgPattern) -> bool:
        return self._word(table_at + index * ctypes.sizeof(HgPattern)) == int(pattern.key)

    def _area(self, area: int) -> bytes | None:
        """Whole, by its checksum: a publisher may have come in between."""
        at = self._places.areas_at[area - 1]
        head = HgPolicyHead.from_buffer_copy(self._memory, at)
        if head.magic != POLICY_MAGIC or head.length > self._places.sizes.policy_bytes:
            return None
        policy = bytes(self._memory[at : at + head.length])
        without = policy[:_CRC_AT] + bytes(4) + policy[_CRC_AT + 4 :]
        return policy if zlib.crc32(without) == head.crc else None

    def _capacities_ns(self) -> dict[int, int]:
        """By budget's key, of those that have one."""
        policy = self.policy()
        if policy is None:
            return {}
        section = HgPolicyHead.from_buffer_copy(policy).budgets
        size = ctypes.sizeof(HgBudget)
        if section.offset + section.count * size > len(policy):
            return {}
        budgets = (HgBudget * section.count).from_buffer_copy(policy, section.offset)
        return {
            budget.key: server_ns(budget.capacity_mpcts, self._places.cpus_milli)
            for budget in budgets
            if budget.set & SET_CAPACITY
        }


def _fields(words: Structure, *names: str) -> dict[str, int]:
    return {name: getattr(words, name) for name in names}


def line_of(words: HgLine) -> CostLine:
    """Others may write anything into a region: what is no number counts for nothing."""
    numbers = (words.variance, words.plan_cost, words.cpu, words.spread, words.common)
    if not all(map(math.isfinite, numbers)):
        return NO_LINE
    a, b, c, d = words.bends
    return CostLine(words.shape, words.calls, *numbers, bends=(a, b, c, d))


def _pattern(words: HgPattern) -> Pattern:
    a, b, c = map(line_of, words.shapes)
    return Pattern(
        whole=line_of(words.whole),
        shapes=(a, b, c),
        **_fields(words, "key", "calls", "cpu_ns", "last_ns"),
        error=words.error,
    )


def _count_view(count: HgCount) -> CountView:
    plain = ("key", "admitted", "estimated_ns", "charged_ns", "passed", "sleeping", "forgiven_ns")
    rest = ("evicted", "delayed", "delayed_ns", "unpinned", "last_violation_ms", "wall_ns")
    return CountView(
        name=count.name.decode(errors="replace"),
        warned=tuple(count.warned),
        blocked=tuple(count.blocked),
        **_fields(count, *plain, *rest),
    )


def _fault(head: HgRegion, length: int) -> str:
    if head.magic != REGION_MAGIC:
        return "its signature is wrong"
    if head.format != REGION_FORMAT:
        return (
            f"it has format {head.format}, and this headgate reads {REGION_FORMAT}: install the "
            "same version on both sides"
        )
    sizes = head.sizes
    parts = (
        (head.seats_at, sizes.seats * ctypes.sizeof(HgSeat)),
        (head.counts_at, sizes.budgets * ctypes.sizeof(HgCount)),
        (head.bucket_keys_at, sizes.buckets * _WORD),
        (head.buckets_at, sizes.buckets * ctypes.sizeof(HgBucket)),
        (head.patterns_at, sizes.patterns * ctypes.sizeof(HgPattern)),
        (head.clients_at, sizes.clients * ctypes.sizeof(HgTally)),
        *((at, sizes.policy_bytes) for at in head.areas_at),
    )
    if sizes.policy_bytes < ctypes.sizeof(HgPolicyHead) or not head.cpus_milli:
        return "it has sizes that no region has"
    if any(at < ctypes.sizeof(HgRegion) or at + size > length for at, size in parts):
        return f"its parts do not lie within its {length} bytes"
    return ""
