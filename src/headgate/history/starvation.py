"""Which clients are starved, since when, and why.

    DatabaseCourses ──`judge`──► StarvationFinding ──► Starved

A client is starved if metrics have rejected it without a break for longer than the window, while
the metric stayed above its threshold, or while others passed it so often that bad luck explains
nothing. Where a metric hovers at its threshold all clients are rejected often and admitted often:
none is starved there, however many there are. Pure: the same scene gives the same findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headgate.base.names import is_crowd, levels_of
from headgate.history.effects import Effect
from headgate.history.starvation_courses import (
    Course,
    DatabaseCourses,
    Meanwhile,
    MetricGate,
    Reason,
    StarvationTerms,
    StarvedStretch,
    Subject,
    meanwhile,
)

MAX_BLAMED = 5
MAX_MEMBERS = 20
MAX_STARVED = 100
OPEN_PART = 0.25
NO_GATE = MetricGate()
LOOK = "headgate clients"
"""If there is no client that a rule could name."""


class Culprit(Enum):
    """The likely cause."""

    EXEMPT_CLIENT = "exempt_client"
    DIFFERENTIAL_METRICS = "differential_metrics"
    ADMITTED_WORK = "admitted_work"
    UNEXPLAINED_LOAD = "unexplained_load"


CULPRIT_MEANINGS: dict[Culprit, str] = {
    Culprit.EXEMPT_CLIENT: "an exempt client goes on while this metric rejects the others",
    Culprit.DIFFERENTIAL_METRICS: "other clients go on because fewer metrics or laxer thresholds "
    "apply to them",
    Culprit.ADMITTED_WORK: "other clients, with the same metrics, are admitted and keep it high",
    Culprit.UNEXPLAINED_LOAD: "the metric stays high, and the work of no client visibly moves it: "
    "rogue clients, or one long job",
}


@dataclass(frozen=True, slots=True)
class Starved:
    """One starved client or level, with the evidence: as the API, alerts and views have it."""

    database: str
    client: str
    """A client, or a level where all its running clients are starved."""
    is_level: bool
    members: tuple[str, ...]
    """The running clients of the level; of a client, its own name. At most 20."""
    metric: str
    """The metric that rejected it most."""
    cause: Culprit
    """The likely cause."""
    why: str
    """The cause as a sentence."""
    starved_s: float
    """How long it has been starved without a break."""
    runtime_s: float
    """How long it has been running, breaks included."""
    share: float
    """Starved share as a share of its runtime."""
    alarming: bool
    """The share is above the waterline."""
    rejections: int
    """Checks that metrics rejected meanwhile."""
    breached_share: float
    """Share of that time in which the metric was above its threshold."""
    mean_utilization: float
    """The metric's mean value as a share of its threshold."""
    dice_s: float
    """Time rejected by a ratio rule, which is no starvation."""
    blamed: tuple[str, ...] = ()
    """Clients that are admitted meanwhile and whose work moves the metric, the strongest first."""
    effect: float | None = None
    """What one admitted check of the first of them adds to the metric, as a share of its
    threshold; null if no client is blamed."""
    effect_error: float | None = None
    """Standard error of `effect`."""
    rule: str = ""
    """The exemption, or the stricter threshold, behind it."""
    proposal: str = ""
    """A command to look at. The agent does not run it."""


class StarvationFinding(NamedTuple):
    """What `judge` knows of a stretch besides."""

    starved: Starved
    since_s: float
    """Monotonic: when its stretch began."""


def judge(scene: DatabaseCourses, policy: StarvationTerms) -> tuple[StarvationFinding, ...]:
    """Longest first. Clients that are starved together with their whole level are one finding."""
    suspects = [c for c in scene.courses.values() if _is_starved(c, scene, policy)]
    chosen = _merged(suspects, scene, policy)
    found = [_finding(course, members, scene, policy) for course, members in chosen]
    found.sort(key=lambda one: (-one.starved.starved_s, one.starved.client))
    return tuple(found[:MAX_STARVED])


def lasts(finding: StarvationFinding, scene: DatabaseCourses, policy: StarvationTerms) -> bool:
    """Whether its stretch goes on, be it as evident as it was or not: a client that swings around
    a limit is one finding."""
    course = scene.courses.get(Subject(finding.starved.client, finding.starved.is_level))
    stretch = course.stretch if course is not None else None
    if stretch is None or stretch.since_s != finding.since_s:
        return False
    return scene.now_s - stretch.last_s <= policy.idle_s


# --- is it? --------------------------------------------------------------------------------


def _is_starved(course: Course, scene: DatabaseCourses, policy: StarvationTerms) -> bool:
    stretch, now_s = course.stretch, scene.now_s
    if stretch is None or now_s - stretch.last_s > policy.idle_s:
        return False
    if now_s - stretch.since_s < policy.window_s or stretch.tries < policy.min_tries:
        return False
    gate = scene.gates.get(stretch.metric, NO_GATE)
    past = meanwhile(stretch.gates.get(stretch.metric, NO_GATE), gate)
    if past is None:
        return False  # Nothing is known of the metric: that it is unavailable is shown elsewhere.
    return _pinned(past, gate, policy) or _luck(past, stretch) <= policy.max_luck


def _pinned(past: Meanwhile, gate: MetricGate, policy: StarvationTerms) -> bool:
    """Above its threshold all the while, for longer than is usual, and not on its way down."""
    if past.breached_share < policy.pinned_share:
        return False
    recovers = gate.healthy_in_s() <= policy.patience_s
    return not recovers and past.seconds >= policy.spells * gate.usual_closed_s


def _luck(past: Meanwhile, stretch: StarvedStretch) -> float:
    """How likely a client with the same metrics is to be rejected at each of its checks.

    A tick in which a client passed may have been open for a part of it only.
    """
    return float((1.0 - OPEN_PART * past.open_share) ** stretch.tries)


# --- which to name --------------------------------------------------------------------------

Named = tuple[Course, tuple[str, ...]]


def _merged(
    suspects: Sequence[Course], scene: DatabaseCourses, policy: StarvationTerms
) -> list[Named]:
    running = [course.subject.name for course in scene.running(policy)]
    # A client without a name of its own is named by its level.
    subjects = [course.subject for course in suspects]
    alone = {one.name for one in subjects if not is_crowd(one.name) and not one.is_level}
    chosen: list[Named] = []
    covered: set[str] = set()
    for level, members in _levels(suspects, running):
        if (len(members) == 1 and members[0] in alone) or (members and covered >= set(members)):
            continue
        chosen.append((level, members))
        covered.update(members)
    singles = [c for c in suspects if not c.subject.is_level and c.subject.name not in covered]
    return chosen + [(course, (course.subject.name,)) for course in singles]


def _levels(suspects: Iterable[Course], running: Sequence[str]) -> list[Named]:
    """The widest first."""
    found = [
        (course, tuple(c for c in running if course.subject.name in levels_of(c)))
        for course in suspects
        if course.subject.is_level
    ]
    return sorted(found, key=lambda item: (-len(item[1]), item[0].subject.name))


# --- why -----------------------------------------------------------------------------------


class Blame(NamedTuple):
    culprit: Culprit
    clients: tuple[str, ...] = ()
    rule: str = ""
    proposal: str = ""


class Mover(NamedTuple):
    """A client whose work visibly moves the metric."""

    course: Course
    effect: Effect

    @property
    def share(self) -> float:
        """All that it has done to the metric."""
        return self.effect.size * (self.course.admitted + self.course.exempted)


def _movers(metric: str, courses: Iterable[Course], scene: DatabaseCourses) -> list[Course]:
    """Those of them whose effect on the metric is distinguishable from zero, strongest first.
    Nobody else is blamed: without them the metric would be as high."""
    found = [
        Mover(course, effect)
        for course in courses
        if (effect := scene.effects.effect_of(course.subject.name, metric)) and effect.is_clear
    ]
    found.sort(key=lambda mover: (-mover.share, mover.course.subject.name))
    return [mover.course for mover in found]


def _finding(
    course: Course, members: tuple[str, ...], scene: DatabaseCourses, policy: StarvationTerms
) -> StarvationFinding:
    stretch = course.stretch
    assert stretch is not None
    gate = scene.gates.get(stretch.metric, NO_GATE)
    past = meanwhile(stretch.gates.get(stretch.metric, NO_GATE), gate)
    assert past is not None
    starved_s = scene.now_s - stretch.since_s
    runtime_s = max(course.runtime_s, starved_s)
    share = min(1.0, (course.starved_s + starved_s) / runtime_s)
    blame = _blame(stretch, members, scene, policy)
    first = blame.clients[0] if blame.clients else ""
    effect = scene.effects.effect_of(first, stretch.metric)
    starved = Starved(
        database=scene.database,
        client=course.subject.name,
        is_level=course.subject.is_level,
        members=members[:MAX_MEMBERS],
        metric=stretch.metric,
        cause=blame.culprit,
        why=CULPRIT_MEANINGS[blame.culprit],
        starved_s=starved_s,
        runtime_s=runtime_s,
        share=share,
        alarming=share > policy.waterline,
        rejections=sum(stretch.rejected.values()),
        breached_share=past.breached_share,
        mean_utilization=past.mean,
        dice_s=course.rejected_s.get(Reason.DICE, 0.0),
        blamed=blame.clients,
        effect=effect.size if effect else None,
        effect_error=effect.error if effect else None,
        rule=blame.rule,
        proposal=blame.proposal,
    )
    return StarvationFinding(starved, stretch.since_s)


def _blame(
    stretch: StarvedStretch,
    members: tuple[str, ...],
    scene: DatabaseCourses,
    policy: StarvationTerms,
) -> Blame:
    lately_s = scene.now_s - policy.settle_s
    running = [c for c in scene.running(policy) if c.subject.name not in members]
    others = _movers(stretch.metric, running, scene)
    return (
        _exempt(others, lately_s)
        or _stricter(stretch.metric, members, running, others, scene, lately_s)
        or _differential(stretch.metric, members, others, scene, lately_s)
        or _admitted(stretch, members, others, scene, lately_s)
        or Blame(Culprit.UNEXPLAINED_LOAD, proposal="headgate clients --rogue")
    )


def _exempt(others: Sequence[Course], lately_s: float) -> Blame | None:
    active = [c for c in others if c.exempted_s >= lately_s]
    if not active:
        return None
    rule = active[0].exempt_by
    return Blame(Culprit.EXEMPT_CLIENT, _names(active), rule, f"headgate rule lift {rule}")


def _stricter(
    metric: str,
    members: tuple[str, ...],
    running: Sequence[Course],
    others: Sequence[Course],
    scene: DatabaseCourses,
    lately_s: float,
) -> Blame | None:
    """A threshold of its own rejects it where others work: that explains enough."""
    rules = [
        rule
        for name in members
        if (judged := scene.judged.get(name)) and (rule := judged.stricter.get(metric))
    ]
    if not rules or not any(c.admitted_s >= lately_s for c in running):
        return None
    working = [c for c in others if c.admitted_s >= lately_s]
    proposal = f"headgate rule lift {rules[0]}"
    return Blame(Culprit.DIFFERENTIAL_METRICS, _names(working), rules[0], proposal)


def _differential(
    metric: str,
    members: tuple[str, ...],
    others: Sequence[Course],
    scene: DatabaseCourses,
    lately_s: float,
) -> Blame | None:
    working = [c for c in others if c.admitted_s >= lately_s]
    freer = [c for c in working if not _judged_by(metric, c, scene)]
    if not freer:
        return None
    first, target = _busiest(freer, members)
    wanted = " ".join(sorted({plain(m) for m in (*scene.judged[first].metrics, metric)}))
    command = f"headgate rule metrics {target} --database all {wanted} --for 1h"
    proposal = command if target else LOOK
    return Blame(Culprit.DIFFERENTIAL_METRICS, _names(freer), "", proposal)


def _busiest(courses: Iterable[Course], members: Sequence[str]) -> tuple[str, str]:
    """The name of the one that was admitted most, and what a rule calls it. One that no rule
    can name comes last, with nothing."""
    named = [(_target(c.subject.name, members), c) for c in courses]
    target, course = max(named, key=lambda item: (bool(item[0]), item[1].admitted))
    return course.subject.name, target


def _target(client: str, members: Sequence[str]) -> str:
    """A client's name; of a crowd, the first of its levels that the starved do not have."""
    if not is_crowd(client):
        return client
    theirs = {level for member in members for level in levels_of(member)}
    return next((level for level in levels_of(client) if level not in theirs), "")


def plain(metric: str) -> str:
    """Without its scope, as rules name metrics."""
    return metric.rpartition("/")[2]


def _judged_by(metric: str, course: Course, scene: DatabaseCourses) -> bool:
    judged = scene.judged.get(course.subject.name)
    return judged is None or metric in judged.metrics  # Not known is no accusation.


def _admitted(
    stretch: StarvedStretch,
    members: Sequence[str],
    others: Sequence[Course],
    scene: DatabaseCourses,
    lately_s: float,
) -> Blame | None:
    metric, gate = stretch.metric, scene.gates.get(stretch.metric, NO_GATE)
    # A client that is admitted seldom, and then does much, was admitted longer ago.
    lately_s = min(lately_s, scene.now_s - 2 * gate.usual_closed_s)
    if gate.opened_at < lately_s:
        return None
    working = [c for c in others if c.admitted_s >= lately_s and _judged_by(metric, c, scene)]
    if not working:
        return None
    _, target = _busiest(working, members)
    proposal = f"headgate rule ratio {target} 0.5 --database all --for 1h" if target else LOOK
    return Blame(Culprit.ADMITTED_WORK, _names(working), "", proposal)


def _names(courses: Sequence[Course]) -> tuple[str, ...]:
    return tuple(course.subject.name for course in courses[:MAX_BLAMED])
