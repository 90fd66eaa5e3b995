"""How well a statement's CPU is foreseen, and how truly it is charged.

Part of bench.pg_long_run. Two halves:

  skewed   one client, patterns whose executions differ by orders of magnitude: Zipf keys, ranges of
           any length, correlated filters, costly functions, writes. Each estimate is compared
           with what the execution then took (R162).
  mixed    two clients, twelve patterns. The error is the server's own account of each, a running
           mean of |estimate - actual| / actual. The charge is compared with the kernel's account
           of the backend.

An estimate is read from the notice of a budget that only warns of a per-query limit of
0; what the execution took from the counts of one without limits.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_policies
from bench.pg_kit import Session, Workbench
from bench.pg_load import Load
from bench.report import Goal, percentile, say
from headgate.budgets.readings import BudgetReadings, PatternReading

# --- skewed ----------------------------------------------------------------------------------

SETTINGS = {
    "pg_headgate.notice_interval_ms": "0",
    # Small tables are read quickly: twice for each statement.
    "pg_headgate.budgets": "16",
    "pg_headgate.buckets": "1024",
    "pg_headgate.patterns": "1024",
}
WARM_RUNS = 20
"""Of a pattern, before its estimates count."""
SKEWED_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, grp int, cat int, sub int, v int, t text);
INSERT INTO items SELECT n, (power(random(), 3) * 1000)::int, n % 20,
  (n % 20) * 5 + (random() * 4)::int, (random() * 100000)::int, repeat(md5(n::text), 2)
  FROM generate_series(1, 200000) n;
CREATE INDEX ON items (grp);
CREATE INDEX ON items (v);
CREATE INDEX ON items (cat, sub);
CREATE TABLE tenants (id int PRIMARY KEY, name text);
INSERT INTO tenants SELECT n, 't' || n FROM generate_series(1, 1000) n;
CREATE TABLE events (id bigserial PRIMARY KEY, tenant int, at int, kind int, amount int);
INSERT INTO events (tenant, at, kind, amount)
  SELECT least(1000, (1 / (random() ^ 1.5 * 0.999 + 0.001))::int), n,
  (random() * random() * 50)::int, (random() * 1000)::int FROM generate_series(1, 300000) n;
CREATE INDEX ON events (tenant);
CREATE INDEX ON events (at);
CREATE TABLE lines (tenant int, x int);
CREATE FUNCTION slow(n int) RETURNS int LANGUAGE plpgsql AS
  $$DECLARE s int := 0; BEGIN FOR i IN 1..n LOOP s := s + i % 3; END LOOP; RETURN s; END$$;
GRANT ALL ON items, tenants, events, lines TO skewed;
ANALYZE;
"""
Dice = random.Random


def _long(dice: Dice, least: int, most: int) -> int:
    return int(math.exp(dice.uniform(math.log(least), math.log(most))))


def _tenant(dice: Dice) -> int:
    return max(1, min(1000, int(dice.random() ** -2)))


def _span(dice: Dice) -> str:
    first = dice.randint(1, 200_000)
    return f"at BETWEEN {first} AND {first + _long(dice, 10, 100_000)}"


def _correlated(dice: Dice) -> str:
    cat = dice.randint(0, 19)
    return (
        f"cat = {cat} AND sub = {cat * 5 + dice.randint(0, 4)} AND v < {_long(dice, 10, 100_000)}"
    )


SKEWED: Mapping[str, Callable[[Dice], str]] = {
    "sum of a tenant": lambda d: f"SELECT sum(amount) FROM events WHERE tenant = {_tenant(d)}",
    "top of a tenant": lambda d: (
        f"SELECT * FROM events WHERE tenant = {_tenant(d)} ORDER BY amount DESC LIMIT 10"
    ),
    "groups of tenants": lambda d: (
        f"SELECT kind, avg(amount) FROM events WHERE tenant <= {_tenant(d)} GROUP BY kind"
    ),
    "a span of time": lambda d: f"SELECT count(*), sum(amount) FROM events WHERE {_span(d)}",
    "a span, joined": lambda d: (
        "SELECT t.name, sum(e.amount) FROM events e JOIN tenants t ON t.id = e.tenant "
        f"WHERE {_span(d)} GROUP BY 1"
    ),
    "look-up": lambda d: f"SELECT * FROM items WHERE id = {d.randint(1, 200_000)}",
    "look-ups": lambda d: (
        "SELECT sum(v) FROM items WHERE id = ANY ("
        f"'{{{','.join(str(d.randint(1, 200_000)) for _ in range(_long(d, 1, 300)))}}}')"
    ),
    "correlated": lambda d: f"SELECT count(*), max(t) FROM items WHERE {_correlated(d)}",
    "text search": lambda d: (
        f"SELECT count(*) FROM items WHERE t LIKE '%{'abcd'[: d.randint(1, 4)]}%' "
        f"AND id < {_long(d, 100, 200_000)}"
    ),
    "sort": lambda d: (
        f"SELECT id FROM items WHERE id < {_long(d, 10, 200_000)} ORDER BY t LIMIT 20"
    ),
    "window": lambda d: (
        "SELECT max(r) FROM (SELECT row_number() OVER (PARTITION BY kind ORDER BY amount) r "
        f"FROM events WHERE at < {_long(d, 10, 100_000)}) s"
    ),
    "series": lambda d: f"SELECT count(*) FROM generate_series(1, {_long(d, 10, 300_000)})",
    "a function of each row": lambda d: (
        f"SELECT sum(slow(v % 7 * 20)) FROM items WHERE id < {_long(d, 10, 5000)}"
    ),
    "a function that loops": lambda d: f"SELECT slow({_long(d, 10, 100_000)})",
    "update": lambda d: f"UPDATE items SET v = v + 1 WHERE grp = {int(d.random() ** 3 * 1000)}",
    "insert": lambda d: (
        f"INSERT INTO lines SELECT 1, n FROM generate_series(1, {_long(d, 1, 5000)}) n"
    ),
}
SKEWED_HEAD = (
    "pattern", "executions", "CPU, p5 – p95, ms", "q-error: median", "p90", "p99",
    "sum: estimated ÷ actual", "within p90",
)  # fmt: skip
FIGURES = re.compile(r"\bestimate_ms=([0-9.]+) p90_ms=([0-9.]+)")
CORE = Path(__file__).parents[1] / "native"


@dataclass(frozen=True, slots=True)
class Execution:
    mean_ns: float
    p90_ns: float
    actual_ns: float

    @property
    def q_error(self) -> float:
        return max(self.mean_ns / self.actual_ns, self.actual_ns / self.mean_ns)


@dataclass(frozen=True, slots=True)
class Distribution:
    """How well the executions of a pattern, or of all, were foreseen."""

    name: str
    found: Sequence[Execution]

    def q_error(self, share: float) -> float:
        return percentile([one.q_error for one in self.found], share)

    @property
    def sums(self) -> float:
        return sum(one.mean_ns for one in self.found) / sum(one.actual_ns for one in self.found)

    @property
    def covered(self) -> float:
        return sum(one.actual_ns <= one.p90_ns for one in self.found) / len(self.found)

    def row(self) -> list[str]:
        taken = [one.actual_ns / 1e6 for one in self.found]
        low, high = (percentile(taken, share) for share in (0.05, 0.95))
        errors = (f"{self.q_error(share):.2f}" for share in (0.5, 0.9, 0.99))
        return [
            self.name, f"{len(self.found):,}", f"{low:.3f} – {high:.2f}", *errors,
            f"{self.sums:.2f}", f"{self.covered:.0%}",
        ]  # fmt: skip


def skewed(server: ExtendedServer, rounds: int) -> list[Distribution]:
    """The last is of all."""
    with pg_kit.session(server) as owner:
        owner.execute(SKEWED_TABLES.encode())
    mine = {"username": "skewed"}
    warns = pg_policies.budget("all", mine, mode="warn", burst=0)
    pg_kit.publish(server, {"budgets": [warns, pg_policies.budget("counts", mine)]})
    found: dict[str, list[Execution]] = {name: [] for name in SKEWED}
    dice = random.Random(20260101)
    with pg_kit.session(server, "skewed") as session:
        notices: list[str] = []
        session.add_notice_handler(lambda said: notices.append(said.message_detail or ""))
        session.execute(b"SET max_parallel_workers_per_gather = 0")
        for _ in range(WARM_RUNS + rounds):
            for name in dice.sample(list(SKEWED), len(SKEWED)):
                found[name].append(_executed(server, session, SKEWED[name](dice), notices))
    told = [Distribution(name, runs[WARM_RUNS:]) for name, runs in found.items()]
    return [*told, Distribution("all", [one for d in told for one in d.found])]


def _executed(server: ExtendedServer, session: Session, sql: str, notices: list[str]) -> Execution:
    before_ns = _charged_ns(server)
    notices.clear()
    session.execute(sql.encode(), prepare=False)
    actual_ns = _charged_ns(server) - before_ns
    (figures,) = filter(None, map(FIGURES.search, notices))
    mean_ms, p90_ms = map(float, figures.groups())
    return Execution(max(mean_ms, 1e-6) * 1e6, max(p90_ms, 1e-6) * 1e6, max(1, actual_ns))


def _charged_ns(server: ExtendedServer) -> int:
    counts = pg_kit.readings(server).budgets.get("counts")
    return 0 if counts is None else counts.charged_ns


def estimate_ns() -> float:
    """Of the core, hot, in one thread; the quickest of many batches."""
    subprocess.run(["make", "-s", "-C", CORE, "build/bench_decide"], check=True)
    told = subprocess.run([CORE / "build" / "bench_decide"], check=True, capture_output=True)
    found = re.search(r"([0-9.]+) ns to estimate", told.stdout.decode())
    assert found is not None, told.stdout
    return float(found[1])


def skewed_goals(of_all: Distribution, each_ns: float) -> list[Goal]:
    return [
        Goal("skewed: q-error, median", of_all.q_error(0.5), 1.3),
        Goal("skewed: q-error, p90", of_all.q_error(0.9), 2.5),
        Goal("skewed: q-error, p99", of_all.q_error(0.99), 10),
        Goal("skewed: sum, off by", abs(of_all.sums - 1), 0.05),
        Goal("skewed: within p90, at least", of_all.covered, 0.85, at_least=True),
        Goal("skewed: within p90, at most", of_all.covered, 0.95),
        Goal("skewed: one estimate, ns", each_ns, 100),
    ]


# --- mixed -----------------------------------------------------------------------------------

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
PATIENCE_S = 90.0
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
    load = Load(tuple(MIXED.values()), seconds + PATIENCE_S + 30, 2, "mixed")
    with bench.program.running(load, pg_kit.socket_of(server)) as running:
        until = time.monotonic() + seconds
        # A busy machine takes longer to run each of them often enough.
        last = until + PATIENCE_S
        while (now := time.monotonic()) < until or (len(errors) < len(MIXED) and now < last):
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
