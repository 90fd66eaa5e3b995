"""A real agent with N rules in its book: agent_with_rules.py SETTINGS N."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from headgate.app import Agent
from headgate.base.logs import configure_logs
from headgate.rules.matching import Rule, book_of
from headgate.settings.agent import load_settings


async def main(settings_path: Path, rules: int) -> None:
    agent = Agent(load_settings(settings_path), settings_path)
    # None of them hits: the look-ups are what is measured, and every answer is a 200.
    checker = agent.rooms.check.checker
    checker.rules = book_of(Rule(f"r{i}", f"token{i}", 0.5, 1e12) for i in range(rules))
    await agent.run()


if __name__ == "__main__":
    configure_logs("json")
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(
        main(Path(sys.argv[1]), int(sys.argv[2]))
    )
