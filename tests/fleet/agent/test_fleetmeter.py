"""Requests to a fleet's store are counted by what became of them, and passed on as they are."""

from __future__ import annotations

import pytest

from headgate.agent.logmeter import OUTCOMES, MeteredLog
from headgate.agent.ports import SharedLog
from headgate.core.keyvalue import Compare, Put
from headgate.errors import (
    Compacted,
    Conflict,
    LeaseLost,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from tests.fixtures.memory_log import KeptInMemory, MemoryLog


class FaultyStore(MemoryLog):
    fault: Exception | None = None

    def _reached(self) -> KeptInMemory:
        if self.fault is not None:
            raise self.fault
        return super()._reached()


async def test_every_request_is_passed_on_and_counted() -> None:
    store: SharedLog = MeteredLog(MemoryLog(name="memory"))
    assert isinstance(store, MeteredLog) and store.name == "memory"
    lease = await store.grant(60)
    revision = await store.commit([Compare("a", 0)], [Put("a", b"1", lease.id)])
    listing = await store.list(["a"])
    assert (listing.revision, await store.count("a")) == (revision, 1)
    assert (await store.renew(lease.id)).id == lease.id
    with pytest.raises(Conflict):
        await store.commit([Compare("a", 0)], [Put("a", b"2")])
    await store.revoke(lease.id)
    assert {name: count for name, count in store.requests.items() if count} == {
        "ok": 6,
        "conflict": 1,
    }


async def test_a_watch_is_passed_on_and_counts_when_it_ends() -> None:
    inner = MemoryLog()
    store = MeteredLog(inner)
    await store.commit([], [Put("a", b"1")])
    watching = store.watch(["a"], after_revision=0)
    changes = await anext(watching)
    assert [event.key for event in changes.events] == ["a"]
    before = store.requests["unavailable"]
    await store.close()
    with pytest.raises(StoreUnavailable):
        await anext(watching)
    assert store.requests["unavailable"] == before + 1


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (StoreUnavailable("away"), "unavailable"),
        (StoreRefused("who are you"), "refused"),
        (Compacted("list anew"), "compacted"),
        (OutcomeUnknown("no answer"), "unknown"),
        (LeaseLost("gone"), "lease_lost"),
        (RuntimeError("a bug"), "other"),
    ],
)
async def test_what_goes_wrong_is_told_apart(fault: Exception, outcome: str) -> None:
    inner = FaultyStore()
    store = MeteredLog(inner)
    inner.fault = fault
    with pytest.raises(type(fault)):
        await store.list(["a"])
    assert store.requests[outcome] == 1
    assert set(store.requests) == set(OUTCOMES)
