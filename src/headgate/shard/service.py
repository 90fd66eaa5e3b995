"""All shards of this agent.

settings ──adopt──► Shards ──► Shard (one each) ──► Board
other agents ──answer, woken──►│        operators ──► MemberKeeper ──► members, skips, handovers
fleet's store, Patroni, servers ──► Membership ──► members by `discover`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from headgate.base.ports import Clock, PeerLink
from headgate.base.supervise import supervised
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Activity
from headgate.errors import InvalidRequest, WrongShard
from headgate.metrics.samples import Reading
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.keeper import MemberKeeper, MemberLog, NoSuchShard
from headgate.shard.members import FOLLOWED_S, LocalMember, ShardPlan
from headgate.shard.membership import Membership
from headgate.shard.model import Pull, ShardView
from headgate.shard.roles import FenceWatcher, RoleWatcher
from headgate.shard.rollup import AGGREGATES, Aggregate
from headgate.shard.shard import Shard
from headgate.shard.topology import Following, Leading, MemberReport, Role

log = structlog.get_logger()

MAX_HOLD_S = 30.0
ROLE_TIMEOUT_S = 0.5


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
        kept_in: MemberLog,
        *,
        url: str,
        open_link: Callable[[str], PeerLink],
        aggregates: Mapping[str, Aggregate] = AGGREGATES,
    ) -> None:
        self._board = board
        self._demands = demands
        self._clock = clock
        self.url = url
        """Of this agent, or of the active one while this one is passive."""
        self._aggregates = aggregates
        self.membership = Membership(clock, open_link)
        self.keeper = MemberKeeper(self.membership, clock, kept_in, self.of_database)
        self.each = self.membership.each
        """By name."""
        self._plans: dict[str, ShardPlan] = {}
        self._watching: dict[str, list[asyncio.Task[None]]] = {}
        self.on_roles: Callable[[], None] = lambda: None
        """Called when the role of a database of ours, or the address to check it at, changes."""
        self._roles: dict[str, Role | None] = {}

    # --- from the file ---------------------------------------------------------------------

    async def adopt(self, plans: Sequence[ShardPlan]) -> None:
        """Follow the settings. A shard none of whose plans changed goes on undisturbed."""
        async with self.keeper.lock:
            wanted = {plan.database: plan for plan in plans}
            was, now = (
                {database: plan.key() for database, plan in known.items()}
                for known in (self._plans, wanted)
            )
            changed = {
                plan.shard
                for plan in [*self._plans.values(), *plans]
                if was.get(plan.database) != now.get(plan.database)
            }
            # Everything is in its new place before the first await: no check in between sees half
            # of the change.
            retired = [self._retire(name) for name in changed & self.each.keys()]
            for database in self._plans.keys() - wanted.keys():
                self._board.set_shard(database, None)
            self._plans = wanted
            for name in sorted(changed):
                if of_shard := [plan for plan in plans if plan.shard == name]:
                    self._open(name, of_shard)
            for shard, tasks in retired:
                await _end(shard, tasks)

    def let_go(self) -> None:
        """Answer what is held: the agent is about to stop."""
        for shard in self.each.values():
            for local in shard.locals.values():
                local.let_go()

    async def close(self) -> None:
        for name in list(self.each):
            await _end(*self._retire(name))
        await self.keeper.handovers.close()

    def _open(self, name: str, plans: Sequence[ShardPlan]) -> None:
        shard = self.each[name] = Shard(
            name,
            self._board,
            self._clock,
            collect_interval_s=min(plan.collect_interval_s for plan in plans),
            url=self.url,
            aggregates=self._aggregates,
        )
        for plan in plans:
            self._add_local(shard, plan)
        for peer in {peer.name: peer for plan in plans for peer in plan.peers}.values():
            self.membership.add(shard, peer, "file")
        self.keeper.set_in(shard)
        shard.on_downstream = lambda: self._role_read(shard)
        self.membership.listen(shard)
        shard.roll()  # From now on the host's values are no longer the shard's.

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
        shard.add_local(LocalMember(plan, watcher, demand, fence))
        loops = {f"role {plan.database}": watcher.run}
        if fence is not None:
            loops[f"fence {plan.database}"] = fence.run
        self._watching[plan.database] = [
            asyncio.create_task(supervised(name, run)) for name, run in loops.items()
        ]

    def _retire(self, name: str) -> tuple[Shard, list[asyncio.Task[None]]]:
        shard = self.each.pop(name)
        shard.halt()
        tasks = [task for database in shard.locals for task in self._watching.pop(database)]
        for task in tasks:
            task.cancel()
        return shard, tasks

    def _role_read(self, shard: Shard) -> None:
        self.membership.discover(shard)
        self.keeper.handovers.look(shard)
        roles = {d: local.role.role if local.role else None for d, local in shard.locals.items()}
        if any(self._roles.get(database) is not role for database, role in roles.items()):
            self._roles.update(roles)
            self.on_roles()

    # --- for other parts of the agent ------------------------------------------------------

    def of_database(self, database: str) -> Shard:
        plan = self._plans.get(database)
        if plan is None:
            raise NoSuchShard(f"{database} belongs to no shard: set its shard in the settings")
        return self.each[plan.shard]

    def note_reading(self, database: str, metric: str, reading: Reading) -> None:
        """A callback of the sampler."""
        plan = self._plans.get(database)
        if plan is not None and plan.shard in self.each:
            self.each[plan.shard].local_read(database, reading)

    def attach_heartbeats(self, heartbeats: Iterable[Heartbeat]) -> None:
        """All that there are now."""
        beats = {heartbeat.database: heartbeat for heartbeat in heartbeats}
        for database, plan in self._plans.items():
            self.each[plan.shard].locals[database].beat_by(beats.get(database))

    def stands(self) -> list[Stand]:
        """State of each database of ours that belongs to a shard."""
        plans = [plan for plan in self._plans.values() if plan.shard in self.each]
        return [_stand(self.each[plan.shard], plan) for plan in plans]

    def is_replica(self, database: str) -> bool:
        """By the last that was seen of it."""
        return any(s.role is Role.REPLICA for s in self.stands() if s.database == database)

    def primary_link(self, database: str) -> PeerLink | None:
        """The way to the agent that speaks for this database's shard, where that is another."""
        shard = self.of_database(database)
        if not isinstance(shard.point, Following):
            return None
        remote = shard.remotes.get(shard.point.primary)
        # Where the database has another name, the question would have to be another one.
        return remote.link if remote and remote.database == database else None

    def speak_at(self, url: str) -> None:
        """The address that other agents get, from now on."""
        self.url = url
        for shard in self.each.values():
            shard.roster.url = url
        self.on_roles()

    def views(self) -> list[ShardView]:
        return [view for database in self._plans if (view := self.view(database))]

    def view(self, database: str) -> ShardView | None:
        if database not in self._plans:
            return None
        shard = self.of_database(database)
        return shard.view(shard.locals[database])

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
            self.membership.meet(shard, pull)
            shard.claimed(pull.sender, pull.role, pull.url)
        if pull.clock_ahead_s is not None:
            local.plan.correct_clock(pull.clock_ahead_s, pull.clock_error_s)
        if pull.wait_s > 0:
            await local.hold(min(pull.wait_s, MAX_HOLD_S))
        return local.report(self._board, self._clock.now().mono_s, self.url)

    def woken(self, shard: str, database: str, by: str) -> None:
        local = self.asked(shard, database).locals[database]
        log.info("database.woken", database=database, by=by)
        local.demand.wake_host(self._clock.now().mono_s)

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
        return self.each[shard]


def _stand(shard: Shard, plan: ShardPlan) -> Stand:
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


async def _end(shard: Shard, tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    await shard.close()
