"""B9: a replica that throttling does not help is skipped; one that lags by the jobs never is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Absent, Cause, Instant, Sample
from headgate.shard.model import Skip
from headgate.shard.rollup import (
    MemberCourse,
    MemberReading,
    Rolled,
    SkipKind,
    follow,
    roll_up,
    skip_hopeless,
)
from headgate.shard.topology import Role
from tests.builders import NOW, metric

Lag = Callable[[int], float | None]
"""Seconds since the beginning → its lag; None: it has no value."""
FINE: Lag = lambda s: 0.1  # noqa: E731 -- a column of the tables below
STUCK: Lag = lambda s: 92_886.0 + s  # noqa: E731


def const(lag: float) -> Lag:
    return lambda s: lag


STEP_S = 5
LATER_S = 1200


class World:
    """A shard whose lag is rolled up every 5 s: threshold 5 s, far above is more than 50 s."""

    def __init__(self, others_pass: Callable[[int], bool] = lambda s: True, **settings: Any):
        self.spec: MetricSpec = metric("lag", **{"threshold": 5, **settings})
        self.courses: dict[str, MemberCourse] = {}
        self.others_pass = others_pass
        self.skip: Mapping[str, Skip] = {}
        self.s = 0

    def pass_s(self, seconds: int, **lags: Lag) -> Rolled:
        rolled = self.look(**lags)
        for _ in range(0, seconds, STEP_S):
            self.s += STEP_S
            rolled = self.look(**lags)
        return rolled

    def look(self, **lags: Lag) -> Rolled:
        now = Instant(NOW.mono_s + self.s, NOW.wall_s + self.s)
        parts = [self.part(name, lag, now) for name, lag in lags.items()]
        self.courses = follow(
            self.spec,
            parts,
            self.courses,
            now,
            others_pass=self.others_pass(self.s),
            max_gap_s=2 * STEP_S,
        )
        marked = skip_hopeless(self.spec, parts, self.courses, now)
        return roll_up(self.spec, marked, now=now.mono_s, wall_s=now.wall_s)

    def part(self, name: str, lag: Lag, now: Instant) -> MemberReading:
        value = lag(self.s)
        absent = Absent(Cause.TIMED_OUT, "no answer", now.mono_s)
        reading = absent if value is None else Sample(value, now.mono_s)
        return MemberReading(name, Role.REPLICA, reading, {}, skip=self.skip.get(name))


def skipped(rolled: Rolled) -> list[str]:
    return [skipped.member for skipped in rolled.skipped if skipped.kind is SkipKind.HOPELESS]


# --- who is --------------------------------------------------------------------------------------


def test_a_hopeless_replica_delays_its_shard_for_ten_minutes_and_no_longer() -> None:
    world = World()
    before = world.pass_s(595, a=STUCK, b=FINE)
    assert not skipped(before) and before.reading.value > 5  # type: ignore[union-attr]
    after = world.pass_s(5, a=STUCK, b=FINE)
    assert skipped(after) == ["a"]
    assert isinstance(after.reading, Sample) and after.reading.value == 0.1
    [one] = after.skipped
    assert "hopeless" in one.why and "counts again at 50 s or less" in one.why
    assert one.why in after.reading.detail, "every answer says so"


def test_it_counts_again_as_soon_as_it_is_no_longer_far_above() -> None:
    world = World()
    assert skipped(world.pass_s(600, a=STUCK, b=FINE)) == ["a"]
    falling: Lag = lambda s: 93_000.0 - 100 * (s - 600)  # noqa: E731
    assert skipped(world.pass_s(900, a=falling, b=FINE)) == ["a"], "it is not back yet"
    rolled = world.look(a=lambda s: 50.0, b=FINE)
    assert not skipped(rolled) and isinstance(rolled.reading, Sample)
    assert rolled.reading.value == 50.0
    assert not skipped(world.pass_s(595, a=STUCK, b=FINE)), "it has to be shown anew"
    assert skipped(world.pass_s(5, a=STUCK, b=FINE)) == ["a"]


def saw(per_min: float, tooth: float = 1.0) -> Lag:
    """What a heartbeat adds to each value, on a lag that goes somewhere."""
    return lambda s: 1000.0 + per_min * s / 60 + tooth * (s * 7 % 11) / 11


HOPELESS: dict[str, Lag] = {
    "replay stands still": STUCK,
    "its lag is the same all the time": lambda s: 3600.0,
    "too slow for the primary's own work, by heartbeats": saw(30.0),
    "a long answer is missing now and then": lambda s: None if s % 300 == 100 else STUCK(s),
}


@pytest.mark.parametrize("lag", HOPELESS.values(), ids=HOPELESS)
def test_who_is_hopeless(lag: Lag) -> None:
    assert skipped(World().pass_s(LATER_S, a=lag, b=FINE)) == ["a"]


NOT: dict[str, Lag] = {
    "far, but not far enough": lambda s: 50.0,
    "it falls": lambda s: 5000.0 - 2 * s,
    "it falls slowly": lambda s: 92_886.0 - 0.01 * s,
    "it falls slowly, by heartbeats": saw(-1.0),
    "a job's backlog: it grows, then it falls": lambda s: 60.0 + (s if s < 560 else 1120 - s),
    "it grows, then it falls slowly": lambda s: 60.0 + (s if s < 580 else 580 - 0.01 * (s - 580)),
    "it was back in between": lambda s: 1.0 if s % 550 == 0 else STUCK(s),
    "nobody knows": lambda s: None,
}


@pytest.mark.parametrize("lag", NOT.values(), ids=NOT)
def test_who_is_not(lag: Lag) -> None:
    world = World()
    for _ in range(LATER_S // STEP_S):
        assert not skipped(world.pass_s(STEP_S, a=lag, b=FINE)), world.s


@settings(max_examples=25)
@given(
    lags=st.lists(st.floats(51, 1e6), min_size=30, max_size=90),
    falls_by=st.floats(0.001, 10.0),
)
def test_one_that_falls_within_each_minute_is_never_skipped(
    lags: list[float], falls_by: float
) -> None:
    """Whatever it does in between: each minute it reaches a value below all of the last."""
    world, low = World(), 2e6
    for start in range(0, len(lags), 6):
        for lag in lags[start : start + 6]:
            assert not skipped(world.pass_s(STEP_S, a=const(lag), b=FINE))
        low = min(low, *lags[start : start + 6]) - falls_by
        assert not skipped(world.pass_s(STEP_S, a=const(max(low, 0.0)), b=FINE))


# --- alone ---------------------------------------------------------------------------------------


def test_time_does_not_count_while_another_metric_closes_the_gate() -> None:
    world = World(others_pass=lambda s: not 300 <= s < 900)
    assert not skipped(world.pass_s(1195, a=STUCK, b=FINE))
    assert skipped(world.pass_s(20, a=STUCK, b=FINE)) == ["a"]
    always = World(others_pass=lambda s: False)
    assert not skipped(always.pass_s(LATER_S, a=STUCK, b=FINE))


def test_time_does_not_count_while_another_replica_closes_the_gate() -> None:
    world = World()
    assert not skipped(world.pass_s(LATER_S, a=STUCK, b=lambda s: 6.0, c=FINE))
    assert not skipped(world.pass_s(595, a=STUCK, b=FINE, c=FINE))
    assert not skipped(World().pass_s(LATER_S, a=STUCK, b=lambda s: None, c=FINE))


def test_two_that_stop_at_once_are_not_alone() -> None:
    world = World()
    lags = {"a": STUCK, "b": STUCK, "c": FINE, "d": FINE, "e": FINE}
    assert not skipped(world.pass_s(LATER_S, **lags))


# --- how many ------------------------------------------------------------------------------------


def test_the_only_replica_is_never_skipped() -> None:
    assert not skipped(World().pass_s(LATER_S, a=STUCK))


def test_of_three_one_at_most() -> None:
    world = World()
    assert skipped(world.pass_s(600, a=STUCK, b=FINE, c=FINE)) == ["a"]
    rolled = world.pass_s(LATER_S, a=STUCK, b=STUCK, c=FINE)
    assert skipped(rolled) == ["a"]
    assert isinstance(rolled.reading, Sample) and rolled.reading.value > 50


def test_of_four_two_one_after_the_other() -> None:
    world = World()
    lags: dict[str, Lag] = {"a": STUCK, "b": FINE, "c": FINE, "d": FINE}
    assert skipped(world.pass_s(600, **lags)) == ["a"]
    assert skipped(world.pass_s(600, **{**lags, "b": STUCK})) == ["a", "b"]
    rolled = world.pass_s(LATER_S, **{**lags, "b": STUCK, "c": STUCK})
    assert skipped(rolled) == ["a", "b"]


def test_those_that_are_left_out_anyway_count_towards_the_half() -> None:
    world = World()
    world.skip = {"b": Skip("s", "b", NOW.wall_s + 1e6, "ops", "rebuild", NOW.wall_s)}
    assert not skipped(world.pass_s(LATER_S, a=STUCK, b=FINE, c=FINE))
    world.skip = {}
    assert skipped(world.pass_s(600, a=STUCK, b=FINE, c=FINE)) == ["a"]
    world.skip = {"b": Skip("s", "b", NOW.wall_s + 1e6, "ops", "rebuild", NOW.wall_s)}
    assert not skipped(world.look(a=STUCK, b=FINE, c=FINE)), "nor after the fact"


def test_one_that_leaves_makes_the_half_smaller() -> None:
    world = World()
    assert skipped(world.pass_s(600, a=STUCK, b=FINE)) == ["a"]
    assert not skipped(world.look(a=STUCK))


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(1, 12)), max_size=12
    )
)
def test_never_more_than_half(phases: list[tuple[list[bool], int]]) -> None:
    world, names = World(hopeless_for_s=30), "abcde"
    for stuck, steps in phases:
        lags = {n: STUCK if is_stuck else FINE for n, is_stuck in zip(names, stuck, strict=True)}
        assert len(skipped(world.pass_s(steps * STEP_S, **lags))) <= 2


# --- settings and restarts -----------------------------------------------------------------------


def test_it_can_be_switched_off() -> None:
    assert not skipped(World(hopeless_for_s=0).pass_s(LATER_S, a=STUCK, b=FINE))


def test_how_far_and_how_long_are_settings() -> None:
    lag: Lag = lambda s: 12.0  # noqa: E731
    short: dict[str, Any] = {"hopeless_factor": 2, "hopeless_for_s": 60}
    assert skipped(World(**short).pass_s(60, a=lag, b=FINE)) == ["a"]
    assert not skipped(World(**short).pass_s(55, a=lag, b=FINE))


def test_a_metric_of_all_members_knows_no_hopeless_replica() -> None:
    assert not skipped(World(rollup_of="all").pass_s(LATER_S, a=STUCK, b=FINE))


def test_after_a_restart_it_has_to_be_shown_again() -> None:
    world = World()
    assert skipped(world.pass_s(600, a=STUCK, b=FINE)) == ["a"]
    again = World()
    again.s = world.s
    assert not skipped(again.pass_s(595, a=STUCK, b=FINE))


def test_a_time_without_looks_counts_for_little() -> None:
    """A process that was frozen has seen nothing meanwhile."""
    world = World()
    world.pass_s(STEP_S, a=STUCK, b=FINE)
    world.s += 10_000
    assert not skipped(world.look(a=STUCK, b=FINE))


def test_a_skipped_one_that_cannot_be_read_stays_skipped() -> None:
    """It has not caught up; an answer that is missing does not stop the shard again."""
    world = World()
    assert skipped(world.pass_s(600, a=STUCK, b=FINE)) == ["a"]
    assert skipped(world.pass_s(60, a=lambda s: None, b=FINE)) == ["a"]
    assert not skipped(world.look(a=FINE, b=FINE))


def test_a_primary_that_was_a_replica_is_not_skipped() -> None:
    world = World()
    world.pass_s(600, a=STUCK, b=FINE)
    now = Instant(NOW.mono_s + world.s, NOW.wall_s + world.s)
    parts = [replace(world.part("a", STUCK, now), role=None), world.part("b", FINE, now)]
    assert [m.hopeless for m in skip_hopeless(world.spec, parts, world.courses, now)] == [None] * 2
