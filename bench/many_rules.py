"""An agent with 10,000 rules of its own: its memory, and what a change of one of them takes.

.venv/bin/python -m bench.many_rules [--rules 10000] [--changes 200] [--folder PATH]

A real agent is started on a state file with so many rules, and without any. Then rules are changed
one after the other through its socket. Whole: from the request to the answer, with the change on
the disk in both copies. In force: from the commit to the snapshot that checks are decided by.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from headgate.app import Agent
from headgate.base.keyvalue import Put
from headgate.base.logs import configure_logs
from headgate.changes.model import HEAD, Change, ChangeKind
from headgate.changes.reach import HERE
from headgate.changes.state import head_bytes, item_bytes
from headgate.demo import servers
from headgate.rules.drafts import value_of
from headgate.rules.matching import RuleBook
from headgate.rules.settings import parse_rule
from headgate.settings.agent import load_settings
from headgate.store import SqliteStore

SETTINGS = """
[agent]
listen = "127.0.0.1:{port}"
socket = "{folder}/agent.sock"
state = "{folder}/state.db"
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=nobody"
"""
SETTLE_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a scratch")
    parser.add_argument("--agent", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.agent is not None:
        configure_logs("json")
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(given.agent))
        return
    from bench.report import table  # What it imports is no memory of the agent.

    parent = given.folder or servers.scratch_parent()
    rows = [measured(parent, 0, 0), measured(parent, given.rules, given.changes)]
    head = ("rules", "memory (RSS), MB", "whole change, ms: median (p90)",
            "in force, ms: median (p90)")  # fmt: skip
    print(table(head, rows))


def measured(parent: Path, rules: int, changes: int) -> tuple[str, ...]:
    from bench.load import serving

    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder, port = Path(name), next(servers.free_ports())
        settings = folder / "headgate.toml"
        settings.write_text(SETTINGS.format(port=port, folder=folder))
        if rules:
            asyncio.run(keep(folder / "state.db", rules))
        argv = [sys.executable, "-m", "bench.many_rules", "--agent", str(settings)]
        with serving(argv, f"http://127.0.0.1:{port}/healthz") as pid:
            time.sleep(SETTLE_S)
            whole_ms = changed(folder / "agent.sock", rules, changes)
            rss_mb = _rss_mb(pid)
        told = folder / "in_force.json"
        in_force_ms = json.loads(told.read_text()) if changes else []
    return f"{rules:,}", f"{rss_mb:.1f}", _told(whole_ms), _told(in_force_ms)


def _told(times_ms: Sequence[float]) -> str:
    if not times_ms:
        return "–"
    return f"{statistics.median(times_ms):.2f} ({statistics.quantiles(times_ms, n=10)[-1]:.2f})"


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


# --- the rules -------------------------------------------------------------------------------


def rule_id(number: int) -> str:
    return f"r-{number:06x}"


async def keep(path: Path, rules: int) -> None:
    """As operators have set them, in one commit."""
    wall_s = time.time()
    items = []
    for number in range(rules):
        raw = {"target": f"job{number}:etl", "ratio": 0.5, "for": "7d", "reason": "nightly load"}
        spec = parse_rule(
            raw, rule_id=rule_id(number), author="uid:0", wall_s=wall_s, known_metrics=lambda _: {}
        )
        value = value_of(replace(spec, ruled_at=round(wall_s, 3)))
        items.append(Change(ChangeKind.RULE, spec.id, HERE, value, number + 1, wall_s, "uid:0"))
    store = SqliteStore(path, deadline_s=60)
    await store.open()
    puts = [Put(HEAD, head_bytes(rules)), *(Put(item.key, item_bytes(item)) for item in items)]
    await store.commit([], puts)
    await store.close()


def changed(path: Path, rules: int, changes: int) -> list[float]:
    dice, took_ms = Random(16), []
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(30)
        line.connect(str(path))
        caller = http.client.HTTPConnection("agent")
        caller.sock = line
        for number in range(changes):
            body = json.dumps({"ratio": round(0.9 * (number + 1) / (changes + 1), 6)})
            began_s = time.perf_counter()
            caller.request("PATCH", f"/v1/rules/{rule_id(dice.randrange(rules))}", body,
                           {"Content-Type": "application/json"})  # fmt: skip
            answer = caller.getresponse()
            told = answer.read()
            took_ms.append((time.perf_counter() - began_s) * 1000)
            if answer.status != 200:
                sys.exit(f"the rule was not changed: {told!r}")
    return took_ms


# --- the agent -------------------------------------------------------------------------------


class TimedAgent(Agent):
    """Notes how long it takes from a commit to the book that has it."""

    committed_s: float | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.in_force_ms: list[float] = []
        store, in_force = self.context.store, self.rooms.rules._rules
        self._commit, store.commit = store.commit, self._timed  # type: ignore[method-assign]
        self._apply, in_force._apply = in_force._apply, self._timed_apply

    async def _timed(self, *given: Any, **said: Any) -> int:
        revision = await self._commit(*given, **said)
        self.committed_s = time.perf_counter()
        return revision

    def _timed_apply(self, book: RuleBook) -> None:
        self._apply(book)
        if self.committed_s is not None:
            self.in_force_ms.append((time.perf_counter() - self.committed_s) * 1000)
            self.committed_s = None


async def serve(settings: Path) -> None:
    agent = TimedAgent(load_settings(settings), settings)
    try:
        await agent.run()
    finally:
        settings.with_name("in_force.json").write_text(json.dumps(agent.in_force_ms))


if __name__ == "__main__":
    main()
