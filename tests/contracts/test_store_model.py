"""Any sequence of operations: the store in a file says what the store in memory says."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headgate.base.keyvalue import Compare, Listing, Put
from headgate.base.ports import Store
from headgate.errors import Conflict
from headgate.history.records import AuditEntry, Tally
from tests.contracts.conftest import sqlite_store
from tests.fixtures.memory_store import MemoryStore

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
few_names = st.sampled_from(["main", "replica", "é"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["head", "items/a", "items/a/b", "items/é", "notes/a", "log/1", "log"])
puts = st.lists(
    st.builds(Put, keys, st.none() | st.binary(max_size=5), st.integers(0, 1)),
    max_size=4,
    unique_by=lambda put: put.key,
)
compares = st.lists(st.tuples(keys, st.integers(-1, 1)), max_size=2)
minutes = st.integers(0, 20) | st.integers(40, 250)
few_levels = st.sampled_from(["a", "b", "a:b"])
clients = texts | st.lists(few_levels, min_size=1, max_size=3).map(":".join)
verdicts = st.sampled_from(["OK", "PACED", "é"])
tallies = st.builds(Tally, minutes, few_names, clients, verdicts, few_names, st.integers(1, 2**40))
entries = st.builds(
    AuditEntry, st.floats(0, 15_000), texts, texts, texts, json_values, json_values, st.just(0)
)


class BothStores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.stores: list[Store] = [
            MemoryStore(),
            sqlite_store(Path(self.folder.name) / "state.db"),
        ]
        self.alike(lambda store: store.open())

    def teardown(self) -> None:
        self.alike(lambda store: store.close())
        self.runner.close()
        self.folder.cleanup()

    def alike(self, operation: Callable[[Store], Awaitable[Any]]) -> Any:
        """Both answer the same, rejections included."""
        of_memory, of_file = (self.runner.run(outcome(operation, s)) for s in self.stores)
        assert of_memory == of_file
        return of_memory

    @rule(puts=puts, built_on=compares, audit=st.lists(entries, max_size=2))
    def commit(
        self, puts: list[Put], built_on: list[tuple[str, int]], audit: list[AuditEntry]
    ) -> None:
        before = self.listing([""])
        revisions = {entry.key: entry.revision for entry in before.entries}
        compares = [Compare(key, revisions.get(key, 0) + off_by) for key, off_by in built_on]
        kept = self.alike(lambda store: store.commit(compares, puts, audit=audit))
        after = self.listing([""])
        if any(off_by for _, off_by in built_on):
            assert isinstance(kept, str), "a commit replaced what it was not built on"
            assert after == before
            return
        values = {entry.key: entry.value for entry in before.entries}
        values |= {put.key: put.value for put in puts if put.value is not None}
        gone = {put.key for put in puts if put.value is None}
        expected = {key: value for key, value in values.items() if key not in gone}
        assert {entry.key: entry.value for entry in after.entries} == expected
        assert kept == after.revision

    @rule(prefixes=st.lists(st.sampled_from(["", "items/", "items/a", "log", "x"]), max_size=3))
    def list_all(self, prefixes: list[str]) -> None:
        assert self.listing(prefixes, salvaged=True) == self.listing(prefixes)

    def listing(self, prefixes: list[str], *, salvaged: bool = False) -> Listing:
        """But for the id, which is random."""

        async def listed(store: Store) -> Listing:
            found = await store.list(prefixes, allow_stale=salvaged)
            return replace(found, store_id="")

        found = self.alike(listed)
        assert isinstance(found, Listing)
        return found

    @rule(batch=st.lists(tallies, max_size=6))
    def add(self, batch: list[Tally]) -> None:
        self.alike(lambda store: store.history.add_tallies(batch))

    @rule(since=minutes, until=minutes, limit=st.integers(-1, 8))
    def look(self, since: int, until: int, limit: int) -> None:
        self.alike(
            lambda store: store.history.tallies(since_minute=since, until_minute=until, limit=limit)
        )
        self.alike(lambda store: store.audit(limit=limit))

    @rule(
        since=minutes,
        length=st.integers(0, 200),
        tokens=st.lists(few_levels, max_size=2),
        database=st.sampled_from(["", "main"]),
        step=st.sampled_from([None, 1, 7, 60, 120]),
        by_client=st.booleans(),
        limit=st.none() | st.integers(-1, 8),
    )
    def sum_up(
        self,
        since: int,
        length: int,
        tokens: list[str],
        database: str,
        step: int | None,
        by_client: bool,
        limit: int | None,
    ) -> None:
        """Whole hours are read from another table of the file than what is left at both ends."""
        span = {"since_minute": since, "until_minute": since + length}
        self.alike(
            lambda store: store.history.sums(
                tokens,
                **span,
                database=database,
                step_minutes=step,
                by_client=by_client,
                limit=limit,
            )
        )
        self.alike(lambda store: store.history.minutes_asked(tokens, **span, database=database))
        self.alike(
            lambda store: store.history.client_sums(
                tokens, **span, database=database, limit=limit or 9
            )
        )

    @rule(minute=minutes)
    def forget(self, minute: int) -> None:
        self.alike(lambda store: store.history.forget_before(minute))

    @rule()
    def close_and_open(self) -> None:
        self.alike(lambda store: store.close())
        self.alike(lambda store: store.open())

    @invariant()
    def hold_the_same(self) -> None:
        self.listing([""])
        self.alike(lambda store: store.audit())
        self.alike(lambda store: store.history.tallies(since_minute=0, until_minute=999))


async def outcome(operation: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
    try:
        return await operation(store)
    except Conflict as error:
        return str(error)


TestBothStores = BothStores.TestCase
TestBothStores.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
