"""Traces are kept within bounds, and what is lost is counted (R145)."""

from __future__ import annotations

import pytest

from headgate.budgets.model import StatementIdentity
from headgate.budgets.traces import Trace, TraceBatch
from headgate.budgets.tracing import KEPT_S, TraceMemory
from headgate.errors import MeterFailed
from tests.fixtures.fakes import HandClock

PLACES = 8


class FakeRing:
    """A server that traces, and overwrites what nobody reads."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.written: list[Trace] = []
        self.started_ms = 1
        self.fault = ""

    def write(self, count: int = 1, *, actual_ns: int = 10) -> None:
        wall_ms = int(self.clock.now().wall_s * 1000)
        for _ in range(count):
            self.written.append(
                Trace(len(self.written), wall_ms, StatementIdentity(), actual_ns=actual_ns)
            )

    def restart(self) -> None:
        self.written, self.started_ms = [], self.started_ms + 1

    async def traces_since(self, sequence: int, started_ms: int) -> TraceBatch:
        if self.fault:
            raise MeterFailed(self.fault)
        wanted = sequence if started_ms == self.started_ms else 0
        first = max(wanted, len(self.written) - PLACES)
        found = tuple(self.written[first:])
        return TraceBatch(found, len(self.written), first - wanted, self.started_ms)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ring(clock: HandClock) -> FakeRing:
    return FakeRing(clock)


def memory(ring: FakeRing, max_traces: int = 100) -> TraceMemory:
    return TraceMemory("main", ring, ring.clock, max_traces)


async def test_each_trace_is_kept_once(ring: FakeRing) -> None:
    kept = memory(ring)
    for _ in range(3):
        ring.write(2)
        await kept.look(None)
    await kept.look(None)
    assert [trace.sequence for trace in kept.since(0)] == list(range(6))
    assert kept.lost_total == 0


async def test_what_was_overwritten_in_between_is_counted(ring: FakeRing) -> None:
    kept = memory(ring)
    ring.write(PLACES + 5)  # before anybody looked: nobody has lost it
    await kept.look(None)
    assert (len(kept), kept.lost_total) == (PLACES, 0)
    ring.write(PLACES + 3)
    await kept.look(None)
    assert (len(kept), kept.lost_total) == (2 * PLACES, 3)


async def test_a_restarted_server_is_read_from_its_beginning(ring: FakeRing) -> None:
    kept = memory(ring)
    ring.write(5)
    await kept.look(None)
    ring.restart()
    ring.write(2)
    await kept.look(None)
    assert len(kept) == 7


async def test_a_day_is_kept(ring: FakeRing, clock: HandClock) -> None:
    kept = memory(ring)
    ring.write()
    await kept.look(None)
    await clock.advance(KEPT_S + 2 * 3600)
    ring.write()
    await kept.look(None)
    assert len(kept) == 1


async def test_too_many_are_drawn_again_and_stand_for_the_same(ring: FakeRing) -> None:
    kept = memory(ring, max_traces=100)
    for _ in range(100):
        ring.write(PLACES)
        await kept.look(None)
    assert len(kept) <= 100
    stands_for_ns = sum(trace.stands_for_ns for trace in kept.since(0))
    assert stands_for_ns == pytest.approx(10 * 100 * PLACES, rel=0.1)
    newest = kept.since(0)[-20:]
    assert all(trace.weight == 1 for trace in newest)


async def test_a_server_that_cannot_be_read_keeps_what_was(ring: FakeRing) -> None:
    kept = memory(ring)
    ring.write()
    await kept.look(None)
    ring.fault = "is not running"
    await kept.look(None)
    assert (len(kept), kept.fault) == (1, "is not running")
    ring.fault = ""
    await kept.look(None)
    assert kept.fault == ""


async def test_the_health_of_then_is_kept_where_it_changed(
    ring: FakeRing, clock: HandClock
) -> None:
    """R147: budgets for bad times are replayed by it."""
    kept = memory(ring)
    began_ms = int(clock.now().wall_s * 1000)
    for healthy in (None, True, True, False):
        await kept.look(healthy)
        await clock.advance(1)
    assert kept.health == (
        (began_ms, None),
        (began_ms + 1000, True),
        (began_ms + 3000, False),
    )
