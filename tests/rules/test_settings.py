"""A rule as it is written: what is taken, and what is rejected with the place and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.declared import parse_date_time, parse_for
from headgate.errors import InvalidSettings
from headgate.rules.matching import DiceOrder, Justification, Kind, Rule
from headgate.rules.settings import (
    KnownMetric,
    RuleLimits,
    RuleSpec,
    advise,
    parse_kept,
    parse_rule,
    with_limit_units,
    written,
)
from headgate.rules.times import Schedule, parse_schedule
from tests.builders import NOW

W = NOW.wall_s
KNOWN = {
    "lag": KnownMetric(5.0, True),
    "pool_usage": KnownMetric(1.0, True),
    "loadavg": KnownMetric(1.0, False),
}


def known(database: str) -> Mapping[str, KnownMetric]:
    return KNOWN if database in ("", "main") else {}


def parse(raw: object, **more: Any) -> RuleSpec:
    return parse_rule(
        raw, **{"rule_id": "r-1", "author": "ops", "wall_s": W, "known_metrics": known, **more}
    )


def faults(raw: object, **more: Any) -> list[str]:
    with pytest.raises(InvalidSettings) as rejected:
        parse(raw, **more)
    return [str(fault) for fault in rejected.value.faults]


def fault(raw: object, **more: Any) -> str:
    (only,) = faults(raw, **more)
    return only


HALF = {"target": "etl", "ratio": 0.5}
HOLD = {"target": "etl", "kind": "hold", "reason": "incident 42"}
EXEMPT = {"target": "etl", "kind": "exempt", "justification": "incident", "reason": "the fix"}


def test_a_rule_has_an_end_an_author_and_a_name_by_default() -> None:
    """R83, R85: an hour, unless said otherwise."""
    spec = parse(HALF)
    rule = spec.rule
    assert (rule.id, rule.kind, rule.ratio, rule.order) == (
        "r-1",
        Kind.RATIO,
        0.5,
        DiceOrder.BEFORE,
    )
    assert (rule.created_by, rule.created_at, rule.expires_at) == ("ops", W, W + 3600)
    assert spec.schedule is None


def test_an_exemption_as_it_is_written() -> None:
    """R78"""
    rule = parse({**EXEMPT, "metrics": ["lag"], "ceiling": 2, "id": "fix-1", "for": "30m"}).rule
    assert (rule.id, rule.justification, rule.ceiling) == ("fix-1", Justification.INCIDENT, 2.0)
    assert (rule.metrics, rule.expires_at) == (("lag",), W + 1800)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"ratio": 0.5}, "rule.target: is missing: name a client"),
        ({"target": "etl"}, "rule.ratio: is missing: say which share"),
        ({**HALF, "ratio": 1.2}, "rule.ratio: is 1.2, must be at least 0 and at most 1"),
        ({**HALF, "ratio": -0.1}, "rule.ratio: is -0.1, must be at least 0"),
        ({**HALF, "ratio": float("nan")}, "rule.ratio: is NaN"),
        ({**HALF, "ratio": "0.5"}, "rule.ratio: is '0.5', a text without a unit"),
        ({**HALF, "ratio": 1}, "rule.ratio: is 1, which rejects every check: set a hold"),
        ({**HALF, "ration": 1}, "rule.ration: unknown setting 'ration'; did you mean 'ratio'?"),
        ({**HALF, "target": ""}, "rule.target: is empty"),
        (
            {**HALF, "target": "etl:ni ghtly"},
            "rule.target: is 'etl:ni ghtly': level 2, 'ni ghtly', holds ' ' at its character 3",
        ),
        ({**HALF, "target": "etl::x"}, "rule.target: is 'etl::x': level 2 is empty"),
        ({**HALF, "target": "etl:all"}, "rule.target: is 'etl:all': `all` is every client"),
        ({**HALF, "target": "a:" * 8 + "a"}, "rule.target: client name"),
        ({**HALF, "target": "*.etl.*"}, "rule.target: is '*.etl.*': level 1"),
        ({"target": "etl", "kind": "hold"}, "rule.reason: is missing: a hold needs a reason"),
        ({**HOLD, "reason": "  "}, "rule.reason: is missing"),
        ({**HOLD, "reason": "a\nb"}, "rule.reason: has a line break"),
        ({**HOLD, "ratio": 0.5}, "rule.ratio: has no effect in a rule of kind 'hold'"),
        ({**HOLD, "target": "all"}, "rule.target: a hold on `all` locks out every client"),
        ({**HOLD, "lock_out": True}, "rule.lock_out: is only for a hold on 'all'"),
        ({**EXEMPT, "justification": "boss"}, "rule.justification: is 'boss', must be one of"),
        ({**EXEMPT, "ceiling": 0.5}, "rule.ceiling: is 0.5, must be at least 1"),
        ({**EXEMPT, "metrics": ["lagg"]}, "rule.metrics: unknown metric 'lagg'; did you mean"),
        ({"target": "etl", "kind": "metrics"}, "rule.metrics: is missing"),
        ({"target": "etl", "kind": "thresholds"}, "rule.thresholds: is missing"),
        (
            {"target": "etl", "kind": "thresholds", "thresholds": {"lag": 0}},
            "rule.thresholds: lag is 0, must be more than 0",
        ),
        (
            {"target": "etl", "kind": "thresholds", "thresholds": {"commit_delay": 10}},
            "rule.thresholds: commit_delay is 10, which has no unit: 10ms or 10s? Write \"10ms\"",
        ),
        (
            {"target": "etl", "kind": "thresholds", "thresholds": {"pool_usage": 80}},
            "rule.thresholds: pool_usage is 80: pool_usage is a share, and 1 is all of it; did you",
        ),
        (
            {"target": "etl", "kind": "thresholds", "thresholds": {"lagg": 1}},
            "rule.thresholds.lagg: unknown metric 'lagg'",
        ),
        ({**HALF, "for": "soon"}, "rule.for: is 'soon', must read like 250ms, 90s"),
        ({**HALF, "for": "0s"}, "rule.for: is '0s', must be more than 0s"),
        ({**HALF, "for": "31d"}, "rule.for: is 31 days from now, at most 30"),
        ({**HALF, "expires_at": W - 1}, "which is in the past: a rule ends after it begins"),
        ({**HALF, "expires_at": "2023-01-01T00:00:00Z"}, "rule.expires_at: is '2023-01-01T00"),
        ({**HALF, "expires_at": "2999-01-01T00:00:00Z"}, "at most 30"),
        ({**HALF, "expires_at": "tomorrow"}, "rule.expires_at: is 'tomorrow', must read like"),
        ({**HALF, "expires_at": W + 9, "for": "1h"}, "give `for` or `expires_at`, not both"),
        ({**HALF, "id": "favor"}, "rule.id: is 'favor'"),
        ({**HALF, "id": "../x"}, "rule.id: is '../x'"),
        ({**HALF, "database": "a b"}, "rule.database: database name 'a b'"),
        ([], "rule: must be a table of settings, not a list"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_rule_is_rejected_with_the_place_and_the_reason(
    raw: object, told: str
) -> None:
    assert told in fault(raw)


def test_every_fault_is_reported_not_only_the_first() -> None:
    told = faults({"target": "etl", "kind": "exempt", "metrics": ["lagg"], "for": "40d"})
    places = [line.partition(":")[0] for line in told]
    assert places == ["rule.justification", "rule.reason", "rule.metrics", "rule.for"]


def test_everybody_is_locked_out_only_where_that_is_said() -> None:
    assert parse({**HOLD, "target": "all", "lock_out": True}).rule.rejects_all


def test_a_ratio_may_be_capped_below_what_a_hold_does() -> None:
    """R77"""
    capped = RuleLimits(max_ratio=0.95)
    assert parse({**HALF, "ratio": 0.95}, limits=capped).rule.ratio == 0.95
    assert "at most 0.95 here" in fault({**HALF, "ratio": 0.96}, limits=capped)


def test_limits_on_time_are_settings() -> None:
    short = RuleLimits(default_for_s=60, max_for_s=600)
    assert parse(HALF, limits=short).rule.expires_at == W + 60
    assert "at most 0.00694" in fault({**HALF, "for": "20m"}, limits=short)


def test_to_depend_on_what_is_not_measured_is_a_lock_out_by_accident() -> None:
    """On one of two databases, or switched off: every check there would be rejected."""
    half = {"lag": KnownMetric(5.0, True, missing_on="orders"), "queue": KnownMetric(5.0, True)}

    def parsed(**raw: Any) -> RuleSpec:
        return parse_rule(
            raw, rule_id="r", author="ops", wall_s=1.7e9, known_metrics=lambda _: half
        )

    with pytest.raises(InvalidSettings, match="lag is not measured on orders, so every check of"):
        parsed(target="all", kind="metrics", metrics=["queue", "lag"])
    parsed(target="all", kind="metrics", metrics=["queue"])
    # These say nothing there, and reject nobody.
    parsed(target="all", kind="thresholds", thresholds={"lag": "2s"})
    parsed(target="x", kind="exempt", metrics=["lag"], justification="incident", reason="the fix")


def test_metrics_are_not_validated_where_the_database_is_unknown() -> None:
    raw = {"target": "etl", "kind": "metrics", "metrics": ["queue"], "database": "elsewhere"}
    assert parse(raw).rule.metrics == ("queue",)


# --- times -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wall_s"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2024-02-29T12:30:00Z", 1709209800.0),
        ("2024-02-29T13:30:00+01:00", 1709209800.0),
        ("2024-02-29t07:00:00.25-05:30", 1709209800.25),
        ("2024-02-29 12:30Z", 1709209800.0),
        (1709209800, 1709209800.0),
    ],
)
def test_dates_are_instants(text: object, wall_s: float) -> None:
    assert parse_date_time(text) == wall_s


@pytest.mark.parametrize(
    "text", ["2024-02-30T00:00:00Z", "2024-13-01T00:00:00Z", "2024-01-01T25:00:00Z",
             "2024-01-01T00:00:00", "0000-01-01T00:00:00Z", "", 0, True, None]
)  # fmt: skip
def test_what_is_no_date_is_rejected(text: object) -> None:
    with pytest.raises(ValueError):
        parse_date_time(text)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2d", 172800)])
def test_durations(text: object, seconds: float) -> None:
    assert parse_for(text) == seconds
    with pytest.raises(ValueError, match="is 30, which has no unit: 30s or 30m"):
        parse_for(30)


@pytest.mark.parametrize(
    ("raw", "schedule"),
    [
        (
            {"days": ["mon", "fri"], "from": "07:00", "to": "09:30", "zone": "Europe/Berlin"},
            Schedule((0, 4), 420, 570, "Europe/Berlin"),
        ),
        ("mon-fri 07:00-09:30 Europe/Berlin", Schedule((0, 1, 2, 3, 4), 420, 570, "Europe/Berlin")),
        ("sat-mon 22:00-06:00", Schedule((0, 5, 6), 1320, 360, "UTC")),
        ("00:00-24:00", Schedule(tuple(range(7)), 0, 1440, "UTC")),
        ("mon,wed 7:00-8:00 America/Argentina/Ushuaia",
         Schedule((0, 2), 420, 480, "America/Argentina/Ushuaia")),
    ],
)  # fmt: skip
def test_schedules_as_a_table_and_as_a_line(raw: object, schedule: Schedule) -> None:
    assert parse_schedule(raw) == schedule
    assert parse_schedule(schedule.written()) == schedule
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("mon-fri", "schedule.from: is missing"),
        ("mon 09:00-09:00", "is empty; 00:00"),
        ("mon 25:00-26:00", "must be a time of day"),
        ("mon-xyz 07:00-09:00", "'xyz' is not a day"),
        ("mon 07:00-09:00 Europe Berlin", "schedule.zone: is 'Europe Berlin'"),
        ({"days": [], "from": "07:00", "to": "08:00"}, "has no day"),
        ({"form": "07:00"}, "did you mean 'from'"),
        (5, "must be a table"),
    ],
)
def test_what_is_no_schedule_is_rejected(raw: object, told: str) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        parse_schedule(raw)
    assert told in str(rejected.value)


# --- who would lock out everybody (R77) --------------------------------------------------------


def tight(target: str = "all", **limits: float | str) -> dict[str, Any]:
    return {"target": target, "kind": "thresholds", "thresholds": limits}


def measured(database: str) -> Mapping[str, KnownMetric]:
    return {"lag": KnownMetric(5.0, True, "", 2.0, "main"), "pool_usage": KNOWN["pool_usage"]}


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (tight(lag="1us"), "rule.thresholds.lag: is 1us for all clients, less than 1%"),
        (tight(lag="49ms"), "set 50ms or more"),
        (tight(lag="1.9s"), "lag is 2s on main now"),
        ({"target": "all", "ratio": 0.9999}, "rule.ratio: is 0.9999 on `all`, at most 0.999"),
        ({"target": "all", "ratio": 0.9999999999999999}, "locks out"),
    ],
)
def test_who_would_lock_out_everybody_has_to_say_hold(raw: dict[str, Any], told: str) -> None:
    found = fault(raw, known_metrics=measured)
    assert told in found and "set a hold on `all` with lock_out = true (--lock-out)" in found


@pytest.mark.parametrize(
    "raw",
    [
        tight(lag="2s"),
        tight(pool_usage=0.5),  # Not measured yet: nobody can tell.
        tight("etl", lag="1us"),
        {**tight(lag="1.9s"), "schedule": "22:00-23:00"},
        tight(lag="6s"),
        {"target": "all", "ratio": 0.999},
        {"target": "etl", "ratio": 0.9999},
    ],
)
def test_a_stricter_rule_for_everybody_is_no_lock_out(raw: dict[str, Any]) -> None:
    assert parse(raw, known_metrics=measured).rule.target == raw["target"]


def test_what_rejects_at_its_threshold_is_set_below_the_value() -> None:
    known = {"lag": KnownMetric(5.0, True, "", 2.0, "main", at_least=True)}
    assert "lag is 2s" in fault(tight(lag="2s"), known_metrics=lambda _: known)


# --- kept ------------------------------------------------------------------------------------

_names = st.sampled_from(["etl", "etl:nightly", "all", "u1"])
_raws = st.one_of(
    st.fixed_dictionaries(
        {
            "target": _names,
            "ratio": st.floats(0, 0.99),
            "order": st.sampled_from(["before", "after"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "target": _names,
            "kind": st.just("exempt"),
            "justification": st.sampled_from([j.value for j in Justification]),
            "reason": st.just("why"),
            "metrics": st.lists(st.sampled_from(sorted(KNOWN)), unique=True),
            "ceiling": st.floats(1, 1000),
        }
    ),
    st.fixed_dictionaries(
        {
            "target": _names,
            "kind": st.just("thresholds"),
            "thresholds": st.fixed_dictionaries(
                {"lag": st.integers(50, 9000).map("{}ms".format)},
                optional={"pool_usage": st.floats(0.05, 1)},
            ),
            "schedule": st.sampled_from(["mon-fri 07:00-09:00 UTC", "sun 22:00-02:00"]),
            "database": st.sampled_from(["", "main"]),
        }
    ),
    st.just({"target": "all", "kind": "hold", "reason": "stop", "lock_out": True}),
)


@given(raw=_raws)
def test_what_is_kept_comes_back_as_it_was(raw: dict[str, Any]) -> None:
    """R141"""
    spec = parse(raw)
    rule = spec.rule
    value = {
        **written(rule, spec.schedule),
        "expires_at": rule.expires_at,
        "created_at": rule.created_at,
        "created_by": rule.created_by,
        "set_at": spec.set_at,
    }
    assert parse_kept("r-1", value, 0) == spec
    more: dict[str, Any] = {"ruled_at": 12.5, "charged": {"main etl": 30.5}}
    assert parse_kept("r-1", {**value, **more}, 0) == replace(spec, **more)
    assert parse(written(rule, spec.schedule)) == spec


KEPT = {"target": "etl", "expires_at": 9e8, "created_at": 8e8, "created_by": "ann"}


@pytest.mark.parametrize(
    ("metric", "limit", "read", "as_written"),
    [
        ("lag", 9, 9.0, "9s"),
        ("lag", 0.25, 0.25, "250ms"),
        ("threads_running", 80, 80.0, 80.0),
        ("pool_usage", 0.7, 0.7, 0.7),
        ("pool_usage", 85, 1.0, 1.0),
        ("queue_depth", 7, 7.0, 7.0),
    ],
)
def test_a_stored_limit_without_a_unit_is_in_the_unit_of_its_metric(
    metric: str, limit: float, read: float, as_written: object
) -> None:
    """R141: versions that took bare numbers stored them; people give units now."""
    value = {**KEPT, "kind": "thresholds", "thresholds": {metric: limit}}
    rule = parse_kept("r-1", value, 3).rule
    assert rule.thresholds == {metric: read}
    assert written(rule, None)["thresholds"] == {metric: as_written}
    assert with_limit_units(value)["thresholds"] == {metric: as_written}


@pytest.mark.parametrize("value", [None, {}, {"target": "etl"}, {"target": 5}, {"kind": "new"}])
def test_what_cannot_be_read_back_is_named(value: object) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        parse_kept("r-1", value, 3)
    assert "rule r-1" in str(rejected.value)


# --- advice ----------------------------------------------------------------------------------


def advice(raw: Mapping[str, Any], *others: Rule) -> list[str]:
    spec = parse(raw)
    return [a.code for a in advise(spec, others, known(spec.rule.database), W)]


def test_a_subset_of_metrics_is_a_partial_exemption() -> None:
    """R80"""
    spec = parse({"target": "etl", "kind": "metrics", "metrics": ["loadavg"]})
    (told,) = advise(spec, (), KNOWN, W)
    assert "partial exemption from lag, pool_usage" in told.message
    assert advice({"target": "etl", "kind": "metrics", "metrics": ["lag", "pool_usage"]}) == []


def test_a_laxer_threshold_says_nothing() -> None:
    limits = {"lag": "5s", "pool_usage": 0.5}
    spec = parse({"target": "etl", "kind": "thresholds", "thresholds": limits})
    (told,) = advise(spec, (), KNOWN, W)
    assert "5s says nothing: the threshold of lag is 5s already" in told.message


@pytest.mark.parametrize(
    ("other", "codes"),
    [
        (Rule("o", "etl", 0.9, W + 7200), ["shadowed"]),
        (Rule("o", "etl", 0.9, W + 60), []),
        (Rule("o", "etl", 0.9, W + 7200, windows=((W, W + 9),)), []),
        (Rule("o", "etl", 0.9, W + 7200, database="main"), []),
        (Rule("o", "etl", 0.1, W + 60), ["shadows"]),
        (Rule("o", "etl", 0.1, W + 60, database="main"), ["shadows"]),
        (Rule("o", "etl", 0.1, W + 7200), []),
        (Rule("o", "all", 0.9, W + 7200), []),
        (Rule("o", "etl", 0.9, W - 1), []),
        (Rule("o", "etl", kind=Kind.EXEMPT, expires_at=W + 60), ["shadows"]),
        (Rule("o", "etl", kind=Kind.THRESHOLDS, expires_at=W + 60), []),
    ],
)
def test_a_rule_that_never_applies_beside_another_is_reported(
    other: Rule, codes: list[str]
) -> None:
    assert advice(HALF, other) == codes


def test_a_rule_for_a_database_that_is_not_here_says_nothing_yet() -> None:
    assert advice({**HALF, "database": "elsewhere"}) == ["rule-elsewhere"]
