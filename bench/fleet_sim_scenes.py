"""What happens to the simulated fleet, and what is measured of it. Each scene leaves it well."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from bench.fleet_sim_agent import SimAgent
from bench.fleet_sim_fleet import Change, Fleet
from bench.fleet_sim_net import BUCKETS_PER_S, Rates
from headgate.fleet import beat as fleet_timing
from headgate.fleet.beat import LEAST_SPREAD_S, MOST_SPREAD_S

WIDE_RULES = 2
BETWEEN_WIDE_S = 6.0
BETWEEN_NARROW_S = 0.6
SETTLED_WITHIN_S = 240.0
LOOK_S = 0.5
PLANNED_SPREADS = 4
LEAST_PLANNED_S = 10.0
LOST_AFTER_S = 10.0
"""As long as an agent holds a role that its server has ceased to say."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many figures of one kind."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        known = sorted(figures) or [0.0]
        at = [known[min(len(known) - 1, int(share * len(known)))] for share in (0.5, 0.99)]
        return cls(len(figures), at[0], at[1], known[-1])


@dataclass(frozen=True, slots=True)
class Storm:
    """Requests to the store. The mean is over a time that is planned by the fleet's size and does
    not depend on what happens in it: a storm that is over in a second would be its own mean. The
    peak is that of any second, wherever it begins."""

    over_s: float
    total: int
    """Within that time."""
    peak: int
    """Within the worst second, also if that came later."""

    @classmethod
    def of(cls, rates: Rates, begin_s: float, over_s: float, end_s: float = 0.0) -> Storm:
        planned = rates.between(begin_s, begin_s + over_s)
        whole = rates.between(begin_s, max(end_s, begin_s + over_s))
        seconds = (whole[at : at + BUCKETS_PER_S] for at in range(len(whole)))
        return cls(over_s, sum(planned), max(map(sum, seconds)))

    @property
    def mean(self) -> float:
        return self.total / self.over_s

    @property
    def peak_by_mean(self) -> float:
        return self.peak / self.mean if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Rest:
    """Nobody changes anything: what following alone costs. Over whole beats."""

    messages_primary: float
    """Per agent and second, both ways."""
    messages_replica: float
    requests: Storm


@dataclass(frozen=True, slots=True)
class Steady:
    wide: Spread
    """Seconds from the operator's request until in force, over changes and agents."""
    narrow: Spread
    """The same, of rules of one shard."""
    told: Spread
    """Of those for all: seconds from etcd's commit until in force."""
    acknowledged: Spread
    """Seconds from the operator's request until the answer, which tells whom it reaches."""
    missed: int
    """Agents that did not get one within the scene."""
    messages_primary: float
    """Per agent and second, both ways."""
    messages_replica: float
    requests: Storm
    frames_per_s: float
    commits_per_s: float
    member_busy: float
    """Of the busiest member's time, by the model's costs."""
    agent_bytes: float


@dataclass(frozen=True, slots=True)
class Loss:
    away_s: float
    stale: int
    rules_lost: int
    """Agents that had fewer rules in force at any look than before."""
    while_away: Storm
    """At the member that is left."""
    rejected: Storm
    """Connections to those that are dead, meanwhile."""
    back: Storm
    fresh: int
    """Agents that have heard of the store after its return."""
    fresh_after_s: float
    """The last of them."""
    first_rule: Spread
    """Set just after its return."""


@dataclass(frozen=True, slots=True)
class Fallback:
    replicas: int
    to_store: Spread
    """Seconds from the death of their primaries' agents until they follow the store."""
    rule_missed: int
    """Of those replicas, without a rule that was set while the agents were away."""
    back: Spread
    """Seconds from their return until the replicas follow them again."""
    requests: Storm


@dataclass(frozen=True, slots=True)
class Restart:
    in_force_at_once: int
    follow: int
    agents: int
    all_follow_after_s: float
    storm: Storm
    queue_s: float
    """How long a request waited for a member at the worst, by the model's costs."""
    unanswered: int
    """Requests that were given up after their timeout."""


@dataclass(frozen=True, slots=True)
class Roles:
    """All servers' roles unknown for a moment, as when storage or DNS of all hesitates."""

    for_s: float
    storm: Storm
    writes: int
    """In the time of `storm`, but for beats."""


async def asleep(shards: int, *, seed: int, loss: float, beat_s: float) -> Fleet:
    """One that ran before: what agents know is on their disks, and nobody is up."""
    fleet = Fleet(shards, seed=seed, loss=loss, beat_s=beat_s)
    await fleet.fill(WIDE_RULES)
    fleet.write_disks()
    return fleet


def spread_s(shards: int) -> float:
    """Over how long a fleet of this size is meant to spread what its shards do once: of the bench's
    own reckoning, which stays as it is where agents are made to spread nothing."""
    return min(MOST_SPREAD_S, max(LEAST_SPREAD_S, shards / fleet_timing.CONTACTS_PER_S))


def planned_s(shards: int) -> float:
    """Over which a storm's mean is taken. Shards follow within one spreading, agents register
    within three."""
    return max(LEAST_PLANNED_S, PLANNED_SPREADS * spread_s(shards))


async def until(
    holds: Callable[[], bool], within_s: float = SETTLED_WITHIN_S, *, look_s: float = LOOK_S
) -> float:
    """Seconds that it took."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while not holds():
        if loop.time() - begun_s > within_s:
            raise AssertionError(f"not within {within_s:g} s of the fleet's time")
        await asyncio.sleep(look_s)
    return loop.time() - begun_s


# --- nothing happens ---------------------------------------------------------------------------


async def rest(fleet: Fleet, beats: int) -> Rest:
    """From one beat to another: with part of one, the figure would be that of the dice."""
    await _next_beats(fleet, 1)
    begun_s, before = fleet.loop.time(), _Counters(fleet)
    await _next_beats(fleet, beats)
    passed_s, after = fleet.loop.time() - begun_s, _Counters(fleet)
    return Rest(
        messages_primary=(after.primary - before.primary) / len(fleet.primaries) / passed_s,
        messages_replica=(after.replica - before.replica) / len(fleet.replicas) / passed_s,
        requests=Storm.of(fleet.etcd.requests, begun_s, passed_s),
    )


async def _next_beats(fleet: Fleet, beats: int) -> None:
    wanted = fleet.etcd.beats + beats
    within_s = 4 * fleet.timing.beat_interval_s * (beats + 1)
    await until(lambda: fleet.etcd.beats >= wanted, within_s, look_s=0.01)


# --- steady ------------------------------------------------------------------------------------


async def steady(fleet: Fleet, seconds: float, empty_bytes: int) -> Steady:
    begun_s, before = fleet.loop.time(), _Counters(fleet)
    wide, narrow = await asyncio.gather(
        _set_rules(fleet, seconds, BETWEEN_WIDE_S, lambda: "fleet"),
        _set_rules(
            fleet, seconds, BETWEEN_NARROW_S, lambda: f"shard:{fleet.dice.choice(fleet.names)}"
        ),
    )
    ended_s, after = fleet.loop.time(), _Counters(fleet)
    passed_s = ended_s - begun_s
    await asyncio.sleep(5.0)
    fleet.changes.clear()
    gc.collect()
    return Steady(
        wide=Spread.of([took for change in wide for took in change.took_s]),
        narrow=Spread.of([took for change in narrow for took in change.took_s]),
        told=Spread.of([took - change.committed_s for change in wide for took in change.took_s]),
        acknowledged=Spread.of([change.acknowledged_s for change in (*wide, *narrow)]),
        missed=sum(change.wanted - len(change.took_s) for change in (*wide, *narrow)),
        messages_primary=(after.primary - before.primary) / len(fleet.primaries) / passed_s,
        messages_replica=(after.replica - before.replica) / len(fleet.replicas) / passed_s,
        requests=Storm.of(fleet.etcd.requests, begun_s, passed_s),
        frames_per_s=(after.frames - before.frames) / passed_s,
        commits_per_s=sum(fleet.etcd.commits.between(begun_s, ended_s)) / passed_s,
        member_busy=max(
            (one - other) / passed_s for one, other in zip(after.busy, before.busy, strict=True)
        ),
        agent_bytes=(resident_bytes() - empty_bytes) / len(fleet.agents),
    )


async def _set_rules(
    fleet: Fleet, seconds: float, between_s: float, reach: Callable[[], str]
) -> list[Change]:
    until_s, made = fleet.loop.time() + seconds, []
    while fleet.loop.time() < until_s:
        made.append(await fleet.set_rule(reach()))
        await asyncio.sleep(between_s)
    return made


class _Counters:
    def __init__(self, fleet: Fleet) -> None:
        self.primary = sum(agent.traffic.messages for agent in fleet.primaries)
        self.replica = sum(agent.traffic.messages for agent in fleet.replicas)
        self.frames = fleet.etcd.frames
        self.busy = [member.busy_s for member in fleet.etcd.members]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


# --- the store is lost -------------------------------------------------------------------------


async def loss(fleet: Fleet, away_s: float) -> Loss:
    """Two members die, the third has no majority; then both come back."""
    had = {agent: len(agent.book.rules) for agent in fleet.agents}
    begun_s, poorer = fleet.loop.time(), 0
    await fleet.etcd.lose_quorum()
    while fleet.loop.time() < begun_s + away_s:
        await asyncio.sleep(5.0)
        poorer = max(poorer, sum(len(a.book.rules) < had[a] for a in fleet.agents))
    stale, back_s = fleet.stale(), fleet.loop.time()
    fleet.etcd.recover()
    change = await fleet.set_rule("fleet")
    # Each of them once: of thirty thousand, somebody always is between two sources.
    fresh = await _each(fleet.agents, lambda one: not one.follower.is_stale, SETTLED_WITHIN_S)
    await until(lambda: change.is_everywhere)
    fleet.changes.clear()
    return Loss(
        away_s=away_s,
        stale=stale,
        rules_lost=poorer,
        while_away=Storm.of(fleet.etcd.requests, begun_s, back_s - begun_s),
        rejected=Storm.of(fleet.etcd.rejected, begun_s, back_s - begun_s),
        back=await _storm_since(fleet, back_s),
        fresh=len(fresh),
        fresh_after_s=max(fresh),
        first_rule=Spread.of(change.took_s),
    )


# --- primaries' agents are lost ----------------------------------------------------------------


async def fallback(fleet: Fleet, away_s: float, share: float = 0.02) -> Fallback:
    await until(lambda: fleet.direct() == 0)
    gone = fleet.dice.sample(fleet.primaries, max(1, int(share * len(fleet.primaries))))
    shards = {agent.spot.place.shard for agent in gone}
    orphans = [one for one in fleet.replicas if one.spot.place.shard in shards]
    begun_s = fleet.loop.time()
    for agent in gone:
        agent.stop()
    to_store = await _each(orphans, _follows_store, away_s)
    await asyncio.sleep(max(0.0, begun_s + away_s - fleet.loop.time()))
    change = await fleet.set_rule("fleet")
    await asyncio.sleep(5.0)
    missed = sum(change.rule_id not in one.book for one in orphans)
    for agent in gone:
        await agent.start()
    back = await _each(orphans, _follows_primary, SETTLED_WITHIN_S)
    fleet.changes.clear()
    requests = Storm.of(fleet.etcd.requests, begun_s, fleet.loop.time() - begun_s)
    return Fallback(len(orphans), Spread.of(to_store), missed, Spread.of(back), requests)


def _follows_store(replica: SimAgent) -> bool:
    return replica.follower.reader not in (None, replica.primary)


def _follows_primary(replica: SimAgent) -> bool:
    return replica.follower.reader is replica.primary


async def _each(
    agents: Sequence[SimAgent], holds: Callable[[SimAgent], bool], within_s: float
) -> list[float]:
    """When each of them came to it; those that did not are left out."""
    loop = asyncio.get_running_loop()
    begun_s, waiting, took = loop.time(), list(agents), list[float]()
    while waiting and loop.time() - begun_s < within_s:
        still = [agent for agent in waiting if not holds(agent)]
        took += [loop.time() - begun_s] * (len(waiting) - len(still))
        waiting = still
        await asyncio.sleep(LOOK_S)
    return took


# --- all start anew ----------------------------------------------------------------------------


async def restart(fleet: Fleet, *, disks: bool = True, most_s: float = inf) -> Restart:
    """All at once; without `disks` nobody knows how large the fleet is, nor any rule. Looked at
    for as long as is planned, or for `most_s`."""
    begun_s, unanswered = fleet.loop.time(), fleet.etcd.unanswered
    for member in fleet.etcd.members:
        member.longest_queue_s = 0.0
    await fleet.restart_all(disks=disks)
    at_once = sum(0 < agent.rules_on_disk <= len(agent.book.rules) for agent in fleet.agents)
    follow = await _each(fleet.agents, _follows, SETTLED_WITHIN_S)
    storm = await _storm_since(fleet, begun_s, most_s)
    return Restart(
        in_force_at_once=at_once,
        follow=len(follow),
        agents=len(fleet.agents),
        all_follow_after_s=max(follow),
        storm=storm,
        queue_s=max(member.longest_queue_s for member in fleet.etcd.members),
        unanswered=fleet.etcd.unanswered - unanswered,
    )


def _follows(agent: SimAgent) -> bool:
    return agent.follower.reader is not None


async def _storm_since(fleet: Fleet, begun_s: float, most_s: float = inf) -> Storm:
    over_s = min(most_s, planned_s(len(fleet.names)))
    await asyncio.sleep(max(0.0, begun_s + over_s - fleet.loop.time()))
    return Storm.of(fleet.etcd.requests, begun_s, over_s, fleet.loop.time())


# --- roles are lost for a moment ---------------------------------------------------------------


async def roles(fleet: Fleet, for_s: float = 2.0) -> Roles:
    """Of a fleet that has nothing else to tell. Looked at for as long as a lost role is held, and
    what came of it would be spread."""
    over_s = for_s + LOST_AFTER_S + spread_s(len(fleet.names))
    begun_s, beats = fleet.loop.time(), fleet.etcd.beats
    for agent in fleet.agents:
        agent.say_role(known=False)
    await asyncio.sleep(for_s)
    for agent in fleet.agents:
        agent.say_role(known=True)
    await asyncio.sleep(over_s - for_s)
    commits = sum(fleet.etcd.commits.between(begun_s, begun_s + over_s))
    writes = commits - (fleet.etcd.beats - beats)
    return Roles(for_s, Storm.of(fleet.etcd.requests, begun_s, over_s), writes)
