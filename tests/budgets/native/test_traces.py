"""Traces as the core writes them, read back without it (R145)."""

from __future__ import annotations

import ctypes
import mmap
from ctypes import POINTER, byref, c_void_p
from ipaddress import ip_address
from typing import Any

import pytest

from headgate.budgets.model import Limit, StatementIdentity, StatementVerdict
from headgate.budgets.native.layout import HgRegion, HgTrace
from headgate.budgets.native.ledger import NativeLedger, core, region_bytes, region_sizes
from headgate.budgets.pgext.meter import MAX_BLOCKED, TRACE, traces_in
from headgate.budgets.traces import Trace, TraceBatch
from headgate.errors import MeterFailed

PLACES = 8


class Ring:
    def __init__(self, places: int = PLACES) -> None:
        sizes = region_sizes(traces=places)
        self.memory = mmap.mmap(-1, region_bytes(sizes))
        NativeLedger(cpus_milli=1000, workers=20, sizes=sizes, memory=self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        core().hg_trace_write.argtypes = [c_void_p, POINTER(HgTrace)]
        core().hg_trace_write.restype = None

    def write(
        self, names: tuple[bytes, ...] = (b"", b"", b""), tags: bytes = b"", **w: Any
    ) -> None:
        text = b"".join(names) + tags
        words = HgTrace(**{"weight": 1.0, "actual_ns": 5, "tags_length": len(tags), **w})
        words.username_length, words.database_length, words.application_length = map(len, names)
        ctypes.memmove(words.text, text, len(text))
        core().hg_trace_write(self.address, byref(words))

    def read(self, sequence: int = 0, started_ms: int = 0) -> TraceBatch:
        return traces_in(memoryview(self.memory), sequence, started_ms)

    def change(self, number: int, **words: int) -> None:
        at = HgRegion.from_buffer_copy(self.memory).traces_at + number * TRACE.size
        trace = HgTrace.from_buffer(self.memory, at)
        for name, value in words.items():
            setattr(trace, name, value)


def test_the_layout_is_that_of_the_core() -> None:
    assert TRACE.size == ctypes.sizeof(HgTrace)


def test_a_trace_is_read_as_it_was_written() -> None:
    ring = Ring()
    address = (ctypes.c_uint8 * 16)(10, 1, 2, 3)
    ring.write(
        (b"etl", b"shop", b"job 7"),
        b"tenant\0acme\0route\0/x\0",
        wall_ms=7,
        query_id=2**64 - 5,
        fingerprint=9,
        estimate_ns=11,
        p90_ns=13,
        actual_ns=0,
        wall_ns=12,
        plan_cost=1.5,
        weight=2.5,
        budget=77,
        workers=3,
        verdict=3,
        limit=2,
        flags=2,
        family=4,
        address=address,
        tags_left_out=1,
    )
    (found,) = ring.read().traces
    assert found == Trace(
        sequence=0,
        wall_ms=7,
        who=StatementIdentity("etl", "shop", "job 7", ip_address("10.1.2.3")),
        tags=((b"tenant", b"acme"), (b"route", b"/x")),
        tags_left_out=1,
        query_id=2**64 - 5,
        fingerprint=9,
        plan_cost=1.5,
        estimate_ns=11,
        p90_ns=13,
        actual_ns=0,
        wall_ns=12,
        workers=3,
        weight=2.5,
        verdict=StatementVerdict.BLOCK,
        limit=Limit.QUERY,
        budget=77,
        flags=2,
    )


def test_a_block_stands_for_no_more_than_there_can_be() -> None:
    ring = Ring()
    ring.write(weight=1e7, actual_ns=0, verdict=3)
    ring.write(weight=5000.0)
    assert [trace.weight for trace in ring.read().traces] == [MAX_BLOCKED, 5000.0]


def test_who_has_no_name_and_no_address_has_none() -> None:
    ring = Ring()
    ring.write()
    assert ring.read().traces[0].who == StatementIdentity()


def test_reading_on_finds_only_what_is_new() -> None:
    ring = Ring()
    for _ in range(3):
        ring.write()
    first = ring.read()
    ring.write()
    second = ring.read(first.next_sequence, first.started_ms)
    assert [trace.sequence for trace in second.traces] == [3]
    assert (second.next_sequence, second.lost) == (4, 0)


def test_what_was_overwritten_is_counted_as_lost() -> None:
    ring = Ring()
    ring.write()
    for _ in range(PLACES + 4):
        ring.write()
    found = ring.read(1)
    assert [trace.sequence for trace in found.traces] == list(range(5, PLACES + 5))
    assert found.lost == 4


def test_a_half_written_trace_is_lost_and_not_believed() -> None:
    ring = Ring()
    for _ in range(2):
        ring.write()
    ring.change(0, stamp=1)
    found = ring.read()
    assert ([trace.sequence for trace in found.traces], found.lost) == ([1], 1)


@pytest.mark.parametrize("nonsense", [{"verdict": 9}, {"limit": 9}, {"tags_length": 9999}])
def test_what_no_trace_says_is_not_believed(nonsense: dict[str, int]) -> None:
    ring = Ring()
    ring.write()
    ring.change(0, **nonsense)
    assert ring.read().traces == ()


def test_another_server_is_read_from_its_first() -> None:
    ring = Ring()
    ring.write()
    assert len(ring.read(sequence=1, started_ms=99).traces) == 1


def test_a_region_may_keep_none() -> None:
    ring = Ring(places=0)
    ring.write()
    assert ring.read() == TraceBatch((), 0, 0, 0)


def test_a_ring_that_lies_outside_is_blocked() -> None:
    ring = Ring()
    head = HgRegion.from_buffer(ring.memory)
    head.traces_at = head.length
    with pytest.raises(MeterFailed, match="outside"):
        ring.read()
