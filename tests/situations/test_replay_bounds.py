"""Whatever a minute was like: what the real `decide` makes of it under the proposed rule lies
within replay's bounds, and is the number where replay calls it exact or expected (R145)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.names import Scope, parse_identity
from headgate.check.decide import decide
from headgate.check.health import Health, ShardHealth, Window, health_of, stand
from headgate.check.model import Check, Decision
from headgate.history.keeper import MetricMinutes
from headgate.history.recorder import decided_by
from headgate.history.records import MetricMinute, Tally
from headgate.history.replay import ReplayContext, replay
from headgate.history.replay_outcomes import How, gate_of
from headgate.metrics.model import AbsencePolicy, Comparison, MetricSpec
from headgate.metrics.samples import Absent, Cause, Instant, Sample
from headgate.rules.matching import DiceOrder, Kind, Rule, RuleBook
from tests.builders import metric

MINUTE = 28_000_020
ROLLS = [(n + 0.5) / 10 for n in range(10)]
"""A throw of each kind: dice that fall exactly as often as they are told to."""
CHECK = Check(parse_identity("u1:etl"), "main")
NAMES = ("lag", "pool")

values = st.sampled_from([None, 1.0, 5.0, 8.0, 10.0, 12.0, 40.0])
"""Beside a threshold of 10, and a ceiling of 20 or 30; None is a probe that failed."""
specs = st.builds(
    lambda absence, comparison, scope: replace(
        metric("lag", threshold=10.0),
        absence=absence,
        comparison=comparison,
        scope=scope,
        hold_s=3.0,
    ),
    st.sampled_from(AbsencePolicy),
    st.sampled_from(Comparison),
    st.sampled_from(Scope),
)
minutes_of_two = st.lists(st.tuples(values, values, values), min_size=1, max_size=5)
"""Second by second: lag of the host, lag of the shard, pool."""


@st.composite
def rules(draw: st.DrawFn, rule_id: str) -> Rule:
    kind = draw(st.sampled_from(Kind))
    target = draw(st.sampled_from(["all", "etl", "u1:etl"]))
    named = draw(st.sampled_from([("lag",), ("pool",), NAMES]))
    match kind:
        case Kind.RATIO:
            ratio = draw(st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]))
            return Rule(rule_id, target, ratio, order=draw(st.sampled_from(DiceOrder)))
        case Kind.EXEMPT:
            metrics = draw(st.sampled_from([(), named]))
            ceiling = draw(st.sampled_from([2.0, 3.0]))
            return Rule(rule_id, target, kind=kind, metrics=metrics, ceiling=ceiling)
        case Kind.METRICS:
            return Rule(rule_id, target, kind=kind, metrics=named)
        case Kind.THRESHOLDS:
            limits = dict.fromkeys(named, draw(st.sampled_from([3.0, 8.0, 9.0, 15.0])))
            return Rule(rule_id, target, kind=kind, thresholds=limits)
        case _:
            return Rule(rule_id, target, kind=kind)


def healths(
    lag: MetricSpec, seconds: Sequence[tuple[float | None, float | None, float | None]]
) -> Iterator[tuple[Instant, Health]]:
    pool = replace(metric("lag", threshold=10.0), name="pool", scope=Scope.HOST)
    windows = [Window(), Window(), Window()]
    for second, readings in enumerate(seconds):
        mono_s = 1000.0 + second
        windows = [
            window.push(
                Sample(value, mono_s) if value is not None else Absent(Cause.FAILED, "", mono_s),
                keep=3,
            )
            for window, value in zip(windows, readings, strict=True)
        ]
        host = {"lag": stand(lag, windows[0]), "pool": stand(pool, windows[2])}
        shard = ShardHealth("c/-", {"lag": stand(lag, windows[1], scope=Scope.SHARD)})
        now = Instant(wall_s=MINUTE * 60.0 + second, mono_s=mono_s)
        yield now, health_of("main", host, shard=shard)


def decisions(seen: Sequence[tuple[Instant, Health]], book: RuleBook) -> Iterator[Decision]:
    for now, health in seen:
        for roll in ROLLS:
            yield decide(CHECK, health, book, now=now, roll=roll)


def kept(found: Sequence[Decision]) -> list[Tally]:
    counts = Counter((d.verdict.value, decided_by(d)) for d in found)
    return [Tally(MINUTE, "main", "u1:etl", *what, count) for what, count in counts.items()]


def looked_at(seen: Sequence[tuple[Instant, Health]]) -> list[MetricMinute]:
    meter = MetricMinutes()
    for now, health in seen:
        meter.look({"main": health}, now)
    return meter.drain((MINUTE + 1) * 60.0)


minutes = given(
    lag=specs,
    seconds=minutes_of_two,
    then=st.lists(rules("then"), max_size=1).flatmap(
        lambda one: st.just(one) | rules("other").map(lambda other: [*one, other])
    ),
    proposed=rules("proposed"),
)


@settings(max_examples=150, deadline=None)
@minutes
def test_what_decide_would_have_said_is_within_the_bounds(**minute: Any) -> None:
    assert_within_bounds(**minute)


@pytest.mark.extended
@settings(max_examples=3000, deadline=None)
@minutes
def test_what_decide_would_have_said_is_within_the_bounds_of_many(**minute: Any) -> None:
    assert_within_bounds(**minute)


def assert_within_bounds(
    lag: MetricSpec,
    seconds: list[tuple[float | None, float | None, float | None]],
    then: list[Rule],
    proposed: Rule,
) -> None:
    seen = list(healths(lag, seconds))
    before = RuleBook(then)
    happened = list(decisions(seen, before))
    setting = ReplayContext(before, {"main": gate_of(seen[-1][1])})
    [change] = replay(kept(happened), looked_at(seen), proposed, setting)
    real = sum(d.admitted for d in decisions(seen, RuleBook([*then, proposed])))
    low, high, how = change.after
    assert low - 1e-6 <= real <= high + 1e-6, (change, happened)
    assert change.checks == len(happened)
    assert change.admitted_before == sum(d.admitted for d in happened)
    if how in (How.EXACT, How.EXPECTED):
        assert real == pytest.approx(low) == pytest.approx(high)


def test_an_exemption_that_dice_overrule_may_still_end_another() -> None:
    """It stands in the place of a wider one's, whose waiver is gone: that is no "unchanged"."""
    lag = replace(metric("lag", threshold=10.0), scope=Scope.HOST)
    seen = list(healths(lag, [(12.0, None, 1.0)]))
    then = [
        Rule("then", "all", kind=Kind.EXEMPT, metrics=("lag",), ceiling=3.0),
        Rule("other", "u1:etl", 0.3),
    ]
    proposed = Rule("proposed", "etl", kind=Kind.EXEMPT, ceiling=2.0)
    before = RuleBook(then)
    setting = ReplayContext(before, {"main": gate_of(seen[-1][1])})
    [change] = replay(kept(list(decisions(seen, before))), looked_at(seen), proposed, setting)
    assert change.admitted_before == 7
    assert sum(d.admitted for d in decisions(seen, RuleBook([*then, proposed]))) == 0
    assert (change.after.low, change.after.high, change.after.how) == (0, 7, How.BOUNDED)
