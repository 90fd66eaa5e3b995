"""A shard's value: whatever is missing, nothing becomes 0 and nobody is left out silently."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.names import Scope
from headgate.check.health import Window, stand
from headgate.metrics.model import Comparison, EmptyPolicy, MetricSpec, MissingPolicy, RollupOf
from headgate.metrics.samples import Absent, Cause, Reading, Sample
from headgate.shard.model import Skip
from headgate.shard.rollup import (
    AGGREGATES,
    COUNTING,
    ROLLUP_MEANINGS,
    Aggregate,
    MemberReading,
    Rolled,
    roll_up,
    shard_spec,
)
from headgate.shard.topology import Role
from tests.builders import NOW, absent, metric, sample

MONO, WALL = NOW.mono_s, NOW.wall_s
REPLICA, PRIMARY = Role.REPLICA, Role.PRIMARY


def member(
    name: str,
    reading: Reading | float,
    *,
    role: Role | None = REPLICA,
    missing_for_s: float | None = None,
    joined_s_ago: float | None = None,
    skip: Skip | None = None,
    unheard: bool = False,
    **labels: str,
) -> MemberReading:
    return MemberReading(
        name,
        role,
        reading if isinstance(reading, Sample | Absent) else sample(reading),
        None if unheard else labels,
        None if missing_for_s is None else MONO - missing_for_s,
        None if joined_s_ago is None else MONO - joined_s_ago,
        skip,
    )


def skip(left_s: float, name: str = "db-b") -> Skip:
    return Skip("s", name, WALL + left_s, "ops", "restoring", WALL - 60)


def roll(
    *members: MemberReading, aggregates: Mapping[str, Aggregate] = AGGREGATES, **settings: Any
) -> Rolled:
    spec = metric("lag", **settings)
    return roll_up(spec, members, now=MONO, wall_s=WALL, aggregates=aggregates)


def value(rolled: Rolled) -> float:
    assert isinstance(rolled.reading, Sample), rolled.reading
    return rolled.reading.value


def missing(rolled: Rolled) -> Absent:
    assert isinstance(rolled.reading, Absent), rolled.reading
    return rolled.reading


def rejects(rolled: Rolled, **settings: Any) -> bool:
    spec = shard_spec(metric("lag", **settings), collect_s=0.25)
    return not stand(spec, Window().push(rolled.reading, keep=1), scope=Scope.SHARD).passes


# --- every kind ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"), [("max", 7.0), ("min", 1.0), ("sum", 10.0), ("mean", 10.0 / 3)]
)
def test_each_way_of_rolling_up(kind: str, expected: float) -> None:
    """R40"""
    rolled = roll(member("b", 1.0), member("c", 7.0), member("d", 2.0), rollup=kind)
    assert value(rolled) == pytest.approx(expected)
    assert rolled.counted == ("b", "c", "d") and rolled.skipped == ()


def test_every_kind_is_described() -> None:
    assert set(ROLLUP_MEANINGS) == {*AGGREGATES, *COUNTING}


def test_the_worst_replica_is_named() -> None:
    """R10, R38: an operator is told whom to look at."""
    rolled = roll(member("b", 1.0), member("c", 7.0))
    assert isinstance(rolled.reading, Sample) and rolled.reading.detail.startswith("c, worst of 2")


def test_compounded_polling_staleness_the_oldest_reading_dates_the_shards() -> None:
    """R18"""
    rolled = roll(member("b", sample(9.0, age_s=0.1)), member("c", sample(1.0, age_s=0.9)))
    assert isinstance(rolled.reading, Sample)
    assert rolled.reading.taken_at == pytest.approx(MONO - 0.9)


def test_the_age_limit_of_the_shard_adds_up_over_both_ways_of_polling() -> None:
    """R18"""
    spec = metric("lag", max_age_s=2)
    assert shard_spec(spec, collect_s=0.25).max_age_s == 2.25


@pytest.mark.parametrize(
    ("values", "limit", "passes"),
    [((1, 1, 1), 0, True), ((9, 1, 1), 0, False), ((9, 1, 1), 1, True), ((9, 9, 1), 1, False)],
)
def test_a_number_of_members_may_be_unhealthy(
    values: tuple[float, ...], limit: int, passes: bool
) -> None:
    """R40"""
    settings: dict[str, Any] = {"rollup": "unhealthy", "rollup_limit": limit}
    rolled = roll(*(member(f"m{i}", v) for i, v in enumerate(values)), **settings)
    assert rejects(rolled, **settings) is not passes


@pytest.mark.parametrize(
    ("readings", "passes"),
    [
        ((1.0, 1.0, 1.0), True),
        ((1.0, 1.0, 9.0), True),
        ((1.0, 9.0, 9.0), False),
        ((1.0, 1.0, absent()), True),
        ((1.0, absent(), absent()), False),
        ((1.0, 9.0, absent()), False),
        ((absent(), absent(), absent()), False),
        ((1.0, 1.0), True),
        ((1.0,), False),
    ],
)
def test_a_quorum_of_two_of_three(readings: tuple[Reading | float, ...], passes: bool) -> None:
    """R40, R43: one that is missing is one that is not healthy."""
    settings: dict[str, Any] = {"rollup": "quorum", "quorum": 2}
    rolled = roll(*(member(f"m{i}", r) for i, r in enumerate(readings)), **settings)
    assert rejects(rolled, **settings) is not passes


def test_a_quorum_is_not_reached_by_skipping_the_sick() -> None:
    settings: dict[str, Any] = {"rollup": "quorum", "quorum": 2}
    rolled = roll(member("b", 1.0), member("c", 9.0, skip=skip(60)), **settings)
    assert value(rolled) == 1.0 and rejects(rolled, **settings)
    assert "c (skipped by ops" in rolled.reading.detail


def test_counting_says_who_is_unhealthy_and_what_the_number_means() -> None:
    settings: dict[str, Any] = {"rollup": "unhealthy"}
    rolled = roll(member("b", 9.0), member("c", absent()), member("d", 1.0), **settings)
    assert value(rolled) == 2.0
    assert "2 of 3 unhealthy: b, c" in rolled.reading.detail
    assert shard_spec(metric("lag", **settings), collect_s=0).unit == "unhealthy members"


def test_the_boundary_of_a_member_is_the_metrics_own() -> None:
    """R5"""
    spec = metric("pool_usage", rollup="unhealthy")
    parts = [member("b", 1.0), member("c", 0.99)]
    rolled = roll_up(spec, parts, now=MONO, wall_s=WALL)
    assert value(rolled) == 1.0


# --- nothing missing is ever 0 -----------------------------------------------------------------


def test_misleading_zero_lag_of_an_empty_shard() -> None:
    """R43"""
    rolled = roll()
    assert missing(rolled).cause is Cause.EMPTY_SHARD
    assert "no replica" in missing(rolled).detail
    assert not rolled.excused and rejects(rolled)


def test_a_shard_of_one_primary_has_no_replica_lag() -> None:
    """R43"""
    rolled = roll(member("a", 0.0, role=PRIMARY))
    assert missing(rolled).cause is Cause.EMPTY_SHARD
    assert roll(member("a", 0.0, role=PRIMARY), empty="admit").excused


def test_all_replicas_unreachable() -> None:
    """R42, R43"""
    gone = absent(Cause.UNREACHABLE, "no route")
    rolled = roll(member("b", gone, missing_for_s=5), member("c", gone, missing_for_s=5))
    assert missing(rolled).cause is Cause.UNREACHABLE
    assert "b: no route" in missing(rolled).detail and "c: no route" in missing(rolled).detail


def test_all_replicas_gone_for_long_is_an_empty_shard_that_rejects() -> None:
    """R43: skipping the last one leaves nobody, not 0."""
    gone = absent(Cause.UNREACHABLE, "no route")
    rolled = roll(member("b", gone, missing_for_s=3600), member("c", gone, missing_for_s=3600))
    assert missing(rolled).cause is Cause.EMPTY_SHARD
    assert [skipped.member for skipped in rolled.skipped] == ["b", "c"]
    assert "b: missing for 60 min" in missing(rolled).detail
    assert not rolled.excused and rejects(rolled)


@pytest.mark.parametrize("cause", list(Cause))
def test_one_missing_member_rejects_whatever_the_cause(cause: Cause) -> None:
    """R42, R151: by default, and although the others are fine."""
    rolled = roll(member("b", 0.0), member("c", absent(cause, "why"), missing_for_s=1))
    assert missing(rolled).cause is cause and "c: why" in missing(rolled).detail
    assert rejects(rolled)


@pytest.mark.parametrize("cause", list(Cause))
def test_no_missing_member_is_healthy_by_the_metrics_own_policy(cause: Cause) -> None:
    rolled = roll(member("b", absent(cause)))
    assert not rolled.excused and isinstance(rolled.reading, Absent)


@pytest.mark.parametrize(("for_s", "skipped"), [(599.999, False), (600.0, True), (7200.0, True)])
def test_a_missing_member_rejects_its_shard_for_a_bounded_time(for_s: float, skipped: bool) -> None:
    """R42, R150: missing_for_s, to the boundary."""
    rolled = roll(member("b", 1.0), member("c", absent(), missing_for_s=for_s))
    assert isinstance(rolled.reading, Sample) is skipped
    assert [a.member for a in rolled.skipped] == (["c"] if skipped else [])


def test_a_missing_member_may_be_ignored_at_once_and_is_reported() -> None:
    rolled = roll(member("b", 1.0), member("c", absent(detail="gone")), missing="ignore")
    assert value(rolled) == 1.0
    assert "skipped: c (missing, which is ignored here: gone)" in rolled.reading.detail


def test_a_missing_member_does_not_hide_who_is_skipped() -> None:
    """R150: all visible in each answer, in a rejection as well."""
    rolled = roll(member("b", 1.0, skip=skip(60)), member("c", absent(detail="gone")))
    assert "c: gone" in missing(rolled).detail
    assert "b (skipped by ops" in missing(rolled).detail


def test_a_role_that_nobody_knows_counts_as_a_replicas() -> None:
    """Leaving it out would be guessing."""
    rolled = roll(member("b", 1.0), member("c", absent(Cause.NEVER_READ), role=None))
    assert missing(rolled).cause is Cause.NEVER_READ


def test_a_metric_that_a_member_cannot_have_does_not_delay_the_others() -> None:
    no_psi = absent(Cause.UNSUPPORTED, "no /proc/pressure")
    spec = metric("psi_io")
    parts = [member("b", 0.1), member("c", no_psi, missing_for_s=1)]
    rolled = roll_up(spec, parts, now=MONO, wall_s=WALL)
    assert value(rolled) == 0.1
    assert rolled.skipped[0].member == "c" and "no /proc/pressure" in rolled.skipped[0].why


def test_lag_that_a_replica_cannot_measure_is_not_no_lag() -> None:
    rolled = roll(member("b", 0.1), member("c", absent(Cause.UNSUPPORTED), missing_for_s=1))
    assert missing(rolled).cause is Cause.UNSUPPORTED


# --- whom it is made of --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "expected"), [("replicas", ("b", "c")), ("all", ("a", "b", "c")), ("primary", ("a",))]
)
def test_whose_values_count(of: str, expected: tuple[str, ...]) -> None:
    rolled = roll(member("a", 1.0, role=PRIMARY), member("b", 1.0), member("c", 1.0), rollup_of=of)
    assert rolled.counted == expected


def test_labels_choose_members() -> None:
    """R150"""
    parts = [member("b", 9.0, region="us"), member("c", 1.0, region="eu", tier="1")]
    assert value(roll(*parts, rollup_labels={"region": "eu"})) == 1.0
    assert value(roll(*parts)) == 9.0
    nobody = roll(*parts, rollup_labels={"region": "eu", "tier": "2"})
    assert missing(nobody).cause is Cause.EMPTY_SHARD
    assert "with these labels" in missing(nobody).detail


def test_labels_that_nobody_has_reported_yet_may_be_the_ones() -> None:
    """R42: one that was never seen is missing, not left out."""
    parts = [member("b", 1.0, region="eu"), member("c", absent(Cause.NEVER_READ), unheard=True)]
    rolled = roll(*parts, rollup_labels={"region": "eu"})
    assert missing(rolled).cause is Cause.NEVER_READ


# --- skipped, visibly and for a bounded time --------------------------------------------------


def test_a_skip_ends_by_the_readers_clock_without_a_sweeper() -> None:
    """R150"""
    held = roll(member("b", 9.0, skip=skip(0.001)), member("c", 1.0))
    assert value(held) == 1.0
    assert held.skipped[0].why.startswith("skipped by ops") and "restoring" in held.skipped[0].why
    ended = roll(member("b", 9.0, skip=skip(0.0)), member("c", 1.0))
    assert value(ended) == 9.0 and ended.skipped == ()


def test_skipping_everybody_does_not_open_the_gate() -> None:
    rolled = roll(member("b", 1.0, skip=skip(60)))
    assert missing(rolled).cause is Cause.EMPTY_SHARD and not rolled.excused
    assert "b: skipped by ops" in missing(rolled).detail


def test_a_restored_replica_92886_s_behind_does_not_block_its_shard() -> None:
    """R150: by grace, by ignore-N, by a skip; never silently."""
    restored: dict[str, Any] = {"joined_s_ago": 60}
    by_grace = roll(member("b", 92_886, **restored), member("c", 1.0), grace_s=3600)
    by_number = roll(member("b", 92_886), member("c", 1.0), ignore_hosts=1, ignore_above=10)
    by_skip = roll(member("b", 92_886, skip=skip(60)), member("c", 1.0))
    for rolled in (by_grace, by_number, by_skip):
        assert value(rolled) == 1.0
        assert [skipped.member for skipped in rolled.skipped] == ["b"]
        assert "skipped: b" in rolled.reading.detail
    assert value(roll(member("b", 92_886, **restored), member("c", 1.0))) == 92_886


@pytest.mark.parametrize(("ago_s", "counts"), [(299.9, False), (300.0, True), (301.0, True)])
def test_a_grace_ends(ago_s: float, counts: bool) -> None:
    rolled = roll(member("b", 900.0, joined_s_ago=ago_s), member("c", 1.0), grace_s=300)
    assert (value(rolled) == 900.0) is counts


def test_a_grace_covers_unavailability_and_breach_and_nothing_else() -> None:
    healthy = roll(member("b", 2.0, joined_s_ago=1), member("c", 1.0), grace_s=300)
    assert value(healthy) == 2.0 and healthy.skipped == ()
    absence = roll(member("b", absent(), joined_s_ago=1), member("c", 1.0), grace_s=300)
    assert value(absence) == 1.0
    long_here = roll(member("b", 9.0), member("c", 1.0), grace_s=300)
    assert value(long_here) == 9.0


@pytest.mark.parametrize("ignored", [1, 2, 3, 256])
def test_ignoring_the_worst_never_drops_the_last(ignored: int) -> None:
    """R42"""
    assert value(roll(member("b", 9.0), ignore_hosts=ignored)) == 9.0
    two = roll(member("b", 9.0), member("c", 8.0), ignore_hosts=ignored)
    assert value(two) == 8.0 and two.counted == ("c",)


def test_only_members_far_off_are_ignored() -> None:
    """R42: freno's IgnoreHostsThreshold."""
    settings: dict[str, Any] = {"ignore_hosts": 2, "ignore_above": 100}
    rolled = roll(member("b", 5000), member("c", 60.0), member("d", 1.0), **settings)
    assert value(rolled) == 60.0 and rolled.counted == ("c", "d")
    at_it = roll(member("b", 100.0), member("c", 1.0), **settings)
    assert value(at_it) == 100.0


def test_ignore_n_does_not_excuse_the_missing() -> None:
    rolled = roll(member("b", absent()), member("c", 1.0), ignore_hosts=1)
    assert isinstance(rolled.reading, Absent)


# --- plug-ins ------------------------------------------------------------------------------


def predicate(answer: bool) -> dict[str, Aggregate]:
    return {**AGGREGATES, "spread": lambda values: answer}


@pytest.mark.parametrize("threshold", [1e-9, 1.0, 5.0, 1e9, 1e14])
def test_a_predicate_rejects_by_any_threshold(threshold: float) -> None:
    """R40: topology health is a predicate."""
    settings: dict[str, Any] = {"rollup": "spread", "threshold": threshold}
    sick = roll(member("b", 1.0), aggregates=predicate(False), **settings)
    fine = roll(member("b", 1.0), aggregates=predicate(True), **settings)
    assert rejects(sick, **settings) and not rejects(fine, **settings)


def test_a_plug_in_sees_members_by_name() -> None:
    seen: list[dict[str, float]] = []

    def note(values: Mapping[str, float]) -> float:
        seen.append(dict(values))
        return 3.0

    rolled = roll(member("b", 1.0), member("c", 2.0), rollup="own", aggregates={"own": note})
    assert value(rolled) == 3.0 and seen == [{"b": 1.0, "c": 2.0}]


def broken(values: Mapping[str, float]) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "plugin", [lambda values: math.nan, lambda values: -1.0, lambda values: math.inf]
)
def test_a_plug_in_that_answers_no_number_is_not_healthy(plugin: Aggregate) -> None:
    """R9, R151: NaN compares as healthy with anything."""
    rolled = roll(member("b", 1.0), rollup="own", aggregates={"own": plugin})
    assert missing(rolled).cause is Cause.INVALID and rejects(rolled)


def test_a_plug_in_that_raises_makes_the_metric_unavailable() -> None:
    """The rollup is total: one broken plug-in must not stop the other metrics."""
    rolled = roll(member("b", 1.0), rollup="own", aggregates={"own": broken})
    assert isinstance(rolled.reading, Absent) and not rolled.excused


def test_a_plug_in_that_is_not_installed_makes_the_metric_unavailable() -> None:
    """A runtime change may name one that this agent does not have."""
    rolled = roll(member("b", 1.0), rollup="not_installed")
    assert isinstance(rolled.reading, Absent) and "not_installed" in rolled.reading.detail


# --- whatever is absent ---------------------------------------------------------------------


def _labels(eu: bool) -> dict[str, Any]:
    return {"region": "eu"} if eu else {}


names = st.sampled_from(["b", "c", "d", "e"])
readings = st.one_of(
    st.builds(sample, st.floats(0, 1e6), age_s=st.floats(0, 100)),
    st.builds(absent, st.sampled_from(list(Cause))),
)
members = st.builds(
    lambda name, reading, role, missing_s, joined_s, left_s, eu: member(
        name,
        reading,
        role=role,
        missing_for_s=missing_s if isinstance(reading, Absent) else None,
        joined_s_ago=joined_s,
        skip=None if left_s is None else skip(left_s, name),
        **_labels(eu),
    ),
    names,
    readings,
    st.sampled_from([REPLICA, PRIMARY, None]),
    st.floats(0, 2000),
    st.none() | st.floats(0, 2000),
    st.none() | st.floats(-10, 10),
    st.booleans(),
)
policies = st.fixed_dictionaries(
    {
        "rollup": st.sampled_from(["max", "min", "sum", "mean", "unhealthy", "quorum"]),
        "rollup_of": st.sampled_from([of.value for of in RollupOf]),
        "missing": st.sampled_from([policy.value for policy in MissingPolicy]),
        "empty": st.sampled_from([policy.value for policy in EmptyPolicy]),
        "missing_for_s": st.floats(0, 1000),
        "grace_s": st.floats(0, 1000),
        "ignore_hosts": st.integers(0, 4),
        "rollup_labels": st.sampled_from([{}, {"region": "eu"}]),
        "comparison": st.sampled_from([comparison.value for comparison in Comparison]),
    }
)


def spec_of(policy: dict[str, Any]) -> MetricSpec:
    if policy["rollup"] in COUNTING:
        policy = {**policy, "ignore_hosts": 0}
    if policy["rollup"] == "quorum":
        policy = {**policy, "quorum": 2}
    return metric("lag", **policy)


def whole(check: Callable[..., None]) -> Any:
    given_parts = st.lists(members, max_size=4, unique_by=lambda part: part.name)
    return given(parts=given_parts, policy=policies)(check)


@whole
def test_nothing_missing_ever_reads_as_less(
    parts: list[MemberReading], policy: dict[str, Any]
) -> None:
    """R43, R151: a value is made of values, is not below all of them, and is as old as they."""
    rolled = roll_up(spec_of(policy), parts, now=MONO, wall_s=WALL)
    if policy["rollup"] in COUNTING:
        assert isinstance(rolled.reading, Sample) or not rolled.counted
        return
    counted = [part.reading for part in parts if part.name in rolled.counted]
    if isinstance(rolled.reading, Absent):
        assert not counted or any(isinstance(reading, Absent) for reading in counted)
        return
    samples = [reading for reading in counted if isinstance(reading, Sample)]
    assert samples and len(samples) == len(counted)
    assert rolled.reading.value >= min(s.value for s in samples) * (1 - 1e-12)
    assert rolled.reading.taken_at == min(s.taken_at for s in samples)


@whole
def test_nobody_is_left_out_silently(parts: list[MemberReading], policy: dict[str, Any]) -> None:
    """R42, R150: chosen by role and labels, a member counts or is named with the reason."""
    spec = spec_of(policy)
    rolled = roll_up(spec, parts, now=MONO, wall_s=WALL)
    skipped = {a.member: a.why for a in rolled.skipped}
    assert not skipped.keys() & set(rolled.counted)
    for part in parts:
        left_out = (
            (spec.rollup.of is RollupOf.REPLICAS and part.role is PRIMARY)
            or (spec.rollup.of is RollupOf.PRIMARY and part.role is not PRIMARY)
            or any((part.labels or {}).get(k) != v for k, v in spec.rollup.labels.items())
        )
        assert (part.name in skipped or part.name in rolled.counted) is not left_out
    for name, why in skipped.items():
        assert name in rolled.reading.detail and why in rolled.reading.detail


@whole
def test_a_counted_breach_is_never_healthy_and_unavailability_only_where_it_is_excused(
    parts: list[MemberReading], policy: dict[str, Any]
) -> None:
    """R2, R43"""
    spec = spec_of(policy)
    rolled = roll_up(spec, parts, now=MONO, wall_s=WALL)
    assert rolled.excused is (not rolled.counted and policy["empty"] == "admit")
    counted = [part.reading for part in parts if part.name in rolled.counted]
    sick = any(not isinstance(r, Sample) or spec.breaches(r.value) for r in counted)
    passes = isinstance(rolled.reading, Sample) and not shard_spec(spec, collect_s=0).breaches(
        rolled.reading.value
    )
    if policy["rollup"] in ("max", "unhealthy"):
        assert passes is (bool(counted) and not sick)
    if not counted:
        assert not passes
