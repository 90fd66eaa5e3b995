"""What operators do to the stores while a disk fails once: played by fixtures/failing_disk.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from headgate.core.fleet_copy import FleetCopy
from headgate.core.keyvalue import Entry, Listing, Put
from headgate.core.records import AuditEntry, MetricChange, PolicyRevision, Record, Tally
from headgate.errors import StoreUnavailable
from headgate.stores import SqliteStore
from headgate.stores.fleet_sqlite import SqliteFleetStore
from headgate.stores.fleetcache import FleetCache

Tell = Callable[[str, str], None]
DEADLINE_S = 60.0
"""It calls no slow machine a fault."""


def entry(action: str) -> AuditEntry:
    return AuditEntry(1_700_000_000.0, "ann", action, "main", None, None)


def hold(key: str, step: int) -> Record:
    return Record("rule", key, {"kind": "hold", "target": "etl", "step": step}, 0)


class Told:
    """Takes each step, and says what came of it."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    async def step(self, name: str, work: Callable[[], Awaitable[object]]) -> object | None:
        self._tell(name, "begun")
        try:
            value = await work()
        except StoreUnavailable as error:
            self._tell(name, f"refused: {type(error).__name__}: {error}")
            return None
        self._tell(name, "done")
        return value


async def _state(folder: Path, told: Told, *, close: bool) -> None:
    store = SqliteStore(folder / "state.db", deadline_s=DEADLINE_S)
    await told.step("open", store.open)
    held = await told.step("hold a", lambda: store.put_record(hold("a", 1), entry("rule.set")))
    await told.step(
        "strict", lambda: store.put_metric(MetricChange("main", "lag", {"t": 1}, 0), entry("m"))
    )
    await told.step("tally", lambda: store.add_tallies([Tally(1, "main", "etl", "OK", "", 1)]))
    await told.step("hold b", lambda: store.put_record(hold("b", 2), entry("rule.set")))
    if isinstance(held, Record):
        longer = Record("rule", "a", {**(held.value or {}), "step": 3}, held.revision)
        await told.step("longer a", lambda: store.put_record(longer, entry("rule.set")))
    policy = PolicyRevision("main", 0, 1.0, "ann", "budget.set", "one", {"b": 1}, {"b": 1})
    await told.step("policy", lambda: store.put_policy(policy, entry("budget.set")))
    await told.step("tend", lambda: store.forget_before(0))
    await told.step("hold c", lambda: store.put_record(hold("c", 4), entry("rule.set")))
    if close:
        await store.close()


def state(folder: Path, tell: Tell) -> None:
    asyncio.run(_state(folder, Told(tell), close=False))


def state_closed(folder: Path, tell: Tell) -> None:
    asyncio.run(_state(folder, Told(tell), close=True))


def fleet_copy(n: int) -> FleetCopy:
    entries = (Entry("/rules/r1", f"hold {n}".encode() * 200, n),)
    return FleetCopy(Listing(entries, n, "store"), ("/rules/",), n, 1_700_000_000.0)


async def _fleet(folder: Path, told: Told) -> None:
    cache = FleetCache(folder / "fleet.json")
    for n in range(1, 5):
        await told.step(str(n), lambda n=n: cache.save(fleet_copy(n)))  # type: ignore[misc]
    await cache.close()


def fleet(folder: Path, tell: Tell) -> None:
    asyncio.run(_fleet(folder, Told(tell)))


async def _fleet_file(folder: Path, told: Told) -> None:
    store = SqliteFleetStore(folder / "fleet.db", deadline_s=DEADLINE_S)
    for n in range(1, 5):
        puts = [Put(f"/rules/r{n}", b"hold" * 200), Put("/head", str(n).encode())]
        await told.step(str(n), lambda puts=puts: store.commit([], puts))  # type: ignore[misc]


def fleet_file(folder: Path, tell: Tell) -> None:
    asyncio.run(_fleet_file(folder, Told(tell)))


SCENES = {
    "state": state,
    "state, closed": state_closed,
    "fleet": fleet,
    "fleet file": fleet_file,
}
