"""The composition root: one `assemble` per room, in the order in which they need each other.

Settings ──► AgentContext ──► check, metrics, shard, rules, budgets, changes, fleet, history
                              └──► AgentRooms ──► http (http/assemble), life (app)
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from headgate.base.assemble import AgentContext
from headgate.budgets.assemble import BudgetParts, traffic_plans
from headgate.budgets.assemble import assemble as assemble_budgets
from headgate.changes.assemble import ChangeParts, Followers, OwnLog
from headgate.changes.assemble import assemble as assemble_changes
from headgate.changes.exchange import Pair
from headgate.check.assemble import CheckParts, idleness_of
from headgate.check.assemble import assemble as assemble_check
from headgate.check.views import AgentFacts, ClientWatchers, Parts, Views
from headgate.errors import InvalidSettings
from headgate.fleet.assemble import FleetParts
from headgate.fleet.assemble import assemble as assemble_fleet
from headgate.history.assemble import HistoryParts
from headgate.history.assemble import assemble as assemble_history
from headgate.metrics.assemble import MetricParts, plan_of
from headgate.metrics.assemble import assemble as assemble_metrics
from headgate.pacing.assemble import assemble as assemble_pacing
from headgate.pacing.pacer import Pacers
from headgate.rules.assemble import assemble as assemble_rules
from headgate.rules.service import RuleKeeper
from headgate.settings.agent import Settings
from headgate.shard.assemble import ShardParts, rollup_plugins, standby_of
from headgate.shard.assemble import assemble as assemble_shards
from headgate.version import VERSION

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentRooms:
    context: AgentContext
    check: CheckParts
    pacers: Pacers
    metrics: MetricParts
    shard: ShardParts
    rules: RuleKeeper
    budgets: BudgetParts
    changes: ChangeParts
    fleet: FleetParts | None
    history: HistoryParts
    views: Views

    @property
    def facts(self) -> AgentFacts:
        return self.views.facts

    async def adopt(self) -> None:
        """The databases of the settings in force, and no others."""
        settings, demands = self.context.settings, self.check.demands
        places = {place.database: place for place in self.context.places()}
        plans = [plan_of(one, places[name]) for name, one in settings.databases.items()]
        for database in settings.databases.values():
            demands.open(database.name, idleness_of(database))
        await self.metrics.keeper.adopt(plans)
        if not self.check.checker.closed:  # Servers keep the policies that they have.
            await self._adopt_traffic(settings)
        await self.shard.adopt(settings, self.metrics)
        if self.fleet is not None:
            self.fleet.adopt()
        self.pacers.look_at_all()
        for name in demands.by_database.keys() - settings.databases.keys():
            demands.shut(name)
        heartbeats = self.shard.heartbeats
        self.facts.heartbeats = await heartbeats.restart(settings.databases.values())

    async def _adopt_traffic(self, settings: Settings) -> None:
        try:
            plans = traffic_plans(settings, self.context.clock, self.context.tracer)
        except InvalidSettings as error:
            # A policy file that was sound a moment ago: the last good one stays.
            self.facts.settings_fault = str(error)
            log.error("settings.rejected", detail=str(error))
            return
        await self.budgets.budgets.adopt(plans)


def assemble(context: AgentContext) -> AgentRooms:
    own, aggregates, agent = OwnLog(), rollup_plugins(), context.agent
    check = assemble_check(context)
    metrics = assemble_metrics(context, own, check, aggregates)
    shard = assemble_shards(context, own, check, aggregates)
    pacers = assemble_pacing(context, check)
    rules = assemble_rules(context, own, check.checker, metrics.known)
    budgets = assemble_budgets(context, check, metrics, shard.duty.is_passive)
    followers = Followers(
        rules.keeper, budgets.budgets, metrics.keeper, shard.shards, metrics.known, rules.limits
    )
    changes = assemble_changes(context, own, check.demands, followers)
    fleet = assemble_fleet(context, check, followers)
    elector = fleet.elector(agent) if fleet is not None and agent.elect is not None else None
    standby = shard.duty.standby = standby_of(context, check, shard.shards, elector)
    if standby is not None:
        changes.exchange.lead.pair = Pair(lambda: standby.url, shard.duty.is_passive)
    history = assemble_history(context, check, metrics, rules.keeper)
    facts = AgentFacts(agent.name, VERSION, context.clock.now(), standby=standby)
    facts.unapplied = lambda: [
        *changes.in_force.faults,
        *(fleet.log.in_force.failures if fleet is not None else ()),
    ]
    facts.spans = None if context.tracer is None else context.tracer.outbox
    parts = Parts(
        check.board,
        metrics.keeper,
        check.checker,
        check.recorder,
        history.keeper,
        check.sampler,
        context.store,
        context.clock,
        check.local,
        shard.shards,
        check.demands,
        ClientWatchers(history.watch, history.rogues, history.unthrottled),
        budgets=budgets.budgets,
        fleet=fleet.look() if fleet is not None else None,
        exchange=changes.exchange,
    )
    return AgentRooms(
        context,
        check,
        pacers,
        metrics,
        shard,
        rules.keeper,
        budgets,
        changes,
        fleet,
        history,
        Views(parts, facts),
    )
