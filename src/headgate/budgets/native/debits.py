"""Debit budgets in a region that others decide by.   mmap ──RegionDebits──► hg_take, hg_settle

Without a seat, which belong to the server's processes: it goes by a copy of the policy in force,
made again when that is another one, and checked. Sizes and places are a copy as well, made when the
memory was mapped (hg_region_pin): what the server's user writes there later moves no write of ours.
A server that restarts after a crash makes another region, in another memory: the old one stays as
it was until it is unmapped, and what is charged there counts for nobody.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from ctypes import POINTER, byref, c_bool, c_char_p, c_int64, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from headgate.budgets.ask import Limit, StatementAnswer, StatementCheck, StatementVerdict
from headgate.budgets.bucket import cpu_ns
from headgate.budgets.native.layout import (
    REGION_MAGIC,
    HgAnswer,
    HgAsk,
    HgBudget,
    HgHolding,
    HgMatches,
    HgPolicyHead,
    HgRegion,
)
from headgate.budgets.native.ledger import core
from headgate.budgets.native.matching import policy_fault
from headgate.budgets.native.region import RegionView
from headgate.errors import MeterFailed

_WAYS = 16
_KEY = Struct(f"<Q{ctypes.sizeof(HgBudget) - 8}x")
_POLICY_OFF = 1
_PROTOTYPES: dict[str, list[Any]] = {
    "hg_count_block": [
        c_void_p,
        c_void_p,
        POINTER(HgMatches),
        POINTER(HgAnswer),
        c_bool,
        c_int64,
    ],
    "hg_process_gone": [c_void_p, c_uint32],
    "hg_region_unpin": [c_void_p],
}


@cache
def _core() -> ctypes.CDLL:
    library = core()
    for name, arguments in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, arguments
    library.hg_region_pin.restype = c_char_p
    library.hg_region_pin.argtypes = [c_void_p, c_size_t]
    return library


@dataclass(frozen=True, slots=True)
class _Book:
    """A copy of the policy in force."""

    version: int = 0
    crc: int = 0
    policy: Any = None
    """The bytes, where C can read them."""
    places: dict[int, int] = field(default_factory=dict)
    """Of budgets, by key."""


class Charged(NamedTuple):
    answer: StatementAnswer
    owed_ns: int | None
    """CPU, before it was charged; None: the budget has no bucket."""
    cpus_milli: int


class RegionDebits:
    """One thread's."""

    def __init__(self, memory: mmap.mmap) -> None:
        """`memory` is a region, mapped to be written."""
        self._memory = memory
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        why = _core().hg_region_pin(self._address, len(memory))
        if why is not None:
            raise MeterFailed(f"this memory is no region that could be charged: {why.decode()}")
        weakref.finalize(self, _core().hg_region_unpin, self._address)
        self._view = RegionView(memoryview(memory))
        self._head = HgRegion.from_buffer(memory)
        self._book = _Book()
        self._free_locks_of_the_dead()

    @property
    def is_on(self) -> bool:
        """Whether anybody decides anything there."""
        return bool(self._head.enabled) and self._head.magic == REGION_MAGIC

    def debit(
        self, budget_key: int, ask: StatementCheck, *, only_look: bool = False
    ) -> Charged | None:
        """None: the policy in force has no such budget."""
        book = self._current()
        place = book.places.get(budget_key)
        if place is None or not self.is_on:
            return None
        matches, answer, holding = _own_bucket(place, budget_key), HgAnswer(), HgHolding()
        question = (self._address, book.policy, byref(matches), byref(_words(ask)), byref(answer))
        if only_look:
            _core().hg_check(*question)
        else:
            _core().hg_take(*question, byref(holding))
        told = _answer(answer)
        charged = Charged(told, self._owed_ns(told, holding, ask), int(self._head.cpus_milli))
        if not only_look:
            self._close(book, matches, answer, holding, ask)
        return charged

    def _close(
        self,
        book: _Book,
        matches: HgMatches,
        answer: HgAnswer,
        holding: HgHolding,
        ask: StatementCheck,
    ) -> None:
        """A declared cost is the cost: settled at once, which gives the place back."""
        if answer.verdict in (StatementVerdict.RUN, StatementVerdict.WARN):
            estimate_ns = holding.estimate_ns
            _core().hg_settle(self._address, byref(holding), estimate_ns, False, ask.now_ns)
        else:
            question = (self._address, book.policy, byref(matches), byref(answer))
            _core().hg_count_block(*question, False, ask.wall_ms)

    def _owed_ns(
        self, answer: StatementAnswer, holding: HgHolding, ask: StatementCheck
    ) -> int | None:
        if answer.decided_by is Limit.BUCKET:
            return answer.used
        held = holding.at[0]
        if not holding.count or not held.charged:
            return None
        before_ns = max(0, held.after_ns - held.charged_ns - ask.now_ns)
        return cpu_ns(before_ns, held.rate_mpct, self._head.cpus_milli)

    def _current(self) -> _Book:
        head, book = self._head, self._book
        if (head.version, head.crc) != (book.version, book.crc):
            self._book = book = _copied(self._view.policy(), (head.version, head.crc))
        return book

    def _free_locks_of_the_dead(self) -> None:
        """One like us may have been killed while it held one; the server's own are the server's
        to free, and to free one again does nothing."""
        places = self._view.places
        locks = (c_uint32 * (places.sizes.buckets // _WAYS)).from_buffer(
            self._memory, places.bucket_locks_at
        )
        for pid in {int(pid) for pid in locks if pid}:
            if pid != os.getpid() and not Path(f"/proc/{pid}").exists():
                _core().hg_process_gone(self._address, pid)


def _copied(policy: bytes | None, named: tuple[int, int]) -> _Book:
    """`named`: version and checksum by which the region calls it."""
    if policy is None:
        return _Book()
    if policy_fault(policy) is not None:
        return _Book(*named)  # Not looked at again until it is another one.
    head = HgPolicyHead.from_buffer_copy(policy)
    if head.flags & _POLICY_OFF:
        return _Book(head.version, head.crc)
    at, count = head.budgets.offset, head.budgets.count
    keys = _KEY.iter_unpack(policy[at : at + count * _KEY.size])
    return _Book(
        version=head.version,
        crc=head.crc,
        policy=ctypes.create_string_buffer(policy, len(policy)),
        places={key: place for place, (key,) in enumerate(keys)},
    )


def _own_bucket(place: int, key: int) -> HgMatches:
    matches = HgMatches(count=1)
    matches.at[0].budget, matches.at[0].bucket = place, key
    return matches


def _words(ask: StatementCheck) -> HgAsk:
    return HgAsk(
        now_ns=ask.now_ns,
        wall_ms=ask.wall_ms,
        plan_cost=ask.plan_cost,
        cost_ns=ask.cost_ns,
        workers=ask.workers,
        flags=int(ask.flags),
    )


def _answer(words: HgAnswer) -> StatementAnswer:
    return StatementAnswer(
        verdict=StatementVerdict(words.verdict),
        limits=(Limit(words.limit[0]),),
        thresholds=(Limit(words.threshold[0]),),
        estimate_ns=words.estimate_ns,
        decided_by=Limit(words.decided_by),
        passed=words.passed,
        used=words.used,
        bound=words.bound,
        retry_ns=words.retry_ns,
    )
