"""What it takes to decide as an agent would, as one value; and what was decided by it elsewhere.

agent: Board, RuleBook ─► DatabaseSnapshot ══check/snapshot_api══► DatabaseSnapshot ─decided─►
    Decision, in the client
client: decisions ──► Counted ══check/snapshot_api══► Counted ──► Recorder, in the agent
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.check.decide import decide, wrong_agent
from headgate.check.health import FOREVER, Health, MetricStatus
from headgate.check.model import Check, Decision, Verdict
from headgate.metrics.samples import Instant
from headgate.rules.matching import RuleBook

NOTHING: frozenset[str] = frozenset()


class DatabaseSnapshot(NamedTuple):
    """One database with all that its agent uses to decide a check."""

    health: Health
    rules: RuleBook
    anonymous_may_pass: bool = False
    active_agent: str = ""
    """Set on a passive standby: the address to check at instead."""
    awake: bool = True
    """Whether it is measured at full speed."""
    paced: frozenset[str] = NOTHING
    """Metrics that pace work."""
    fair: bool = False
    """Whether the agent limits how long ratio rules may reject a client."""


def decided(view: DatabaseSnapshot, check: Check, *, now: Instant, roll: float) -> Decision:
    """As check/checker.py does, but for what only the agent has."""
    if view.active_agent:
        return wrong_agent(check, view.health, view.active_agent, now=now, roll=roll)
    return decide(
        check,
        view.health,
        view.rules,
        now=now,
        roll=roll,
        anonymous_may_pass=view.anonymous_may_pass,
    )


def only_agent_knows(view: DatabaseSnapshot, check: Check, wall_s: float) -> bool:
    """Whether the check needs state that only the agent has: the pacer's bucket, or how long ratio
    rules have rejected this client. Deciding here and at the agent would roll the dice twice."""
    if is_paced(view, check):
        return True
    if not view.fair:
        return False
    reject = view.rules.applied(check.identity, check.database, wall_s).reject
    return reject is not None and not reject.rejects_all


def is_paced(view: DatabaseSnapshot, check: Check) -> bool:
    """Whether the agent meters it: one bucket, in one place, is the only exact one."""
    if not view.paced or check.read_threshold is not None:
        return False
    return not check.metrics or any(ref.metric in view.paced for ref in check.metrics)


def current_until(health: Health) -> float:
    """Until when no value in it is stale. A value that is stale in this copy may have been read
    again at its source, so after this time the copy cannot reject anything."""
    shard = health.shard.standings.values() if health.shard is not None else ()
    return min(map(_current_until, [*health.standings.values(), *shard]), default=FOREVER)


def _current_until(standing: MetricStatus) -> float:
    if standing.sample is None or standing.absent is not None:
        return standing.valid_until
    return min(standing.valid_until, standing.sample.taken_at + standing.spec.max_age_s)


class Counted(NamedTuple):
    """Decisions that are alike, made by a client from a view."""

    check: Check
    verdict: Verdict
    by: str
    """The metric or the rule that decided, named as in history/recorder.py."""
    times: int
    first_s_ago: float = 0.0
    last_s_ago: float = 0.0
    reason: str = ""
    """Time of the last rejection."""
