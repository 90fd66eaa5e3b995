"""A shard's value of a metric, made from its members' values.

members' readings ──roll_up──► Rolled (one Reading, which members counted or were skipped, and why)

Pure and total. Each kind of missing value has a policy. A missing value never becomes 0, and no
member is left out silently: the result says which, why, and for how long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from headgate.base.names import Scope
from headgate.metrics.model import (
    Comparison,
    EmptyPolicy,
    MetricSpec,
    MissingPolicy,
    Rollup,
    RollupOf,
)
from headgate.metrics.samples import Absent, Cause, Instant, Reading, Sample
from headgate.shard.model import Skip
from headgate.shard.topology import Role

UNHEALTHY = "unhealthy"
QUORUM = "quorum"
COUNTING = (UNHEALTHY, QUORUM)
"""Compare each member with its threshold and count: a missing member counts as unhealthy."""

Aggregate = Callable[[Mapping[str, float]], float | bool]
"""Members' values by name → the shard's. A bool is a predicate: whether the shard is healthy."""


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


AGGREGATES: Mapping[str, Aggregate] = MappingProxyType(
    {
        "max": lambda values: max(values.values()),
        "min": lambda values: min(values.values()),
        "sum": lambda values: sum(values.values()),
        "mean": _mean,
    }
)
ROLLUP_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "max": "the highest value of any member",
        "min": "the lowest value of any member",
        "sum": "the sum over all members",
        "mean": "the mean over all members",
        UNHEALTHY: "how many members breach their threshold, or are missing; `rollup_limit` may be",
        QUORUM: "how many members are short of the `quorum` that must be healthy",
    }
)


@dataclass(frozen=True, slots=True)
class MemberReading:
    """One member's part."""

    name: str
    role: Role | None
    reading: Reading
    labels: Mapping[str, str] | None
    """None if unknown."""
    missing_since: float | None = None
    """Since when it has had no usable value; None while it has one."""
    joined_at: float | None = None
    """When it joined or came back, if that is what a grace should count from."""
    skip: Skip | None = None
    hopeless: str | None = None
    """Why it is skipped although it has a value, if it is."""


class SkipKind(Enum):
    """Why a member does not count, as a closed list: alerts go by it."""

    SKIPPED = "skipped"
    """By an operator."""
    MISSING = "missing"
    """Without a usable value for so long that the shard no longer waits for it."""
    HOPELESS = "hopeless"
    """Skipped by the agent, because throttling does not help it."""
    GRACE = "grace"
    """It has just joined."""
    UNSUPPORTED = "unsupported"
    """Its server does not have the metric."""
    IGNORED = "ignored"
    """Among the worst, which `ignore_hosts` leaves out."""


class SkippedMember(NamedTuple):
    member: str
    why: str
    kind: SkipKind


class Rolled(NamedTuple):
    reading: Reading
    excused: bool = False
    """Without a value, and the policy ignores that."""
    counted: tuple[str, ...] = ()
    skipped: tuple[SkippedMember, ...] = ()
    made_at: float = 0.0
    """When the deciding reading was taken: two rollups of one reading are equal."""


def shard_spec(spec: MetricSpec, *, collect_s: float) -> MetricSpec:
    """The shard's spec of the metric. Its age limit covers both polls: the probe and the pull."""
    rollup = spec.rollup
    aged = replace(spec, scope=Scope.SHARD, max_age_s=spec.max_age_s + collect_s)
    if rollup.by == UNHEALTHY:
        return _counting(aged, rollup.limit, "unhealthy members")
    if rollup.by == QUORUM:
        return _counting(aged, 0.0, f"short of a quorum of {rollup.quorum}")
    return aged


def _counting(spec: MetricSpec, threshold: float, unit: str) -> MetricSpec:
    return replace(spec, threshold=threshold, comparison=Comparison.ABOVE, unit=unit)


def roll_up(
    spec: MetricSpec,
    members: Sequence[MemberReading],
    *,
    now: float,
    wall_s: float,
    aggregates: Mapping[str, Aggregate] = AGGREGATES,
) -> Rolled:
    """`spec` is the metric's own, as the primary's agent has it."""
    rollup = spec.rollup
    chosen = [member for member in members if takes_part(member, rollup)]
    skipped = {m.name: one for m in chosen if (one := _skipping(m, spec, now, wall_s))}
    counted = [member for member in chosen if member.name not in skipped]
    told = tuple(skipped.values())
    if not counted:
        return _empty(rollup, chosen, told, now)
    if rollup.by in COUNTING:
        return _count(spec, counted, told, now)
    missing = [member for member in counted if isinstance(member.reading, Absent)]
    if missing:
        return Rolled(_missing(missing, told, now), counted=_names(counted), skipped=told)
    return _aggregate(spec, counted, told, aggregates, now)


# --- who takes part --------------------------------------------------------------------------


def takes_part(member: MemberReading, rollup: Rollup) -> bool:
    """One whose role or labels nobody knows may belong: leaving it out would be guessing."""
    if rollup.of is RollupOf.REPLICAS and member.role is Role.PRIMARY:
        return False
    if rollup.of is RollupOf.PRIMARY and member.role is not Role.PRIMARY:
        return False
    labels = member.labels
    return labels is None or all(labels.get(key) == word for key, word in rollup.labels.items())


def is_skipped(member: MemberReading, spec: MetricSpec, now: float, wall_s: float) -> bool:
    """For whatever reason but that it is hopeless."""
    return _skipping(replace(member, hopeless=None), spec, now, wall_s) is not None


def _skipping(
    member: MemberReading, spec: MetricSpec, now: float, wall_s: float
) -> SkippedMember | None:
    rollup, skip = spec.rollup, member.skip

    def skipped(kind: SkipKind, why: str) -> SkippedMember:
        return SkippedMember(member.name, why, kind)

    if skip is not None and (left_s := skip.left_s(Instant(now, wall_s))) > 0:
        why = f"skipped by {skip.who} for another {span(left_s)}: {skip.reason}"
        return skipped(SkipKind.SKIPPED, why)
    absent = isinstance(member.reading, Absent)
    if rollup.grace_s and member.joined_at is not None and (absent or _unhealthy(member, spec)):
        left_s = member.joined_at + rollup.grace_s - now
        if left_s > 0:
            why = f"joined {span(now - member.joined_at)} ago, {span(left_s)} of grace left"
            return skipped(SkipKind.GRACE, why)
    if member.hopeless is not None:
        return skipped(SkipKind.HOPELESS, member.hopeless)
    if not isinstance(member.reading, Absent):
        return None
    if member.reading.cause is Cause.UNSUPPORTED and rollup.of is RollupOf.ALL:
        return skipped(SkipKind.UNSUPPORTED, f"has no such metric: {member.reading.detail}")
    if rollup.missing is MissingPolicy.IGNORE:
        why = f"missing, which is ignored here: {member.reading.detail}"
        return skipped(SkipKind.MISSING, why)
    if member.missing_since is not None and now - member.missing_since >= rollup.missing_for_s:
        why = f"missing for {span(now - member.missing_since)}: {member.reading.detail}"
        return skipped(SkipKind.MISSING, why)
    return None


def _unhealthy(member: MemberReading, spec: MetricSpec) -> bool:
    return isinstance(member.reading, Absent) or spec.breaches(member.reading.value)


# --- what comes out --------------------------------------------------------------------------


def _empty(
    rollup: Rollup, chosen: Sequence[MemberReading], skipped: tuple[SkippedMember, ...], now: float
) -> Rolled:
    if skipped:
        told = "; ".join(f"{one.member}: {one.why}" for one in skipped)
        detail = f"every member is skipped ({told})"
    else:
        wanted = " with these labels" if rollup.labels else ""
        whom = {RollupOf.REPLICAS: "replica", RollupOf.ALL: "member", RollupOf.PRIMARY: "primary"}
        detail = f"the shard has no {whom[rollup.of]}{wanted}"
    absent = Absent(Cause.EMPTY_SHARD, detail, now)
    return Rolled(absent, excused=rollup.empty is EmptyPolicy.ADMIT, skipped=skipped)


def _missing(
    missing: Sequence[MemberReading], skipped: tuple[SkippedMember, ...], now: float
) -> Absent:
    """The first one's cause speaks; all of them are named."""
    first = missing[0].reading
    assert isinstance(first, Absent)
    told = "; ".join(
        f"{member.name}: {member.reading.detail}"
        for member in missing
        if isinstance(member.reading, Absent)
    )
    return Absent(first.cause, told + _skip_words(skipped), now)


def _aggregate(
    spec: MetricSpec,
    counted: Sequence[MemberReading],
    skipped: tuple[SkippedMember, ...],
    aggregates: Mapping[str, Aggregate],
    now: float,
) -> Rolled:
    samples = {m.name: m.reading for m in counted if isinstance(m.reading, Sample)}
    ignored = _worst_ignored(spec.rollup, samples)
    kept = {name: sample for name, sample in samples.items() if name not in ignored}
    skipped = (*skipped, *ignored.values())
    value = _made_of({name: sample.value for name, sample in kept.items()}, spec, aggregates)
    if isinstance(value, NoValue):
        absent = Absent(value.cause, value.why + _skip_words(skipped), now)
        return Rolled(absent, counted=tuple(kept), skipped=skipped)
    speaker, sample = max(kept.items(), key=lambda item: item[1].value)
    return Rolled(
        Sample(
            value,
            min(kept_sample.taken_at for kept_sample in kept.values()),
            sample.cause,
            _told(spec.rollup.by, speaker, sample.detail, len(kept), skipped),
        ),
        counted=tuple(kept),
        skipped=skipped,
        made_at=_made_at(spec.rollup.by, value, kept),
    )


def _made_at(by: str, value: float, kept: Mapping[str, Sample]) -> float:
    if by in ("max", "min"):
        return max(sample.taken_at for sample in kept.values() if sample.value == value)
    return max(sample.taken_at for sample in kept.values())


class NoValue(NamedTuple):
    cause: Cause
    why: str


def _made_of(
    values: Mapping[str, float], spec: MetricSpec, aggregates: Mapping[str, Aggregate]
) -> float | NoValue:
    """A number that can be compared, or why there is none: plug-ins are others' code."""
    by = spec.rollup.by
    if by not in aggregates:
        why = f"no plug-in {by!r} is installed in the group headgate.rollups"
        return NoValue(Cause.FAILED, why)
    try:
        value = aggregates[by](values)
    except Exception as error:
        return NoValue(Cause.FAILED, f"the rollup {by} raised {type(error).__name__}: {error}")
    if isinstance(value, bool):
        return 0.0 if value else 2 * spec.threshold
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        return NoValue(Cause.INVALID, f"the rollup {by} returned {value!r}, not a measurement")
    return float(value)


def _worst_ignored(rollup: Rollup, samples: Mapping[str, Sample]) -> dict[str, SkippedMember]:
    """Up to `ignore_hosts` of the worst, never the last one."""
    if not rollup.ignore_hosts:
        return {}
    worst = sorted(samples.items(), key=lambda item: item[1].value, reverse=True)
    most = min(rollup.ignore_hosts, len(worst) - 1)
    return {
        name: SkippedMember(
            name,
            f"among the worst {rollup.ignore_hosts}, which are ignored here",
            SkipKind.IGNORED,
        )
        for name, sample in worst[:most]
        if rollup.ignore_above is None or sample.value > rollup.ignore_above
    }


def _count(
    spec: MetricSpec,
    counted: Sequence[MemberReading],
    skipped: tuple[SkippedMember, ...],
    now: float,
) -> Rolled:
    unhealthy = [member for member in counted if _unhealthy(member, spec)]
    value = float(len(unhealthy))
    if spec.rollup.by == QUORUM:
        value = float(max(0, spec.rollup.quorum - (len(counted) - len(unhealthy))))
    taken = [m.reading.taken_at for m in counted if isinstance(m.reading, Sample)]
    named = ", ".join(member.name for member in unhealthy) or "none"
    detail = f"{len(unhealthy)} of {len(counted)} unhealthy: {named}{_skip_words(skipped)}"
    sample = Sample(value, min(taken, default=now), None, detail)
    made_at = max(taken, default=now)
    return Rolled(sample, counted=_names(counted), skipped=skipped, made_at=made_at)


def _told(by: str, speaker: str, said: str, count: int, skipped: tuple[SkippedMember, ...]) -> str:
    whose = {"max": f"{speaker}, worst of {count}", "min": f"least of {count}"}
    words = whose.get(by, f"{by} of {count}, {speaker} highest")
    return f"{words}{': ' + said if said else ''}{_skip_words(skipped)}"


def _skip_words(skipped: tuple[SkippedMember, ...]) -> str:
    if not skipped:
        return ""
    return "; skipped: " + "; ".join(f"{one.member} ({one.why})" for one in skipped)


def _names(members: Sequence[MemberReading]) -> tuple[str, ...]:
    return tuple(member.name for member in members)


def span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- hopeless ------------------------------------------------------------------------------------

# Replicas that throttling does not help: skip them, so that they do not block their shard forever.
#
# each rollup ─follow─► MemberCourse of members far above the threshold ─skip_hopeless─► roll_up
#
# A member is hopeless after it was above `hopeless_factor` times its threshold for
# `hopeless_for_s`, while it alone kept the gate closed and its value did not fall. A replica that
# lags because of the jobs recovers while they are throttled, so it never becomes hopeless. Time
# counts only between two looks that both saw this. If anything else closes the gate, the count
# stops; if the value falls, however slowly, it starts over. Never more than half of the replicas
# are skipped, for any reason. A skipped one counts again with its first value that is not far
# above.
#
# Pure. A new agent, or one that did not lead, knows nothing and starts over.

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
    left_out = sum(is_skipped(m, spec, now.mono_s, now.wall_s) for m in replicas)
    return len(replicas) // 2 - left_out - spec.rollup.ignore_hosts


def _may_be_skipped(member: MemberReading, spec: MetricSpec, now: Instant) -> bool:
    if is_skipped(member, spec, now.mono_s, now.wall_s) or member.role is not Role.REPLICA:
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
