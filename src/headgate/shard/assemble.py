"""The shards of one agent, put together: rollups, heartbeats, Patroni, the standby of a host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

from headgate.base.assemble import AgentContext, Roll, advertised
from headgate.base.ports import Clock, SharedLog
from headgate.base.supervise import supervised
from headgate.changes.assemble import OwnLog, etcd_store
from headgate.check.assemble import CheckParts
from headgate.check.demand import Demands
from headgate.errors import Fault, InvalidName
from headgate.metrics.assemble import MetricParts, connection_of, probes_of
from headgate.settings.agent import Settings
from headgate.settings.sections import DatabaseSettings
from headgate.shard.election import Elector
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.keeper import MemberLog
from headgate.shard.members import PeerPlan, ShardPlan
from headgate.shard.membership import Membership
from headgate.shard.patroni import ConfirmPace, PatroniFollower, PatroniRoleProbe
from headgate.shard.peers import open_link
from headgate.shard.peers_api import parse_peer_url
from headgate.shard.rollup import AGGREGATES, Aggregate
from headgate.shard.service import Shards
from headgate.shard.standby import LOOKS_PER_TAKEOVER, ElectedStandby, Standby

ROLLUP_GROUP = "headgate.rollups"


class Duty:
    """Whether this agent answers checks, or another one of its host does."""

    standby: Standby | ElectedStandby | None = None
    """None: this agent is not one of a pair."""

    def is_passive(self) -> bool:
        return self.standby is not None and self.standby.passive


@dataclass(frozen=True, slots=True)
class ShardParts:
    shards: Shards
    patroni: PatroniParts
    heartbeats: Heartbeats
    duty: Duty

    async def adopt(self, settings: Settings, metrics: MetricParts) -> None:
        self.patroni.adopt(settings)
        await self.shards.adopt(self.patroni.joined(shard_plans(settings, metrics)))


def assemble(
    context: AgentContext, own: OwnLog, check: CheckParts, aggregates: Mapping[str, Aggregate]
) -> ShardParts:
    shards = Shards(
        check.board,
        check.demands,
        context.clock,
        MemberLog(own.make, context.time, own.reach_of),
        url=advertised(context.agent),
        open_link=context.open_link,
        aggregates=aggregates,
    )
    check.sampler.watch(shards.note_reading)
    duty = Duty()
    return ShardParts(
        shards,
        PatroniParts(shards.membership, context.clock, context.roll),
        Heartbeats(shards, check.demands, context.clock, duty),
        duty,
    )


def rollup_plugins() -> Mapping[str, Aggregate]:
    """The built-in ones, and those that packages bring; a built-in cannot be replaced."""
    found = {point.name: point.load() for point in entry_points(group=ROLLUP_GROUP)}
    return {**found, **AGGREGATES}


def shard_plans(settings: Settings, metrics: MetricParts) -> list[ShardPlan]:
    return [
        shard_plan_of(database, database.shard, metrics)
        for database in settings.databases.values()
        if database.shard is not None
    ]


def shard_plan_of(database: DatabaseSettings, shard: str, metrics: MetricParts) -> ShardPlan:
    def correct_clock(ahead_s: float, error_s: float) -> None:
        probes = metrics.probes(database.name)
        if probes is not None:
            probes.skew.ahead_s, probes.skew.error_s = ahead_s, error_s

    return ShardPlan(
        database=database.name,
        shard=shard,
        member=database.member,
        labels=database.labels,
        peers=tuple(PeerPlan(p.name, p.url, p.database) for p in database.peers),
        discover=database.discover,
        collect_interval_s=database.collect_interval_s,
        open_role_probe=lambda: probes_of(database).role_probe(),
        open_fence_probe=lambda: probes_of(database).fence_probe(),
        correct_clock=correct_clock,
        connection=connection_of(database),
        patroni=database.patroni or "",
    )


def url_faults(settings: Settings) -> Iterator[Fault]:
    """By the links' own parser, so that a URL which they reject is found before the start."""
    urls = {
        f"databases.{database.name}.peers.{peer.name}.url": peer.url
        for database in settings.databases.values()
        for peer in database.peers
    }
    agent = settings.agent
    urls |= {"agent.standby_for": agent.standby_for or "", "agent.advertise": agent.advertise or ""}
    for place, url in urls.items():
        try:
            parse_peer_url(url or "http://localhost")
        except InvalidName as error:
            yield Fault(place, str(error))


class Heartbeats:
    """Of the databases whose settings have one; written where the database is a primary."""

    def __init__(self, shards: Shards, demands: Demands, clock: Clock, duty: Duty) -> None:
        self._shards = shards
        self._demands = demands
        self._clock = clock
        self._duty = duty
        self.tasks: list[asyncio.Task[None]] = []

    async def restart(self, databases: Iterable[DatabaseSettings]) -> list[Heartbeat]:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        beats = [self._heartbeat(d) for d in databases if d.beats_every_s]
        self._shards.attach_heartbeats(beats)
        self.tasks = [
            asyncio.create_task(supervised(f"heartbeat {beat.database}", beat.run))
            for beat in beats
        ]
        return beats

    def _heartbeat(self, database: DatabaseSettings) -> Heartbeat:
        interval_s = database.beats_every_s
        writer = probes_of(database).heartbeat_writer(
            database.heartbeat_table,
            interval_s=interval_s,
            required=database.heartbeat_interval_s is not None,
        )
        return Heartbeat(
            database.name,
            writer,
            self._clock,
            self._demands.by_database[database.name],
            interval_s=interval_s,
            lease_s=database.heartbeat_lease_s,
            stands_aside=lambda: self._beats_elsewhere(database.name),
        )

    def _beats_elsewhere(self, database: str) -> bool:
        """On a replica, and on a standby whose active agent beats already."""
        return self._duty.is_passive() or self._shards.is_replica(database)


class PatroniParts:
    """Patroni's word on the clusters of our databases, where they have one."""

    def __init__(self, membership: Membership, clock: Clock, roll: Roll) -> None:
        self._membership = membership
        self._clock = clock
        self._roll = roll
        self._store: SharedLog | None = None
        self._pace = ConfirmPace()
        self._followers: dict[str, PatroniFollower] = {}
        """By scope."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def adopt(self, settings: Settings) -> None:
        """Follow the clusters that the settings name, and no others."""
        wanted = {d.patroni for d in settings.databases.values() if d.patroni}
        if wanted and self._store is None:
            self._store = _patroni_store(settings, self._roll)
        for scope in self._followers.keys() - wanted:
            self._membership.unfollow_patroni(scope)
            self._tasks.pop(scope).cancel()
            del self._followers[scope]
        for scope in sorted(wanted - self._followers.keys()):
            self._follow(scope)

    def _follow(self, scope: str) -> None:
        assert self._store is not None
        follower = PatroniFollower(self._store, scope, self._clock, self._roll, pace=self._pace)
        self._followers[scope] = follower
        self._membership.follow_patroni(follower)
        self._tasks[scope] = asyncio.create_task(supervised(f"patroni {scope}", follower.run))

    def joined(self, plans: Iterable[ShardPlan]) -> list[ShardPlan]:
        """With Patroni's word on the role of a server that tells none itself."""
        return [self._joined(plan) if plan.patroni else plan for plan in plans]

    def _joined(self, plan: ShardPlan) -> ShardPlan:
        follower, own = self._followers[plan.patroni], plan.open_role_probe
        return replace(
            plan,
            open_role_probe=lambda: PatroniRoleProbe(own(), follower, plan.member, self._clock),
        )

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._store is not None:
            await self._store.close()


def _patroni_store(settings: Settings, roll: Roll) -> SharedLog:
    access, namespace = settings.patroni.etcd, settings.patroni.namespace
    if not access.endpoints and settings.fleet is not None:
        access = settings.fleet.etcd
    return etcd_store(access, namespace, roll, timeout_s=2.0)


def standby_of(
    context: AgentContext, check: CheckParts, shards: Shards, elector: Elector | None
) -> Standby | ElectedStandby | None:
    """None: the settings name no pair. `elector`: where the fleet's log elects the active agent."""
    agent, checker = context.agent, check.checker
    standby: Standby | ElectedStandby
    if elector is not None:
        standby = _elected(context, check, elector)
    elif agent.standby_for is not None:
        standby = _standby_for(agent.standby_for, context, check)
    else:
        return None
    # While passive, clients of this host are sent to the agent that answers for it.
    standby.on_change = lambda: shards.speak_at(checker.active_agent or advertised(agent))
    return standby


def _elected(context: AgentContext, check: CheckParts, elector: Elector) -> ElectedStandby:
    agent = context.agent
    look_s = max(0.25, agent.takeover_after_s / LOOKS_PER_TAKEOVER)

    async def look(url: str) -> None:
        """Whether the agent that leads a pair by the store answers there at all."""
        link = context.open_link(url)
        try:
            await link.ask("GET", "/healthz", timeout_s=look_s)
        finally:
            await link.close()

    return ElectedStandby(
        elector,
        check.checker,
        check.demands,
        context.clock,
        warm=agent.warm_standby,
        look=look,
        takeover_after_s=agent.takeover_after_s,
    )


def _standby_for(url: str, context: AgentContext, check: CheckParts) -> Standby:
    agent, clock = context.agent, context.clock
    link = open_link(url, context.access, sender=agent.name, now=clock.now)
    look_s = agent.takeover_after_s / LOOKS_PER_TAKEOVER

    async def look() -> None:
        await link.ask("GET", "/healthz", timeout_s=max(0.25, look_s))

    return Standby(
        url,
        look,
        check.checker,
        check.demands,
        clock,
        takeover_after_s=agent.takeover_after_s,
        warm=agent.warm_standby,
    )
