"""`decide` in process: five metrics, four-level identity, 10 to 10,000 rules.

.venv/bin/python -m bench.decide
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

from bench.report import table
from headgate.base.clock import Dice, SystemClock
from headgate.base.names import MetricRef, parse_identity
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.decide import decide
from headgate.check.demand import Demands
from headgate.check.health import Health
from headgate.check.model import Check, Idleness
from headgate.history.recorder import Recorder
from headgate.metrics.model import Engine
from headgate.metrics.samples import Instant, Sample
from headgate.metrics.settings import parse_metric_settings
from headgate.rules.matching import Rule, RuleBook, book_of

METRICS = ("lag", "threads_running", "pool_usage", "commit_delay", "loadavg")
IDENTITY = parse_identity("d666bbfc_169e_11ef_b0b3_0a43f95f28a3:vcopier:vreplication:online-ddl")
NOW = Instant(0.5, 0.5)
CALLS = 50
BATCHES = 1_000
COUNTS = (0, 10, 1_000, 10_000)


def medians_us(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Of each: the median over batches, of the time of one call. Batches are interleaved, so
    that what disturbs the machine disturbs all alike."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(BATCHES):
        for call, of in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            of.append((time.perf_counter() - start) / CALLS * 1e6)
    return [statistics.median(of) for of in times]


def board(share: float, clock: SystemClock | None = None) -> Board:
    made = Board()
    made.open("main", None)
    at = clock.now().mono_s if clock else 0.0
    for name in METRICS:
        raw = {"max_age_s": 3600} if clock else {}
        spec = parse_metric_settings(name, raw, Engine.POSTGRES)
        made.place("main", spec, at=at)
        made.push("main", name, Sample(spec.threshold * share, at))
    return made


def rules(count: int) -> RuleBook:
    return book_of(Rule(f"r{i}", f"token{i}", 0.5, 1e12) for i in range(count))


def case(check: Check, health: Health, book: RuleBook) -> Callable[[], object]:
    return lambda: decide(check, health, book, now=NOW, roll=0.5)


def main() -> None:
    healthy, breached = board(0.5).healths["main"], board(1.5).healths["main"]
    check = Check(IDENTITY, "main")
    named = check._replace(metrics=tuple(MetricRef(name) for name in METRICS))
    one = board(0.5)
    one.push("main", "lag", Sample(99.0, 0.0))
    calls = []
    for count in COUNTS:
        book = rules(count)
        calls += [
            case(check, healthy, book),
            case(named, healthy, book),
            case(check, one.healths["main"], book),
            case(check, breached, book),
        ]
    gc.collect()
    gc.freeze()  # As the agent does when it has started.
    us = [f"{value:.2f}" for value in medians_us(calls)]
    rows = [(f"{count:,}", *us[4 * n : 4 * n + 4]) for n, count in enumerate(COUNTS)]
    head = (
        "rules",
        "admit, default set",
        "admit, 5 named",
        "reject, 1 breach",
        "reject, 5 breaches",
    )
    print(table([*head[:1], *(f"{name}, µs" for name in head[1:])], rows))
    clock = SystemClock()
    demands = Demands(clock)
    demands.open("main", Idleness())
    checker = Checker(
        board(0.5, clock),
        Recorder(max_clients=1000),
        demands,
        clock,
        Dice().roll,
        anonymous_may_pass=False,
    )
    checker.rules = rules(1_000)
    (whole,) = medians_us([lambda: checker.check(check)])
    print(f"\nChecker.check (clock, dice, decide, record), 1,000 rules: {whole:.2f} µs")


if __name__ == "__main__":
    main()
