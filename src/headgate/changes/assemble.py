"""The logs of one agent, put together: its own, and the way to one in etcd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headgate.base.assemble import AgentContext, Roll
from headgate.budgets.keeper import BudgetRoom
from headgate.budgets.service import Budgets
from headgate.changes.exchange import Exchange, OwnFacts
from headgate.changes.files import Room
from headgate.changes.inforce import OwnInForce
from headgate.changes.items import Forgetter
from headgate.changes.model import ChangeKind
from headgate.changes.own import OwnBook
from headgate.changes.reach import Reach
from headgate.changes.state import ChangeMade, Draft, LogState
from headgate.check.demand import Demands
from headgate.metrics.reaching import MetricRoom
from headgate.metrics.service import MetricKeeper
from headgate.rules.drafts import ChangeAuthor, Here, RuleDrafts
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import KnownMetrics, RuleLimits
from headgate.settings.fleet import EtcdSettings
from headgate.shard.keeper import MEMBERS, MemberRoom
from headgate.shard.peers_api import parse_peer_url
from headgate.shard.service import Shards

if TYPE_CHECKING:
    from headgate.changes.etcd import EtcdAccess, EtcdStore


class OwnLog:
    """The agent's own log, for the rooms that follow it: they are built before it."""

    book: OwnBook
    exchange: Exchange

    async def make(
        self, draft: Callable[[LogState, ChangeAuthor], Draft], who: str, *, dry_run: bool
    ) -> ChangeMade:
        return await self.book.make(draft, who, dry_run=dry_run)

    async def reach_of(self, given: Reach | None, databases: Sequence[str]) -> Reach:
        return await self.exchange.lead.reach(given, databases)

    async def forget(self, kind: str, ids: Sequence[str]) -> None:
        await self.book.forget(kind, ids)


@dataclass(frozen=True, slots=True)
class Followers:
    """The rooms that changes are for."""

    rules: RuleKeeper
    budgets: Budgets
    metrics: MetricKeeper
    shards: Shards
    known_metrics: KnownMetrics
    limits: RuleLimits

    def file_rooms(self) -> dict[str, Room]:
        """What a file of changes says of a kind, the room of that kind validates. Of budgets, only
        in the agent's own log."""
        members = MemberRoom(self.shards.each, lambda url: parse_peer_url(url).text)
        return {ChangeKind.METRIC: MetricRoom(self.metrics), **dict.fromkeys(MEMBERS, members)}


@dataclass(frozen=True, slots=True)
class ChangeParts:
    own: OwnBook
    in_force: OwnInForce
    exchange: Exchange
    forgetter: Forgetter

    async def start_due(self) -> None:
        """What was set to start later starts."""
        await self.in_force.starts.run(lambda: self.own.renew(self.in_force.load))


def assemble(
    context: AgentContext, log: OwnLog, demands: Demands, followers: Followers
) -> ChangeParts:
    name, clock = context.agent.name, context.clock
    rules, budgets, shards = followers.rules, followers.budgets, followers.shards
    parts = (rules, budgets, followers.metrics, shards.keeper)
    in_force = OwnInForce(parts, context.places, clock)
    here = Here(rules.advice, rules.time.now_s)
    own = log.book = OwnBook(
        context.store,
        clock,
        context.roll,
        RuleDrafts(followers.known_metrics, followers.limits, here),
        in_force.changed,
        name=name,
    )
    has_fleet = context.settings.fleet is not None
    facts = OwnFacts(name, has_fleet, context.places, lambda: budgets.left_out)
    log.exchange = Exchange(shards, own, demands, clock, context.open_link, facts)
    own.has_ended = partial(rules.has_ended, own=True)
    policies = BudgetRoom(budgets.by_database)
    own.rooms |= {
        **followers.file_rooms(),
        ChangeKind.BUDGET: policies,
        ChangeKind.POLICY: policies,
    }
    budgets.own = own
    forgetter = Forgetter(own.forget, clock, (*shards.keeper.kept, followers.metrics.kept))
    return ChangeParts(own, in_force, log.exchange, forgetter)


def etcd_store(
    access: EtcdSettings, prefix: str, roll: Roll, *, timeout_s: float, names_data: bool = False
) -> EtcdStore:
    from headgate.changes import etcd

    return etcd.EtcdStore(
        access.endpoints,
        etcd_access(access),
        prefix,
        timeout_s=timeout_s,
        roll=roll,
        names_data=names_data,
    )


def etcd_access(access: EtcdSettings) -> EtcdAccess:
    from headgate.changes import etcd

    return etcd.load_access(
        username=access.username or "",
        password_file=access.password_file,
        ca=access.ca,
        cert=access.cert,
        key=access.key,
    )
