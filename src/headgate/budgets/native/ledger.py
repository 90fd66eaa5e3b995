"""The ledger in C, with the face of budgets/ledger.py.

    NativeLedger.publish(compiled policy) ──► check, take ──► NativeHolding ──► settle

Budgets are those of the policy in force in the region, so they are not given with each question.
One NativeLedger is one seat, and one thread's; several may share a region (`memory`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import (
    POINTER,
    byref,
    c_bool,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from functools import cache
from typing import Any

from headgate.budgets.bucket import Bucket
from headgate.budgets.cost import CostLine, Pattern
from headgate.budgets.ledger import BudgetTotals
from headgate.budgets.model import (
    MAX_MATCHES,
    Estimate,
    Limit,
    Match,
    StatementAnswer,
    StatementCheck,
    StatementVerdict,
)
from headgate.budgets.native.layout import (
    LABEL_BYTES,
    PAGE_BYTES,
    HgAnswer,
    HgAsk,
    HgCost,
    HgHolding,
    HgMatches,
    HgSizes,
)
from headgate.budgets.native.library import load
from headgate.budgets.native.region import BucketView, RegionView
from headgate.errors import PolicyRejected

_ALIGNMENT = 64
_QUESTION: list[Any] = [c_void_p, c_void_p, POINTER(HgMatches), POINTER(HgAsk), POINTER(HgAnswer)]
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "hg_region_bytes": (c_size_t, [POINTER(HgSizes)]),
    "hg_region_init": (
        c_char_p,
        [c_void_p, c_size_t, POINTER(HgSizes), c_uint32, c_uint32, c_uint64, c_int64],
    ),
    "hg_region_keyed": (None, [c_void_p, c_uint64]),
    "hg_region_check": (c_char_p, [c_void_p, c_size_t]),
    "hg_publish": (c_char_p, [c_void_p, c_char_p, c_size_t, c_bool, c_int64]),
    "hg_enter": (c_void_p, [c_void_p, c_uint32]),
    "hg_leave": (None, [c_void_p, c_uint32]),
    "hg_seat_take": (None, [c_void_p, c_uint32, c_uint32]),
    "hg_seat_free": (None, [c_void_p, c_uint32]),
    "hg_healthy": (c_int, [c_void_p, c_int64]),
    "hg_tell_health": (None, [c_void_p, c_bool, c_int64]),
    "hg_check": (None, _QUESTION),
    "hg_take": (None, [*_QUESTION, POINTER(HgHolding)]),
    "hg_pause": (None, [c_void_p, POINTER(HgHolding)]),
    "hg_resume": (None, [c_void_p, POINTER(HgHolding)]),
    "hg_settle": (None, [c_void_p, POINTER(HgHolding), c_uint64, c_bool, c_uint64]),
    "hg_charge": (None, [c_void_p, c_void_p, POINTER(HgMatches), c_uint64, c_uint64]),
    "hg_estimate": (HgCost, [c_void_p, POINTER(HgAsk)]),
}


@cache
def core() -> ctypes.CDLL:
    library = load()
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@dataclass(frozen=True, slots=True)
class NativeHolding:
    """What a statement that runs has taken. The core writes to it, until it is settled."""

    words: HgHolding

    @property
    def estimate_ns(self) -> int:
        return int(self.words.estimate_ns)


def region_sizes(
    *,
    seats: int = 1,
    budgets: int = 1024,
    buckets: int = 1024,
    patterns: int = 1024,
    policy_bytes: int = 1 << 20,
    traces: int = 0,
) -> HgSizes:
    rounded = -(-policy_bytes // PAGE_BYTES) * PAGE_BYTES
    return HgSizes(seats, budgets, buckets, patterns, rounded, traces)


def region_bytes(sizes: HgSizes) -> int:
    needed = int(core().hg_region_bytes(byref(sizes)))
    if not needed:
        given = ", ".join(f"{name} {getattr(sizes, name)}" for name, *_ in HgSizes._fields_)
        raise ValueError(
            f"no region has these sizes: {given} (budgets, buckets of at least 16, patterns of "
            "at least 4 and traces are powers of two)"
        )
    return needed


class NativeLedger:
    def __init__(
        self,
        *,
        cpus_milli: int,
        workers: int,
        buckets: int = 1024,
        patterns: int = 1024,
        sizes: HgSizes | None = None,
        memory: mmap.mmap | bytearray | None = None,
        seat: int = 0,
        secret: int = 0,
    ) -> None:
        """`memory` that holds a region already is joined, anything else is made one. It has to
        be aligned to 64 bytes, or larger than needed by as many. `secret`: by which a new one
        spreads its buckets over the table; 0: by their keys alone."""
        sizes = sizes or region_sizes(buckets=buckets, patterns=patterns)
        needed = region_bytes(sizes)
        self._memory = memory if memory is not None else mmap.mmap(-1, needed)
        self._offset = _aligned(self._memory)
        self._length = len(self._memory) - self._offset
        self._address = _address_of(self._memory, self._offset)
        if core().hg_region_check(self._address, self._length) is not None:
            fault = core().hg_region_init(
                self._address, self._length, byref(sizes), cpus_milli, workers, 0, 0
            )
            if fault is not None:
                raise ValueError(f"no region can be made here: {fault.decode()}")
            core().hg_region_keyed(self._address, secret)
        self.view = RegionView(memoryview(self._memory)[self._offset :])
        if not 0 <= seat < self.view.seat_count:
            raise ValueError(f"seat {seat}: the region has {self.view.seat_count}")
        self._seat = seat
        core().hg_seat_take(self._address, seat, os.getpid())

    def publish(self, compiled: bytes, *, force: bool = False, wall_ms: int = 0) -> None:
        why = core().hg_publish(self._address, compiled, len(compiled), force, wall_ms)
        if why is not None:
            raise PolicyRejected(f"a policy of {len(compiled)} bytes was not taken: {why.decode()}")

    def tell_health(self, healthy: bool, until_ms: int) -> None:
        core().hg_tell_health(self._address, healthy, until_ms)

    # --- checks -------------------------------------------------------------------------------

    def check(self, matches: Sequence[Match], ask: StatementCheck) -> StatementAnswer:
        """Looks, and takes nothing."""
        answer = HgAnswer()
        with self._policy(matches) as policy:
            core().hg_check(
                self._address, policy, byref(_matches(matches)), byref(_ask(ask)), byref(answer)
            )
        return _answer(answer, len(matches))

    def take(
        self, matches: Sequence[Match], ask: StatementCheck
    ) -> tuple[StatementAnswer, NativeHolding | None]:
        """A place and the estimate's charge in every budget, or no change in any."""
        answer, holding = HgAnswer(), HgHolding()
        question = byref(_matches(matches)), byref(_ask(ask)), byref(answer), byref(holding)
        with self._policy(matches) as policy:
            core().hg_take(self._address, policy, *question)
        told = _answer(answer, len(matches))
        return told, NativeHolding(holding) if told.admitted else None

    def charge(self, matches: Sequence[Match], cost_ns: int, now_ns: int) -> None:
        """Work that is done already: in all budgets, whatever their limits say."""
        with self._policy(matches) as policy:
            if policy is not None:
                core().hg_charge(self._address, policy, byref(_matches(matches)), cost_ns, now_ns)

    def estimate(self, ask: StatementCheck) -> Estimate:
        cost = core().hg_estimate(self._address, byref(_ask(ask)))
        return Estimate(cost.mean_ns, cost.p90_ns)

    @contextmanager
    def _policy(self, matches: Sequence[Match]) -> Iterator[int | None]:
        """In force, and staying where it is until this is left."""
        policy = core().hg_enter(self._address, self._seat)
        if policy is None and matches:
            raise ValueError("no policy is in force that could have matched: publish one first")
        try:
            yield policy
        finally:
            core().hg_leave(self._address, self._seat)

    # --- while it runs ------------------------------------------------------------------------

    def pause(self, holding: NativeHolding) -> NativeHolding:
        """Gives the places back, but goes on holding the charge, and the bucket in its place: a
        cursor between two fetches."""
        core().hg_pause(self._address, byref(holding.words))
        return holding

    def resume(self, holding: NativeHolding) -> NativeHolding:
        """Takes the places again, without a check."""
        core().hg_resume(self._address, byref(holding.words))
        return holding

    def settle(
        self, holding: NativeHolding, actual_ns: int, now_ns: int, *, aborted: bool = False
    ) -> None:
        """Gives back, charges the difference between estimate and actual, and learns."""
        core().hg_settle(self._address, byref(holding.words), actual_ns, aborted, now_ns)

    # --- looking ------------------------------------------------------------------------------

    def bucket(self, key: int) -> Bucket | None:
        return next((bucket for bucket in self.buckets() if bucket.key == key), None)

    def buckets(self) -> Iterator[Bucket]:
        return (_bucket(view) for view in self.view.buckets(0))

    def debt_ns(self, bucket: Bucket, now_ns: int) -> int:
        """In CPU time."""
        views = {view.key: view for view in self.view.buckets(now_ns)}
        return views[bucket.key].debt_ns if bucket.key in views else 0

    @property
    def counts(self) -> dict[int, BudgetTotals]:
        return {
            view.key: BudgetTotals(
                admitted=view.admitted,
                estimated_ns=view.estimated_ns,
                charged_ns=view.charged_ns,
                passed=view.passed,
                forgiven_ns=view.forgiven_ns,
                evicted=view.evicted,
                unpinned=view.unpinned,
                warned=list(view.warned),
                blocked=list(view.blocked),
                last_violation_ms=view.last_violation_ms,
            )
            for view in self.view.counts()
        }

    def pattern(self, key: int) -> Pattern | None:
        return next((view.known for view in self.view.patterns() if view.key == key), None)

    @property
    def host(self) -> CostLine:
        """Of all patterns."""
        return self.view.head().host


def _address_of(memory: mmap.mmap | bytearray, offset: int) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))


def _aligned(memory: mmap.mmap | bytearray) -> int:
    return -_address_of(memory, 0) % _ALIGNMENT


def _matches(matches: Sequence[Match]) -> HgMatches:
    if len(matches) > MAX_MATCHES:
        raise ValueError(f"{len(matches)} matches: at most {MAX_MATCHES} budgets apply at once")
    words = HgMatches(count=len(matches))
    for one, match in zip(words.at, matches, strict=False):
        label = match.label[:LABEL_BYTES]
        one.budget, one.rule, one.bucket = match.budget, match.rule, match.bucket
        one.label_length = len(label)
        ctypes.memmove(one.label, label, len(label))
    return words


def _ask(ask: StatementCheck) -> HgAsk:
    return HgAsk(
        now_ns=ask.now_ns,
        wall_ms=ask.wall_ms,
        plan_cost=ask.plan_cost,
        cost_ns=ask.cost_ns,
        p90_ns=ask.p90_ns,
        pattern=ask.pattern,
        workers=ask.workers,
        flags=int(ask.flags),
        shape=ask.shape,
    )


def _answer(words: HgAnswer, count: int) -> StatementAnswer:
    return StatementAnswer(
        verdict=StatementVerdict(words.verdict),
        limits=tuple(Limit(limit) for limit in words.limit[:count]),
        thresholds=tuple(Limit(limit) for limit in words.threshold[:count]),
        estimate_ns=words.estimate_ns,
        p90_ns=words.p90_ns,
        match=words.match,
        decided_by=Limit(words.decided_by),
        passed=words.passed,
        used=words.used,
        bound=words.bound,
        retry_ns=words.retry_ns,
    )


def _bucket(view: BucketView) -> Bucket:
    return Bucket(
        key=view.key,
        budget_key=view.budget_key,
        rate_mpct=view.rate_mpct,
        epoch=view.epoch,
        label=view.label,
        empty_at_ns=view.empty_at_ns,
        refunded_ns=view.refunded_ns,
        statements=view.statements,
        workers=view.workers,
        admitted=view.admitted,
    )
