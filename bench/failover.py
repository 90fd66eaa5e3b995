"""Promotions in a loop under load: how many answers were given from an outdated view?

.venv/bin/python -m bench.failover [--promotions 50] [--engine postgres|mysql]
    [--planned | --handover]

Every second change is planned (the old primary steps down first), every other one a crash
(SIGKILL); with --planned all of them are planned, with --handover they are announced to the old
primary's agent as well. After each, the old primary comes back as a replica.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.fixtures.failovers import Promotions, Told, Watch, watching
from tests.fixtures.shard_agents import ShardAgents, agents_for
from tests.fixtures.shards import Shard, start_mariadb_shard, start_postgres_shard

from bench.report import table
from headgate.demo import servers

START: dict[str, Callable[[Path], Shard[Any]]] = {
    "postgres": start_postgres_shard,
    "mysql": start_mariadb_shard,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--promotions", type=int, default=50)
    parser.add_argument("--engine", choices=sorted(START), default="postgres")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--planned", action="store_true")
    only.add_argument("--handover", action="store_true")
    chosen = parser.parse_args()
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        folder.chmod(0o755)
        shard = cleanup.enter_context(START[chosen.engine](folder))
        home = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        agents = cleanup.enter_context(agents_for(shard, home))
        agents.await_lead(shard.primary.name)
        promotions = Promotions(shard)
        kinds = [promotions.switch_over, promotions.fail_over]
        if chosen.planned:
            kinds = [promotions.switch_over]
        elif chosen.handover:
            kinds = [lambda: promotions.switch_over(agents.hand_over)]
        ports = {name: agent.port for name, agent in agents.agents.items()}
        with watching(ports, pollers=2) as watch:
            taken = [
                change(kinds[n % len(kinds)], promotions, agents, n)
                for n in range(chosen.promotions)
            ]
        report(watch, promotions, sorted(taken))


def change(
    kind: Callable[[], None], promotions: Promotions, agents: ShardAgents, number: int
) -> float:
    """Seconds from the promotion to the first OK of the new primary's agent."""
    kind()
    new = promotions.shard.primary.name
    agents.await_lead(new, within_s=30)
    taken_s = time.monotonic() - promotions.promoted_at
    print(f"  {number + 1}: {new} leads, {taken_s:.2f} s after its promotion", flush=True)
    return taken_s


def report(watch: Watch, promotions: Promotions, taken: list[float]) -> None:
    wrong = watch.wrong(promotions.reigns)
    rows = [
        ("promotions", f"{len(taken)}"),
        ("answers about the shard", f"{len(watch.told):,}"),
        ("OK among them", f"{len(watch.admitted):,}"),
        ("OK from an outdated view", f"{len(wrong)}"),
        ("longest after the old primary was gone", f"{latest_ms(wrong, promotions):.0f} ms"),
        ("promotion → first OK, median", f"{taken[len(taken) // 2]:.2f} s"),
        ("promotion → first OK, worst", f"{taken[-1]:.2f} s"),
    ]
    print(table(("what", "figure"), rows))


def latest_ms(wrong: list[Told], promotions: Promotions) -> float:
    late = [
        told.asked_at - max(r.until for r in promotions.reigns if r.until <= told.asked_at)
        for told in wrong
        if any(r.until <= told.asked_at for r in promotions.reigns)
    ]
    return 1000 * max(late, default=0.0)


if __name__ == "__main__":
    main()
