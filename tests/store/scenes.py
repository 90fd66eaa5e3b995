"""What operators do to the stores while a disk fails once: played by fixtures/failing_disk.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from headgate.base.keyvalue import Compare, Entry, Listing, Put
from headgate.changes.log_copy import LogCopy
from headgate.errors import StoreUnavailable
from headgate.fleet.cache import LogCache
from headgate.history.records import AuditEntry, Tally
from headgate.store import SqliteStore

Tell = Callable[[str, str], None]
DEADLINE_S = 60.0
"""It calls no slow machine a fault."""
ADMITTED = Tally(1, "main", "etl", "OK", "", 1)


def entry(step: str) -> AuditEntry:
    return AuditEntry(1_700_000_000.0, "ann", "rule.set", step, None, None)


def rule(name: str, step: int | None) -> list[Put]:
    """Two entries that only make sense together; None takes them out."""
    value = None if step is None else str(step).encode()
    return [Put(f"items/wide/rule/{name}", value), Put(f"items/wide/twin/{name}", value)]


STEPS: Mapping[str, Sequence[Put]] = {
    "hold a": [*rule("a", 1), Put("log/000000000001", b"who" * 3000)],
    "strict": [Put("items/wide/metric/main%2Flag", b"strict")],
    "note": [Put("notes/rule_time", b"1")],
    "hold b": rule("b", 2),
    "longer a": rule("a", 3),
    "lift b": rule("b", None),
    "note again": [Put("notes/rule_time", b"2")],
    "many": [Put(f"items/wide/budget/main%2F{n}", b"x" * 400) for n in range(30)],
    "hold c": rule("c", 4),
}
"""Every commit of a scene, in its order."""


class Told:
    """Takes each step, and says what came of it."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    async def step(self, name: str, work: Callable[[], Awaitable[object]]) -> object | None:
        self._tell(name, "begun")
        try:
            value = await work()
        except StoreUnavailable as error:
            self._tell(name, f"rejected: {type(error).__name__}: {error}")
            return None
        self._tell(name, "done")
        return value


async def _state(folder: Path, told: Told, *, close: bool) -> None:
    store = SqliteStore(folder / "state.db", deadline_s=DEADLINE_S)
    await told.step("open", store.open)
    held: object = None
    for step, puts in STEPS.items():
        compares = []
        if step == "longer a":
            if not isinstance(held, int):
                continue
            compares = [Compare(puts[0].key, held)]
        commit = partial(store.commit, compares, puts, audit=[entry(step)])
        revision = await told.step(step, commit)
        if step == "hold a":
            held = revision
            await told.step("tally", partial(store.history.add_tallies, [ADMITTED]))
        if step == "note again":
            await told.step("tend", partial(store.history.forget_before, 0))
    if close:
        await store.close()


def state(folder: Path, tell: Tell) -> None:
    asyncio.run(_state(folder, Told(tell), close=False))


def state_closed(folder: Path, tell: Tell) -> None:
    asyncio.run(_state(folder, Told(tell), close=True))


def fleet_copy(n: int) -> LogCopy:
    entries = (Entry("/rules/r1", f"hold {n}".encode() * 200, n),)
    return LogCopy(Listing(entries, n, "store"), ("/rules/",), n, 1_700_000_000.0)


async def _fleet(folder: Path, told: Told) -> None:
    cache = LogCache(folder / "fleet.json")
    for n in range(1, 5):
        await told.step(str(n), lambda n=n: cache.save(fleet_copy(n)))  # type: ignore[misc]
    await cache.close()


def fleet(folder: Path, tell: Tell) -> None:
    asyncio.run(_fleet(folder, Told(tell)))


SCENES = {
    "state": state,
    "state, closed": state_closed,
    "fleet": fleet,
}
