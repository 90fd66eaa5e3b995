"""Replicas that throttling does not help: skip them, so that they do not block their shard forever.

each rollup ─follow─► MemberCourse of every member far above its threshold ─skip_hopeless──► roll_up

A member is hopeless after it was above `hopeless_factor` times its threshold for
`hopeless_for_s`, while it alone kept the gate closed and its value did not fall. A replica that
lags because of the jobs recovers while they are throttled, so it never becomes hopeless. Time
counts only between two looks that both saw this. If anything else closes the gate, the count stops;
if the value falls, however slowly, it starts over. Never more than half of the replicas are
skipped, for any reason. A skipped one counts again with its first value that is not far above.

Pure. A new agent, or one that did not lead, knows nothing and starts over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.metrics.model import MetricSpec, RollupOf
from headgate.metrics.samples import Instant, Sample
from headgate.shard.rollup import (
    AGGREGATES,
    Aggregate,
    MemberReading,
    is_set_aside,
    roll_up,
    shard_spec,
    span,
    takes_part,
)
from headgate.shard.topology import Role

SLICES = 10
"""A fall is found by comparing the lowest values of two time slices. The jitter that a heartbeat
adds to each value neither hides a fall nor looks like one."""


@dataclass(frozen=True, slots=True)
class MemberCourse:
    """Of one member, since it came far above its threshold or last fell."""

    at: float
    """Time of the last look."""
    value: float
    alone: bool
    """Whether it alone kept the gate closed then."""
    high: float
    low: float
    """Lowest value of the current slice."""
    low_before: float = -math.inf
    """Lowest value of the slice before."""
    counted_s: float = 0.0
    skipped_at: float | None = None


Courses = Mapping[str, MemberCourse]
"""By member."""


def applies(spec: MetricSpec) -> bool:
    rollup = spec.rollup
    return rollup.of is RollupOf.REPLICAS and rollup.hopeless_for_s > 0 and spec.threshold > 0


def skip_hopeless(
    spec: MetricSpec, members: Sequence[MemberReading], courses: Courses, now: Instant
) -> list[MemberReading]:
    """The same members; those to skip say why. The first to be skipped go first where there are
    more than half."""
    skipped = {name: c for name, c in courses.items() if c.skipped_at is not None}
    if not skipped or not applies(spec):
        return list(members)
    room = _room(spec, members, now)
    by_age = sorted(
        (m for m in members if m.name in skipped), key=lambda m: _since(skipped[m.name])
    )
    chosen = [m.name for m in by_age if _may_be_skipped(m, spec, now)][: max(room, 0)]
    return [
        replace(m, hopeless=_words(spec, skipped[m.name], now)) if m.name in chosen else m
        for m in members
    ]


def follow(
    spec: MetricSpec,
    members: Sequence[MemberReading],
    courses: Courses,
    now: Instant,
    *,
    others_pass: bool,
    max_gap_s: float,
    aggregates: Mapping[str, Aggregate] = AGGREGATES,
) -> dict[str, MemberCourse]:
    """After one more look at all of them. `others_pass`: no other metric closes the gate;
    `max_gap_s`: what may count between two looks."""
    if not applies(spec):
        return {}
    marked = skip_hopeless(spec, members, courses, now)
    after: dict[str, MemberCourse] = {}
    for member in marked:
        course = courses.get(member.name)
        if not isinstance(member.reading, Sample):
            if course is not None:
                after[member.name] = replace(course, at=now.mono_s, alone=False)
            continue
        if member.role is not Role.REPLICA or not is_far_above(spec, member.reading.value):
            continue
        alone = others_pass and _alone(spec, marked, member, now, aggregates)
        after[member.name] = _step(
            course, member.reading.value, now.mono_s, alone, spec.rollup.hopeless_for_s, max_gap_s
        )
    return _with_newly_skipped(spec, members, marked, after, now)


def is_far_above(spec: MetricSpec, value: float) -> bool:
    return value > spec.rollup.hopeless_factor * spec.threshold


# --- one member --------------------------------------------------------------------------------


def _step(
    course: MemberCourse | None,
    value: float,
    at: float,
    alone: bool,
    for_s: float,
    max_gap_s: float,
) -> MemberCourse:
    start = MemberCourse(at, value, alone, high=value, low=value)
    if course is None:
        return start
    if course.skipped_at is not None:
        return replace(course, at=at, value=value, alone=alone)
    if value < course.low_before:
        return start
    passed_s = min(at - course.at, max_gap_s) if alone and course.alone else 0.0
    counted_s, slice_s = course.counted_s + passed_s, for_s / SLICES
    turns = counted_s // slice_s > course.counted_s // slice_s
    if turns and value < course.low:
        return start
    return replace(
        course,
        at=at,
        value=value,
        alone=alone,
        high=max(course.high, value),
        low=value if turns else min(course.low, value),
        low_before=course.low if turns else course.low_before,
        counted_s=counted_s,
    )


def _is_hopeless(spec: MetricSpec, course: MemberCourse) -> bool:
    """Only with a value as high as any: one that has begun to fall may be on its way back."""
    counted = course.alone and course.counted_s >= spec.rollup.hopeless_for_s
    return counted and course.value >= course.high


def _alone(
    spec: MetricSpec,
    members: Sequence[MemberReading],
    member: MemberReading,
    now: Instant,
    aggregates: Mapping[str, Aggregate],
) -> bool:
    """The shard is rejected with it, and would not be without it."""
    others = [other for other in members if other.name != member.name]
    judged = shard_spec(spec, collect_s=0.0)

    def breaches(these: Sequence[MemberReading]) -> bool | None:
        reading = roll_up(
            spec, these, now=now.mono_s, wall_s=now.wall_s, aggregates=aggregates
        ).reading
        return judged.breaches(reading.value) if isinstance(reading, Sample) else None

    return breaches(members) is True and breaches(others) is False


# --- how many ----------------------------------------------------------------------------------


def _with_newly_skipped(
    spec: MetricSpec,
    members: Sequence[MemberReading],
    marked: Sequence[MemberReading],
    courses: dict[str, MemberCourse],
    now: Instant,
) -> dict[str, MemberCourse]:
    room = _room(spec, members, now) - sum(member.hopeless is not None for member in marked)
    for name, course in courses.items():
        if room > 0 and course.skipped_at is None and _is_hopeless(spec, course):
            courses[name] = replace(course, skipped_at=now.mono_s)
            room -= 1
    return courses


def _room(spec: MetricSpec, members: Sequence[MemberReading], now: Instant) -> int:
    """How many may be skipped as hopeless, beside those that are left out anyway."""
    replicas = [m for m in members if m.role is Role.REPLICA and takes_part(m, spec.rollup)]
    left_out = sum(is_set_aside(m, spec, now.mono_s, now.wall_s) for m in replicas)
    return len(replicas) // 2 - left_out - spec.rollup.ignore_hosts


def _may_be_skipped(member: MemberReading, spec: MetricSpec, now: Instant) -> bool:
    if is_set_aside(member, spec, now.mono_s, now.wall_s) or member.role is not Role.REPLICA:
        return False
    reading = member.reading
    return not isinstance(reading, Sample) or is_far_above(spec, reading.value)


def _since(course: MemberCourse) -> float:
    return course.skipped_at if course.skipped_at is not None else math.inf


def _words(spec: MetricSpec, course: MemberCourse, now: Instant) -> str:
    unit = f" {spec.unit}" if spec.unit else ""
    limit = spec.rollup.hopeless_factor * spec.threshold
    return (
        f"hopeless, skipped {span(now.mono_s - _since(course))} ago: {course.value:.6g}{unit} did "
        f"not fall in {span(spec.rollup.hopeless_for_s)} during which it alone kept the gate "
        f"closed; it counts again at {limit:g}{unit} or less"
    )
