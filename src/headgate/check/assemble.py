"""The hot path of one agent, put together.   board ◄── sampler; checker ──► recorder"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.base.assemble import AgentContext
from headgate.check.board import Board
from headgate.check.checker import Checker, Fairness
from headgate.check.demand import Demands
from headgate.check.model import Idleness
from headgate.check.reporting import Intake
from headgate.check.sampler import Sampler
from headgate.check.streaming import MAX_SUBSCRIBERS, Broadcasts, Snapshots
from headgate.check.views import LocalClients
from headgate.history.recorder import Recorder
from headgate.settings.sections import Anonymous, DatabaseSettings
from headgate.tracing.traced import TracedSampler


@dataclass(frozen=True, slots=True)
class CheckParts:
    board: Board
    demands: Demands
    sampler: Sampler
    recorder: Recorder
    checker: Checker
    local: LocalClients


def assemble(context: AgentContext) -> CheckParts:
    agent, clock = context.agent, context.clock
    board, demands = Board(), Demands(clock)
    recorder = Recorder(max_clients=agent.max_clients)
    checker = Checker(
        board,
        recorder,
        demands,
        clock,
        context.roll,
        anonymous_may_pass=agent.anonymous is Anonymous.ALLOW,
    )
    if agent.fairness_max_wait_s:
        checker.fairness = Fairness(agent.fairness_max_wait_s)
    most = min(MAX_SUBSCRIBERS, agent.max_connections // 2)
    sampler = (
        Sampler(board, clock, demands)
        if context.tracer is None
        else TracedSampler(board, clock, demands, context.tracer)
    )
    return CheckParts(
        board,
        demands,
        sampler,
        recorder,
        checker,
        LocalClients(
            Broadcasts(Snapshots(board, checker, demands), clock, most),
            Intake(recorder, board, clock, demands),
        ),
    )


def idleness_of(database: DatabaseSettings) -> Idleness:
    return Idleness(database.idle_after_s, database.hibernate_after_s)
