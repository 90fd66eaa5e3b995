"""The control loop at work: what it is told, what it puts, and a herd in the model (R99, R142)."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import pytest
from bench.herd_model import Herd, Outcome, Variant, World
from bench.herd_model import health as model_health

from headgate.check.health import Health
from headgate.metrics.samples import Cause, Sample
from headgate.proxy.model import Act, GateTerms, ReleaseKind, ReleaseTerms
from headgate.proxy.ports import Released
from headgate.proxy.release import Pacing, worst_of
from tests.builders import absent, health, metric
from tests.fixtures.fakes import HandClock
from tests.proxy.fakes import FakeRelay, snapshot, view

LAG, LOAD = metric("lag", threshold=5), metric("loadavg", threshold=8)
STEPS = ReleaseTerms(kind=ReleaseKind.STEPS, initial_per_s=100.0)
GATE = GateTerms(clients=("*",))


class Stage:
    def __init__(self, terms: ReleaseTerms = STEPS, gate: GateTerms = GATE) -> None:
        self.relay, self.clock = FakeRelay(), HandClock()
        self.pacing = Pacing(self.relay, terms, gate, self.clock, lambda: self.clock.now().mono_s)

    async def read(self, lag_s: float, after_s: float = 1.0, **released: int) -> None:
        """A new reading, and what went since the last one."""
        await self.clock.advance(after_s)
        taken, limited = self.relay.now_released
        self.relay.now_released = Released(
            taken + released.get("taken", 0), limited + released.get("limited", 0)
        )
        now = self.clock.now().mono_s
        self.pacing.hear(snapshot(view(seen(lag_s, now)), sent_s=now))


def seen(lag_s: float, at: float) -> Health:
    return health((LAG, Sample(lag_s, at)))


async def test_a_step_up_is_put_as_a_rate_of_the_relay() -> None:
    """R99."""
    stage = Stage()
    await stage.read(0.1)
    await stage.read(0.1, taken=100, limited=3)
    assert stage.relay.release.per_s == pytest.approx(110)
    assert stage.relay.release.burst == pytest.approx(11)
    assert stage.pacing.phase == "increasing"


async def test_an_emergency_halves_it() -> None:
    stage = Stage()
    await stage.read(0.1)
    await stage.read(6.0, taken=100)
    assert stage.relay.release.per_s == pytest.approx(50)
    assert "emergency" in stage.pacing.state().summary


async def test_the_same_reading_twice_is_one_step() -> None:
    stage = Stage(replace(STEPS, min_between_s=0.0))
    await stage.read(0.1)
    await stage.read(0.1, taken=100, limited=1)
    again = snapshot(view(seen(0.1, stage.clock.now().mono_s)))
    for _ in range(5):
        stage.pacing.hear(again)
    assert stage.relay.release.per_s == pytest.approx(110)


async def test_an_agent_gone_ends_the_pace_where_the_fail_policy_is_to_pass() -> None:
    stage = Stage()
    await stage.read(0.1)
    await stage.clock.advance(GATE.stale_after_s + 1)
    stage.pacing.tick()
    assert stage.relay.release.per_s is None
    await stage.read(0.1)
    assert stage.relay.release.per_s == pytest.approx(100)


async def test_an_agent_gone_keeps_the_pace_where_statements_are_to_be_delayed() -> None:
    stage = Stage(gate=replace(GATE, on_loss=Act.DELAY))
    await stage.read(0.1)
    await stage.clock.advance(60)
    stage.pacing.tick()
    assert stage.relay.release.per_s == pytest.approx(100)


async def test_a_lost_metric_is_no_reading_of_zero() -> None:
    stage = Stage()
    await stage.read(0.1)
    gone = health((LAG, absent(Cause.FAILED)))
    stage.pacing.hear(snapshot(view(gone), sent_s=stage.clock.now().mono_s))
    assert stage.relay.release.per_s == pytest.approx(100)
    assert stage.pacing.load is None
    assert not stage.pacing.state().healthy


def test_off_is_off() -> None:
    stage = Stage(ReleaseTerms())
    assert stage.relay.release.per_s is None
    assert stage.pacing.state().healthy


async def test_other_settings_begin_again_and_the_same_ones_go_on() -> None:
    stage = Stage()
    await stage.read(0.1)
    await stage.read(6.0, taken=10)
    stage.pacing.adopt(STEPS, GATE)
    assert stage.relay.release.per_s == pytest.approx(50)
    stage.pacing.adopt(replace(STEPS, initial_per_s=7.0), GATE)
    assert stage.relay.release.per_s == pytest.approx(7)


@pytest.mark.parametrize(
    ("metrics", "worst"), [((), "loadavg"), (("lag",), "lag"), (("disk_used",), None)]
)
def test_it_steers_by_the_worst_of_the_gates_metrics(
    metrics: tuple[str, ...], worst: str | None
) -> None:
    found = worst_of(health((LAG, 1.0), (LOAD, 7.0)), metrics)
    assert (found.spec.name if found else None) == worst


# --- a herd, in the model ---------------------------------------------------------------------


class RelayModel(FakeRelay):
    """hr_release: a bucket that is a time, as in the relay."""

    empty_at = 0.0
    taken = limited = 0

    def take(self, now: float) -> float | None:
        """None: go. Else when to look again."""
        per_s, burst = self.release.per_s, self.release.burst
        if per_s is None:
            return None
        empty_at = max(self.empty_at, now)
        if (empty_at - now) * per_s > burst - 1:
            self.limited += 1
            return empty_at - (burst - 1) / per_s
        self.empty_at = empty_at + 1 / per_s
        self.taken += 1
        return None

    def released(self) -> Released:
        return Released(self.taken, self.limited)


class ProxiedHerd(Herd):
    """200 workers that never check: their statements are delayed by the relay."""

    def __init__(self, world: World, terms: ReleaseTerms, gate: GateTerms) -> None:
        super().__init__(Variant.PACED, world)
        self.relay, self.at = RelayModel(), 0.0
        self.pacing = Pacing(self.relay, terms, gate, HandClock(), lambda: self.at)

    def _probe(self, now: float) -> None:
        self.at = now
        off = (self.dice.random() - 0.5) * 2 * self.world.noise_s
        self.seen_lag = max(0.0, self.replica.lag(now) + off)
        self.window = self.window.push(Sample(self.seen_lag, now), keep=1)
        seen = view(model_health(self.world, self.window))
        self.pacing.hear(snapshot(seen, sent_s=now))
        self.outcome.rates.append(self.pacing.rate)

    def _answer(self, now: float, worker: int) -> None:
        wait_s = self._wait(1.0, now, worker)
        if wait_s is not None:
            heapq.heappush(self._asking, (now + wait_s, worker))
            return
        self._released += 1
        took_s = self.world.work_s * (0.5 + self.dice.random())
        heapq.heappush(self._working, (now + took_s, worker, 1.0))

    def _wait(self, cost: float, now: float, worker: int) -> float | None:
        if self.seen_lag > self.world.threshold_s:
            return self.world.probe_s * (1 + self.dice.random())
        again_at = self.relay.take(now)
        return None if again_at is None else max(0.02, again_at - now)


HERD = World(seconds=25)


def herd(kind: ReleaseKind, world: World = HERD, **terms: Any) -> Outcome:
    given = ReleaseTerms(kind=kind, **{"target": 0.5, "initial_per_s": 50.0, **terms})
    return ProxiedHerd(world, given, GATE).run()


def settled(outcome: Outcome) -> float:
    lags = outcome.lags[len(outcome.lags) // 4 :]
    return sum(lag > outcome.threshold_s for lag in lags) / len(lags)


def test_200_workers_that_never_check_stay_below_the_threshold_and_use_what_there_is() -> None:
    """R142: below it at least 95 % of the time, with at least 95 % of the capacity used."""
    found = herd(ReleaseKind.PI)
    assert found.over <= 0.05
    assert found.used >= 0.95


@pytest.mark.parametrize(
    "world",
    [
        replace(HERD, capacity=lambda _: 60.0),
        replace(HERD, capacity=lambda _: 3000.0, work_s=0.005),
        replace(HERD, noise_s=0.1, work_s=0.1),
    ],
    ids=["small", "large", "noise and slow work"],
)
def test_the_herd_converges_in_other_worlds(world: World) -> None:
    found = herd(ReleaseKind.PI, world)
    assert settled(found) <= 0.05
    assert found.used >= 0.85


def test_the_steps_of_r99_keep_a_herd_near_its_maximum() -> None:
    """R99: simpler, and coarser: it may be above the threshold for a moment, and comes back."""
    found = herd(ReleaseKind.STEPS, max_increase=0.1, min_between_s=1.0, initial_per_s=300.0)
    assert found.over < 0.5
    assert found.used > 0.6
    assert max(found.lags) < 5.0


def test_without_a_loop_the_same_herd_stays_above_the_threshold() -> None:
    assert herd(ReleaseKind.OFF).over > 0.8
