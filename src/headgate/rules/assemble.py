"""The rules of one agent, put together.   log ──► RuleKeeper ──► Checker"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headgate.base.assemble import AgentContext
from headgate.changes.assemble import OwnLog
from headgate.changes.model import ChangeKind
from headgate.check.checker import Checker
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import KnownMetrics, RuleLimits


@dataclass(frozen=True, slots=True)
class RuleParts:
    keeper: RuleKeeper
    limits: RuleLimits


def assemble(
    context: AgentContext, own: OwnLog, checker: Checker, known_metrics: KnownMetrics
) -> RuleParts:
    agent = context.agent
    limits = RuleLimits(agent.rule_default_s, agent.rule_max_s, max_ratio=agent.rule_max_ratio)

    keeper = RuleKeeper(
        context.store,
        context.clock,
        checker.follow,
        known_metrics,
        limits=limits,
        time=context.time,
        forget=partial(own.forget, ChangeKind.RULE),
    )
    return RuleParts(keeper, limits)
