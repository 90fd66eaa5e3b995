"""Paced admission at work: the bucket, the turns, and a herd in the model (R27, R142, R143)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from bench.herd_model import Variant, World, run
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.names import MetricRef, Scope, parse_identity
from headgate.check.board import Board
from headgate.check.health import Health, MetricStatus, Window, health_of, stand
from headgate.check.model import Check, Decision, Verdict
from headgate.metrics.model import Builtin, MetricSpec
from headgate.metrics.samples import Absent, Cause, Instant, Sample
from headgate.pacing.model import Pace
from headgate.pacing.pacer import (
    BURST_S,
    COSTS_KEPT,
    MAX_OWING,
    MAX_WAIT_S,
    OWING_S,
    PaceBucket,
    Pacer,
    Pacers,
    _typical,
)
from headgate.rules.matching import Applied, Kind, Rule
from tests.builders import metric
from tests.fixtures.fakes import HandClock
from tests.fixtures.worlds import OpenWorld

LOAD = MetricSpec("loadavg", Builtin("loadavg"), 1.0, interval_s=0.25)
LAG = MetricSpec("lag", Builtin("lag"), 1.0, unit="s", interval_s=0.25, pace=True, pace_target=0.5)
CHECK = Check(parse_identity("etl"), "main")


def health(value: float = 0.0, at: float = 0.0, spec: MetricSpec = LAG) -> Health:
    return health_of("main", {spec.name: stand(spec, Window().push(Sample(value, at), keep=1))})


def standing(spec: MetricSpec, value: float = 0.0, at: float = 0.0) -> MetricStatus:
    return stand(spec, Window().push(Sample(value, at), keep=1))


def ok(now: float, check: Check = CHECK, **changes: object) -> Decision:
    decision = Decision(Verdict.OK, check, Instant(now, now), health(at=now))
    return decision._replace(**changes)  # type: ignore[arg-type]


def in_debt(now: float = 0.0) -> Pacer:
    pacer = Pacer(now)
    pacer.follow(health(), now)
    pacer.charge(1000.0, now)
    return pacer


MIDDLE = 0.5

# --- the bucket ------------------------------------------------------------------------------

ASKED = st.lists(st.tuples(st.floats(0, 0.5), st.floats(0.01, 20)), max_size=200)


@given(ASKED, st.floats(0.1, 1e4))
def test_no_window_admits_more_than_released_plus_burst_and_one_piece(
    asked: list[tuple[float, float]], rate: float
) -> None:
    pacer = Pacer(0.0)
    pacer._bucket.adopt(Pace(rate, rate, starting=False), 0.0)
    now, admitted = 0.0, []
    for pause_s, cost in asked:
        now += pause_s
        if pacer.admit(cost, now, MIDDLE) is None:
            admitted.append((now, min(cost, pacer._bucket.most)))
    largest = max((cost for _, cost in asked), default=0.0)
    for first, (began, _) in enumerate(admitted):
        total = 0.0
        for at, cost in admitted[first:]:
            total += cost
            assert total <= rate * (at - began + BURST_S) + largest + 1e-6 * rate + 1e-6


@given(st.floats(0.01, 1e12), st.floats(0.01, 1e12))
def test_a_larger_cost_never_leaves_more_for_others(less: float, more: float) -> None:
    less, more = sorted((less, more))
    buckets = [PaceBucket(0.0), PaceBucket(0.0)]
    buckets[0].take(less)
    buckets[1].take(more)
    assert buckets[1].in_debt or not buckets[0].in_debt


def test_a_cost_beyond_all_measure_delays_others_for_a_bounded_time() -> None:
    pacer = Pacer(0.0)
    assert pacer.admit(1e15, 0.0, MIDDLE) is None
    assert pacer.admit(1.0, 0.1, MIDDLE) is not None
    assert pacer.admit(1.0, 1.0, MIDDLE) is None


# --- those who declare what is not so ----------------------------------------------------------

LIE = 1e9
LIAR, WORKER = parse_identity("u7:liar"), parse_identity("w1:etl")


def settled(rate: float = 100.0) -> Pacer:
    """Commonly asked with a cost of 1, and not for the first time."""
    pacer = Pacer(0.0)
    for number in range(COSTS_KEPT):
        pacer.charge(1.0, 0.0, parse_identity(f"w{number}:etl"))
    pacer._bucket.adopt(Pace(rate, rate, starting=False), 60.0)
    return pacer


def test_a_liar_waits_and_the_others_hardly() -> None:
    """R142: a quarter of a second is what its billion costs the others."""
    pacer = settled()
    assert pacer.admit(LIE, 60.0, MIDDLE, LIAR) is None
    assert pacer.admit(1.0, 60.0, MIDDLE, WORKER) is not None
    assert pacer.admit(1.0, 60.3, MIDDLE, WORKER) is None
    told_s = pacer.admit(1.0, 60.4, MIDDLE, LIAR)
    assert told_s is not None and told_s > 1.0
    assert pacer.admit(1.0, 60.0 + OWING_S, MIDDLE, LIAR) is None


def test_who_declares_much_and_is_alone_is_not_kept_waiting() -> None:
    pacer = settled()
    assert pacer.admit(5000.0, 60.0, MIDDLE, LIAR) is None
    assert pacer.admit(5000.0, 60.5, MIDDLE, LIAR) is None


def test_what_was_declared_too_high_and_given_back_is_no_debt() -> None:
    pacer = settled()
    known = health(at=61.0)
    pacer.follow(known, 61.0)
    lied = ok(61.0, Check(LIAR, "main", cost=LIE), health=known)
    assert pacer.meter(lied, MIDDLE).admitted
    assert not pacer.meter(ok(61.0, Check(WORKER, "main"), health=known), MIDDLE).admitted
    pacer.give_back(lied)
    assert pacer.meter(lied, MIDDLE).admitted


def test_debts_of_liars_are_bounded() -> None:
    pacer = settled()
    for number in range(2 * MAX_OWING):
        pacer.admit(LIE, 60.0 + number, MIDDLE, parse_identity(f"u{number}:liar"))
    assert len(pacer._debtors.until) <= MAX_OWING


def test_what_is_usual_is_not_what_one_client_says() -> None:
    often = [("liar", LIE)] * 40 + [(f"w{n}", 1.0) for n in range(23)]
    many_names = [(f"liar{n}", LIE) for n in range(30)] + [("w", 1.0)] * 33
    assert _typical(often) == _typical(many_names) == 1.0
    assert _typical([("etl", 5000.0)] * 9) == 5000.0


@pytest.mark.parametrize("lies_from", [0.0, 10.0])
def test_one_liar_does_not_do_away_with_pacing(lies_from: float) -> None:
    """R142: from the start, and after all has settled."""
    world = World(workers=50, capacity=lambda _: 100.0, seconds=30)
    honest = run(Variant.PACED, world)
    lied_to = run(Variant.PACED, replace(world, lies_from=lies_from))
    assert max(lied_to.rates) < 4 * max(honest.rates)
    assert lied_to.over <= 0.05
    assert lied_to.used > 0.9 * honest.used


def test_a_clock_that_stops_or_goes_back_fills_nothing() -> None:
    pacer = in_debt(100.0)
    assert all(pacer.admit(1.0, now, MIDDLE) is not None for now in (100.0, 100.0, 99.0, 100.0))


def test_a_reading_without_a_later_time_is_no_step() -> None:
    pacer = Pacer(10.0)
    pacer.follow(health(0.9, at=10.0), 10.0)
    pacer.follow(health(0.9, at=9.0), 10.0)
    assert pacer.pace == Pace()


# --- those who are sent away -----------------------------------------------------------------


def test_release_thundering_herd_200_rejected_at_once_come_back_as_a_file() -> None:
    """R27, R143: no tenth of a second brings back more than a few times its share."""
    pacer, dice = in_debt(), random.Random(1)
    pacer._bucket.adopt(Pace(100.0, 100.0, starting=False), 0.0)
    waits = [pacer.admit(1.0, 0.0, dice.random()) for _ in range(200)]
    times = sorted(wait for wait in waits if wait is not None)
    assert len(times) == 200
    busiest = max(sum(at <= t < at + 0.1 for t in times) for at in times)
    assert busiest <= 4 * 0.1 * 100 * 1.25


@given(st.integers(1, 2000), st.floats(0.1, 1e6), st.booleans(), st.floats(0, 0.999999))
def test_nobody_is_rejected_for_nothing_or_for_long(
    rejected: int, rate: float, starting: bool, roll: float
) -> None:
    pacer = in_debt()
    pacer._bucket.adopt(Pace(rate, rate, starting), 0.0)
    wait_s = [pacer.admit(1.0, 0.0, roll) for _ in range(rejected)][-1]
    assert wait_s is not None
    assert 0 < wait_s <= 1.5 * MAX_WAIT_S


def test_one_that_declares_beyond_all_measure_does_not_fill_the_whole_queue() -> None:
    pacer = in_debt()
    pacer._bucket.adopt(Pace(1000.0, 1000.0, starting=False), 0.0)
    assert pacer.admit(1e9, 0.0, MIDDLE) is not None
    later = MAX_WAIT_S + 0.5
    pacer.charge(1100.0, later)
    wait_s = pacer.admit(1.0, later, MIDDLE)
    assert wait_s is not None
    assert wait_s < 2


def test_a_paced_check_says_when_to_retry_and_why() -> None:
    decision = in_debt().meter(ok(0.0), MIDDLE)
    assert decision.verdict is Verdict.PACED
    assert decision.retry_after_s is not None
    assert decision.retry_after_s > 0
    assert "allowance is used up" in decision.note


def test_what_the_gate_rejects_is_never_admitted() -> None:
    pacer = Pacer(0.0)
    rejected = ok(0.0, verdict=Verdict.THRESHOLD_EXCEEDED)
    assert pacer.meter(rejected, MIDDLE) is rejected
    assert pacer.cost_total == 0


@pytest.mark.parametrize(
    "check",
    [
        CHECK._replace(metrics=(MetricRef("loadavg"),)),
        CHECK._replace(metrics=(MetricRef("lag"),), read_threshold=2.5),
    ],
    ids=["another metric", "a read check"],
)
def test_who_does_not_load_a_paced_metric_is_not_paced(check: Check) -> None:
    pacer = in_debt()
    assert pacer.meter(ok(0.0, check), MIDDLE).admitted
    assert pacer.cost_total == 1000


def test_a_client_with_the_default_set_is_paced_by_the_metrics_in_it() -> None:
    """The paced metric stands outside of it: a check that names none is not decided by it."""
    standings = {s.spec.name: s for s in (health().standings["lag"], standing(LOAD))}
    seen = health_of("main", standings, default=["loadavg"])
    pacer = in_debt()
    assert pacer.meter(ok(0.0, health=seen), MIDDLE).admitted
    named = CHECK._replace(metrics=(MetricRef("lag"),))
    assert pacer.meter(ok(0.0, named, health=seen), MIDDLE).verdict is Verdict.PACED


@pytest.mark.parametrize(("metrics", "goes"), [((), True), (("lag",), True), (("loadavg",), False)])
def test_who_is_exempt_from_other_metrics_is_paced_like_anybody(
    metrics: tuple[str, ...], goes: bool
) -> None:
    exempt = Applied(exempt=Rule("r", "etl", kind=Kind.EXEMPT, metrics=metrics))
    assert in_debt().meter(ok(0.0, applied=exempt), MIDDLE).admitted is goes


def test_an_exempt_client_goes_and_the_others_pay_for_it() -> None:
    exempt = Applied(exempt=Rule("r", "etl", kind=Kind.EXEMPT))
    pacer = in_debt()
    assert pacer.meter(ok(0.0, applied=exempt), MIDDLE).admitted
    assert pacer.cost_total == 1001


def test_a_client_s_ratio_is_not_what_sent_it_away() -> None:
    """It would be counted for the rule, and lifted in vain."""
    ratio = Rule("r", "etl", 0.25)
    paced = in_debt().meter(ok(0.0, rule=ratio, applied=Applied(reject=ratio)), MIDDLE)
    assert paced.verdict is Verdict.PACED
    assert paced.rule is None
    assert paced.applied.reject is ratio


@given(st.floats(0, 0.99), st.floats(0, 1, exclude_max=True))
def test_one_throw_serves_the_ratio_and_the_turn(ratio: float, roll: float) -> None:
    """What a ratio of 90 % lets through rolled 0.9 or more: without care all of them would be
    told the latest time."""
    thrown = ratio + roll * (1 - ratio)
    if thrown >= 1:
        return
    ruled = ok(0.0, rule=Rule("r", "etl", ratio))
    wait_s = in_debt().meter(ruled, thrown).retry_after_s
    assert wait_s == pytest.approx(in_debt().meter(ok(0.0), roll).retry_after_s, rel=1e-6)


def test_what_one_database_let_go_of_is_given_back_when_another_rejects() -> None:
    pacer, once = Pacer(0.0), CHECK._replace(cost=3.0)
    pacer.follow(health(), 0.0)
    admitted = pacer.meter(ok(0.0, once), MIDDLE)
    assert admitted.admitted
    assert not pacer.meter(ok(0.0, once), MIDDLE).admitted
    pacer.give_back(admitted)
    assert pacer.meter(ok(0.0, once), MIDDLE).admitted


def test_foreseeing_takes_nothing_and_gives_no_turn_away() -> None:
    fresh, poor = Pacer(0.0), in_debt()
    for _ in range(5):
        assert fresh.foresee(ok(0.0), MIDDLE).admitted
    told = {poor.foresee(ok(0.0), MIDDLE).retry_after_s for _ in range(5)}
    assert told == {poor.meter(ok(0.0), MIDDLE).retry_after_s}
    assert (fresh.cost_total, poor.paced_total) == (0.0, 1)


# --- which databases -------------------------------------------------------------------------


def board_with(spec: MetricSpec) -> Board:
    board = Board()
    board.open("main", None)
    board.place("main", spec, at=0.0)
    return board


def test_pacing_off_leaves_no_trace() -> None:
    pacers = Pacers(board_with(replace(LAG, pace=False)), HandClock())
    pacers.note_reading("main", "lag", Sample(0.1, 1.0))
    assert not pacers.by_database


def test_pacing_is_switched_on_and_off_while_running() -> None:
    board = board_with(LAG)
    pacers = Pacers(board, HandClock())
    pacers.note_reading("main", "lag", Sample(0.1, 1.0))
    kept = pacers.by_database["main"]
    pacers.note_reading("main", "lag", Sample(0.1, 1.25))
    assert pacers.by_database["main"] is kept
    board.place("main", replace(LAG, pace=False), at=1.5)
    pacers.note_reading("main", "lag", Sample(0.1, 1.75))
    assert not pacers.by_database


def test_a_metric_that_is_lost_does_not_stop_the_others_from_steering() -> None:
    other = replace(LAG, name="etl_lag")
    lost = Window().push(Sample(0.9, 0.25), keep=2).push(Absent(Cause.FAILED, "", 0.5), keep=2)
    pacer = Pacer(0.0)
    pacer.follow(health_of("main", {"lag": stand(LAG, lost), "etl_lag": standing(other)}), 0.25)
    pacer.charge(5.0, 0.25)
    fresh = standing(other, 0.1, 0.5)
    pacer.follow(health_of("main", {"lag": stand(LAG, lost), "etl_lag": fresh}), 0.5)
    assert (pacer.worst, pacer.pace == Pace()) == ("etl_lag", False)


def test_pacing_that_was_switched_off_delays_nobody_until_the_next_reading() -> None:
    """The change is on the board at once; the next reading may be seconds away."""
    pacer = in_debt()
    off = health(spec=replace(LAG, pace=False))
    assert pacer.meter(ok(0.0, health=off), MIDDLE).admitted


def test_a_database_that_is_gone_is_no_longer_paced() -> None:
    board = board_with(LAG)
    pacers = Pacers(board, HandClock())
    pacers.look_at_all()
    assert pacers.by_database
    board.shut("main")
    pacers.look_at_all()
    assert not pacers.by_database


async def test_a_rollup_of_the_shard_is_a_step(open_world: OpenWorld) -> None:
    """A paced metric of the shard steps when what its members read has been put together."""
    world = await open_world("db-b", metrics=(metric("lag", pace=True, interval_s=0.25),))
    pacers = Pacers(world.board, world.clock)
    world.board.watch_shards(pacers.look)
    world.agents["db-b"].values["lag"] = 0.0
    await world.pass_s(1.0, "shard/lag")
    pacer = pacers.by_database["main"]
    assert pacer.metrics["lag"].ref.scope is Scope.SHARD
    before = pacer.pace
    pacer.charge(50.0, world.clock.now().mono_s)
    await world.pass_s(1.0, "shard/lag")
    assert pacer.pace.rate > before.rate


def test_an_unavailable_metric_is_no_reading_of_zero() -> None:
    """R151: the pace stays as it was until there is a value again."""
    pacer = Pacer(0.0)
    pacer.follow(health(0.9, at=0.25), 0.25)
    before = pacer.pace
    lost = Window().push(Sample(0.9, 0.25), keep=2).push(Absent(Cause.FAILED, "", 0.5), keep=2)
    pacer.follow(health_of("main", {"lag": stand(LAG, lost)}), 0.5)
    assert pacer.pace == before


# --- a herd, in the model --------------------------------------------------------------------

HERD = World(seconds=40)


def test_oscillation_a_bare_gate_swings_and_a_paced_one_does_not() -> None:
    """R13, R27, R142: 200 workers, threshold 1 s; the model's figures, at a glance."""
    bare, paced = run(Variant.BARE, HERD), run(Variant.PACED, HERD)
    assert bare.over > 0.8
    assert paced.over <= 0.05
    assert paced.p99_s <= 1.5
    assert paced.used >= 0.95 * bare.used
    assert paced.burstiness < bare.burstiness / 4


@pytest.mark.parametrize(
    "world",
    [
        replace(HERD, workers=1, capacity=lambda _: 20.0),
        replace(HERD, workers=500),
        replace(HERD, capacity=lambda _: 20.0),
        replace(HERD, capacity=lambda _: 1500.0),
        replace(HERD, probe_s=0.1),
        replace(HERD, noise_s=0.1),
        replace(HERD, work_s=0.2),
    ],
    ids=["one worker", "500", "small", "large", "often probed", "noise", "slow work"],
)
def test_the_herd_converges_in_other_worlds(world: World) -> None:
    paced = run(Variant.PACED, world)
    settled = paced.lags[len(paced.lags) // 2 :]
    assert sum(lag > 1 for lag in settled) <= 0.05 * len(settled)
    assert paced.used >= 0.85


@pytest.mark.parametrize("first", [400.0, 100.0], ids=["down", "up"])
def test_a_capacity_step_is_followed(first: float) -> None:
    def capacity(at: float) -> float:
        return first if at < 20 else 500.0 - first

    paced = run(Variant.PACED, replace(HERD, capacity=capacity))
    last_s = paced.lags[-int(10 / paced.step_s) :]
    assert max(last_s) <= 1.0
    assert sum(paced.admitted[-100:]) == pytest.approx(10 * (500 - first), rel=0.1)


def test_idle_then_burst_the_return_of_the_herd_stays_below_the_threshold() -> None:
    paced = run(Variant.PACED, replace(HERD, idle=(15.0, 25.0)))
    after = paced.lags[int(25 / paced.step_s) :]
    assert sum(lag > 1 for lag in after) <= 0.05 * len(after)


@settings(max_examples=20)
@given(st.integers(1, 2**31), st.floats(0.5, 50))
def test_no_seed_and_no_small_capacity_makes_the_pacer_fail(seed: int, per_s: float) -> None:
    world = replace(HERD, workers=20, capacity=lambda _: per_s, seed=seed, seconds=5)
    assert run(Variant.PACED, world).replayed >= 0
