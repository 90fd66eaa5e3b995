"""What a proposed rule would have changed: exact where it is, honest where it is not (R145)."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.history.records import MetricMinute, Tally
from headgate.history.replay import ReplayContext, ReplayedHour, replay
from headgate.history.replay_outcomes import DatabaseGate, DecidingMetric, How
from headgate.rules.matching import NO_RULES, DiceOrder, Kind, Rule, RuleBook

HOUR = 28_000_020
OK, LAG = "OK", "THRESHOLD_EXCEEDED"


def tally(verdict: str, count: int, by: str = "", client: str = "etl:nightly") -> Tally:
    return Tally(HOUR, "main", client, verdict, by, count)


def minute(metric: str = "lag", low: float = 0.0, high: float = 1.0, **more: Any) -> MetricMinute:
    values: dict[str, Any] = {
        "looks": 60,
        "absent": 0,
        "breached": 60 if low > 5 else 30 if high > 5 else 0,
        "total": 60 * (low + high) / 2,
        "threshold": 5.0,
    }
    return MetricMinute(HOUR, "main", metric, low=low, high=high, **{**values, **more})


def gate(*default: str, paced: bool = False, **more: DecidingMetric) -> DatabaseGate:
    judged = {
        name: DecidingMetric(name, name) for name in (*default, "lag", "pool", "loadavg")
    } | more
    return DatabaseGate(tuple(judged[name] for name in default or ("lag",)), judged, paced)


def changed(
    rule: Rule,
    *tallies: Tally,
    metrics: tuple[MetricMinute, ...] = (),
    book: RuleBook = NO_RULES,
    by: DatabaseGate | None = None,
    **more: Any,
) -> ReplayedHour:
    setting = ReplayContext(book, {"main": by or gate()}, **more)
    [change] = replay(tallies, metrics, rule, setting)
    return change


def after(change: ReplayedHour) -> tuple[float, float, How]:
    return change.after.low, change.after.high, change.after.how


def rule(**settings: Any) -> Rule:
    return Rule(**{"id": "proposed", "target": "etl", **settings})


def test_a_hold_admits_nothing() -> None:
    change = changed(rule(kind=Kind.HOLD), tally(OK, 30), tally(LAG, 70, "lag"))
    assert (change.checks, change.admitted_before, change.rejected_before) == (100, 30, 70)
    assert after(change) == (0, 0, How.EXACT)


@pytest.mark.parametrize(("ratio", "left"), [(0.0, 100.0), (0.9, 10.0), (0.25, 75.0)])
def test_dice_leave_their_share_of_what_the_metrics_admitted(ratio: float, left: float) -> None:
    low, high, _ = after(changed(rule(ratio=ratio), tally(OK, 100), tally(LAG, 60, "lag")))
    assert low == high == pytest.approx(left)


def test_a_laxer_ratio_lets_more_reach_the_metrics() -> None:
    """Half was rejected by dice before; of the rest, the metrics took 4 of 5."""
    book = RuleBook([Rule("r1", "etl", 0.5)])
    now = [tally(OK, 40), tally(LAG, 10, "lag"), tally("REJECTED_BY_RATIO", 50, "rule:r1")]
    change = changed(rule(target="etl:nightly", ratio=0.1), *now, book=book)
    assert change.after.low == change.after.high == pytest.approx(72)
    assert change.after.how is How.EXPECTED


def test_a_rule_that_another_hides_changes_nothing_and_names_it() -> None:
    book = RuleBook([Rule("r1", "etl:nightly", 0.5)])
    change = changed(rule(ratio=0.9), tally(OK, 40), book=book)
    assert not change.changes and change.shadowed_by == "r1"


def test_clients_that_it_does_not_match_are_left_alone() -> None:
    change = changed(rule(ratio=0.9), tally(OK, 40, client="report"))
    assert not change.changes and change.shadowed_by == ""


def test_outside_its_windows_it_says_nothing() -> None:
    assert not changed(rule(kind=Kind.HOLD, windows=((0.0, 60.0),)), tally(OK, 9)).changes


THRESHOLDS = {"kind": Kind.THRESHOLDS, "thresholds": {"lag": 2.0}}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 1.9, (40, 40, How.EXACT)),
        (2.5, 4.0, (0, 0, How.EXACT)),
        (1.0, 3.0, (0, 40, How.BOUNDED)),
    ],
)
def test_a_stricter_threshold_is_replayed_from_the_minutes_metrics(
    low: float, high: float, expected: tuple[float, float, How]
) -> None:
    change = changed(rule(**THRESHOLDS), tally(OK, 40), metrics=(minute(low=low, high=high),))
    assert after(change) == expected


def test_of_its_limits_only_those_count_that_no_other_rule_comes_before() -> None:
    """A more specific rule has its own word on lag: this one's is never looked at."""
    nearer = Rule("near", "etl:nightly", kind=Kind.THRESHOLDS, thresholds={"lag": 4.5})
    wide = rule(kind=Kind.THRESHOLDS, thresholds={"lag": 0.5, "pool": 0.5}, target="all")
    measured = (minute("lag", 1.0, 2.0), minute("pool", 0.1, 0.2, threshold=0.9))
    both = gate("lag", "pool")
    change = changed(wide, tally(OK, 60), metrics=measured, book=RuleBook((nearer,)), by=both)
    assert after(change) == (60, 60, How.EXACT)


def test_without_the_metric_it_cannot_be_replayed() -> None:
    change = changed(rule(**THRESHOLDS), tally(OK, 40))
    assert after(change) == (0, 40, How.UNKNOWN) and change.changes


def test_an_unavailable_metric_is_no_zero() -> None:
    lost = MetricMinute(HOUR, "main", "lag", 60, 60, 0, 0.0, None, None, 5.0)
    assert changed(rule(**THRESHOLDS), tally(OK, 40), metrics=(lost,)).after.how is How.UNKNOWN


def test_an_exemption_admits_what_metrics_dice_and_holds_rejected() -> None:
    """But for what has no value: nobody could tell that it is below its ceiling."""
    now = [tally(OK, 10), tally(LAG, 90, "lag"), tally("METRIC_UNAVAILABLE", 5, "lag")]
    high_lag = (minute(low=6, high=12),)
    assert after(changed(rule(kind=Kind.EXEMPT), *now, metrics=high_lag)) == (100, 100, How.EXACT)
    above = (minute(low=6, high=16),)
    assert after(changed(rule(kind=Kind.EXEMPT), *now, metrics=above)) == (10, 100, How.BOUNDED)


def test_an_exemption_is_void_while_any_metric_is_above_its_ceiling() -> None:
    """R79: the rejection names one metric, and another one is ten times its threshold."""
    measured = (minute("lag", 6, 6), minute("pool", 50, 50))
    change = changed(
        rule(kind=Kind.EXEMPT), tally(LAG, 50, "lag"), metrics=measured, by=gate("lag", "pool")
    )
    assert after(change) == (0, 0, How.EXACT)


def test_an_exemption_admits_clients_that_pacing_rejected() -> None:
    paced = [tally(OK, 50), tally("PACED", 50)]
    change = changed(rule(kind=Kind.EXEMPT), *paced, by=gate(paced=True))
    assert after(change) == (100, 100, How.EXACT)
    partly = rule(kind=Kind.EXEMPT, metrics=("lag",))
    assert after(changed(partly, *paced, by=gate(paced=True))) == (50, 100, How.BOUNDED)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, (50, 50, How.EXACT)), (0.1, (45, 50, How.BOUNDED)), (0.9, (5, 10, How.BOUNDED))],
)
def test_dice_on_who_is_paced_let_others_of_it_go_instead(
    ratio: float, expected: tuple[float, float, How]
) -> None:
    """A ratio of nothing says nothing, and was once told to admit a hundred."""
    change = changed(rule(ratio=ratio), tally(OK, 50), tally("PACED", 50))
    assert change.after[:2] == pytest.approx(expected[:2]) and change.after.how is expected[2]


def test_where_fairness_waives_dice_a_ratio_is_bounded() -> None:
    """R82"""
    assert after(changed(rule(ratio=0.5), tally(OK, 10), fair=True)) == (5, 10, How.BOUNDED)


def test_dice_that_fell_after_the_metrics_say_who_had_passed_them() -> None:
    book = RuleBook([Rule("r1", "all", 0.5, order=DiceOrder.AFTER)])
    now = [tally(OK, 40), tally(LAG, 20, "lag"), tally("REJECTED_BY_RATIO", 40, "rule:r1")]
    change = changed(rule(ratio=0.25), *now, book=book)
    assert (change.after.low, change.after.how) == (60, How.EXPECTED)


def test_a_check_on_hold_was_not_decided_by_metrics() -> None:
    book = RuleBook([Rule("r1", "all", kind=Kind.HOLD)])
    now = [tally(OK, 5), tally("ON_HOLD", 95, "rule:r1")]
    assert after(changed(rule(ratio=0.5), *now, book=book)) == (2.5, 50, How.BOUNDED)


def test_a_threshold_in_a_shard_is_compared_with_the_value_that_decided_the_check() -> None:
    """The host is calm; what the check met is the shard's."""
    of_shard = gate("lag", lag=DecidingMetric("lag", "shard/lag"))
    measured = (minute("lag", 0, 0), minute("shard/lag", 3, 3))
    change = changed(rule(**THRESHOLDS), tally(OK, 50), metrics=measured, by=of_shard)
    assert after(change) == (0, 0, How.EXACT)
    counted = gate("lag", lag=DecidingMetric("lag", "shard/lag", limitable=False))
    assert not changed(rule(**THRESHOLDS), tally(OK, 50), metrics=measured, by=counted).changes


def test_a_limit_on_a_metric_that_nobody_uses_changes_nothing() -> None:
    assert not changed(rule(**THRESHOLDS), tally(OK, 50), by=gate("pool")).changes


ABSENT = (minute("pool", 1, 1, absent=59), minute("lag", 1, 1))


def test_rejections_by_an_unavailable_metric_end_where_the_metric_no_longer_counts() -> None:
    now = [tally(OK, 1), tally("METRIC_UNAVAILABLE", 59, "pool")]
    both = gate("lag", "pool")
    by_lag = rule(kind=Kind.METRICS, metrics=("lag",))
    assert after(changed(by_lag, *now, metrics=ABSENT, by=both)) == (60, 60, How.EXACT)
    by_pool = rule(kind=Kind.METRICS, metrics=("pool",))
    assert after(changed(by_pool, *now, metrics=ABSENT, by=both)) == (1, 1, How.EXACT)
    exempt = changed(rule(kind=Kind.EXEMPT), *now, metrics=ABSENT, by=both)
    assert after(exempt) == (1, 1, How.EXACT)


def test_no_rule_helps_a_check_that_was_rejected_for_having_no_name() -> None:
    now = [tally("ON_HOLD", 7, client="anonymous")]
    change = changed(rule(target="all", kind=Kind.EXEMPT), *now, metrics=(minute(),))
    assert after(change) == (0, 0, How.EXACT)


def test_where_the_rules_changed_within_the_minute_it_is_bounded() -> None:
    """When in the minute a check came was not kept."""
    half = Rule("r1", "etl:nightly", 0.5, windows=((0.0, HOUR * 60 + 30.0),))
    change = changed(rule(kind=Kind.HOLD), tally(OK, 40), book=RuleBook([half]))
    assert after(change) == (0, 40, How.BOUNDED)


def test_before_the_rules_of_then_are_known_nothing_is_replayed() -> None:
    change = changed(rule(ratio=0.5), tally(OK, 40), known_from_s=HOUR * 60 + 60.0)
    assert after(change) == (0, 40, How.UNKNOWN)


def test_of_an_exemption_from_one_metric_the_others_may_have_rejected_too() -> None:
    now = [tally(OK, 10), tally(LAG, 90, "lag"), tally(LAG, 7, "loadavg")]
    exempt = rule(kind=Kind.EXEMPT, metrics=("lag",))
    both = gate("lag", "loadavg")
    assert after(changed(exempt, *now, metrics=(minute(),), by=both)) == (10, 100, How.BOUNDED)


def test_who_was_rejected_by_what_is_in_no_default_set_names_metrics_itself() -> None:
    """So it cannot be told which of the checks the rule's metrics and limits would have met."""
    now = [tally(OK, 10), tally(LAG, 90, "loadavg")]
    calm = (minute("pool", 0, 1), minute("lag", 3, 4))
    by_pool = rule(kind=Kind.METRICS, metrics=("pool",))
    assert after(changed(by_pool, *now, metrics=calm)) == (10, 100, How.BOUNDED)
    assert after(changed(rule(**THRESHOLDS), *now, metrics=calm)) == (0, 10, How.BOUNDED)


def test_other_metrics_to_decide_by() -> None:
    now = [tally(OK, 10), tally(LAG, 90, "lag")]
    by_load = rule(kind=Kind.METRICS, metrics=("loadavg",))
    calm = minute("loadavg", low=0, high=1)
    assert after(changed(by_load, *now, metrics=(calm,))) == (100, 100, How.EXACT)
    busy = minute("loadavg", low=6, high=9)
    assert after(changed(by_load, *now, metrics=(busy,))) == (0, 0, How.EXACT)
    assert changed(by_load, *now).after.how is How.UNKNOWN


def test_hours_and_clients_are_summed_apart() -> None:
    tallies = [
        Tally(HOUR + offset, "main", client, OK, "", 10)
        for offset in (0, 1, 60)
        for client in ("a:etl", "b:etl")
    ]
    rows = replay(tallies, (), rule(kind=Kind.HOLD), ReplayContext(NO_RULES))
    assert [(r.client, r.hour_minute - HOUR + HOUR % 60, r.admitted_before) for r in rows] == [
        ("a:etl", 0, 20),
        ("b:etl", 0, 20),
        ("a:etl", 60, 10),
        ("b:etl", 60, 10),
    ]
