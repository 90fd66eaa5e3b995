"""How long a proxy's loop is away while it puts the gates of 4,096 clients under 1,000 rules.

.venv/bin/python -m bench.proxy_gates [--rounds 20]

In CPU time of its thread: others may have the host. Whatever else the loop has to do waits for as
long as the longest pause.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time

from tests.builders import NOW, health, metric
from tests.proxy.fakes import FakeRelay, client

from bench.report import table
from headgate.base.clock import SystemClock
from headgate.check.snapshot import DatabaseSnapshot
from headgate.check.snapshot_api import Snapshot
from headgate.proxy.gates import SLICE, Gates
from headgate.proxy.model import GateMode, GateTerms
from headgate.rules.matching import Rule, RuleBook

CLIENTS, RULES = 4096, 1000
MOST_S = 0.1
SICK = health((metric("lag", threshold=5, max_age_s=2), 12.3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    found = [asyncio.run(longest_pause_s()) for _ in range(chosen.rounds)]
    middle, most = statistics.median(found), max(found)
    rows = [(f"{CLIENTS:,}", f"{RULES:,}", f"{middle * 1e3:.1f}", f"{most * 1e3:.1f}")]
    print(table(("clients", "rules", "longest pause, ms (median)", "worst"), rows))
    if middle > MOST_S:
        raise SystemExit(f"MISSED: more than {MOST_S * 1e3:g} ms; a slice is {SLICE} clients")


async def longest_pause_s() -> float:
    gates = _gates()
    # As the proxy does at its start: the collector does not walk all that was loaded.
    gc.collect()
    gc.freeze()
    done = asyncio.ensure_future(gates.refresh())
    longest_s = 0.0
    while not done.done():
        began_s = time.thread_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - began_s)
    gc.unfreeze()
    return longest_s


def _gates() -> Gates:
    relay, now_s = FakeRelay(places=2048), time.monotonic
    gates = Gates(relay, "main", SystemClock(), now_s, GateTerms(("*",), GateMode.ENFORCE))
    for n in range(CLIENTS):
        gates.client_seen(client(n, f"job{n}:team{n % 40}:batch"))
    book = RuleBook(
        Rule(f"r{n}", f"job{n}" if n % 2 else f"team{n % 40}", ratio=0.1) for n in range(RULES)
    )
    sick = Snapshot(1, DatabaseSnapshot(SICK, book), now_s(), NOW.wall_s - now_s(), now_s() + 60)
    gates.hear(sick)
    return gates


if __name__ == "__main__":
    main()
