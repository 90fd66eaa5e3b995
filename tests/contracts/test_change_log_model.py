"""Any sequence of commits, compares, leases and watches: every store says what a model says."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headgate.base.keyvalue import Changes, Compare, KeyEvent, Put
from headgate.base.ports import SharedLog
from headgate.errors import Conflict, LeaseLost
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.memory_log import KeptInMemory, MemoryLog

keys = st.sampled_from(["head", "a/1", "a/2", "b/1", "b"])
prefixes = st.sampled_from(["", "a/", "b", "b/", "head", "none"])
values = st.none() | st.binary(max_size=3)
leases = st.integers(0, 3)
"""0: none; else one of those granted, counted from the first."""


@dataclass
class Model:
    """All of it in a few lines: what stands, what happened, which leases there are."""

    entries: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)
    """key → value, revision, lease."""
    history: list[KeyEvent] = field(default_factory=list)
    revision: int = 0
    leases: list[bool] = field(default_factory=list)

    def commit(self, compares: list[Compare], puts: list[Put]) -> str | int:
        if any(self.entries.get(c.key, (b"", 0, 0))[1] != c.revision for c in compares):
            return "Conflict"
        if any(put.lease and put.value is not None and not self.has(put.lease) for put in puts):
            return "LeaseLost"
        return self.put(puts)

    def put(self, puts: list[Put]) -> int:
        done = [put for put in puts if put.value is not None or put.key in self.entries]
        self.revision += bool(done)
        for put in done:
            self.entries.pop(put.key, None)
            if put.value is not None:
                self.entries[put.key] = put.value, self.revision, put.lease
            self.history.append(KeyEvent(put.key, put.value, self.revision))
        return self.revision

    def has(self, lease: int) -> bool:
        return 0 < lease <= len(self.leases) and self.leases[lease - 1]

    def revoke(self, lease: int) -> None:
        if self.has(lease):
            self.leases[lease - 1] = False
            held = sorted(key for key, kept in self.entries.items() if kept[2] == lease)
            self.put([Put(key, None) for key in held])


@dataclass
class Following:
    """One watch of each store, all opened after the same revision."""

    prefix: str
    told: int
    watches: list[AsyncGenerator[Changes]]


class EveryStore(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model()
        self.following: list[Following] = []
        path = Path(self.folder.name) / "fleet.db"
        self.stores: list[SharedLog] = self.runner.run(self.make(path))

    async def make(self, path: Path) -> list[SharedLog]:
        return [MemoryLog(KeptInMemory())]

    def teardown(self) -> None:
        for follower in self.following:
            for watch in follower.watches:
                self.runner.run(_close(watch))
        self.each(lambda store: store.close())
        self.runner.close()
        self.folder.cleanup()

    def each(self, operation: Callable[[SharedLog], Awaitable[Any]]) -> list[Any]:
        return [self.runner.run(_outcome(operation, store)) for store in self.stores]

    def alike(self, wanted: Any, operation: Callable[[SharedLog], Awaitable[Any]]) -> None:
        assert self.each(operation) == [wanted] * len(self.stores)

    @rule(
        puts=st.lists(
            st.builds(Put, keys, values, leases), max_size=3, unique_by=lambda put: put.key
        ),
        compared=st.lists(st.tuples(keys, st.booleans()), max_size=2),
    )
    def commit(self, puts: list[Put], compared: list[tuple[str, bool]]) -> None:
        """Half of the compares hold."""
        compares = [
            Compare(key, self.model.entries.get(key, (b"", 0, 0))[1] + stale)
            for key, stale in compared
        ]
        wanted = self.model.commit(compares, puts)
        self.alike(wanted, lambda store: store.commit(compares, puts))

    @rule(key=keys, value=values)
    def put(self, key: str, value: bytes | None) -> None:
        self.commit([Put(key, value)], [(key, False)])

    @rule()
    def grant(self) -> None:
        if len(self.model.leases) < 3:
            self.model.leases.append(True)
            wanted = len(self.model.leases)
            granted = self.each(lambda store: store.grant(3600))
            assert [lease.id for lease in granted] == [wanted] * len(self.stores)

    @rule(lease=leases)
    def revoke(self, lease: int) -> None:
        self.model.revoke(lease)
        self.alike(None, lambda store: store.revoke(lease))

    @rule(prefix=prefixes, back=st.integers(0, 5))
    def begin_to_watch(self, prefix: str, back: int) -> None:
        after = max(0, self.model.revision - back)
        watches = [store.watch([prefix], after_revision=after) for store in self.stores]
        self.following.append(Following(prefix, after, watches))

    @rule(which=st.integers(0, 5))
    def read_a_watch(self, which: int) -> None:
        for follower in self.following[which : which + 1]:
            wanted = self.changed(follower.prefix, follower.told)
            for watch in follower.watches:
                assert self.runner.run(_read(watch, len(wanted))) == wanted
            follower.told = self.model.revision

    def changed(self, prefix: str, after: int) -> list[KeyEvent]:
        return [e for e in self.model.history if e.revision > after and e.key.startswith(prefix)]

    @invariant()
    def hold_the_same(self) -> None:
        wanted = sorted((key, kept[0], kept[1]) for key, kept in self.model.entries.items())
        for listing in self.each(lambda store: store.list(["", "a/"])):
            assert [(e.key, e.value, e.revision) for e in listing.entries] == wanted
            assert listing.revision == self.model.revision
        self.alike(sum(key[0] == "b" for key in self.model.entries), lambda s: s.count("b"))


async def _read(watch: AsyncGenerator[Changes], count: int) -> list[KeyEvent]:
    seen: list[KeyEvent] = []
    while len(seen) < count:
        async with asyncio.timeout(DEADLINE_S):
            seen.extend((await anext(watch)).events)
    return seen


async def _close(watch: AsyncGenerator[Changes]) -> None:
    await watch.aclose()


async def _outcome(operation: Callable[[SharedLog], Awaitable[Any]], store: SharedLog) -> Any:
    try:
        return await operation(store)
    except (Conflict, LeaseLost) as error:
        return type(error).__name__


TestEveryStore = EveryStore.TestCase
TestEveryStore.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
