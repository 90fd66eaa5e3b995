"""Which clients are starved, since when, and why.   Scene ──`judge`──► Starved

A client is starved if metrics have rejected it without a break for longer than the window while the
metric stayed pinned, or while others passed it so often that bad luck explains nothing. If a metric
hovers at its threshold, all clients are often rejected and often admitted: none is starved then,
however many check. Pure: the same scene gives the same findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headgate.core.courses import (
    Course,
    Gate,
    Meanwhile,
    Policy,
    Reason,
    Scene,
    Stretch,
    Subject,
    meanwhile,
)
from headgate.core.crowds import is_crowd, levels_of

MAX_BLAMED = 5
MAX_MEMBERS = 20
MAX_STARVED = 100
OPEN_PART = 0.25
NO_GATE = Gate()
LOOK = "headgate clients"
"""If there is no client that a rule could name."""


class Culprit(Enum):
    """The likely cause."""

    EXEMPT_CLIENT = "exempt_client"
    DIFFERENTIAL_METRICS = "differential_metrics"
    ADMITTED_WORK = "admitted_work"
    UNEXPLAINED_LOAD = "unexplained_load"


CULPRIT_MEANINGS: dict[Culprit, str] = {
    Culprit.EXEMPT_CLIENT: "an exempt client continues while this metric rejects the others",
    Culprit.DIFFERENTIAL_METRICS: "others continue because fewer metrics, or looser thresholds, "
    "apply to them",
    Culprit.ADMITTED_WORK: "others with the same metrics are admitted and keep the metric high",
    Culprit.UNEXPLAINED_LOAD: "no client has been admitted for long, but the metric stays high: "
    "load of a rogue client, or one long piece of work",
}


@dataclass(frozen=True, slots=True)
class Starved:
    """One finding, with its evidence."""

    database: str
    client: str
    is_level: bool
    members: tuple[str, ...]
    """The running clients that it is about."""
    metric: str
    culprit: Culprit
    since_s: float
    """Monotonic."""
    for_s: float
    runtime_s: float
    share: float
    """Starved share of its runtime."""
    alarming: bool
    """Above the waterline."""
    refusals: int
    breached_share: float
    """Of the time, how much that metric was breached."""
    mean_utilization: float
    """That metric's value, as a share of its threshold."""
    dice_s: float
    """Time rejected by ratio rules, which is not starvation."""
    blamed: tuple[str, ...] = ()
    """Clients."""
    rule: str = ""
    """The exemption, or the stricter threshold, behind it."""
    proposal: str = ""
    """A command."""


def judge(scene: Scene, policy: Policy) -> tuple[Starved, ...]:
    """Longest first. If a whole level is starved, the level is shown, not its clients."""
    suspects = [c for c in scene.courses.values() if _is_starved(c, scene, policy)]
    chosen = _merged(suspects, scene, policy)
    found = [_finding(course, members, scene, policy) for course, members in chosen]
    return tuple(sorted(found, key=lambda f: (-f.for_s, f.client))[:MAX_STARVED])


def lasts(finding: Starved, scene: Scene, policy: Policy) -> bool:
    """Whether the finding has not ended, even if it is less evident now: a client that swings
    around a limit is reported once."""
    course = scene.courses.get(Subject(finding.client, finding.is_level))
    stretch = course.stretch if course is not None else None
    if stretch is None or stretch.since_s != finding.since_s:
        return False
    return scene.now_s - stretch.last_s <= policy.idle_s


# --- is it? --------------------------------------------------------------------------------


def _is_starved(course: Course, scene: Scene, policy: Policy) -> bool:
    stretch, now_s = course.stretch, scene.now_s
    if stretch is None or now_s - stretch.last_s > policy.idle_s:
        return False
    if now_s - stretch.since_s < policy.window_s or stretch.tries < policy.min_tries:
        return False
    gate = scene.gates.get(stretch.metric, NO_GATE)
    past = meanwhile(stretch.gates.get(stretch.metric, NO_GATE), gate)
    if past is None:
        return False  # Nothing is known of the metric: a missing value is reported elsewhere.
    return _pinned(past, gate, policy) or _luck(past, stretch) <= policy.max_luck


def _pinned(past: Meanwhile, gate: Gate, policy: Policy) -> bool:
    """Above its threshold all the while, for longer than is usual, and not on its way down."""
    if past.breached_share < policy.pinned_share:
        return False
    recovers = gate.healthy_in_s() <= policy.patience_s
    return not recovers and past.seconds >= policy.spells * gate.usual_closed_s


def _luck(past: Meanwhile, stretch: Stretch) -> float:
    """How likely a client with the same metrics is to be rejected at each of its checks.

    A tick in which another client passed may have been open for a part of it only.
    """
    return float((1.0 - OPEN_PART * past.open_share) ** stretch.tries)


# --- which clients to name -----------------------------------------------------------------

Named = tuple[Course, tuple[str, ...]]


def _merged(suspects: Sequence[Course], scene: Scene, policy: Policy) -> list[Named]:
    running = [course.subject.name for course in scene.running(policy)]
    # A client without a name of its own is named by its level.
    alone = {c.subject.name for c in suspects if not _nameless(c) and not c.subject.is_level}
    chosen: list[Named] = []
    covered: set[str] = set()
    for level, members in _levels(suspects, running):
        if (len(members) == 1 and members[0] in alone) or (members and covered >= set(members)):
            continue
        chosen.append((level, members))
        covered.update(members)
    singles = [c for c in suspects if not c.subject.is_level and c.subject.name not in covered]
    return chosen + [(course, (course.subject.name,)) for course in singles]


def _nameless(course: Course) -> bool:
    return is_crowd(course.subject.name)


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


def _finding(course: Course, members: tuple[str, ...], scene: Scene, policy: Policy) -> Starved:
    stretch = course.stretch
    assert stretch is not None
    gate = scene.gates.get(stretch.metric, NO_GATE)
    past = meanwhile(stretch.gates.get(stretch.metric, NO_GATE), gate)
    assert past is not None
    for_s = scene.now_s - stretch.since_s
    runtime_s = max(course.runtime_s, for_s)
    share = min(1.0, (course.starved_s + for_s) / runtime_s)
    blame = _blame(stretch, members, scene, policy)
    return Starved(
        database=scene.database,
        client=course.subject.name,
        is_level=course.subject.is_level,
        members=members[:MAX_MEMBERS],
        metric=stretch.metric,
        culprit=blame.culprit,
        since_s=stretch.since_s,
        for_s=for_s,
        runtime_s=runtime_s,
        share=share,
        alarming=share > policy.waterline,
        refusals=sum(stretch.refused.values()),
        breached_share=past.breached_share,
        mean_utilization=past.mean,
        dice_s=course.refused_s.get(Reason.DICE, 0.0),
        blamed=blame.clients,
        rule=blame.rule,
        proposal=blame.proposal,
    )


def _blame(stretch: Stretch, members: tuple[str, ...], scene: Scene, policy: Policy) -> Blame:
    lately_s = scene.now_s - policy.settle_s
    others = [c for c in scene.running(policy) if c.subject.name not in members]
    return (
        _exempt(others, lately_s)
        or _differential(stretch.metric, members, others, scene, lately_s)
        or _admitted(stretch, members, others, scene, lately_s)
        or Blame(Culprit.UNEXPLAINED_LOAD, proposal="headgate clients --rogue")
    )


def _exempt(others: Sequence[Course], lately_s: float) -> Blame | None:
    active = [c for c in others if c.exempted_s >= lately_s]
    if not active:
        return None
    most = max(active, key=lambda c: c.exempted)
    proposal = f"headgate rule lift {most.exempt_by}"
    return Blame(Culprit.EXEMPT_CLIENT, _names(active), most.exempt_by, proposal)


def _differential(
    metric: str, members: tuple[str, ...], others: Sequence[Course], scene: Scene, lately_s: float
) -> Blame | None:
    stricter = [
        rule
        for name in members
        if (judged := scene.judged.get(name)) and (rule := judged.stricter.get(metric))
    ]
    working = [c for c in others if c.admitted_s >= lately_s]
    if stricter and working:
        proposal = f"headgate rule lift {stricter[0]}"
        return Blame(Culprit.DIFFERENTIAL_METRICS, _names(working), stricter[0], proposal)
    freer = [c for c in working if not _judged_by(metric, c, scene)]
    if not freer:
        return None
    first, target = _busiest(freer, members)
    wanted = " ".join(sorted({plain(m) for m in (*scene.judged[first].metrics, metric)}))
    proposal = f"headgate rule metrics {target} {wanted} --for 1h" if target else LOOK
    return Blame(Culprit.DIFFERENTIAL_METRICS, _names(freer), "", proposal)


def _busiest(courses: Iterable[Course], members: Sequence[str]) -> tuple[str, str]:
    """The name of the one that was admitted most, and what a rule calls it. One that no rule
    can be made for comes last, with nothing."""
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


def _judged_by(metric: str, course: Course, scene: Scene) -> bool:
    judged = scene.judged.get(course.subject.name)
    return judged is None or metric in judged.metrics  # Not known is no accusation.


def _admitted(
    stretch: Stretch,
    members: Sequence[str],
    others: Sequence[Course],
    scene: Scene,
    lately_s: float,
) -> Blame | None:
    metric, gate = stretch.metric, scene.gates.get(stretch.metric, NO_GATE)
    # Who is let in seldom, and then does much, has been let in longer ago.
    lately_s = min(lately_s, scene.now_s - 2 * gate.usual_closed_s)
    if gate.opened_at < lately_s:
        return None
    working = [c for c in others if c.admitted_s >= lately_s and _judged_by(metric, c, scene)]
    if not working:
        return None
    _, target = _busiest(working, members)
    proposal = f"headgate rule ratio {target} 0.5 --for 1h" if target else LOOK
    return Blame(Culprit.ADMITTED_WORK, _names(working), "", proposal)


def _names(courses: Iterable[Course]) -> tuple[str, ...]:
    busiest = sorted(courses, key=lambda c: (-(c.admitted + c.exempted), c.subject.name))
    return tuple(course.subject.name for course in busiest[:MAX_BLAMED])
