"""How well a statement's CPU is foreseen, and how truly it is charged: a mixed workload.

Part of bench.pg_long_run. The error is the server's own account of each pattern, a running mean of
|estimate - actual| / actual over its last few executions. It is looked at again and again once a
pattern has run 20 times; what is told is the median. The charge is compared with the kernel's
account of the backend.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_policies
from bench.pg_kit import Workbench, say
from bench.pg_load import Load
from headgate.budgets.readings import BudgetReadings, PatternReading

ENOUGH_CALLS = 20
HISTORY = "CREATE TABLE history (at timestamptz DEFAULT now(), aid int, delta int)"
# The kernel's account of a backend is without its parallel workers.
ALONE = "ALTER ROLE mixed SET max_parallel_workers_per_gather = 0"
MIXED = {
    "look-up": "SELECT bid FROM pgbench_accounts WHERE aid = $1",
    "100 rows": "SELECT filler FROM pgbench_accounts WHERE aid >= $1 ORDER BY aid LIMIT 100",
    "up to 100,000 rows": "SELECT sum(bid), count(*) FROM pgbench_accounts WHERE aid <= $1",
    "group": "SELECT aid % 10, count(*) FROM pgbench_accounts WHERE aid <= $1 GROUP BY 1",
    "sort": "SELECT aid FROM pgbench_accounts WHERE aid > $1 ORDER BY filler, -aid LIMIT 10",
    "join": "SELECT count(*) FROM pgbench_accounts a JOIN pgbench_accounts b USING (aid)"
    " WHERE a.aid BETWEEN $1 AND 50000",
    "text search": "SELECT count(*) FROM pgbench_accounts WHERE filler LIKE '%x%' AND aid > $1",
    "window": "SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY abalance, aid) n"
    " FROM pgbench_accounts WHERE aid <= $1) t",
    "series": "SELECT count(*) FROM generate_series(1, $1)",
    "update": "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = $1",
    "insert": "INSERT INTO history (aid, delta) VALUES ($1, 1)",
    "insert many": "INSERT INTO history (aid) SELECT generate_series(1, 500) FROM"
    " pgbench_accounts WHERE aid = $1",
}
HEAD = ("pattern", "calls", "CPU each, ms", "error", "charged ÷ kernel's CPU")
LEAST_S, SETTLE_S, ALONE_S, LOOK_EVERY_S = 10.0, 0.3, 1.5, 0.2
Patterns = Mapping[int, PatternReading]


@dataclass(frozen=True, slots=True)
class Foreseen:
    name: str
    pattern: PatternReading
    error: float
    charged: float
    """÷ what the kernel says the backend has had."""

    def row(self) -> list[str]:
        pattern = self.pattern
        return [
            self.name, f"{pattern.calls:,}", f"{pattern.cpu_total_ns / pattern.calls / 1e6:.3f}",
            f"{self.error:.1%}", f"{self.charged:.3f}",
        ]  # fmt: skip


def median_error(found: list[Foreseen]) -> float:
    return statistics.median(one.error for one in found)


def foreseen(bench: Workbench, server: ExtendedServer, seconds: float) -> list[Foreseen]:
    """All patterns at once by two clients; then each by itself, for its charge and its id."""
    everything = pg_policies.budget("all", {"database": "postgres"}, **pg_policies.ROOMY)
    pg_kit.publish(server, {"budgets": [everything]})
    errors = watched(bench, server, max(LEAST_S, seconds))
    mixed = by_id(pg_kit.readings(server))
    found = []
    for name in MIXED:
        mine, charged = alone(bench, server, name)
        assert mine in errors, f"{name}: {mixed[mine].calls} calls are too few"
        found.append(Foreseen(name, mixed[mine], statistics.median(errors[mine]), charged))
    return found


def watched(bench: Workbench, server: ExtendedServer, seconds: float) -> dict[int, list[float]]:
    """The errors of each pattern, by its id, as they were during the run."""
    errors: dict[int, list[float]] = {}
    load = Load(tuple(MIXED.values()), seconds + 30, 2, "mixed")
    with bench.program.running(load, pg_kit.socket_of(server)) as running:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
            for pattern in pg_kit.readings(server).patterns:
                if pattern.calls >= ENOUGH_CALLS:
                    errors.setdefault(pattern.query_id, []).append(pattern.error)
        say(f"mixed: {running.end().ok_per_s:,.0f} statements a second")
    return errors


def by_id(readings: BudgetReadings) -> Patterns:
    return {pattern.query_id: pattern for pattern in readings.patterns}


def alone(bench: Workbench, server: ExtendedServer, name: str) -> tuple[int, float]:
    """One connection, one pattern: its id, and what it was charged ÷ what the kernel says."""
    load = Load((MIXED[name],), 60, 1, "mixed")
    with (
        pg_kit.session(server) as watching,
        bench.program.running(load, pg_kit.socket_of(server)),
    ):
        pg_kit.wait_until(lambda: len(pg_kit.backends(watching, "mixed")) == 1, "one backend")
        (pid,) = pg_kit.backends(watching, "mixed")
        time.sleep(SETTLE_S)
        first, first_ns = by_id(pg_kit.readings(server)), pg_kit.cpu_ns(pid)
        time.sleep(ALONE_S)
        last, last_ns = by_id(pg_kit.readings(server)), pg_kit.cpu_ns(pid)
    grown = {key: one.cpu_total_ns - _total(first, key) for key, one in last.items()}
    mine = max(grown, key=lambda key: grown[key])
    return mine, grown[mine] / (last_ns - first_ns)


def _total(readings: Patterns, key: int) -> int:
    return readings[key].cpu_total_ns if key in readings else 0
