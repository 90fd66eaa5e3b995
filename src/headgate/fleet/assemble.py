"""The fleet's parts of one agent, put together from its settings.

Settings ──► store ──► follower ──► Mirror ──► RuleKeeper, Budgets, MetricKeeper, Shards
                 │     (its primary's agent first, where it is a replica's)
                 └──► book (changes), beat, registrar, status; view, where the agent has that role
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from headgate.base.ports import Clock, LogReader, PeerLink, SharedLog, Tracer
from headgate.base.supervise import supervised
from headgate.budgets.service import Budgets
from headgate.changes.beat import LogBeat
from headgate.changes.book import SharedBook
from headgate.changes.copying import LogCopies
from headgate.changes.follower import LogFollower
from headgate.changes.inforce import SharedInForce
from headgate.changes.log_copy import CopyOrigin
from headgate.changes.mirror import Mirror
from headgate.changes.model import followed_prefixes, unquoted
from headgate.changes.reach import Place
from headgate.check.board import Board
from headgate.client.local_clock import now as sleepless_now
from headgate.errors import Fault
from headgate.fleet.api import iso
from headgate.fleet.beat import FleetTiming, clock_told
from headgate.fleet.cache import LogCache, RosterFile
from headgate.fleet.feed_reader import AgentReader
from headgate.fleet.members import FleetMember
from headgate.fleet.picture import VIEW_PREFIXES, FleetView
from headgate.fleet.registrar import Registrar, Whereabouts, own_members
from headgate.fleet.routes import Fleet
from headgate.fleet.shardstatus import FleetStatus, StatusSources
from headgate.fleet.status import FleetLook, amiss
from headgate.fleet.view import StoreLink
from headgate.history.recorder import Recorder
from headgate.metrics.service import MetricKeeper
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import KnownMetrics, RuleLimits
from headgate.settings.agent import Settings
from headgate.settings.fleet import EtcdSettings, FleetSettings
from headgate.settings.sections import AgentSettings
from headgate.shard.election import Elector
from headgate.shard.patroni import ConfirmPace, PatroniFollower, PatroniRoleProbe
from headgate.shard.plan import ShardPlan
from headgate.shard.service import Shards
from headgate.shard.speech import Footing
from headgate.tracing.traced import traced_shared_log
from headgate.version import VERSION
from headgate.wiring import advertised, answers_of, faults_of, places_of

if TYPE_CHECKING:
    from headgate.changes.etcd import EtcdAccess, EtcdStore

log = structlog.get_logger()

Loop = tuple[str, Callable[[], Awaitable[None]]]
Roll = Callable[[], float]
FIND_PRIMARY_S = 2.0


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The parts of an agent that a fleet touches."""

    shards: Shards
    board: Board
    recorder: Recorder
    rules: RuleKeeper
    budgets: Budgets
    metrics: MetricKeeper
    known_metrics: KnownMetrics
    limits: RuleLimits
    open_link: Callable[[str], PeerLink]
    """Opens the link to another agent; the caller closes it."""
    tracer: Tracer | None = None


class FeedLinks:
    """The ways to other agents' feeds, by address: one of its own, for a pull is held there."""

    def __init__(self, open_link: Callable[[str], PeerLink], timeout_s: float) -> None:
        self._open_link = open_link
        self._timeout_s = timeout_s
        self._readers: dict[str, AgentReader] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def to(self, url: str) -> AgentReader:
        """The one in use; that to the agent that was followed before is closed."""
        for other in [known for known in self._readers if known != url]:
            task = asyncio.create_task(self._readers.pop(other).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        if url not in self._readers:
            link = self._open_link(url)
            self._readers[url] = AgentReader(link, timeout_s=self._timeout_s)
        return self._readers[url]

    async def close(self) -> None:
        readers, self._readers = list(self._readers.values()), {}
        await asyncio.gather(*(reader.close() for reader in readers), return_exceptions=True)


class FleetParts:
    def __init__(
        self, settings: Settings, fleet: FleetSettings, host: AgentParts, clock: Clock, roll: Roll
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._host = host
        self._clock = clock
        self._roll = roll
        self._began_at = clock.now().mono_s
        etcd = store_of(fleet, roll)
        self._requests = etcd.requests
        tracer = host.tracer
        self.store = etcd if tracer is None else traced_shared_log(etcd, tracer)
        self.timing = FleetTiming.of(
            beat_interval_s=fleet.beat_interval_s, timeout_s=fleet.timeout_s
        )
        self.mirror = Mirror(self._clock)
        self._feeds = FeedLinks(host.open_link, fleet.timeout_s)
        self.follower = self._follower(self.mirror, self._sources, self._prefixes)
        self.in_force = SharedInForce(
            self.follower,
            clock,
            (host.rules, host.budgets, host.metrics, host.shards),
            places=self.places,
            found=self._members_found,
        )
        self.beat = LogBeat(self.store, self.follower, clock, roll, by=settings.agent.name)
        self.book = SharedBook(
            self.store,
            clock,
            host.known_metrics,
            roll,
            limits=host.limits,
            host=settings.agent.name,
        )
        self._file = _cache_of(settings, fleet)
        self.copies = LogCopies(self.follower, self._file, clock) if self._file else None
        self.registrar = Registrar(
            self.store,
            clock,
            roll,
            members=self._own_members,
            spread_s=lambda: self.follower.spread_s,
            ttl_s=fleet.lease_s,
            is_size_known=lambda: self.mirror.known,
        )
        self.status = FleetStatus(
            self.store,
            clock,
            roll,
            shards=host.shards,
            board=host.board,
            recorder=host.recorder,
            sources=self._told_sources(),
        )
        self.view: FleetView | None = None
        self._view_follower: LogFollower | None = None
        if fleet.view:
            self._watch_all()
        self._elector: Elector | None = None
        self._members: Sequence[FleetMember] = ()
        host.shards.on_roles = self._roles_changed
        host.shards.make_shared = self.book.make
        self.book.has_ended = partial(host.rules.has_ended, own=False)

    # --- life ------------------------------------------------------------------------------

    async def recall(self) -> None:
        """Apply the copy on disk before any request to the fleet; nothing waits for the fleet."""
        if self.copies is not None:
            await self.copies.recall()
            await self.in_force.apply()

    def loops(self) -> Iterator[Loop]:
        yield "fleet", self.follower.run
        yield "fleet rules", self.in_force.run
        yield "fleet beat", self.beat.run
        if self.copies is not None:
            yield "fleet copies", self.copies.run
        if self._fleet.register:
            yield "fleet registrar", self.registrar.run
            yield "fleet status", self.status.run
        if self.view is not None and self._view_follower is not None:
            yield "fleet view", self._view_follower.run
            yield "fleet picture", self.view.run

    def adopt(self, settings: Settings) -> None:
        """Other databases, or other shards of theirs; [fleet] itself waits for a restart."""
        self._settings = settings
        self.in_force.look_again()
        self.follower.look_again()
        self.registrar.look_again()

    async def close(self) -> None:
        async with AsyncExitStack() as ends:
            ends.push_async_callback(self.store.close)
            ends.push_async_callback(self._feeds.close)
            if self.copies is not None and self._file is not None:
                ends.push_async_callback(self._file.close)
                ends.push_async_callback(self.copies.save)
            if self._fleet.register:
                ends.push_async_callback(self.registrar.leave)

    def routed(self) -> Fleet:
        """For the HTTP edge."""
        return Fleet(self.book, self.mirror, self.view)

    def look(self) -> FleetLook:
        """For status, readiness and metrics."""
        in_force = self.in_force
        return FleetLook(in_force, self._requests, self.view, lambda: in_force.faults, self._notes)

    def _notes(self) -> list[str]:
        told = []
        if self.beat.fault:
            told.append(
                f"this agent cannot write the fleet's beat, so the store may take no changes at "
                f"all: {self.beat.fault}"
            )
        if self.copies is not None and self.copies.fault:
            told.append(f"{self.copies.fault}; {_kept_since(self.copies.saved_at)}")
        if not self.follower.is_stale:
            clock = clock_told(self.mirror.beat, self._clock.now().wall_s)
            told += [clock] if clock else []
        if self._elector is not None and (obstacle := self._elector.state().obstacle):
            told.append(f"this agent answers on its own: {obstacle}")
        doubles = self.registrar.state().doubles
        return [*told, *amiss(doubles, self._host.shards.unbelieved, self.status.rivals)]

    def elector(self, agent: AgentSettings) -> Elector:
        assert agent.elect is not None
        self._elector = Elector(
            self.store,
            self._clock,
            self._roll,
            name=agent.elect,
            me=agent.name,
            url=advertised(agent),
            ttl_s=agent.elect_ttl_s,
            mono_s=sleepless_now,
            among=(*agent.elect_among, *self._discovered()),
            answers=lambda: answers_of(
                self._settings, self._host.shards.stands(), socket.gethostname()
            ),
        )
        return self._elector

    def _discovered(self) -> Iterator[str]:
        """Where the settings let agents of our shards be."""
        return (d.discover for d in self._settings.databases.values() if d.discover)

    # --- following -------------------------------------------------------------------------

    def places(self) -> list[Place]:
        """The place of each database of this agent in the fleet."""
        return places_of(self._settings)

    def _follower(
        self,
        mirror: Mirror,
        sources: Callable[[], Sequence[LogReader]],
        prefixes: Callable[[], Sequence[str]],
    ) -> LogFollower:
        return LogFollower(
            mirror,
            self._clock,
            self._roll,
            sources=sources,
            prefixes=prefixes,
            timing=self.timing,
        )

    def _prefixes(self) -> Sequence[str]:
        return followed_prefixes(place.shard for place in self.places())

    def _sources(self) -> Sequence[LogReader]:
        """Our primary's agent, where it is another one and speaks for all that we follow. Nobody
        for a moment at the start, until our servers have said what they are."""
        stands = self._host.shards.stands()
        young = self._clock.now().mono_s - self._began_at < FIND_PRIMARY_S
        if young and any(stand.role is None for stand in stands):
            return ()
        urls = {stand.primary_url for stand in stands}
        one_shard = len({stand.shard for stand in stands}) == 1
        if one_shard and len(urls) == 1 and (url := urls.pop()):
            return (self._feeds.to(url), self.store)
        return (self.store,)

    def _members_found(self, members: Sequence[FleetMember]) -> None:
        self._members = members
        self._host.shards.found_in_fleet(members, cluster=self._fleet.cluster)
        self.registrar.seen(members)
        self.registrar.look_again()

    def _roles_changed(self) -> None:
        self.follower.look_again()
        self.registrar.look_again()

    # --- telling ---------------------------------------------------------------------------

    def _own_members(self) -> Sequence[FleetMember]:
        where = Whereabouts(
            url=advertised(self._settings.agent),
            host=self._settings.agent.name,
            region=self._fleet.region,
            cluster=self._fleet.cluster,
            version=VERSION,
        )
        return own_members(
            self._settings.databases,
            self._host.shards,
            where,
            n=self.in_force.n,
            wall_s=self._clock.now().wall_s,
            refused=self._refused,
        )

    def _refused(self, database: str) -> list[str]:
        """Items of the fleet that are not in force for this database, though they reach us."""
        unread = (unquoted(key.rpartition("/")[2]) for key in self.in_force.faults)
        faults = [*self._host.budgets.fleet_faults, *self._host.metrics.faults]
        parted = (told.partition(f" on {database}") for told in faults)
        left_out = (item_id for item_id, here, rest in parted if here and not rest)
        # A rule that does not apply to all of our databases is listed by its id and the database.
        rules = (told.rpartition("@") for told in self._host.rules.faults)
        unruled = (name or of for name, at, of in rules if not at or of == database)
        return sorted({*unread, *unruled, *left_out, *self._host.metrics.kept.faults})

    def _told_sources(self) -> StatusSources:
        return StatusSources(
            place=self._place,
            url=lambda: advertised(self._settings.agent),
            footing=self._footing,
            members=lambda shard: [m for m in self._members if m.shard == shard],
            rules_in_force=self._rules_in_force,
            lease_id=lambda: self.registrar.lease_id,
            spread_s=lambda: self.follower.spread_s,
        )

    def _place(self, database: str) -> Place:
        found = (place for place in self.places() if place.database == database)
        return next(found, Place(database=database))

    def _footing(self) -> Footing:
        state = self.follower.state()
        return Footing(self.in_force.n, state.source, state.stale_since)

    def _rules_in_force(self) -> int:
        wall_s = self._clock.now().wall_s
        return sum(rule.in_force(wall_s) for rule in self._host.rules.book.rules)

    # --- the whole fleet -------------------------------------------------------------------

    def _watch_all(self) -> None:
        mirror = Mirror(self._clock)
        follower = self._follower(mirror, lambda: (self.store,), lambda: VIEW_PREFIXES)

        def link() -> StoreLink:
            state = follower.state()
            gone = state.went_back is not None
            return StoreLink(state.source, state.revision, state.stale_since, state.fault, gone)

        state = self._settings.agent.state
        self.view = FleetView(
            mirror,
            self._clock,
            link=link,
            spread_s=lambda: follower.spread_s,
            roster=RosterFile(state.with_name(f"{state.name}.shards")) if state else None,
        )
        self._view_follower = follower
        follower.watch(self.view.note)


# --- from settings ---------------------------------------------------------------------------


def fleet_parts(
    settings: Settings, host: AgentParts, clock: Clock, roll: Roll
) -> FleetParts | None:
    """None: the agent belongs to no fleet."""
    if settings.fleet is None:
        return None
    return FleetParts(settings, settings.fleet, host, clock, roll)


def store_of(fleet: FleetSettings, roll: Roll) -> EtcdStore:
    return etcd_store(fleet.etcd, fleet.prefix, roll, timeout_s=fleet.timeout_s, names_data=True)


def etcd_store(
    access: EtcdSettings, prefix: str, roll: Roll, *, timeout_s: float, names_data: bool = False
) -> EtcdStore:
    from headgate.changes import etcd

    return etcd.EtcdStore(
        access.endpoints,
        _access_of(access),
        prefix,
        timeout_s=timeout_s,
        roll=roll,
        names_data=names_data,
    )


def _access_of(access: EtcdSettings) -> EtcdAccess:
    from headgate.changes import etcd

    return etcd.load_access(
        username=access.username or "",
        password_file=access.password_file,
        ca=access.ca,
        cert=access.cert,
        key=access.key,
    )


def access_faults(settings: Settings) -> Iterator[Fault]:
    """Of the files that [fleet] and [patroni] name; connects to nothing."""
    given = [("patroni", settings.patroni.etcd)]
    given += [("fleet", settings.fleet.etcd)] if settings.fleet is not None else []
    for section, access in given:
        if access.endpoints:
            for fault in faults_of(partial(_access_of, access)):
                yield fault._replace(place=f"{section}.{fault.place.rpartition('.')[2]}")


def _kept_since(saved_at: float | None) -> str:
    if saved_at is None:
        return "a restart while the store is away would have only earlier rules"
    return f"a restart while the store is away would have the rules of {iso(saved_at)}"


def _cache_of(settings: Settings, fleet: FleetSettings) -> LogCache | None:
    """Beside the agent's own state; without that, nothing is kept."""
    state = settings.agent.state
    path = fleet.cache or (state.with_name(f"{state.name}.fleet") if state else None)
    return None if path is None else LogCache(path, _origin(fleet))


def _origin(fleet: FleetSettings) -> CopyOrigin:
    return CopyOrigin(fleet.prefix, tuple(sorted(fleet.etcd.endpoints)))


class PatroniParts:
    """Patroni's word on the clusters of our databases, where they have one."""

    def __init__(self, settings: Settings, shards: Shards, clock: Clock, roll: Roll) -> None:
        self._shards = shards
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
            self._shards.unfollow_patroni(scope)
            self._tasks.pop(scope).cancel()
            del self._followers[scope]
        for scope in sorted(wanted - self._followers.keys()):
            self._follow(scope)

    def _follow(self, scope: str) -> None:
        assert self._store is not None
        follower = PatroniFollower(self._store, scope, self._clock, self._roll, pace=self._pace)
        self._followers[scope] = follower
        self._shards.follow_patroni(follower)
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
