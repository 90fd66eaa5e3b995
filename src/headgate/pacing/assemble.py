"""The pacers of one agent: they follow the board, and the checker reads them."""

from __future__ import annotations

from headgate.base.assemble import AgentContext
from headgate.check.assemble import CheckParts
from headgate.pacing.pacer import Pacers


def assemble(context: AgentContext, check: CheckParts) -> Pacers:
    pacers = Pacers(check.board, context.clock)
    check.sampler.watch(pacers.note_reading)
    check.board.watch_shards(pacers.look)
    check.checker.pacers = pacers.by_database
    return pacers
