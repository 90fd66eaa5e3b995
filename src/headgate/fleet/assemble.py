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
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from headgate.base.assemble import AgentContext, advertised, faults_of
from headgate.base.declared import iso
from headgate.base.ports import LogReader, PeerLink, SharedLog
from headgate.changes.assemble import Followers, etcd_access, etcd_store
from headgate.changes.beat import LogBeat
from headgate.changes.book import SharedBook
from headgate.changes.copying import LogCopies
from headgate.changes.follower import LogFollower
from headgate.changes.inforce import SharedInForce
from headgate.changes.log_copy import CopyOrigin
from headgate.changes.mirror import Mirror
from headgate.changes.model import followed_prefixes, unquoted
from headgate.changes.reach import Place
from headgate.check.assemble import CheckParts
from headgate.client.local_clock import now as sleepless_now
from headgate.errors import Fault
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
from headgate.metrics.model import Engine
from headgate.rules.drafts import RuleDrafts
from headgate.settings.agent import Settings
from headgate.settings.fleet import FleetSettings
from headgate.settings.readers import is_loopback
from headgate.settings.sections import AgentSettings, DatabaseSettings
from headgate.shard.election import Candidate, Elector
from headgate.shard.model import LOCAL, ServedDatabase
from headgate.shard.service import Shards, Stand
from headgate.shard.speech import Footing
from headgate.tracing.traced import traced_shared_log
from headgate.version import VERSION

Loop = tuple[str, Callable[[], Awaitable[None]]]
FIND_PRIMARY_S = 2.0


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


class FollowedSources:
    """Sources to follow: the agent of our primary, where it is another one, and the log itself."""

    def __init__(
        self, context: AgentContext, shards: Shards, store: SharedLog, feeds: FeedLinks
    ) -> None:
        self._context = context
        self._shards = shards
        self._store = store
        self._feeds = feeds
        self._began_at = context.clock.now().mono_s

    def prefixes(self) -> Sequence[str]:
        return followed_prefixes(place.shard for place in self._context.places())

    def readers(self) -> Sequence[LogReader]:
        """Our primary's agent, where it is another one and speaks for all that we follow. Nobody
        for a moment at the start, until our servers have said what they are."""
        stands = self._shards.stands()
        young = self._context.clock.now().mono_s - self._began_at < FIND_PRIMARY_S
        if young and any(stand.role is None for stand in stands):
            return ()
        urls = {stand.primary_url for stand in stands}
        one_shard = len({stand.shard for stand in stands}) == 1
        if one_shard and len(urls) == 1 and (url := urls.pop()):
            return (self._feeds.to(url), self._store)
        return (self._store,)


class Registration:
    """What this agent registers in the fleet: its members, and the state of its shards."""

    def __init__(
        self,
        context: AgentContext,
        fleet: FleetSettings,
        check: CheckParts,
        followers: Followers,
        log: FollowedLog,
    ) -> None:
        self._context = context
        self._fleet = fleet
        self._followers = followers
        self._log = log
        self._members: Sequence[FleetMember] = ()
        clock, roll, follower, mirror = context.clock, context.roll, log.follower, log.mirror
        self.registrar = Registrar(
            log.store,
            clock,
            roll,
            members=self._own_members,
            spread_s=lambda: follower.spread_s,
            ttl_s=fleet.lease_s,
            is_size_known=lambda: mirror.known,
        )
        self.status = FleetStatus(
            log.store,
            clock,
            roll,
            shards=followers.shards,
            board=check.board,
            recorder=check.recorder,
            sources=self._told_sources(),
        )

    def found(self, members: Sequence[FleetMember]) -> None:
        self._members = members
        self._followers.shards.membership.found_in_fleet(members, cluster=self._fleet.cluster)
        self.registrar.seen(members)
        self.registrar.look_again()

    def _own_members(self) -> Sequence[FleetMember]:
        agent = self._context.agent
        where = Whereabouts(
            url=advertised(agent),
            host=agent.name,
            region=self._fleet.region,
            cluster=self._fleet.cluster,
            version=VERSION,
        )
        return own_members(
            self._context.settings.databases,
            self._followers.shards,
            where,
            n=self._log.in_force.n,
            wall_s=self._context.clock.now().wall_s,
            rejected=self._rejected,
        )

    def _rejected(self, database: str) -> list[str]:
        """Items of the fleet that are not in force for this database, though they reach us."""
        rooms = self._followers
        unread = (unquoted(key.rpartition("/")[2]) for key in self._log.in_force.faults)
        faults = [*rooms.budgets.fleet_faults, *rooms.metrics.faults]
        parted = (told.partition(f" on {database}") for told in faults)
        left_out = (item_id for item_id, here, rest in parted if here and not rest)
        # A rule that does not apply to all of our databases is listed by its id and the database.
        rules = (told.rpartition("@") for told in rooms.rules.faults)
        unruled = (name or of for name, at, of in rules if not at or of == database)
        return sorted({*unread, *unruled, *left_out, *rooms.metrics.kept.faults})

    def _told_sources(self) -> StatusSources:
        follower = self._log.follower
        return StatusSources(
            place=self._place,
            url=lambda: advertised(self._context.agent),
            footing=self._footing,
            members=lambda shard: [m for m in self._members if m.shard == shard],
            rules_in_force=self._rules_in_force,
            lease_id=lambda: self.registrar.lease_id,
            spread_s=lambda: follower.spread_s,
        )

    def _place(self, database: str) -> Place:
        found = (place for place in self._context.places() if place.database == database)
        return next(found, Place(database=database))

    def _footing(self) -> Footing:
        state = self._log.follower.state()
        return Footing(self._log.in_force.n, state.source, state.stale_since)

    def _rules_in_force(self) -> int:
        wall_s = self._context.clock.now().wall_s
        return sum(rule.in_force(wall_s) for rule in self._followers.rules.book.rules)


class FollowedLog:
    """The fleet's log as far as it reaches this agent: followed, in force, kept on disk."""

    def __init__(
        self,
        context: AgentContext,
        fleet: FleetSettings,
        followers: Followers,
        found: Callable[[Sequence[FleetMember]], None],
    ) -> None:
        clock, roll, tracer = context.clock, context.roll, context.tracer
        etcd = etcd_store(
            fleet.etcd, fleet.prefix, roll, timeout_s=fleet.timeout_s, names_data=True
        )
        self.requests = etcd.requests
        self.store = etcd if tracer is None else traced_shared_log(etcd, tracer)
        self.timing = FleetTiming.of(
            beat_interval_s=fleet.beat_interval_s, timeout_s=fleet.timeout_s
        )
        self.mirror = Mirror(clock)
        self._feeds = FeedLinks(context.open_link, fleet.timeout_s)
        sources = FollowedSources(context, followers.shards, self.store, self._feeds)
        self.follower = LogFollower(
            self.mirror,
            clock,
            roll,
            sources=sources.readers,
            prefixes=sources.prefixes,
            timing=self.timing,
        )
        self.in_force = SharedInForce(
            self.follower,
            clock,
            (followers.rules, followers.budgets, followers.metrics, followers.shards.keeper),
            places=context.places,
            found=found,
        )
        self.beat = LogBeat(self.store, self.follower, clock, roll, by=context.agent.name)
        # Beside the agent's own state; without that, nothing is kept.
        state = context.agent.state
        path = fleet.cache or (state.with_name(f"{state.name}.fleet") if state else None)
        origin = CopyOrigin(fleet.prefix, tuple(sorted(fleet.etcd.endpoints)))
        self._file = None if path is None else LogCache(path, origin)
        self.copies = LogCopies(self.follower, self._file, clock) if self._file else None

    async def recall(self) -> None:
        """Apply the copy on disk before any request to the fleet; nothing waits for the fleet."""
        if self.copies is not None:
            await self.copies.recall()
            await self.in_force.apply()

    def loops(self) -> Iterator[Loop]:
        yield "fleet", self.follower.run
        yield "fleet rules", self.in_force.run
        yield "fleet starts", lambda: self.in_force.starts.run(self.in_force.renew)
        yield "fleet beat", self.beat.run
        if self.copies is not None:
            yield "fleet copies", self.copies.run

    def notes(self, wall_s: float) -> Iterator[str]:
        if self.beat.fault:
            yield (
                f"this agent cannot write the fleet's beat, so the store may take no changes at "
                f"all: {self.beat.fault}"
            )
        if self.copies is not None and self.copies.fault:
            at = self.copies.saved_at
            rules = "only earlier rules" if at is None else f"the rules of {iso(at)}"
            yield f"{self.copies.fault}; a restart while the store is away would have {rules}"
        if not self.follower.is_stale and (clock := clock_told(self.mirror.beat, wall_s)):
            yield clock

    async def close(self) -> None:
        async with AsyncExitStack() as ends:
            ends.push_async_callback(self.store.close)
            ends.push_async_callback(self._feeds.close)
            if self.copies is not None and self._file is not None:
                ends.push_async_callback(self._file.close)
                ends.push_async_callback(self.copies.save)


class FleetParts:
    def __init__(
        self, context: AgentContext, fleet: FleetSettings, check: CheckParts, followers: Followers
    ) -> None:
        self._context = context
        self._registers = fleet.register
        self._shards = followers.shards
        self.log = FollowedLog(context, fleet, followers, self._members_found)
        self.registration = Registration(context, fleet, check, followers, self.log)
        self.book = SharedBook(
            self.log.store,
            context.clock,
            context.roll,
            RuleDrafts(followers.known_metrics, followers.limits),
            host=context.agent.name,
        )
        self.book.rooms |= followers.file_rooms()
        self.book.has_ended = partial(followers.rules.has_ended, own=False)
        self.whole = _whole_fleet(context, self.log) if fleet.view else None
        self._elector: Elector | None = None
        self._shards.on_roles = self._roles_changed
        self._shards.keeper.make_shared = self.book.make

    # --- life ------------------------------------------------------------------------------

    def loops(self) -> Iterator[Loop]:
        yield from self.log.loops()
        if self._registers:
            yield "fleet registrar", self.registration.registrar.run
            yield "fleet status", self.registration.status.run
        if self.whole is not None:
            yield "fleet view", self.whole.follower.run
            yield "fleet picture", self.whole.view.run

    def adopt(self) -> None:
        """Other databases, or other shards of theirs; [fleet] itself waits for a restart."""
        self.log.in_force.look_again()
        self._roles_changed()

    async def close(self) -> None:
        async with AsyncExitStack() as ends:
            ends.push_async_callback(self.log.close)
            if self._registers:
                ends.push_async_callback(self.registration.registrar.leave)

    def _members_found(self, members: Sequence[FleetMember]) -> None:
        self.registration.found(members)

    def _roles_changed(self) -> None:
        self.log.follower.look_again()
        self.registration.registrar.look_again()

    # --- for others ------------------------------------------------------------------------

    def routed(self) -> Fleet:
        """For the HTTP edge."""
        return Fleet(self.book, self.log.mirror, self.whole.view if self.whole else None)

    def look(self) -> FleetLook:
        """For status, readiness and metrics."""
        in_force, view = self.log.in_force, self.whole.view if self.whole else None
        return FleetLook(in_force, self.log.requests, view, lambda: in_force.faults, self._notes)

    def _notes(self) -> list[str]:
        told = list(self.log.notes(self._context.clock.now().wall_s))
        if self._elector is not None and (obstacle := self._elector.state().obstacle):
            told.append(f"this agent answers on its own: {obstacle}")
        doubles = self.registration.registrar.state().doubles
        return [
            *told,
            *amiss(doubles, self._shards.membership.unbelieved, self.registration.status.rivals),
        ]

    def elector(self, agent: AgentSettings) -> Elector:
        assert agent.elect is not None
        context = self._context
        # Where the settings let agents of our shards be.
        discovered = (d.discover for d in context.settings.databases.values() if d.discover)
        self._elector = Elector(
            self.log.store,
            context.clock,
            context.roll,
            Candidate(
                agent.elect,
                agent.name,
                advertised(agent),
                agent.elect_ttl_s,
                among=(*agent.elect_among, *discovered),
            ),
            mono_s=sleepless_now,
            answers=lambda: answers_of(
                context.settings, self._shards.stands(), socket.gethostname()
            ),
        )
        return self._elector


class WholeFleet(NamedTuple):
    """Of an agent whose settings say `view`."""

    view: FleetView
    follower: LogFollower


def _whole_fleet(context: AgentContext, log: FollowedLog) -> WholeFleet:
    mirror = Mirror(context.clock)
    follower = LogFollower(
        mirror,
        context.clock,
        context.roll,
        sources=lambda: (log.store,),
        prefixes=lambda: VIEW_PREFIXES,
        timing=log.timing,
    )

    def link() -> StoreLink:
        state = follower.state()
        gone = state.went_back is not None
        return StoreLink(state.source, state.revision, state.stale_since, state.fault, gone)

    state = context.agent.state
    view = FleetView(
        mirror,
        context.clock,
        link=link,
        spread_s=lambda: follower.spread_s,
        roster=RosterFile(state.with_name(f"{state.name}.shards")) if state else None,
    )
    follower.watch(view.note)
    return WholeFleet(view, follower)


# --- from settings ---------------------------------------------------------------------------


def assemble(context: AgentContext, check: CheckParts, followers: Followers) -> FleetParts | None:
    """None: the agent belongs to no fleet."""
    fleet = context.settings.fleet
    return None if fleet is None else FleetParts(context, fleet, check, followers)


def access_faults(settings: Settings) -> Iterator[Fault]:
    """Of the files that [fleet] and [patroni] name; connects to nothing."""
    given = [("patroni", settings.patroni.etcd)]
    given += [("fleet", settings.fleet.etcd)] if settings.fleet is not None else []
    for section, access in given:
        if access.endpoints:
            for fault in faults_of(partial(etcd_access, access)):
                yield fault._replace(place=f"{section}.{fault.place.rpartition('.')[2]}")


def answers_of(
    settings: Settings, stands: Iterable[Stand], machine: str
) -> dict[str, ServedDatabase]:
    """What this agent answers for. Of a shard, its server reports which member it is, or will."""
    servers = {stand.database: stand.server for stand in stands}
    return {
        name: ServedDatabase(
            member=f"{database.shard}/{database.member}" if database.shard else "",
            server=servers.get(name, ""),
            target=_target(database, machine),
        )
        for name, database in settings.databases.items()
    }


def _target(database: DatabaseSettings, machine: str) -> str:
    """host:port/database, without the user; empty where it is not known."""
    try:
        postgres = database.engine is Engine.POSTGRES
        host, port, name = (_postgres_target if postgres else _mysql_target)(database.dsn)
    except ValueError:
        return ""
    near = not host or host.startswith(("/", "@")) or is_loopback(host)
    return f"{f'{LOCAL}{machine}' if near else host}:{port}/{name}"


def _postgres_target(dsn: str) -> tuple[str, str, str]:
    try:
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise ValueError(str(error)) from None  # It is said where the probes are built.
    try:
        said = conninfo_to_dict(dsn)
    except Error as error:
        raise ValueError(type(error).__name__) from None
    host = str(said.get("host") or said.get("hostaddr") or "")
    return host, str(said.get("port") or 5432), str(said.get("dbname") or said.get("user") or "")


def _mysql_target(dsn: str) -> tuple[str, str, str]:
    parts = urlsplit(dsn)
    host = "" if "socket=" in parts.query else parts.hostname or ""
    return host, str(parts.port or 3306), parts.path.lstrip("/")
