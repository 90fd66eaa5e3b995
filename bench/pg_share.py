"""A flood against a share of the server: what got through, by the kernel's own account (R110).

Part of bench.pg_long_run. Neither our counters nor our clocks are asked: the CPU time of the
flood's backends is read from /proc. What blocks cost is in it, so clients that are blocked come
back after a while only; it is also measured by itself, in a flood of which nothing is admitted, and
taken off. In the other kind of flood nobody is blocked: statements are held until there is room.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_policies
from bench.pg_kit import Workbench
from bench.pg_load import Counts, Load
from bench.pg_policies import Document
from bench.report import say
from headgate.budgets.pgext.directory import read_server_file

FLOODS = {
    "dear": (
        "SELECT sum(abalance), count(*) FROM pgbench_accounts WHERE aid <= 30000",
        "SELECT sum(abalance) FROM pgbench_accounts WHERE aid <= $1",
    ),
    "cheap": ("SELECT abalance FROM pgbench_accounts WHERE aid = $1",),
}
CLIENTS = 8
BACK_AFTER_US = 300_000
HEAD = ("flood", "share", "size", "admitted", "blocked", "backend CPU, s", "of it blocks, s",
        "share × time + size, s", "admitted ÷ bound", "with blocks")  # fmt: skip


class Limit(NamedTuple):
    flood: str
    rate: float
    """% of the server."""
    capacity: float
    """% seconds of it."""
    delayed: bool = False

    @property
    def name(self) -> str:
        return f"{self.flood}, {'held' if self.delayed else 'blocked'}"


LIMITS = (
    Limit("dear", 5, 20),
    Limit("dear", 20, 50),
    Limit("dear", 50, 100),
    Limit("dear", 20, 50, delayed=True),
    Limit("cheap", 5, 20),
    Limit("cheap", 20, 50),
    Limit("cheap", 20, 50, delayed=True),
)


@dataclass(frozen=True, slots=True)
class Flooded:
    limit: Limit
    counts: Counts
    backend_s: float
    blocks_s: float
    bound_s: float

    @property
    def ratio(self) -> float:
        return (self.backend_s - self.blocks_s) / self.bound_s

    def row(self) -> list[str]:
        counts, whole = self.counts, self.backend_s / self.bound_s
        return [
            self.limit.name, f"{self.limit.rate:g} %",
            f"{self.limit.capacity:g} %·s", f"{counts.ok:,}",
            f"{counts.blocked:,}", f"{self.backend_s:.2f}", f"{self.blocks_s:.2f}",
            f"{self.bound_s:.2f}", f"{self.ratio:.3f}", f"{whole:.3f}",
        ]  # fmt: skip


def flooding(limit: Limit) -> Document:
    flood = {"username": "flood"}
    budget = pg_policies.budget(
        "flood", flood, mode="enforce", rate=limit.rate, capacity=limit.capacity, max_delayed=64,
        max_delay_s=10 if limit.delayed else 0,
    )  # fmt: skip
    return {"budgets": [budget]}


def flood(
    bench: Workbench, server: ExtendedServer, limit: Limit, seconds: float
) -> tuple[Counts, float, float]:
    """Its counts, the CPU seconds of its backends, and how long it lasted."""
    pg_kit.publish(server, flooding(limit))
    load = Load(
        FLOODS[limit.flood],
        seconds + 60,
        CLIENTS,
        "flood",
        blocked_pause_us=BACK_AFTER_US,
        waits=True,
    )
    with bench.program.running(load, pg_kit.socket_of(server)) as running:
        with pg_kit.session(server) as watching:
            pids = pg_kit.backends(watching, "flood")
        assert len(pids) == CLIENTS, f"{len(pids)} backends of {CLIENTS} were found"
        before_ns = sum(pg_kit.cpu_ns(pid) for pid in pids)
        began = time.monotonic()
        running.begin()
        time.sleep(seconds)
        spent_ns = sum(pg_kit.cpu_ns(pid) for pid in pids) - before_ns
        took = time.monotonic() - began
        return running.end(), spent_ns / 1e9, took


def flooded(bench: Workbench, server: ExtendedServer, seconds: float) -> list[Flooded]:
    cpus = read_server_file(server.traffic_dir).cpus_milli / 1000
    block_s = {kind: blocking(bench, server, kind, min(seconds, 5)) for kind in FLOODS}
    found = []
    for limit in LIMITS:
        counts, spent_s, took_s = flood(bench, server, limit, seconds)
        bound_s = (limit.rate * took_s + limit.capacity) / 100 * cpus
        blocks_s = counts.blocked * block_s[limit.flood]
        found.append(Flooded(limit, counts, spent_s, blocks_s, bound_s))
        say(f"{limit.name}, share {limit.rate:g} %: {found[-1].ratio:.3f} of its bound")
    return found


def blocking(bench: Workbench, server: ExtendedServer, kind: str, seconds: float) -> float:
    """CPU seconds that one block takes of its backend."""
    counts, spent_s, _ = flood(bench, server, Limit(kind, 0, 0), seconds)
    assert counts.ok == 0, "a rate of 0 admitted something"
    say(f"{kind} statements: a block takes {spent_s / counts.blocked * 1e6:.0f} µs")
    return spent_s / counts.blocked
