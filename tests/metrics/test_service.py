"""Metrics change at run time, survive restarts, and a rejected change leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from headgate.base.redaction import redacted, shown_dsn
from headgate.changes.items import Forgetter
from headgate.changes.model import ChangeKind
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Idleness
from headgate.check.sampler import Sampler
from headgate.errors import Conflict, Fault, InvalidSettings, ProbeFailed, StoreUnavailable
from headgate.metrics import service as metrickeeper
from headgate.metrics.model import Engine, MetricSpec
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.metrics.service import DatabasePlan, MetricKeeper, NoSuchMetric
from headgate.store import SqliteStore
from tests.changes.own_world import OwnLog, Unwritable, keep, set_here
from tests.fixtures.fakes import FakeProbe, FakeProbes, HandClock, HangingProbe, settle
from tests.fixtures.memory_store import MemoryStore


class World:
    def __init__(self, store: MemoryStore | SqliteStore | None = None) -> None:
        self.clock = HandClock()
        self.board = Board()
        demands = Demands(self.clock)
        demands.open("main", Idleness())
        self.sampler = Sampler(self.board, self.clock, demands)
        self.store = store or MemoryStore()
        self.probes = FakeProbes({"lag": 1.0})
        self.book = self.new_book()

    def new_book(self, runtime_sources: Sequence[str] = ("sql", "url")) -> MetricKeeper:
        self.log = OwnLog(self.store, self.clock)
        book = MetricKeeper(
            self.board,
            self.sampler,
            self.clock,
            make=self.log.make,
            runtime_sources=runtime_sources,
            time=self.log.time,
        )
        self.log.attach(book)
        return book

    async def start(self, raw: Mapping[str, Any] | None = None) -> World:
        await self.store.open()
        await self.log.load()
        await self.book.adopt([self.plan(raw)])
        await settle()
        return self

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, and have the book look once."""
        await self.clock.leap(seconds)
        await self.book.tick()

    def plan(self, raw: Mapping[str, Any] | None = None, connection: object = 1) -> DatabasePlan:
        metrics = {"lag": {"threshold": "5s"}} if raw is None else raw
        return DatabasePlan(
            "main", Engine.POSTGRES, metrics, lambda: self.probes, connection=connection
        )

    def passes(self) -> bool:
        return self.board.healths["main"].default.all_pass

    def threshold(self, metric: str = "lag") -> float:
        return self.board.healths["main"].standings[metric].spec.threshold


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = await World().start()
    yield world
    await world.book.close()


async def test_a_threshold_changes_without_a_new_probe_and_counts_at_once(world: World) -> None:
    """R1, R139: the value at hand is decided by the new threshold."""
    world.probes.values["lag"] = 3.0
    await world.clock.advance(1.1)
    assert world.passes()
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
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
        world.book.database("main").entry("queue")


async def test_zero_restores_the_default(world: World) -> None:
    """R4"""
    await world.book.patch("main", "lag", {"threshold": "9s"}, who="ops")
    await world.book.patch("main", "lag", {"threshold": 0}, who="ops")
    assert world.threshold() == 5.0


async def test_a_stored_threshold_without_a_unit_is_in_the_unit_of_the_metric() -> None:
    """R141: as state files of earlier versions have it; it can be patched, too."""
    world = World()
    await world.store.open()
    settings = {"threshold": 9, "ignore_hosts": 1, "ignore_above": 60}
    await keep(world.store, set_here(ChangeKind.METRIC, "main/lag", {"settings": settings}))
    await world.start()
    assert world.threshold() == 9.0
    await world.book.patch("main", "lag", {"interval_s": 2}, who="ops")
    assert world.book.database("main").entry("lag").raw == {
        **settings, "threshold": "9s", "ignore_above": "60s", "interval_s": 2,
    }  # fmt: skip
    with pytest.raises(InvalidSettings, match="no unit"):
        await world.book.patch("main", "lag", {"threshold": 8}, who="ops")
    await world.book.close()


@pytest.mark.parametrize(
    "raw", [{"threshold": -1}, {"threshold": float("nan")}, {"bogus": 1}, {"command": ["true"]}]
)
async def test_a_rejected_change_leaves_the_last_good_state(world: World, raw: Any) -> None:
    before = world.book.database("main").entry("lag")
    with pytest.raises(InvalidSettings):
        await world.book.patch("main", "lag", raw, who="ops")
    assert world.book.database("main").entry("lag") == before
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
    await world.book.adopt([world.plan()])
    with pytest.raises(InvalidSettings, match=f"settings file: .*{setting} = true"):
        await world.book.put("main", "x", {**raw, "threshold": 1}, who="ops")
    with pytest.raises(InvalidSettings, match=setting):
        await world.book.put("main", "x", {**raw, "threshold": 1}, who="ops", dry_run=True)
    world.book = world.new_book([source])
    await world.book.adopt([world.plan()])
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
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
    await world.book.put("main", "queue", {"sql": "select 1", "threshold": 5}, who="ops")
    await world.sampler.close()
    again = await World(world.store).start()
    assert again.threshold() == 2
    assert again.book.database("main").entry("queue").origin == "runtime"
    await again.book.close()


async def test_changes_survive_a_reload_of_the_file(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
    await world.book.adopt([world.plan({"lag": {"threshold": "7s"}, "pool_usage": {}})])
    assert world.threshold() == 2
    assert world.threshold("pool_usage") == 1.0


async def test_a_reload_keeps_probes_that_did_not_change(world: World) -> None:
    opened = len(world.probes.opened)
    await world.book.adopt([world.plan({"lag": {"threshold": "7s"}})])
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


async def test_a_moving_database_is_never_missing_and_rejects_until_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In between, a check would be told "no such database", which some take for leave."""
    monkeypatch.setattr(metrickeeper, "CLOSE_TIMEOUT_S", 600.0)
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


async def test_a_new_default_set_is_never_empty(world: World) -> None:
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


async def test_a_dry_run_that_hangs_delays_no_change(world: World) -> None:
    class Hanging(FakeProbes):
        def probe_for(self, spec: MetricSpec) -> FakeProbe:
            return HangingProbe(lambda: 0.0) if spec.name == "slow" else super().probe_for(spec)

    world.probes = Hanging({"lag": 1.0})
    await world.book.adopt([world.plan(connection=2)])
    raw = {"sql": "select 1", "threshold": 5, "timeout_s": 60}
    dry = asyncio.create_task(world.book.put("main", "slow", raw, who="a", dry_run=True))
    await settle()
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="b")
    assert not dry.done()
    dry.cancel()
    await asyncio.wait([dry])


# --- back to the file --------------------------------------------------------------------------


async def test_a_reverted_metric_follows_the_file_again_after_a_restart_too(world: World) -> None:
    """R141"""
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
    reverted = await world.book.revert("main", "lag", who="ops", expect=1)
    assert reverted.entry is not None and world.threshold() == 5
    entry = (await world.store.audit())[0]
    assert (entry.action, entry.before, entry.after) == (
        "metric.revert",
        {"threshold": "2s"},
        {"threshold": "5s"},
    )
    await world.book.adopt([world.plan({"lag": {"threshold": "7s"}})])
    assert world.threshold() == 7
    await world.log.load()
    await world.book.adopt([world.plan()])
    assert (world.threshold(), world.book.database("main").entry("lag").origin) == (5, "file")
    await world.book.patch("main", "lag", {"threshold": "3s"}, who="ops", expect=2)
    assert world.threshold() == 3


async def test_a_revert_brings_back_what_was_removed_and_takes_what_was_added(world: World) -> None:
    await world.book.remove("main", "lag", who="ops")
    assert world.book.database("main").removed() == ["lag"]
    dry = await world.book.revert("main", "lag", who="ops", dry_run=True)
    assert isinstance(dry.reading, Sample) and world.book.database("main").removed() == ["lag"]
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
    assert not world.book.database("main").entry("lag").enabled
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
    assert world.book.database("main").entry("queue").raw["options"] == {"token": "S3cret", "n": 2}


@pytest.mark.parametrize(
    "raw",
    [
        {"url": shown_dsn(URL), "threshold": 5},
        {"url": "http://…@other/x?a=b", "threshold": 5},
        {"plugin": "p", "threshold": 5, "options": {"api_key": "…"}},
    ],
)
async def test_a_hidden_secret_sent_back_is_not_kept(world: World, raw: Any) -> None:
    with pytest.raises(InvalidSettings, match="placeholder of a secret"):
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
        ("http://h/x?mail=S@3cret", "http://…"),
    ],
)
def test_what_a_url_opens_doors_with_is_not_shown(url: str, shown: str) -> None:
    assert shown_dsn(url) == shown
    assert shown_dsn(shown) == shown


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


async def test_the_loser_of_two_edits_gets_a_conflict(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="a", expect=0)
    with pytest.raises(Conflict):
        await world.book.patch("main", "lag", {"threshold": "3s"}, who="b", expect=0)
    assert world.threshold() == 2


async def test_every_change_is_audited(world: World) -> None:
    """R140"""
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
    (entry,) = await world.store.audit()
    assert (entry.who, entry.action, entry.target) == ("ops", "metric.set", "main/lag")
    assert (entry.before, entry.after) == ({"threshold": "5s"}, {"threshold": "2s"})


async def test_a_dry_run_tries_the_probe_and_changes_nothing(world: World) -> None:
    """R140"""
    world.probes.values["queue"] = ProbeFailed(Cause.INVALID, "two rows")
    raw = {"sql": "select 1", "threshold": 5}
    proposal = await world.book.put("main", "queue", raw, who="ops", dry_run=True)
    assert isinstance(proposal.reading, Absent) and proposal.reading.detail == "two rows"
    assert "queue" not in world.book.database("main").entries


async def test_nothing_changes_when_the_store_cannot_keep_it(world: World) -> None:
    full = await World(Unwritable()).start()
    with pytest.raises(StoreUnavailable):
        await full.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
    assert full.threshold() == 5 and full.book.database("main").entry("lag").revision == 0
    await full.book.close()


async def test_another_source_forgets_the_old_values(world: World) -> None:
    await world.book.put("main", "q", {"sql": "select 1", "threshold": 5}, who="ops")
    await settle()
    await world.book.put("main", "q", {"sql": "select 2", "threshold": 5}, who="ops")
    window = world.board.window("main", "q")
    assert window is not None and not any(isinstance(r, Sample) for r in window.readings[:1])


async def test_a_kept_metric_whose_probe_is_gone_stays_and_says_why(world: World) -> None:
    """Judging without it in silence would admit what it would have rejected."""

    class WithoutPlugin(FakeProbes):
        def probe_for(self, spec: MetricSpec) -> FakeProbe:
            if spec.name == "spool":
                raise InvalidSettings([Fault("spool.plugin", "no such plug-in")])
            return super().probe_for(spec)

    world.probes = WithoutPlugin({"lag": 1.0})
    await world.book.adopt([world.plan(connection=2)])
    kept = {"settings": {"plugin": "spool", "threshold": 5}}
    await world.book.follow([set_here(ChangeKind.METRIC, "main/spool", kept)], (), own=True)
    await settle()
    absent = world.board.healths["main"].standings["spool"].absent
    assert absent is not None and "no such plug-in" in absent.detail
    assert not world.passes()


async def test_a_rollup_nobody_has_is_rejected_and_nothing_changes(world: World) -> None:
    """R140: at run time as in the file."""
    with pytest.raises(InvalidSettings, match="unknown rollup 'mox'; did you mean 'max'"):
        await world.book.patch("main", "lag", {"rollup": "mox"}, who="ops")
    assert world.board.healths["main"].standings["lag"].spec.rollup.by == "max"


# --- changes that end ------------------------------------------------------------------------


def iso(world: World, in_s: float) -> str:
    at = datetime.fromtimestamp(world.clock.now().wall_s + in_s, tz=UTC)
    return at.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("said", [lambda _: {"for": "2h"}, lambda w: {"expires_at": iso(w, 7200)}])
async def test_a_change_ends_and_the_file_applies_again(
    world: World, said: Callable[[World], dict[str, str]]
) -> None:
    """R155"""
    set_ = await world.book.patch("main", "lag", {"threshold": "2s", **said(world)}, who="ops")
    end = world.clock.now().wall_s + 7200
    assert set_.entry is not None and set_.entry.expires_at == pytest.approx(end, abs=1)
    assert "for" not in world.book.database("main").entry("lag").raw
    await world.pass_s(7190)
    assert world.threshold() == 2
    await world.pass_s(11)
    assert world.threshold() == 5
    entry = world.book.database("main").entry("lag")
    assert (entry.origin, entry.expires_at, entry.revision) == ("file", None, 2)
    assert world.log.standing(ChangeKind.METRIC) == {}
    last = (await world.store.audit())[0]
    assert (last.who, last.action, last.target) == ("headgate", "metric.expired", "main/lag")
    assert (last.before, last.after) == ({"threshold": "2s"}, {"threshold": "5s"})


async def test_an_added_metric_that_ends_is_gone(world: World) -> None:
    raw = {"sql": "select 1", "threshold": 5, "for": "10m"}
    await world.book.put("main", "queue", raw, who="ops")
    await world.pass_s(601)
    assert "queue" not in world.book.database("main").entries
    assert "queue" not in world.board.healths["main"].standings


async def test_the_loop_ends_a_change_on_time(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": "2s", "for": "10s"}, who="ops")
    running = asyncio.create_task(world.book.run())
    await world.clock.advance(15)
    assert world.threshold() == 5
    running.cancel()
    await asyncio.wait([running])


LOOSER: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": "9s"},
    "absence": {"absence": "ignore"},
    "hold": {"absence": "hold", "hold_s": 60},
    "missing": {"missing": "ignore"},
    "empty": {"empty": "admit"},
    "disabled": {"enabled": False},
}


@pytest.mark.parametrize("raw", LOOSER.values(), ids=LOOSER)
async def test_a_change_that_loosens_ends_after_an_hour_unless_it_says_when(
    world: World, raw: dict[str, Any]
) -> None:
    """R83, R155"""
    tried = await world.book.patch("main", "lag", raw, who="ops", dry_run=True)
    done = await world.book.patch("main", "lag", raw, who="ops")
    for proposal in (tried, done):
        assert proposal.entry is not None and proposal.entry.expires_at is not None
        assert proposal.entry.expires_at - world.clock.now().wall_s == pytest.approx(3600, abs=1)
        (told,) = proposal.advice
        assert "after 1 h" in told.message and "for: never" in told.message
    await world.pass_s(3602)
    assert world.book.database("main").entry("lag").origin == "file" and world.threshold() == 5


@pytest.mark.parametrize("never", ["never", None])
async def test_a_change_that_loosens_stays_where_it_says_so(
    world: World, never: str | None
) -> None:
    done = await world.book.patch("main", "lag", {"threshold": "9s", "for": never}, who="ops")
    assert done.entry is not None and done.entry.expires_at is None and not done.advice
    other = await world.book.patch("main", "lag", {"interval_s": 2}, who="ops")
    assert other.entry is not None and other.entry.expires_at is None, "it is no looser by that"
    more = await world.book.patch("main", "lag", {"threshold": "12s"}, who="ops")
    assert more.entry is not None and more.entry.expires_at is not None, "that is another one"


@pytest.mark.parametrize(
    "raw", [{"threshold": "2s"}, {"interval_s": 2}, {"threshold": "5s"}, {"debounce": "1 of 1"}]
)
async def test_a_change_that_loosens_nothing_stays(world: World, raw: dict[str, Any]) -> None:
    """Its end would loosen."""
    done = await world.book.patch("main", "lag", raw, who="ops")
    assert done.entry is not None and done.entry.expires_at is None and not done.advice


async def test_looser_is_what_is_looser_than_the_file(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
    raised = await world.book.patch("main", "lag", {"threshold": "4s"}, who="ops")
    assert raised.entry is not None and raised.entry.expires_at is None
    beyond = await world.book.patch("main", "lag", {"threshold": "6s"}, who="ops")
    assert beyond.entry is not None and beyond.entry.expires_at is not None
    raw = {"sql": "select 1", "threshold": 5}
    await world.book.put("main", "queue", raw, who="ops")
    own = await world.book.patch("main", "queue", {"threshold": 50}, who="ops")
    assert own.entry is not None and own.entry.expires_at is None, "without it there is no limit"


async def test_a_removed_metric_of_the_file_comes_back_after_an_hour(world: World) -> None:
    removed = await world.book.remove("main", "lag", who="ops")
    assert removed.expires_at is not None and removed.advice
    assert world.book.expires_at("main", "lag") == removed.expires_at
    await world.pass_s(3590)
    assert world.book.database("main").removed() == ["lag"]
    await world.pass_s(12)
    assert world.threshold() == 5
    stays = await world.book.remove("main", "lag", end={"for": "never"}, who="ops")
    assert stays.expires_at is None
    await world.pass_s(86_400)
    assert world.book.database("main").removed() == ["lag"]


async def test_a_patch_gives_no_more_time(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": "9s", "for": "10m"}, who="ops")
    await world.pass_s(300)
    patched = await world.book.patch("main", "lag", {"threshold": "8s"}, who="ops")
    assert "as before" in patched.advice[0].message
    longer = await world.book.patch("main", "lag", {"for": "1h"}, who="ops", dry_run=True)
    assert longer.entry is not None and longer.entry.raw == {"threshold": "8s"}
    await world.pass_s(302)
    assert world.threshold() == 5


async def test_a_change_that_ended_while_the_agent_was_down_is_not_in_force(world: World) -> None:
    await world.book.patch("main", "lag", {"threshold": "9s", "for": "10m"}, who="ops")
    await world.book.patch("main", "lag", {"threshold": "9s", "for": "20m"}, who="ops")
    again = World(world.store)
    await again.clock.leap(900)
    await again.start()
    assert again.threshold() == 9
    later = World(world.store)
    await later.clock.leap(1300)
    await later.start()
    assert later.threshold() == 5
    await later.book.tick()
    assert later.log.standing(ChangeKind.METRIC) == {}
    for one in (again, later):
        await one.book.close()


async def test_a_clock_that_is_set_back_gives_no_more_time(world: World) -> None:
    """R87: neither while the agent runs, nor over a restart beyond what was given at first."""
    await world.book.patch("main", "lag", {"threshold": "9s", "for": "10m"}, who="ops")
    again = World(world.store)
    again.clock.set_wall(-7200)
    await again.start()
    assert again.threshold() == 9
    await again.pass_s(602)
    assert again.threshold() == 5
    await again.book.close()


async def test_a_change_ends_though_the_log_cannot_be_written(world: World) -> None:
    store = Unwritable()
    store.is_full = False
    full = await World(store).start()
    await full.book.patch("main", "lag", {"threshold": "9s", "for": "10m"}, who="ops")
    store.is_full = True
    await full.pass_s(602)
    assert full.threshold() == 5 and full.log.standing(ChangeKind.METRIC)
    store.is_full = False
    await full.pass_s(60)
    assert full.log.standing(ChangeKind.METRIC) == {}
    await full.book.close()


@pytest.mark.parametrize(
    "raw",
    [
        {"for": "soon"},
        {"for": "0s"},
        {"for": -1},
        {"for": 1e11},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"expires_at": "tomorrow"},
        {"expires_at": "2300-01-01T00:00:00"},
        {"for": "2h", "expires_at": "2300-01-01T00:00:00Z"},
    ],
)
async def test_an_end_that_makes_no_sense_is_rejected(world: World, raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=r"for|expires_at"):
        await world.book.patch("main", "lag", {"threshold": "9s", **raw}, who="ops")
    assert world.threshold() == 5 and await world.store.audit() == []


# --- of the log ------------------------------------------------------------------------------


async def test_an_end_that_makes_no_sense_hides_no_other_fault(world: World) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        await world.book.put("main", "lag", {"threshold": -1, "for": "soon"}, who="ops")
    assert [fault.place for fault in rejected.value.faults] == ["for", "lag.threshold"]


async def test_two_patches_at_once_are_both_in_force(world: World) -> None:
    patches: list[dict[str, Any]] = [{"threshold": "2s"}, {"debounce": "2 of 3"}, {"interval_s": 3}]
    await asyncio.gather(*(world.book.patch("main", "lag", p, who="ops") for p in patches))
    merged = {key: value for patch in patches for key, value in patch.items()}
    assert world.book.database("main").entry("lag").raw == merged
    assert world.book.database("main").entry("lag").revision == 3


async def test_a_change_of_which_news_comes_late_does_not_undo_a_later_one(world: World) -> None:
    old = set_here(ChangeKind.METRIC, "main/lag", {"settings": {"threshold": "2s"}}, n=1)
    new = set_here(ChangeKind.METRIC, "main/lag", {"settings": {"threshold": "3s"}}, n=2)
    await world.book.follow([new], (), own=True)
    await world.book.follow([old], (), own=True)
    assert world.threshold() == 3
    await world.book.follow([], (), whole=True)
    assert world.threshold() == 3, "another log says nothing of it"
    await world.book.follow([], (), whole=True, own=True)
    assert world.threshold() == 5


async def test_what_another_version_left_is_kept_and_the_file_applies(world: World) -> None:
    """R156"""
    store = MemoryStore()
    await store.open()
    left = [
        set_here(ChangeKind.METRIC, "main/lag", {"settings": {"bogus": 1}}),
        set_here(ChangeKind.METRIC, "main/pool_usage", {"curve": [1, 2]}),
        set_here("curfew", "main", {"from": "22:00"}),
    ]
    await keep(store, *left)
    again = await World(store).start({"lag": {"threshold": "5s"}, "pool_usage": {}})
    assert (again.threshold(), again.threshold("pool_usage")) == (5, 1)
    await again.book.patch("main", "lag", {"threshold": "2s"}, who="ops", expect=1)
    await again.book.revert("main", "pool_usage", who="ops", expect=1)
    assert again.threshold() == 2
    assert again.log.standing("curfew") == {"main": left[2]}
    await again.book.close()


async def test_no_secret_of_a_metric_is_shown_in_its_change(world: World) -> None:
    """The log of events, and the revision's summary, are for everybody."""
    raw = {"url": URL, "threshold": 5}
    await world.book.put("main", "queue", raw, who="ops")
    with capture_logs() as told:
        await world.book.patch("main", "queue", {"url": f"{URL}2", "threshold": 2}, who="ops")
    assert "S3cret" not in repr(told) and "threshold 5 → 2" in repr(told)
    history = await world.log.book.history()
    assert "S3cret" not in repr([revision.summary for revision in history])


async def test_a_reverted_metric_is_forgotten_after_a_day_and_can_be_changed_then(
    world: World,
) -> None:
    await world.book.patch("main", "lag", {"threshold": "2s"}, who="ops")
    await world.book.revert("main", "lag", who="ops")
    forgetter = Forgetter(world.log.book.forget, world.clock, [world.book.kept])
    await forgetter.tick()
    assert world.log.book.held.items, "its revision tells who looked before it"
    world.clock.set_wall(90_000)
    await forgetter.tick()
    assert not world.log.book.held.items
    seen = (await world.book.revert("main", "lag", who="ops", dry_run=True)).entry
    assert seen is not None and seen.revision == 0
    await world.book.patch("main", "lag", {"threshold": "3s"}, who="ops", expect=seen.revision)
    assert world.threshold() == 3
