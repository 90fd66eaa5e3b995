"""What the simulation must show. Each fault is a line for people; none: all bounds hold.

Storms: the store is asked at most 3 × 200 times in any second for each kind of contact that the
scene makes of a whole fleet, and, in a fleet large enough to spread what it does, in no second
more than 3 × the mean over a time that is planned by the fleet's size (Storm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.fleet_sim_scenes import (
    LEAST_PLANNED_S,
    Fallback,
    Loss,
    Rest,
    Restart,
    Roles,
    Steady,
    Storm,
)
from headgate.fleet import beat as fleet_timing

IN_FORCE_WITHIN_S = 1.0
PEAK_BY_MEAN = 3.0
PEAK_BY_PLAN = 3.0
FLAT_WITHIN = 1.3
"""Messages of an agent, against those in the smallest fleet."""
WRITTEN_OF_ALL = 0.1
"""Agents that may write something because of a role that was lost for a moment."""

RESTART_KINDS = 2
"""Following by primaries' agents, registering by all."""
LOSS_KINDS = 3
"""The same, and replicas' agents that have left stale primaries' agents for the store."""
ROLES_KINDS = 1
"""Registering."""


@dataclass(slots=True)
class Told:
    """What the scenes of one fleet have shown; None: not played."""

    shards: int
    restart: Restart | None = None
    rest: Rest | None = None
    roles: Roles | None = None
    steady: Steady | None = None
    loss: Loss | None = None
    fallback: Fallback | None = None
    cold: Restart | None = None


def faults(told: Sequence[Told]) -> list[str]:
    found = [fault for one in told for fault in _of_one(one)]
    return found + list(_growth(told))


def notes(told: Sequence[Told]) -> list[str]:
    """What is no bound of ours, and nothing to be quiet about."""
    return [
        f"known, not bounded: {fault}"
        for one in told
        if one.cold is not None
        for fault in storm_faults(f"cold, {one.shards:,} shards", one.cold.storm, RESTART_KINDS)
    ]


def storm_faults(what: str, storm: Storm, kinds: int) -> Iterator[str]:
    """Of one that is spread."""
    yield from peak_faults(what, storm, kinds)
    if storm.over_s > LEAST_PLANNED_S and storm.peak_by_mean > PEAK_BY_MEAN:
        yield (
            f"{what}: {storm.peak:,} requests to the store in a second, {storm.peak_by_mean:.1f} × "
            f"the mean of {storm.over_s:g} s ({storm.mean:.1f}/s), more than {PEAK_BY_MEAN:g} ×"
        )


def peak_faults(what: str, storm: Storm, kinds: int) -> Iterator[str]:
    contacts = fleet_timing.CONTACTS_PER_S
    most = PEAK_BY_PLAN * contacts * kinds
    if storm.peak > most:
        yield (
            f"{what}: {storm.peak:,} requests to the store in a second, more than "
            f"{PEAK_BY_PLAN:g} × {contacts:g}/s × {kinds} kinds of contact = {most:g}"
        )


def _of_one(told: Told) -> Iterator[str]:
    size = f"{told.shards:,} shards"
    if told.restart is not None:
        yield from storm_faults(f"restart, {size}", told.restart.storm, RESTART_KINDS)
        yield from _restart(f"restart, {size}", told.restart)
    if told.steady is not None:
        yield from _steady(f"steady, {size}", told.steady)
    if told.roles is not None:
        yield from _roles(f"roles, {size}", told.roles, 3 * told.shards)
    if told.loss is not None:
        yield from peak_faults(f"loss, {size}, while away", told.loss.while_away, LOSS_KINDS)
        yield from storm_faults(f"loss, {size}, back", told.loss.back, LOSS_KINDS)
        yield from _loss(f"loss, {size}", told.loss, 3 * told.shards)
    if told.fallback is not None and told.fallback.rule_missed:
        yield f"fallback, {size}: {told.fallback.rule_missed} replicas' agents missed a rule"
    if told.cold is not None and told.cold.follow < told.cold.agents:
        yield f"cold, {size}: {told.cold.follow:,} of {told.cold.agents:,} agents follow"


def _restart(what: str, told: Restart) -> Iterator[str]:
    if told.in_force_at_once < told.agents:
        yield f"{what}: {told.in_force_at_once:,} of {told.agents:,} had their rules at once"
    if told.follow < told.agents:
        yield f"{what}: {told.follow:,} of {told.agents:,} agents follow"


def _steady(what: str, told: Steady) -> Iterator[str]:
    if told.missed:
        yield f"{what}: {told.missed:,} agents missed a rule"
    for whose, spread in (("for all", told.wide), ("of a shard", told.narrow)):
        if spread.p99 > IN_FORCE_WITHIN_S:
            yield f"{what}: a rule {whose} is in force after {spread.p99:.2f} s at p99"


def _roles(what: str, told: Roles, agents: int) -> Iterator[str]:
    yield from peak_faults(what, told.storm, ROLES_KINDS)
    if told.writes > WRITTEN_OF_ALL * agents:
        yield f"{what}: {told.writes:,} writes by {agents:,} agents for roles that were back soon"


def _loss(what: str, told: Loss, agents: int) -> Iterator[str]:
    if told.rules_lost:
        yield f"{what}: {told.rules_lost:,} agents lost a rule"
    if told.fresh < agents:
        yield f"{what}: {told.fresh:,} of {agents:,} agents heard of the store again"


def _growth(told: Sequence[Told]) -> Iterator[str]:
    """Against the smallest. A larger fleet may hear less: it renews its leases less often, and
    gathers what it registers."""
    by_size = sorted(told, key=lambda one: one.shards)
    resting = [one.rest for one in by_size if one.rest is not None]
    changing = [one.steady for one in by_size if one.steady is not None]
    for scene, ones in (("rest", resting), ("steady", changing)):
        for whose, rates in (
            ("primary", [one.messages_primary for one in ones]),
            ("replica", [one.messages_replica for one in ones]),
        ):
            if rates and max(rates) > FLAT_WITHIN * rates[0]:
                yield f"{scene}: messages/s of a {whose}'s agent are not flat: {_listed(rates)}"


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.2f}" for rate in rates)
