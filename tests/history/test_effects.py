"""R154: what a client's work does to a metric, and when nothing is known of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headgate.history.effects import MAX_CLIENTS, Effect, Effects

TICKS = 600
Metric = Callable[[list[float], Random], float]
"""Its movement, from the client's work until now."""


def played(metric: Metric, work: Callable[[int, Random], float], seed: int) -> Effect | None:
    dice = Random(seed)
    effects, value, done = Effects(), 1.0, list[float]()
    for tick in range(TICKS):
        done.append(work(tick, dice))
        value += metric(done, dice)
        effects = effects.after({"etl": done[-1]}, {"lag": value}, {"etl"})
    return effects.effect_of("etl", "lag")


def irregular(tick: int, dice: Random) -> float:
    return float(dice.randrange(6))


def now_and_then(tick: int, dice: Random) -> float:
    return float(3 + dice.randrange(3)) if tick // 60 % 2 else 0.0


@pytest.mark.parametrize("work", [irregular, now_and_then])
@pytest.mark.parametrize("delay", [0, 1, 2, 4])
def test_work_that_makes_a_metric_grow_is_found_with_its_delay(
    work: Callable[[int, Random], float], delay: int
) -> None:
    def grows(done: list[float], dice: Random) -> float:
        return (0.02 * done[-1 - delay] if len(done) > delay else 0.0) + dice.gauss(-0.03, 0.03)

    effect = played(grows, work, seed=1)
    assert effect is not None and effect.is_clear
    assert effect.size == pytest.approx(0.02, abs=5 * effect.error)


def test_a_metric_that_rises_and_falls_with_work_is_found() -> None:
    def follows(done: list[float], dice: Random) -> float:
        return 0.05 * (done[-1] - (done[-2] if len(done) > 1 else 0.0)) + dice.gauss(0, 0.05)

    effect = played(follows, irregular, seed=2)
    assert effect is not None and effect.is_clear


@pytest.mark.parametrize("work", [irregular, now_and_then])
@pytest.mark.parametrize(
    "metric",
    [
        lambda done, dice: dice.gauss(0, 0.1),
        lambda done, dice: 0.05 if 100 < len(done) < 250 else 0.0,
        lambda done, dice: 0.05 + dice.gauss(0, 0.02) if len(done) % 200 < 90 else -0.05,
        lambda done, dice: 5.0 if dice.random() < 0.01 else 0.0,
    ],
    ids=["noise", "one ramp", "long swings", "jumps"],
)
@pytest.mark.parametrize(
    "seeds", [range(5), pytest.param(range(5, 20), marks=pytest.mark.extended)]
)
def test_harmless_work_is_never_blamed(
    work: Callable[[int, Random], float], metric: Metric, seeds: range
) -> None:
    for seed in seeds:
        effect = played(metric, work, seed)
        assert effect is None or not effect.is_clear, (seed, effect)


def test_nothing_is_known_of_one_who_always_does_the_same() -> None:
    assert played(lambda done, dice: 0.1, lambda tick, dice: 4.0, seed=1) is None


def test_who_lowers_a_metric_is_not_blamed() -> None:
    effect = played(lambda done, dice: -0.02 * done[-1] + 0.05, irregular, seed=3)
    assert effect is not None and not effect.is_clear


def test_only_the_busiest_are_kept_and_nobody_who_is_gone() -> None:
    effects = Effects()
    names = {f"job{n}": float(n) for n in range(3 * MAX_CLIENTS)}
    for tick in range(50):
        effects = effects.after(names, {"lag": float(tick % 7), "busy": 1.0}, names)
    assert set(effects.work) == set(sorted(names, key=lambda n: -names[n])[:MAX_CLIENTS])
    assert len(effects.sums) <= 2 * MAX_CLIENTS
    assert effects.after({}, {"lag": 1.0}, set()).sums == {}
