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

from headgate.agent.ports import Store
from headgate.core.records import AuditEntry, MetricChange, Record, Tally
from headgate.errors import Conflict
from headgate.stores import MemoryStore
from tests.contracts.conftest import sqlite_store

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
few_kinds = st.sampled_from(["skip", "peer"])
few_names = st.sampled_from(["main", "replica", "é"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
raws = st.none() | st.dictionaries(texts, json_values, max_size=3)
records = st.builds(Record, few_kinds, few_names, raws, st.just(0))
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
        self.records: dict[tuple[str, str], Record] = {}
        """What was put last, removals included."""
        self.alike(lambda store: store.open())

    def teardown(self) -> None:
        self.alike(lambda store: store.close())
        self.runner.close()
        self.folder.cleanup()

    def alike(self, operation: Callable[[Store], Awaitable[Any]]) -> Any:
        """Both answer the same, refusals included."""
        of_memory, of_file = (self.runner.run(outcome(operation, s)) for s in self.stores)
        assert of_memory == of_file
        return of_memory

    @rule(database=few_names, metric=few_names, raw=raws, entry=entries, off_by=st.integers(-1, 1))
    def put(
        self, database: str, metric: str, raw: dict[str, Any] | None, entry: AuditEntry, off_by: int
    ) -> None:
        standing = {
            (change.database, change.metric): change.revision
            for change in self.alike(lambda store: store.metric_changes())
        }
        revision = standing.get((database, metric), 0) + off_by
        change = MetricChange(database, metric, raw, revision)
        kept = self.alike(lambda store: store.put_metric(change, entry))
        if off_by == 0:
            assert kept == replace(change, revision=kept.revision)
            assert kept.revision > max(standing.values(), default=0)

    @rule(given=records, entry=entries, off_by=st.integers(-1, 1), as_new=st.booleans())
    def put_record(self, given: Record, entry: AuditEntry, off_by: int, as_new: bool) -> None:
        place = (given.kind, given.key)
        last = self.records.get(place, replace(given, value=None))
        record = replace(given, revision=(0 if as_new else last.revision) + off_by)
        kept = self.alike(lambda store: store.put_record(record, entry))
        if record.revision == last.revision or (record.revision == 0 and last.value is None):
            assert kept == replace(record, revision=kept.revision)
            assert kept.revision > max((r.revision for r in self.records.values()), default=0)
            self.records[place] = kept
        else:
            assert isinstance(kept, str), "a record replaced what it was not built on"

    @rule(given=st.lists(st.tuples(records, entries, st.booleans()), max_size=4))
    def put_records(self, given: list[tuple[Record, AuditEntry, bool]]) -> None:
        """All or none; two on one key are a conflict, for the second does not know the first."""
        puts = []
        for record, entry, as_new in given:
            last = self.records.get((record.kind, record.key), replace(record, value=None))
            revision = 0 if as_new else last.revision
            puts.append((replace(record, revision=revision), entry))
        kept = self.alike(lambda store: store.put_records(puts))
        if not isinstance(kept, str):
            self.records |= {(record.kind, record.key): record for record in kept}

    @rule(batch=st.lists(tallies, max_size=6))
    def add(self, batch: list[Tally]) -> None:
        self.alike(lambda store: store.add_tallies(batch))

    @rule(since=minutes, until=minutes, limit=st.integers(-1, 8))
    def look(self, since: int, until: int, limit: int) -> None:
        self.alike(lambda store: store.tallies(since_minute=since, until_minute=until, limit=limit))
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
            lambda store: store.sums(
                tokens,
                **span,
                database=database,
                step_minutes=step,
                by_client=by_client,
                limit=limit,
            )
        )
        self.alike(lambda store: store.minutes_asked(tokens, **span, database=database))
        self.alike(
            lambda store: store.client_sums(tokens, **span, database=database, limit=limit or 9)
        )

    @rule(minute=minutes)
    def forget(self, minute: int) -> None:
        self.alike(lambda store: store.forget_before(minute))

    @rule()
    def close_and_open(self) -> None:
        self.alike(lambda store: store.close())
        self.alike(lambda store: store.open())

    @invariant()
    def hold_the_same(self) -> None:
        self.alike(lambda store: store.metric_changes())
        self.alike(lambda store: store.audit())
        self.list_records("skip")
        self.list_records("peer")
        self.alike(lambda store: store.tallies(since_minute=0, until_minute=999))

    def list_records(self, kind: str) -> None:
        put = [self.records[place] for place in sorted(self.records) if place[0] == kind]
        listed = self.alike(lambda store: store.records(kind))
        assert listed == [record for record in put if record.value is not None]


async def outcome(operation: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
    try:
        return await operation(store)
    except Conflict as error:
        return str(error)


TestBothStores = BothStores.TestCase
TestBothStores.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
