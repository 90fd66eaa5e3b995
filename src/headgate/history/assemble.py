"""What one agent keeps and watches of its clients, put together."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headgate.base.assemble import AgentContext
from headgate.check.assemble import CheckParts
from headgate.errors import Fault, InvalidSettings
from headgate.history.alerts import Alerts, Webhook
from headgate.history.keeper import Keeper, MetricMinutes
from headgate.history.rogues import Rogues
from headgate.history.starvation_courses import StarvationTerms
from headgate.history.unthrottled import UnthrottledBook
from headgate.history.watch import Watch
from headgate.metrics.assemble import MetricParts
from headgate.rules.service import RuleKeeper
from headgate.settings.agent import Settings
from headgate.settings.document import first_line

_HEADER_VALUE = re.compile(r"[!-~]{1,4096}")


@dataclass(frozen=True, slots=True)
class HistoryParts:
    keeper: Keeper
    unthrottled: UnthrottledBook
    alerts: Alerts
    watch: Watch
    rogues: Rogues

    def adopt(self, settings: Settings) -> None:
        self.watch.policy = policy_of(settings)
        self.alerts.send_by(webhook_of(settings))


def assemble(
    context: AgentContext, check: CheckParts, metrics: MetricParts, rules: RuleKeeper
) -> HistoryParts:
    agent, clock, recorder = context.agent, context.clock, check.recorder
    minutes = MetricMinutes()
    alerts = Alerts(clock, agent=agent.name, send=webhook_of(context.settings))
    watch = Watch(
        recorder,
        check.board,
        clock,
        alerts,
        rules=lambda: check.checker.rules,
        minutes=minutes,
        policy=policy_of(context.settings),
        exemptions=rules,
    )
    return HistoryParts(
        Keeper(recorder, context.store, clock, history_days=agent.history_days, metrics=minutes),
        UnthrottledBook(context.store, clock),
        alerts,
        watch,
        Rogues(recorder, check.demands, clock, metrics.sessions),
    )


def policy_of(settings: Settings) -> StarvationTerms:
    told = settings.starvation
    return StarvationTerms(
        window_s=told.window_s,
        waterline=told.waterline,
        exemption_budget_s=told.exemption_budget_s,
    )


def webhook_of(settings: Settings) -> Webhook | None:
    alerts = settings.alerts
    if alerts.webhook_url is None:
        return None
    path, token = alerts.webhook_token_file, None
    if path is not None:
        token = first_line(path, "alerts.webhook_token_file", "token")
        if not _HEADER_VALUE.fullmatch(token):
            message = f"the first line of {path} is no token: visible ASCII without blanks"
            raise InvalidSettings([Fault("alerts.webhook_token_file", message)])
    return Webhook(alerts.webhook_url, token)
