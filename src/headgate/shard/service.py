"""All shards of this agent, and what operators set for them.

settings ──adopt──► Shards ──► Shard (one each) ──► Board
other agents ──answer, woken──►│        operators ──skip, add_peer──► log ──follow──► here
fleet's store, Patroni ──found_in_fleet, follow_patroni──► `Told` ──► members by `discover`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

import structlog

from headgate.base.ports import Clock, PeerLink
from headgate.base.supervise import supervised
from headgate.changes.items import By, Make, ReachOf, SetItems, always_here, put, standing
from headgate.changes.model import Change, ChangeKind, Edit
from headgate.changes.reach import HERE, Level, Place, Reach, of_shard
from headgate.changes.state import ChangeMade, Draft, LogState
from headgate.changes.time import ChangeTime
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Activity
from headgate.errors import HeadgateError, InvalidName, InvalidRequest, WrongShard
from headgate.fleet.members import FleetMember
from headgate.metrics.samples import Reading
from headgate.rules.drafts import ChangeAuthor
from headgate.shard.handovers import Handovers
from headgate.shard.hearsay import Hearsay
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.members import (
    FOLLOWED_S,
    FOUND,
    HEARSAY,
    PATRONI,
    LocalMember,
    RemoteMember,
)
from headgate.shard.model import (
    MAX_MEMBERS,
    MAX_SKIP_S,
    Handover,
    Pull,
    ShardView,
    Skip,
)
from headgate.shard.patroni import PatroniFollower
from headgate.shard.plan import PeerPlan as PeerPlan
from headgate.shard.plan import ShardPlan as ShardPlan
from headgate.shard.plan import fits, found_peer
from headgate.shard.roles import FenceWatcher, RoleWatcher
from headgate.shard.rollup import AGGREGATES, Aggregate
from headgate.shard.shard import NoSuchMember as NoSuchMember
from headgate.shard.shard import Shard
from headgate.shard.topology import Downstream, Following, Leading, MemberReport, Role

log = structlog.get_logger()

SKIP, PEER = ChangeKind.SKIP, ChangeKind.PEER
"""Of a member, by its shard and its name."""
RUNTIME = "runtime"
"""The source of a member that an operator added."""
UNSEATED_AFTER_S = 5.0
"""An agent may still be starting."""
MAX_HOLD_S = 30.0
ROLE_TIMEOUT_S = 0.5


class NoSuchShard(HeadgateError, LookupError):
    pass


class Stand(NamedTuple):
    """State of one database of this agent in its shard."""

    database: str
    shard: str
    member: str
    role: Role | None
    """Its server's last reported role; None: unknown."""
    leads: bool
    """This agent answers for the shard."""
    primary: str
    """The member that leads, if it is known and belongs to another agent."""
    primary_url: str
    server: str = ""
    """The identifier of its server's cluster, or of the server; empty if it reports none."""
    system: str = ""
    """The identifier of the cluster alone."""


class Shards:
    def __init__(
        self,
        board: Board,
        demands: Demands,
        clock: Clock,
        *,
        url: str,
        open_link: Callable[[str], PeerLink],
        make: Make,
        reach_of: ReachOf = always_here,
        aggregates: Mapping[str, Aggregate] = AGGREGATES,
        time: ChangeTime | None = None,
    ) -> None:
        self._board = board
        self._demands = demands
        self._clock = clock
        self._url = url
        self._open_link = open_link
        self._make = make
        self._reach_of = reach_of
        self._aggregates = aggregates
        self._plans: dict[str, ShardPlan] = {}
        self._shards: dict[str, Shard] = {}
        self._watching: dict[str, list[asyncio.Task[None]]] = {}
        time = time or ChangeTime(clock)
        self._skips = SetItems(SKIP, _skip_of, time, concerns=_is_of_its_shard)
        self._peers = SetItems(PEER, _peer_of, time, concerns=_is_of_its_shard)
        self._handovers = Handovers(clock, make, time)
        self._unusable: set[str] = set()
        """Found in the database, but the name is no valid member name; logged once."""
        self._hearsay = Hearsay(clock, self._add_found, self._note_unusable)
        self.make_shared: Make | None = None
        """To the log that a fleet shares; None: there is none."""
        self.on_roles: Callable[[], None] = lambda: None
        """Called when the role of a database of ours, or the address to check it at, changes."""
        self._roles: dict[str, Role | None] = {}
        self._lock = asyncio.Lock()

    # --- from the file and the log ---------------------------------------------------------

    async def adopt(self, plans: Sequence[ShardPlan]) -> None:
        """Follow the settings. A shard none of whose plans changed goes on undisturbed."""
        async with self._lock:
            wanted = {plan.database: plan for plan in plans}
            changed = {
                plan.shard
                for plan in [*self._plans.values(), *plans]
                if _key(self._plans.get(plan.database)) != _key(wanted.get(plan.database))
            }
            # Everything is in its new place before the first await: no check in between sees half
            # of the change.
            retired = [self._retire(name) for name in changed & self._shards.keys()]
            for database in self._plans.keys() - wanted.keys():
                self._board.set_shard(database, None)
            self._plans = wanted
            for name in sorted(changed):
                self._open_shard(name)
            for shard, tasks in retired:
                await _end(shard, tasks)

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        """What operators set, at this agent or for its shards. A handover is announced at the
        primary's agent alone."""
        async with self._lock:
            skips = self._skips.follow(items, whole=whole, own=own)
            skipped = {_split(name)[0] for name in skips}
            handed_over = self._handovers.follow(items, whole=whole) if own else []
            peers = [_split(name) for name in self._peers.follow(items, whole=whole, own=own)]
            for shard in [one for name, one in self._shards.items() if name in skipped]:
                self._set_skips(shard)
            for shard in [one for name, one in self._shards.items() if name in handed_over]:
                self._handovers.set_in(shard)
            for name, member in peers:
                if name in self._shards:
                    await self._set_peer(self._shards[name], member)

    @property
    def kept(self) -> tuple[SetItems[Any], ...]:
        """What operators set, of each kind."""
        return self._skips, self._peers, self._handovers.kept

    def let_go(self) -> None:
        """Answer what is held: the agent is about to stop."""
        for shard in self._shards.values():
            for local in shard.locals.values():
                local.let_go()

    async def close(self) -> None:
        for name in list(self._shards):
            await _end(*self._retire(name))
        await self._handovers.close()

    def _open_shard(self, name: str) -> None:
        plans = [plan for plan in self._plans.values() if plan.shard == name]
        if not plans:
            return
        shard = self._shards[name] = Shard(
            name,
            self._board,
            self._clock,
            collect_interval_s=min(plan.collect_interval_s for plan in plans),
            url=self._url,
            aggregates=self._aggregates,
        )
        for plan in plans:
            self._add_local(shard, plan)
        for peer in {peer.name: peer for plan in plans for peer in plan.peers}.values():
            self._add_remote(shard, peer, "file")
        for known in self._peers.values:
            if _split(known)[0] == name:
                self._add_kept(shard, _split(known)[1])
        self._set_skips(shard)
        self._handovers.set_in(shard)
        shard.on_downstream = lambda: self._role_read(shard)
        shard.listen_to(
            lambda: self._hearsay.leader(shard, plans), lambda: self._hearsay.words(shard, plans)
        )
        self._hearsay.add_registered(shard, plans)
        self._hearsay.add_listed(shard, plans)
        shard.look_again()  # From now on the host's values are no longer the shard's.

    def _add_local(self, shard: Shard, plan: ShardPlan) -> None:
        demand = self._demands.by_database[plan.database]
        watcher = RoleWatcher(
            plan.database,
            plan.open_role_probe(),
            self._clock,
            demand,
            interval_s=plan.collect_interval_s,
            timeout_s=ROLE_TIMEOUT_S,
        )
        probe = plan.open_fence_probe()
        fence = FenceWatcher(watcher, probe, self._clock, demand) if probe else None
        shard.add_local(
            LocalMember(
                plan.database,
                plan.member,
                plan.labels,
                watcher,
                demand,
                fence=fence,
                correct_clock=plan.correct_clock,
            )
        )
        loops = {f"role {plan.database}": watcher.run}
        if fence is not None:
            loops[f"fence {plan.database}"] = fence.run
        self._watching[plan.database] = [
            asyncio.create_task(supervised(name, run)) for name, run in loops.items()
        ]

    def _add_remote(self, shard: Shard, peer: PeerPlan, source: str) -> None:
        link = self._open_link(peer.url)
        shard.add_remote(RemoteMember(peer.name, peer.database, link, source, self._clock))

    async def _set_peer(self, shard: Shard, member: str) -> None:
        """As the log has it now."""
        remote = shard.remotes.get(member)
        if remote is not None and remote.source == RUNTIME:
            await shard.remove_remote(member)
        self._add_kept(shard, member)

    def _add_kept(self, shard: Shard, member: str) -> None:
        peer = self._peers.values.get(_id(shard, member))
        if peer is None or member in shard.remotes or self._is_ourselves(shard, peer):
            return
        try:
            self._add_remote(shard, peer, RUNTIME)
        except InvalidName as error:
            self._note_unusable(shard.name, member, str(error))

    def _is_ourselves(self, shard: Shard, peer: PeerPlan) -> bool:
        """A peer added at another agent of the shard also reaches the agent that it names."""
        names = {local.name for local in shard.locals.values()}
        return peer.name in names or peer.url in {self._url, *shard.aliases}

    def _retire(self, name: str) -> tuple[Shard, list[asyncio.Task[None]]]:
        shard = self._shards.pop(name)
        shard.halt()
        tasks = [task for database in shard.locals for task in self._watching.pop(database)]
        for task in tasks:
            task.cancel()
        return shard, tasks

    def _discover(self, shard: Shard) -> None:
        """Add the agents of replicas that the server lists, and of the server it follows."""
        for local in shard.locals.values():
            plan = self._plans[local.database]
            if plan.discover is None or local.role is None:
                continue
            found = list(local.role.downstream)
            if host := local.role.upstream.rpartition(":")[0]:
                found.append(Downstream("", host.strip("[]")))
            peers = [peer for one in found if (peer := found_peer(plan, plan.discover, one))]
            for peer in peers:
                self._add_found(shard, peer)
            shard.forget_unheard({peer.url for peer in peers})

    def _role_read(self, shard: Shard) -> None:
        self._discover(shard)
        self._handovers.look(shard)
        roles = {d: local.role.role if local.role else None for d, local in shard.locals.items()}
        if any(self._roles.get(database) is not role for database, role in roles.items()):
            self._roles.update(roles)
            self.on_roles()

    def _note_unusable(self, shard: str, name: str, detail: str) -> None:
        if name not in self._unusable and len(self._unusable) < MAX_MEMBERS:
            self._unusable.add(name)
            log.warning("member.unusable", shard=shard, name=name, detail=detail)

    def _add_found(self, shard: Shard, peer: PeerPlan, source: str = FOUND) -> None:
        known = {self._url, *shard.aliases, *(remote.url for remote in shard.remotes.values())}
        if peer.url not in known:
            self._unseat_silent(shard, peer.name, source)
        names = {*shard.remotes, *(local.name for local in shard.locals.values())}
        if peer.url in known or peer.name in names or len(shard.remotes) >= MAX_MEMBERS:
            return
        try:
            self._add_remote(shard, peer, source)
        except InvalidName as error:
            self._note_unusable(shard.name, peer.name, str(error))
        else:
            log.info(
                "member.found", shard=shard.name, member=peer.name, url=peer.url, source=source
            )

    def _unseat_silent(self, shard: Shard, name: str, source: str) -> None:
        """An address where nobody ever answered gives way to another one: what the settings make
        of a server's list to what the agents or Patroni say, at once; that one in turn, should
        nobody answer there for a while. So both are tried, until one is right."""
        other = shard.remotes.get(name)
        if other is None or other.has_answered:
            return
        now_s = self._clock.now().mono_s
        lost_s = 0.0 if other.lost_since is None else now_s - other.lost_since
        is_guess = other.source == FOUND and source in HEARSAY
        outlived = other.source in HEARSAY and source == FOUND and lost_s >= UNSEATED_AFTER_S
        if is_guess or outlived:
            shard.drop_remote(name)

    # --- from the fleet's store and from Patroni -------------------------------------------

    def found_in_fleet(self, members: Iterable[FleetMember], *, cluster: str = "") -> None:
        """All agents that are registered now, of our shards and perhaps of others. `cluster`: as
        our own settings call it."""
        self._hearsay.hear_fleet(members, cluster)
        for shard in self._shards.values():
            self._hearsay.add_registered(shard, self._plans_of(shard))
            shard.look_again()

    def follow_patroni(self, follower: PatroniFollower) -> None:
        """One that has been followed for that scope before is no longer listened to."""
        self._hearsay.patroni[follower.scope] = follower

        def changed() -> None:
            if self._hearsay.patroni.get(follower.scope) is follower:
                self._patroni_changed(follower.scope)

        follower.watch(changed)
        self._patroni_changed(follower.scope)

    def unfollow_patroni(self, scope: str) -> None:
        self._hearsay.patroni.pop(scope, None)

    def _patroni_changed(self, scope: str) -> None:
        names = {plan.shard for plan in self._plans.values() if plan.patroni == scope}
        for shard in [self._shards[name] for name in sorted(names & self._shards.keys())]:
            self._hearsay.add_listed(shard, self._plans_of(shard))
            shard.look_again()

    @property
    def unbelieved(self) -> Mapping[str, str]:
        """Registered in the fleet's store → why it is not contacted, or does not count."""
        shards = self._shards.values()
        return MappingProxyType(
            {name: why for shard in shards for name, why in self._hearsay.unbelieved(shard)}
        )

    def _plans_of(self, shard: Shard) -> list[ShardPlan]:
        return [plan for plan in self._plans.values() if plan.shard == shard.name]

    # --- for other parts of the agent ------------------------------------------------------

    def note_reading(self, database: str, metric: str, reading: Reading) -> None:
        """A callback of the sampler."""
        plan = self._plans.get(database)
        if plan is not None and plan.shard in self._shards:
            self._shards[plan.shard].local_read(database, reading)

    def attach_heartbeats(self, heartbeats: Iterable[Heartbeat]) -> None:
        """All that there are now."""
        beats = {heartbeat.database: heartbeat for heartbeat in heartbeats}
        for database, plan in self._plans.items():
            self._shards[plan.shard].locals[database].beat_by(beats.get(database))

    @property
    def each(self) -> Mapping[str, Shard]:
        """By name."""
        return MappingProxyType(self._shards)

    def stands(self) -> list[Stand]:
        """State of each database of ours that belongs to a shard."""
        return [self._stand(plan) for plan in self._plans.values() if plan.shard in self._shards]

    def _stand(self, plan: ShardPlan) -> Stand:
        shard = self._shards[plan.shard]
        role, point = shard.locals[plan.database].role, shard.point
        other = point if isinstance(point, Following) else None
        return Stand(
            plan.database,
            plan.shard,
            plan.member,
            role.role if role else None,
            isinstance(point, Leading),
            other.primary if other else "",
            other.url if other else "",
            (role.cluster or role.server_id) if role else "",
            role.cluster if role else "",
        )

    def is_replica(self, database: str) -> bool:
        """By the last that was seen of it."""
        plan = self._plans.get(database)
        if plan is None or plan.shard not in self._shards:
            return False
        role = self._shards[plan.shard].locals[database].role
        return role is not None and role.role is Role.REPLICA

    def primary_link(self, database: str) -> PeerLink | None:
        """The way to the agent that speaks for this database's shard, where that is another."""
        shard = self._shard_of(database)
        if not isinstance(shard.point, Following):
            return None
        remote = shard.remotes.get(shard.point.primary)
        # Where the database has another name, the question would have to be another one.
        return remote.link if remote and remote.database == database else None

    def speak_at(self, url: str) -> None:
        """The address that other agents get, from now on."""
        self._url = url
        for shard in self._shards.values():
            shard.url = url
        self.on_roles()

    @property
    def url(self) -> str:
        """Of this agent, or of the active one while this one is passive."""
        return self._url

    # --- for other agents ------------------------------------------------------------------

    async def answer(self, pull: Pull) -> MemberReport:
        shard = self.asked(pull.shard, pull.database)
        local = shard.locals[pull.database]
        now = self._clock.now().mono_s
        local.demand.follow(pull.activity, now=now, for_s=FOLLOWED_S)
        leads = pull.role is not None and pull.role.role is Role.PRIMARY
        if leads and pull.activity is Activity.HIBERNATING:
            local.demand.unfollow(now)
        if pull.role is None or not shard.roster.is_foreign(pull.role):
            self._meet(shard, pull)
            shard.claimed(pull.sender, pull.role, pull.url)
        if pull.clock_ahead_s is not None:
            local.correct_clock(pull.clock_ahead_s, pull.clock_error_s)
        if pull.wait_s > 0:
            await local.hold(min(pull.wait_s, MAX_HOLD_S))
        return local.report(self._board, self._clock.now().mono_s, self._url)

    def _meet(self, shard: Shard, pull: Pull) -> None:
        """A primary that we did not know: members that it pulls from must know it as well. Only
        if the settings say which addresses agents have: the agent connects to no others."""
        template = self._plans[pull.database].discover
        leads = pull.role is not None and pull.role.role is Role.PRIMARY
        if leads and template is not None and fits(template, pull.url):
            self._add_found(shard, PeerPlan(pull.sender, pull.url, pull.database))

    def woken(self, shard: str, database: str, by: str) -> None:
        local = self.asked(shard, database).locals[database]
        log.info("database.woken", database=database, by=by)
        local.demand.wake(self._clock.now().mono_s)

    def asked(self, shard: str, database: str) -> Shard:
        """Messages never cross shards, not even after a mistake in another agent's settings."""
        plan = self._plans.get(database)
        if plan is None:
            known = ", ".join(sorted(self._plans)) or "none"
            raise InvalidRequest(
                f"no database {database!r} in a shard of this agent: {known}", status=404
            )
        if plan.shard != shard:
            raise WrongShard(
                f"{database} belongs to shard {plan.shard!r} at this agent, not to {shard!r}"
            )
        return self._shards[shard]

    # --- for operators ---------------------------------------------------------------------

    def views(self) -> list[ShardView]:
        return [view for plan in self._plans.values() if (view := self.view(plan.database))]

    def view(self, database: str) -> ShardView | None:
        plan = self._plans.get(database)
        if plan is None:
            return None
        shard = self._shards[plan.shard]
        return shard.view(shard.locals[database])

    def skips(self, database: str) -> list[Skip]:
        name, now = self._shard_of(database).name, self._clock.now()
        return [s for s in self._skips.values.values() if s.shard == name and s.holds(now)]

    async def skip(
        self,
        database: str,
        member: str,
        *,
        for_s: float,
        reason: str,
        reach: Reach | None = None,
        **by: Unpack[By],
    ) -> ChangeMade:
        """Leave a member out of the rollup, for a while. It is kept before it takes effect.
        `reach`: its shard, so that a promotion keeps it, or this agent alone."""
        shard = self._with_member(database, member)
        if not 0 < for_s <= MAX_SKIP_S:
            most_days = MAX_SKIP_S / 86400
            raise InvalidRequest(f"a skip lasts at most {most_days:g} days", field="for")

        if reach is None and self.make_shared is not None:
            reach = of_shard(shard.name)
        reach = await self._reach_of(reach, [database])
        item_id = _id(shard, member)
        if reach not in _reaches(item_id):
            message = f"a skip is for its shard, {shard.name}, or for this agent alone"
            raise InvalidRequest(f"{message}, not for {reach}", status=422, field="reach")

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            value = {
                "until_wall_s": asked.wall_s + for_s,
                "who": asked.who,
                "reason": reason,
                "set_wall_s": asked.wall_s,
            }
            return Draft("skip.set", _set(held, SKIP, item_id, value, asked, reach))

        if reach == HERE or self.make_shared is None:
            return await self._own(draft, **by)
        made = await self._shared(self.make_shared, draft, **by)
        if self._skips.is_in(item_id, own=True) and not made.dry_run:
            await self._own(self._unskipping(shard, member), **by)  # It would hide the shard's.
        return made

    async def unskip(self, database: str, member: str, **by: Unpack[By]) -> ChangeMade:
        """In whichever log has it."""
        shard = self._shard_of(database)
        draft, item_id = self._unskipping(shard, member), _id(shard, member)
        is_own = self._skips.is_in(item_id, own=True)
        made: ChangeMade | None = None
        if self.make_shared and (not is_own or self._skips.is_in(item_id, own=False)):
            made = await self._shared(self.make_shared, draft, **by)
        return await self._own(draft, **by) if is_own or made is None else made

    def _unskipping(self, shard: Shard, member: str) -> Callable[[LogState, ChangeAuthor], Draft]:
        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            changes = _taken_out(held, SKIP, _id(shard, member), asked)
            if not changes:
                raise NoSuchMember(f"{member} is not skipped in {shard.name}")
            return Draft("skip.removed", changes)

        return draft

    async def _own(
        self, draft: Callable[[LogState, ChangeAuthor], Draft], who: str, dry_run: bool = False
    ) -> ChangeMade:
        return await self._make(draft, who, dry_run=dry_run)

    async def _shared(
        self,
        make: Make,
        draft: Callable[[LogState, ChangeAuthor], Draft],
        who: str,
        dry_run: bool = False,
    ) -> ChangeMade:
        """In force here at once: the caller need not wait until it is followed."""
        made = await make(draft, who, dry_run=dry_run)
        if not dry_run:
            await self.follow(made.items, ())
        return made

    async def hand_over(self, database: str, *, for_s: float, reason: str, who: str) -> Handover:
        """Our server is about to stop being the primary: see Handovers.announce."""
        shard = self._shard_of(database)
        return await self._handovers.announce(shard, database, for_s=for_s, reason=reason, who=who)

    async def take_back(self, database: str, *, who: str) -> None:
        """End an announced handover: our server stays the primary."""
        await self._handovers.take_back(self._shard_of(database), who=who)

    async def add_peer(
        self, database: str, member: str, *, url: str, peer_database: str, who: str
    ) -> ChangeMade:
        shard = self._shard_of(database)
        is_there = f"{shard.name} already has a member {member!r}"
        if member in shard.remotes or member in {m.name for m in shard.locals.values()}:
            raise InvalidRequest(is_there, status=409)
        if len(shard.remotes) >= MAX_MEMBERS:
            raise InvalidRequest(f"{shard.name} has {MAX_MEMBERS} members, the maximum")
        reach = await self._reach_of(None, [database])

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            if _standing(held, PEER, _id(shard, member)):
                raise InvalidRequest(is_there, status=409)
            value = {"url": url, "database": peer_database}
            return Draft("peer.set", _set(held, PEER, _id(shard, member), value, asked, reach))

        return await self._make(draft, who, dry_run=False)

    async def remove_peer(self, database: str, member: str, *, who: str) -> ChangeMade:
        shard = self._with_member(database, member)

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            changes = _taken_out(held, PEER, _id(shard, member), asked)
            if not changes and (why := self._why_it_stays(shard, member)):
                raise InvalidRequest(f"{member} {why}", status=409)
            return Draft("peer.removed", changes)

        made = await self._make(draft, who, dry_run=False)
        if not made.changes:
            await shard.remove_remote(member)  # Found once, and nobody lists it any more.
        return made

    def _why_it_stays(self, shard: Shard, member: str) -> str | None:
        remote = shard.remotes.get(member)
        if remote is None:
            return "is this agent's own: remove the database from the settings, and reload"
        if remote.source == "file":
            return "is in the settings file: remove it there, and reload"
        if any(member in (found.name, found.host) for found in shard.roster.downstream()):
            return "is a replica that the database lists: skip it instead"
        if any(member == known.member for known in self._hearsay.registered(shard.name)):
            return "registers itself in the fleet's store: stop its agent, or skip it"
        if remote.source == PATRONI:
            return "is listed by Patroni: skip it instead"
        return None

    def _shard_of(self, database: str) -> Shard:
        plan = self._plans.get(database)
        if plan is None:
            raise NoSuchShard(f"{database} belongs to no shard: set its shard in the settings")
        return self._shards[plan.shard]

    def _with_member(self, database: str, member: str) -> Shard:
        shard = self._shard_of(database)
        if member not in shard.remotes and member not in {m.name for m in shard.locals.values()}:
            names = [*shard.remotes, *(m.name for m in shard.locals.values())]
            known = ", ".join(sorted(names))
            raise NoSuchMember(f"{shard.name} has no member {member!r}; it has {known}")
        return shard

    def _set_skips(self, shard: Shard) -> None:
        shard.roster.skips = MappingProxyType(
            {s.member: s for s in self._skips.values.values() if s.shard == shard.name}
        )
        shard.look_again()


async def _end(shard: Shard, tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    await shard.close()


def _key(plan: ShardPlan | None) -> tuple[object, ...] | None:
    return plan.key() if plan else None


def _id(shard: Shard, member: str) -> str:
    """Of a skip or a peer; no member's name has a space."""
    return f"{shard.name} {member}"


def _split(item_id: str) -> tuple[str, str]:
    shard, _, member = item_id.rpartition(" ")
    return shard, member


def _reaches(item_id: str) -> tuple[Reach, ...]:
    """From the narrowest."""
    return HERE, Reach(Level.SHARD, _split(item_id)[0])


def _is_of_its_shard(item: Change) -> bool:
    return item.reach in _reaches(item.id)


def _standing(held: LogState, kind: ChangeKind, item_id: str) -> list[Change]:
    return standing(held, kind, item_id, _reaches(item_id))


def _set(
    held: LogState,
    kind: ChangeKind,
    item_id: str,
    value: Mapping[str, Any],
    asked: ChangeAuthor,
    reach: Reach,
) -> list[Edit]:
    """For the shard it replaces what was set for this agent alone, which would hide it here."""
    narrower = [] if reach == HERE else standing(held, kind, item_id)
    return [
        put(held, kind, item_id, value, asked, reach),
        *(put(held, kind, item_id, None, asked, item.reach) for item in narrower),
    ]


def _taken_out(held: LogState, kind: ChangeKind, item_id: str, asked: ChangeAuthor) -> list[Edit]:
    found = _standing(held, kind, item_id)
    return [put(held, kind, item_id, None, asked, item.reach) for item in found]


def _skip_of(item: Change, ends_mono_s: float) -> Skip:
    kept, (shard, member) = item.value or {}, _split(item.id)
    return Skip(
        shard,
        member,
        float(kept["until_wall_s"]),
        str(kept["who"]),
        str(kept["reason"]),
        float(kept["set_wall_s"]),
        revision=item.n,
        ends_mono_s=ends_mono_s,
    )


def _peer_of(item: Change, ends_mono_s: float) -> PeerPlan:
    kept = item.value or {}
    return PeerPlan(_split(item.id)[1], str(kept["url"]), str(kept["database"]))
