"""Metrics change at run time, survive restarts, and a refused change leaves no trace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from headgate.agent.board import Board
from headgate.agent.metricbook import DatabasePlan, MetricBook, NoSuchMetric
from headgate.agent.sampler import Sampler
from headgate.core.metrics import Engine, MetricSpec
from headgate.core.records import MetricChange
from headgate.core.samples import Absent, Cause, Sample
from headgate.errors import Conflict, Fault, InvalidSettings, ProbeFailed, StoreUnavailable
from headgate.stores.memory import MemoryStore
from tests.agent.fakes import FakeProbe, FakeProbes, HandClock, settle


class World:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.board = Board()
        self.sampler = Sampler(self.board, self.clock)
        self.store = MemoryStore()
        self.probes = FakeProbes({"lag": 1.0})
        self.book = self.new_book()

    def new_book(self) -> MetricBook:
        return MetricBook(self.board, self.sampler, self.store, self.clock)

    def plan(self, raw: Mapping[str, Any] | None = None, connection: object = 1) -> DatabasePlan:
        metrics = {"lag": {"threshold": 5}} if raw is None else raw
        return DatabasePlan(
            "main", Engine.POSTGRES, metrics, lambda: self.probes, connection=connection
        )

    def passes(self) -> bool:
        return self.board.healths["main"].all_pass

    def threshold(self, metric: str = "lag") -> float:
        return self.board.healths["main"].standings[metric].spec.threshold


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.store.open()
    await world.book.adopt([world.plan()], [])
    await settle()
    yield world
    await world.book.close()


async def test_a_threshold_changes_without_a_new_probe_and_judges_at_once(world: World) -> None:
    """R1, R139: the value at hand is judged by the new threshold."""
    world.probes.values["lag"] = 3.0
    await world.clock.advance(1.1)
    assert world.passes()
    await world.book.patch("main", "lag", {"threshold": 2}, who="ops")
    assert not world.passes()
    assert len(world.probes.opened) == 2  # one running, one opened to validate


async def test_a_custom_metric_is_added_and_removed(world: World) -> None:
    world.probes.values["queue"] = 7.0
    raw = {"sql": "select 7", "threshold": 5}
    await world.book.put("main", "queue", raw, who="ops")
    await settle()
    assert not world.passes()
    await world.book.remove("main", "queue", who="ops")
    assert world.passes()
    with pytest.raises(NoSuchMetric):
        world.book.entry("main", "queue")


async def test_zero_restores_the_default(world: World) -> None:
    """R4"""
    await world.book.patch("main", "lag", {"threshold": 9}, who="ops")
    await world.book.patch("main", "lag", {"threshold": 0}, who="ops")
    assert world.threshold() == 5.0


@pytest.mark.parametrize(
    "raw", [{"threshold": -1}, {"threshold": float("nan")}, {"bogus": 1}, {"command": ["true"]}]
)
async def test_a_refused_change_leaves_the_last_good_state(world: World, raw: Any) -> None:
    before = world.book.entry("main", "lag")
    with pytest.raises(InvalidSettings):
        await world.book.patch("main", "lag", raw, who="ops")
    assert world.book.entry("main", "lag") == before
    assert await world.store.audit() == []


async def test_commands_cannot_be_set_at_run_time(world: World) -> None:
    with pytest.raises(InvalidSettings, match="settings file"):
        await world.book.put("main", "x", {"command": ["id"], "threshold": 1}, who="ops")


async def test_changes_survive_a_restart(world: World) -> None:
    """R141"""
    await world.book.patch("main", "lag", {"threshold": 2}, who="ops")
    await world.book.put("main", "queue", {"sql": "select 1", "threshold": 5}, who="ops")
    await world.sampler.close()
    again = World()
    again.store = world.store
    again.book = again.new_book()
    await again.book.adopt([again.plan()], await world.store.metric_changes())
    assert again.threshold() == 2
    assert again.book.entry("main", "queue").origin == "runtime"
    await again.book.close()


async def test_changes_survive_a_reload_of_the_file(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": 2}, who="ops")
    await world.book.adopt([world.plan({"lag": {"threshold": 7}, "pool_usage": {}})])
    assert world.threshold() == 2
    assert world.threshold("pool_usage") == 1.0


async def test_a_reload_keeps_probes_that_did_not_change(world: World) -> None:
    opened = len(world.probes.opened)
    await world.book.adopt([world.plan({"lag": {"threshold": 7}})])
    assert len(world.probes.opened) == opened
    assert world.threshold() == 7


async def test_a_new_connection_reopens_the_probes(world: World) -> None:
    old = world.probes
    world.probes = FakeProbes({"lag": 2.0})
    await world.book.adopt([world.plan(connection=2)])
    assert old.closed and world.probes.opened


async def test_a_database_that_left_the_file_is_closed(world: World) -> None:
    await world.book.adopt([])
    assert world.probes.closed
    assert "main" not in world.board.healths


async def test_the_loser_of_two_edits_is_told(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": 2}, who="a", expect=0)
    with pytest.raises(Conflict):
        await world.book.patch("main", "lag", {"threshold": 3}, who="b", expect=0)
    assert world.threshold() == 2


async def test_every_change_is_audited(world: World) -> None:
    """R140"""
    await world.book.patch("main", "lag", {"threshold": 2}, who="ops")
    (entry,) = await world.store.audit()
    assert (entry.who, entry.action, entry.target) == ("ops", "metric.set", "main/lag")
    assert (entry.before, entry.after) == ({"threshold": 5}, {"threshold": 2})


async def test_a_dry_run_tries_the_probe_and_changes_nothing(world: World) -> None:
    """R140"""
    world.probes.values["queue"] = ProbeFailed(Cause.INVALID, "two rows")
    raw = {"sql": "select 1", "threshold": 5}
    proposal = await world.book.put("main", "queue", raw, who="ops", dry_run=True)
    assert isinstance(proposal.reading, Absent) and proposal.reading.detail == "two rows"
    assert "queue" not in world.book.entries("main")


async def test_nothing_changes_when_the_store_cannot_keep_it(world: World) -> None:
    class AwayStore(MemoryStore):
        async def put_metric(self, change: Any, audit: Any) -> Any:
            raise StoreUnavailable("disk full")

    world.book._store = AwayStore()
    with pytest.raises(StoreUnavailable):
        await world.book.patch("main", "lag", {"threshold": 2}, who="ops")
    assert world.threshold() == 5


async def test_another_source_forgets_the_old_values(world: World) -> None:
    await world.book.put("main", "q", {"sql": "select 1", "threshold": 5}, who="ops")
    await settle()
    await world.book.put("main", "q", {"sql": "select 2", "threshold": 5}, who="ops")
    window = world.board.window("main", "q")
    assert window is not None and not any(isinstance(r, Sample) for r in window.readings[:1])


async def test_a_kept_metric_whose_probe_is_gone_stays_and_says_why(world: World) -> None:
    """Judging without it in silence would admit what it would have refused."""

    class WithoutPlugin(FakeProbes):
        def probe_for(self, spec: MetricSpec) -> FakeProbe:
            if spec.name == "spool":
                raise InvalidSettings([Fault("spool.plugin", "no such plug-in")])
            return super().probe_for(spec)

    world.probes = WithoutPlugin({"lag": 1.0})
    kept = MetricChange("main", "spool", {"plugin": "spool", "threshold": 5}, 1)
    await world.book.adopt([world.plan(connection=2)], [kept])
    await settle()
    absent = world.board.healths["main"].standings["spool"].absent
    assert absent is not None and "no such plug-in" in absent.detail
    assert not world.passes()
