"""Counts are exact, memory is bounded, and the store's absence loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headgate.base.names import OTHER, Scope
from headgate.check.decide import decide
from headgate.check.health import ShardHealth, stand
from headgate.check.model import Decision, Verdict
from headgate.errors import StoreUnavailable
from headgate.history import recorder as recorder_module
from headgate.history.keeper import Keeper, MetricMinutes
from headgate.history.recorder import Key, Recorder
from headgate.history.records import MetricMinute, Tally
from headgate.metrics.samples import Sample
from headgate.rules.matching import NO_RULES, Kind, Rule, book_of
from tests.builders import at, check, health, metric, shard_health, window
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_store import MemoryStore


def decision(app: str = "etl", lag: float = 1.0, after_s: float = 0.0) -> Decision:
    known = health((metric("lag", max_age_s=7200), lag))
    return decide(check(app), known, NO_RULES, now=at(after_s), roll=0.5)


def held(rule_id: str) -> Decision:
    book = book_of([Rule(rule_id, "etl", kind=Kind.RATIO, ratio=1.0, expires_at=at(0).wall_s + 60)])
    return decide(check("etl"), health((metric("lag"), 1.0)), book, now=at(0), roll=0.5)


def test_counts_by_client_verdict_and_metric() -> None:
    """R134–R136"""
    recorder = Recorder(max_clients=10)
    for _ in range(3):
        recorder.record(decision())
    recorder.record(decision(lag=9.0))
    assert recorder.totals() == {
        ("main", "etl", Verdict.OK, ""): 3,
        ("main", "etl", Verdict.THRESHOLD_EXCEEDED, "lag"): 1,
    }


def test_a_client_that_makes_up_names_is_bounded_and_still_counted() -> None:
    """R69, R135"""
    recorder = Recorder(max_clients=10)
    for number in range(1000):
        recorder.record(decision(f"uuid{number}:etl"))
    totals = recorder.totals()
    assert len(totals) <= 11
    assert sum(totals.values()) == 1000
    assert totals[("main", "other:etl", Verdict.OK, "")] == 990


def test_rules_that_come_and_go_for_years_are_bounded_and_still_counted() -> None:
    """R135"""
    recorder = Recorder(max_clients=10)
    for number in range(200):
        recorder.record(held(f"r{number}"))
        recorder.drain(at(60.0 * number).wall_s)
    totals = recorder.totals()
    assert len(totals) == recorder_module.MAX_REASONS + 1
    assert sum(totals.values()) == 200
    assert totals["main", "etl", Verdict.ON_HOLD, f"rule:{OTHER}"] == 136


def test_rows_of_a_minute_are_bounded_and_sums_stay_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R135: beyond the bound a row is counted under `other`, of whatever drain of the minute."""
    monkeypatch.setattr(recorder_module, "MAX_ROWS_A_MINUTE", 5)
    monkeypatch.setattr(recorder_module, "MAX_CROWD_ROWS_A_MINUTE", 2)
    recorder = Recorder(max_clients=1000)
    kept: list[Tally] = []
    for number in range(20):
        recorder.record(decision(f"c{number}", lag=9.0 if number % 2 else 1.0))
        kept += recorder.drain(at(1).wall_s)
    assert len({(t.client, t.verdict, t.metric) for t in kept}) == 7
    assert sum(t.count for t in kept) == 20
    assert sum(t.count for t in kept if t.client == OTHER) == 15
    recorder.record(decision("late", after_s=60))
    assert [t.client for t in recorder.drain(at(61).wall_s)] == ["late"]


def test_the_shards_metric_is_distinguished_from_the_hosts() -> None:
    """R134"""
    lag = metric("lag")
    known = health((lag, 1.0), shard=shard_health((lag, 9.0)))
    recorder = Recorder(max_clients=10)
    asked = check("etl", scope=Scope.SHARD)
    recorder.record(decide(asked, known, NO_RULES, now=at(0), roll=0.5))
    assert recorder.totals() == {("main", "etl", Verdict.THRESHOLD_EXCEEDED, "shard/lag"): 1}


def test_watchers_get_each_count_once() -> None:
    recorder = Recorder(max_clients=10)
    told: list[tuple[Key, int]] = []
    recorder.watch(told.extend)
    recorder.record(decision())
    recorder.drain(at(1).wall_s)
    recorder.record(decision())
    recorder.record(decision(lag=9.0))
    recorder.drain(at(2).wall_s)
    recorder.drain(at(3).wall_s)
    assert sum(count for _, count in told) == 3


def test_tallies_fall_into_their_minutes() -> None:
    recorder = Recorder(max_clients=10)
    recorder.record(decision(after_s=0))
    recorder.record(decision(after_s=60))
    recorder.record(decision(after_s=61))
    tallies = recorder.drain(at(62).wall_s)
    assert sorted((t.minute - int(at(0).wall_s // 60), t.count) for t in tallies) == [
        (0, 1),
        (1, 2),
    ]
    assert recorder.drain(at(62).wall_s) == []
    assert sum(recorder.totals().values()) == 3


def test_how_long_a_client_has_been_throttled() -> None:
    recorder = Recorder(max_clients=10)
    recorder.record(decision(lag=9, after_s=0))
    recorder.record(decision(lag=9, after_s=30))
    ((_, _, record),) = recorder.clients()
    assert record.rejected_since == at(0).wall_s and record.rejected_by == "lag"
    recorder.record(decision(lag=1, after_s=31))
    assert record.rejected_since is None


def test_a_forgotten_client_leaves_its_counts_behind() -> None:
    recorder = Recorder(max_clients=10)
    recorder.record(decision("old"))
    recorder.forget_idle(at(25 * 3600).wall_s)
    assert list(recorder.clients()) == []
    assert recorder.totals() == {}
    assert recorder.forgotten == {("main", Verdict.OK): 1}


class AwayStore(MemoryStore):
    away = True

    async def add_tallies(self, tallies: Sequence[Tally]) -> None:
        if self.away:
            raise StoreUnavailable("disk full")
        await super().add_tallies(tallies)


async def test_full_disk_checks_go_on_and_nothing_is_lost() -> None:
    recorder, store, clock = Recorder(max_clients=10), AwayStore(), HandClock()
    await store.open()
    keeper = Keeper(recorder, store, clock, history_days=1)
    recorder.record(decision())
    await keeper.flush()
    assert _fault(keeper) == "disk full"
    recorder.record(decision())
    store.away = False
    await keeper.flush()
    assert _fault(keeper) is None
    minute = int(at(0).wall_s // 60)
    kept = await store.history.tallies(since_minute=minute, until_minute=minute)
    assert [t.count for t in kept] == [2]


class FullStore(MemoryStore):
    full = True

    async def add_metric_minutes(self, minutes: Sequence[MetricMinute]) -> None:
        if self.full:
            raise StoreUnavailable("disk full")
        await super().add_metric_minutes(minutes)


async def test_metrics_by_the_minute_wait_for_a_store_that_is_away() -> None:
    minutes, store, clock = MetricMinutes(), FullStore(), HandClock()
    await store.open()
    recorder = Recorder(max_clients=10)
    keeper = Keeper(recorder, store, clock, history_days=1, metrics=minutes)
    for _ in range(2):
        minutes.look({"main": health((metric("lag"), 1.0))}, clock.now())
        await clock.advance(60)
        await keeper.flush()
    assert _fault(keeper) == "disk full"
    store.full = False
    await keeper.flush()
    assert _fault(keeper) is None
    kept = await store.history.metric_minutes(since_minute=0, until_minute=10**9)
    assert [m.looks for m in kept] == [1, 1]


def test_each_replica_has_a_history_of_its_lag() -> None:
    """The rollup keeps the worst only: who it was, and how the others were, is kept beside it."""
    minutes, clock = MetricMinutes(), HandClock()
    rolled = {
        "lag": stand(metric("lag", threshold=5.0), window(Sample(9.0, 0.0)), scope=Scope.SHARD)
    }
    shard = ShardHealth("commerce", rolled, "db-a", lags={"db-b": 9.0, "db-c": None})
    minutes.look({"main": replace(health((metric("lag"), 1.0)), shard=shard)}, clock.now())
    kept = {m.metric: m for m in minutes.drain(clock.now().wall_s + 60)}
    assert (kept["lag@db-b"].high, kept["lag@db-b"].breached) == (9.0, 1)
    assert (kept["lag@db-c"].high, kept["lag@db-c"].absent) == (None, 1)


def _fault(keeper: Keeper) -> str | None:
    return keeper.fault.detail if keeper.fault else None


def test_rejections_are_kept_in_full_at_most_one_a_second_of_a_client() -> None:
    """R134, R135: every number of the decision; the counters stay exact."""
    recorder = Recorder(max_clients=10)
    for tenth in range(25):
        recorder.record(decision(lag=9.0, after_s=tenth / 10))
    recorder.record(decision("other:job", lag=9.0, after_s=2.5))
    recorder.record(decision(after_s=2.6))
    newest, *older = recorder.recent()
    assert newest.check.identity.text == "other:job"
    assert len(older) == 3
    finding = older[0].failing[0]
    assert (finding.ref.metric, finding.value, finding.threshold) == ("lag", 9.0, 5.0)
    assert sum(recorder.totals().values()) == 27
