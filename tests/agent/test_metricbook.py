"""Metrics change at run time, survive restarts, and a refused change leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from headgate.agent import metricbook
from headgate.agent.board import Board
from headgate.agent.demand import Demands
from headgate.agent.metricbook import DatabasePlan, MetricBook, NoSuchMetric
from headgate.agent.redact import redacted, redacted_url
from headgate.agent.sampler import Sampler
from headgate.core.activity import Idleness
from headgate.core.metrics import Engine, MetricSpec
from headgate.core.records import MetricChange
from headgate.core.samples import Absent, Cause, Sample
from headgate.errors import Conflict, Fault, InvalidSettings, ProbeFailed, StoreUnavailable
from headgate.stores.memory import MemoryStore
from tests.agent.fakes import FakeProbe, FakeProbes, HandClock, HangingProbe, settle


class World:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.board = Board()
        demands = Demands(self.clock)
        demands.open("main", Idleness())
        self.sampler = Sampler(self.board, self.clock, demands)
        self.store = MemoryStore()
        self.probes = FakeProbes({"lag": 1.0})
        self.book = self.new_book()

    def new_book(self, runtime_sources: Sequence[str] = ("sql", "url")) -> MetricBook:
        return MetricBook(
            self.board, self.sampler, self.store, self.clock, runtime_sources=runtime_sources
        )

    def plan(self, raw: Mapping[str, Any] | None = None, connection: object = 1) -> DatabasePlan:
        metrics = {"lag": {"threshold": 5}} if raw is None else raw
        return DatabasePlan(
            "main", Engine.POSTGRES, metrics, lambda: self.probes, connection=connection
        )

    def passes(self) -> bool:
        return self.board.healths["main"].default.all_pass

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


SOURCES: dict[str, tuple[dict[str, Any], str]] = {
    "command": ({"command": ["id"]}, "allow_runtime_commands"),
    "url": ({"url": "http://127.0.0.1/latest/meta-data", "pointer": "/a"}, "allow_runtime_urls"),
    "sql": ({"sql": "select 1"}, "allow_runtime_sql"),
}


@pytest.mark.parametrize("source", SOURCES)
async def test_a_source_is_set_at_run_time_only_where_it_is_allowed(
    world: World, source: str
) -> None:
    """M6: with a token, nobody has the agent reach where its callers cannot."""
    raw, setting = SOURCES[source]
    world.book = world.new_book([other for other in SOURCES if other != source])
    await world.book.adopt([world.plan()], [])
    with pytest.raises(InvalidSettings, match=f"settings file: .*{setting} = true"):
        await world.book.put("main", "x", {**raw, "threshold": 1}, who="ops")
    with pytest.raises(InvalidSettings, match=setting):
        await world.book.put("main", "x", {**raw, "threshold": 1}, who="ops", dry_run=True)
    world.book = world.new_book([source])
    await world.book.adopt([world.plan()], [])
    await world.book.put("main", "x", {**raw, "threshold": 1}, who="ops")


@pytest.mark.parametrize("source", SOURCES)
async def test_the_rest_of_a_metric_from_the_file_can_be_changed(world: World, source: str) -> None:
    """R1: where its number comes from is as in the file."""
    place, setting = SOURCES[source]
    raw = {**place, "threshold": 5}
    world.book = world.new_book([])
    await world.book.adopt([world.plan({"lag": {}, "queue": raw})])
    await world.book.patch("main", "queue", {"threshold": 2}, who="ops")
    assert world.threshold("queue") == 2
    await world.book.put("main", "queue", {**raw, "threshold": 3}, who="ops")
    assert world.threshold("queue") == 3
    others: dict[str, dict[str, Any]] = {
        "command": {"command": ["/bin/other"]},
        "url": {"pointer": "/b"},
        "sql": {"sql": "select 2"},
    }
    with pytest.raises(InvalidSettings, match=setting):
        await world.book.patch("main", "queue", others[source], who="ops")


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


class SlowToClose(FakeProbes):
    """Its connections end only when told to."""

    def __init__(self, values: dict[str, float | ProbeFailed]) -> None:
        super().__init__(values)
        self.may_end = asyncio.Event()

    async def close(self) -> None:
        await self.may_end.wait()
        await super().close()


async def test_a_database_that_moves_is_never_absent_and_refuses_until_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In between, a check would be told "no such database", which some take for leave."""
    monkeypatch.setattr(metricbook, "CLOSE_TIMEOUT_S", 600.0)
    old = SlowToClose({"lag": 1.0})
    world.probes = old
    await world.book.adopt([world.plan(connection=2)])
    await settle()
    assert world.passes()
    world.probes = FakeProbes({"lag": ProbeFailed(Cause.FAILED, "not up yet")})
    moving = asyncio.create_task(world.book.adopt([world.plan(connection=3)]))
    for _ in range(50):
        await asyncio.sleep(0)
        assert "main" in world.board.healths and "lag" in world.board.healths["main"].standings
    assert not old.closed and not world.passes()
    old.may_end.set()
    await moving
    assert old.closed


async def test_the_old_values_do_not_pass_for_those_of_a_new_connection(world: World) -> None:
    class Hanging(FakeProbes):
        def probe_for(self, spec: MetricSpec) -> FakeProbe:
            return HangingProbe(lambda: 0.0)

    world.probes = Hanging()
    await world.book.adopt([world.plan(connection=2)])
    absent = world.board.healths["main"].standings["lag"].absent
    assert absent is not None and absent.cause is Cause.NEVER_READ


async def test_a_new_default_set_never_judges_by_nothing(world: World) -> None:
    seen: list[int] = []
    real = world.board.open

    def watched(database: str, default: tuple[str, ...] | None) -> None:
        real(database, default)
        seen.append(len(world.board.healths[database].default.standings))

    world.board.open = watched  # type: ignore[method-assign]
    plan = DatabasePlan(
        "main", Engine.POSTGRES, {"pool_usage": {}}, lambda: world.probes, ("pool_usage",), 1
    )
    await world.book.adopt([plan])
    assert seen == [1]


async def test_a_dry_run_that_hangs_holds_up_no_change(world: World) -> None:
    class Hanging(FakeProbes):
        def probe_for(self, spec: MetricSpec) -> FakeProbe:
            return HangingProbe(lambda: 0.0) if spec.name == "slow" else super().probe_for(spec)

    world.probes = Hanging({"lag": 1.0})
    await world.book.adopt([world.plan(connection=2)])
    raw = {"sql": "select 1", "threshold": 5, "timeout_s": 60}
    dry = asyncio.create_task(world.book.put("main", "slow", raw, who="a", dry_run=True))
    await settle()
    await world.book.patch("main", "lag", {"threshold": 2}, who="b")
    assert not dry.done()
    dry.cancel()
    await asyncio.wait([dry])


# --- back to the file --------------------------------------------------------------------------


async def test_a_reverted_metric_follows_the_file_again_after_a_restart_too(world: World) -> None:
    """R141"""
    await world.book.patch("main", "lag", {"threshold": 2}, who="ops")
    reverted = await world.book.revert("main", "lag", who="ops", expect=1)
    assert reverted.entry is not None and world.threshold() == 5
    entry = (await world.store.audit())[0]
    assert (entry.action, entry.before, entry.after) == (
        "metric.revert",
        {"threshold": 2},
        {"threshold": 5},
    )
    await world.book.adopt([world.plan({"lag": {"threshold": 7}})])
    assert world.threshold() == 7
    await world.book.adopt([world.plan()], await world.store.metric_changes())
    assert (world.threshold(), world.book.entry("main", "lag").origin) == (5, "file")
    await world.book.patch("main", "lag", {"threshold": 3}, who="ops", expect=2)
    assert world.threshold() == 3


async def test_a_revert_brings_back_what_was_removed_and_takes_what_was_added(world: World) -> None:
    await world.book.remove("main", "lag", who="ops")
    assert world.book.removed("main") == ["lag"]
    dry = await world.book.revert("main", "lag", who="ops", dry_run=True)
    assert isinstance(dry.reading, Sample) and world.book.removed("main") == ["lag"]
    await world.book.revert("main", "lag", who="ops")
    assert world.threshold() == 5
    await world.book.put("main", "queue", {"sql": "select 1", "threshold": 5}, who="ops")
    assert (await world.book.revert("main", "queue", who="ops")).entry is None
    with pytest.raises(NoSuchMetric):
        await world.book.revert("main", "queue", who="ops")
    assert (await world.book.revert("main", "lag", who="ops")).entry is not None


# --- secrets, switches ---------------------------------------------------------------


async def test_a_disabled_metric_stays_and_can_be_enabled_again(world: World) -> None:
    await world.book.patch("main", "lag", {"enabled": False}, who="ops")
    assert not world.book.entry("main", "lag").enabled
    assert "lag" not in world.board.healths["main"].standings
    reads = sum(probe.reads for probe in world.probes.opened)
    await world.clock.advance(5)
    assert sum(probe.reads for probe in world.probes.opened) == reads
    await world.book.patch("main", "lag", {"enabled": True}, who="ops")
    await settle()
    assert world.passes()


URL = "http://u:S3cret@h/x?token=S3cret"


async def test_a_patch_keeps_the_secrets_it_does_not_name(world: World) -> None:
    raw = {"plugin": "p", "threshold": 5, "options": {"token": "S3cret", "n": 1}}
    await world.book.put("main", "queue", raw, who="ops")
    await world.book.patch("main", "queue", {"options": {"n": 2}}, who="ops")
    assert world.book.entry("main", "queue").raw["options"] == {"token": "S3cret", "n": 2}


@pytest.mark.parametrize(
    "raw",
    [
        {"url": redacted_url(URL), "threshold": 5},
        {"url": "http://…@other/x?a=b", "threshold": 5},
        {"plugin": "p", "threshold": 5, "options": {"api_key": "…"}},
    ],
)
async def test_a_hidden_secret_sent_back_is_not_kept(world: World, raw: Any) -> None:
    with pytest.raises(InvalidSettings, match="not shown"):
        await world.book.put("main", "queue", raw, who="ops")
    assert await world.store.audit() == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "http://…@h/x?…"),
        ("https://h:1/x", "https://h:1/x"),
        ("http://h/x?a=1", "http://h/x?…"),
        ("http://h/x#S3cret", "http://h/x#…"),
        ("http://u:S3/cret@h/x", "http://…@h/x"),
        ("http://u:S3?cret@h/x", "http://…"),
        ("http://h/x?mail=S@3cret", "http://h/x?…"),
    ],
)
def test_what_a_url_opens_doors_with_is_not_shown(url: str, shown: str) -> None:
    assert redacted_url(url) == shown
    assert redacted_url(shown) == shown


def test_secrets_are_hidden_wherever_they_stand() -> None:
    raw = {
        "options": {"Password": "S3cret", "api_key": "S3cret", "to": URL, "n": 1},
        "command": ["curl", URL],
        "url": URL,
    }
    assert "S3cret" not in repr(redacted(raw)) and redacted(raw)["options"]["n"] == 1


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


async def test_a_roll_up_nobody_has_is_refused_and_nothing_changes(world: World) -> None:
    """R140: at run time as in the file."""
    with pytest.raises(InvalidSettings, match="unknown roll-up 'mox'; did you mean 'max'"):
        await world.book.patch("main", "lag", {"rollup": "mox"}, who="ops")
    assert world.board.healths["main"].standings["lag"].spec.rollup.by == "max"
