"""A shard's state as its primary's agent reports it.   ShardView, Health ──told_of──► ShardTold

Values only; shardstatus.py decides when and how often to report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headgate.base.names import Scope
from headgate.changes.reach import Place
from headgate.check.decide import IDLE_CAUSES, is_idle, judge
from headgate.check.health import Health
from headgate.check.model import Activity, Finding, Verdict
from headgate.fleet.members import (
    HEALTHY,
    IDLE,
    PASSING,
    UNHEALTHY,
    FleetMember,
    MemberTold,
    MetricTold,
    ShardTold,
    clipped,
)
from headgate.history.recorder import Key
from headgate.metrics.samples import Cause, Instant, Sample
from headgate.shard.model import MemberView, ShardView
from headgate.shard.topology import Following, Leading, Role, Unled

LAG = "lag"
_TOO_EARLY = frozenset({Cause.NEVER_READ, Cause.WARMING_UP})
STEP_S = 10.0
STEPS = 6
"""The share of rejected checks is that of the last minute."""


@dataclass(frozen=True, slots=True)
class Footing:
    """How far this agent has come with the fleet."""

    n: int
    source: str
    stale_since_wall_s: float | None


@dataclass(frozen=True, slots=True)
class ReportingAgent:
    """Who tells, and what is known beside the shard's own view."""

    place: Place
    url: str
    footing: Footing
    registered: Mapping[str, FleetMember]
    """The shard's members by name, as their own agents registered them."""


def speaks(view: ShardView, *, spoke: bool) -> bool:
    """Whether it is this agent that has to tell. One whose server is, or was, the primary goes on
    while nobody leads: why that is so is what others want to know."""
    match view.standpoint:
        case Leading():
            return view.warming_up is None or spoke
        case Following():
            return False
        case Unled():
            return spoke or _is_primary(view)


def is_early(health: Health, now: Instant) -> bool:
    """Something has not been measured since the start, or since this agent leads."""
    standings = health.default.standings
    return any(judge(standing, now).cause in _TOO_EARLY for standing in standings)


def _is_primary(view: ShardView) -> bool:
    own = (one.member for one in view.members if one.member.local)
    roles = [one.report.role.role for one in own if one.report and one.report.role]
    return Role.PRIMARY in roles


def told_of(view: ShardView, health: Health, speaker: ReportingAgent, now: Instant) -> ShardTold:
    """Without its times: `dated` knows since when."""
    own = next((one.member.report for one in view.members if one.member.local), None)
    activity = own.activity if own is not None else Activity.AWAKE
    metrics = tuple(
        _metric(judge(standing, now), activity) for standing in health.default.standings
    )
    state, problem = _state(view, metrics)
    members = tuple(_member(one, speaker) for one in view.members)
    return ShardTold(
        shard=view.shard,
        region=speaker.place.region,
        cluster=speaker.place.cluster,
        url=speaker.url,
        agent=speaker.place.host,
        state=state,
        since=now.wall_s,
        at=now.wall_s,
        n=speaker.footing.n,
        problem=clipped(problem),
        hosts=tuple(sorted({one.host for one in members})),
        metrics=metrics,
        members=members,
    )


def _state(view: ShardView, metrics: Iterable[MetricTold]) -> tuple[str, str]:
    if isinstance(view.standpoint, Unled):
        absent = view.standpoint.absent
        return (IDLE, "") if absent.cause in IDLE_CAUSES else (UNHEALTHY, absent.detail)
    states = {one.state for one in metrics}
    if states - PASSING:
        return UNHEALTHY, ""
    return (IDLE if IDLE in states else HEALTHY), ""


def _metric(finding: Finding, activity: Activity) -> MetricTold:
    idle = is_idle(finding, activity)
    return MetricTold(
        metric=finding.ref.metric,
        scope=(finding.ref.scope or Scope.HOST).value,
        state=IDLE if idle else finding.state.value,
        value=finding.value,
        threshold=finding.threshold,
        unit=finding.spec.unit if finding.spec else "",
        detail="" if idle else clipped(finding.detail),
    )


def _member(view: MemberView, speaker: ReportingAgent) -> MemberTold:
    member, report = view.member, view.member.report
    registered = speaker.registered.get(member.name)
    seen = report.role if report and member.lost is None else None
    lag = view.readings.get(LAG)
    skipped = f"skipped by {view.skip.who}: {view.skip.reason}" if view.skip else ""
    told = MemberTold(
        member=member.name,
        host=registered.host if registered else member.name,
        role=seen.role.value if seen else "",
        url=(report.url if report else "") or member.url,
        lag_s=lag.value if isinstance(lag, Sample) else None,
        n=registered.n if registered else None,
        problem=clipped(view.problem or skipped),
    )
    if not member.local:
        return told
    footing = speaker.footing
    return replace(
        told,
        host=speaker.place.host,
        url=speaker.url,
        n=footing.n,
        source=footing.source,
        stale_since=footing.stale_since_wall_s,
    )


# --- since when -------------------------------------------------------------------------------


def dated(told: ShardTold, before: ShardTold | None) -> ShardTold:
    """What has not changed since then is as old as it was."""
    if before is None:
        return replace(told, metrics=tuple(replace(m, since=told.at) for m in told.metrics))
    was = {(one.metric, one.scope): one for one in before.metrics}
    metrics = tuple(
        _metric_dated(one, was.get((one.metric, one.scope)), told.at) for one in told.metrics
    )
    same = (told.state, told.problem) == (before.state, before.problem)
    return replace(told, metrics=metrics, since=before.since if same else told.at)


def _metric_dated(told: MetricTold, before: MetricTold | None, at: float) -> MetricTold:
    same = before is not None and before.state == told.state
    return replace(told, since=before.since if same and before else at)


# --- how many are rejected --------------------------------------------------------------------


class RejectedShare:
    """Checks and rejections of the last minute by database. An observer of the recorder."""

    def __init__(self) -> None:
        self._steps: dict[str, list[tuple[int, int]]] = {}
        self._step = 0

    def note(self, counted: list[tuple[Key, int]]) -> None:
        for (database, _, verdict, _), times in counted:
            if verdict is Verdict.WRONG_AGENT:
                continue  # Redirected to the right agent: neither admitted nor rejected.
            steps = self._steps.setdefault(database, [(0, 0)])
            checks, rejected = steps[-1]
            steps[-1] = (checks + times, rejected + times * (verdict is not Verdict.OK))

    def turn(self, mono_s: float) -> None:
        """Called about once a second."""
        step = int(mono_s // STEP_S)
        if step == self._step:
            return
        self._step = step
        for steps in self._steps.values():
            steps.append((0, 0))
            del steps[:-STEPS]

    def of(self, databases: Iterable[str]) -> tuple[int, float | None]:
        """Number of checks, and the share that was rejected; None if there were none."""
        steps = [step for database in databases for step in self._steps.get(database, ())]
        checks = sum(count for count, _ in steps)
        return checks, sum(rejected for _, rejected in steps) / checks if checks else None
