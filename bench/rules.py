"""What rules do to admissions, and what they cost (R72, R73).

.venv/bin/python -m bench.rules [--draws 20000] [--seconds 25] [--no-live]

Shares of admitted checks under ratios, by `decide` and over HTTP of a real agent; closed-loop
clients that sleep when rejected, by simulation and on a real database; deciding with 10 and with
10,000 rules, interleaved.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from bench import rules_live
from bench.decide import IDENTITY, NOW, board
from bench.report import table
from headgate.base.names import parse_identity
from headgate.check.decide import decide
from headgate.check.health import Health
from headgate.check.model import Check
from headgate.rules.matching import Rule, RuleBook, book_of

FAVORED, REDUCED = 0.1, 0.9
"""Ratios of R72: shares of checks that are rejected."""
SLEEPS = (0.0, 0.1, 1.0, 10.0, 1000.0)
"""Rejection sleep, in units of the work time (R73)."""
ROUNDS, CALLS = 800, 50
DRAWS_A_GATE = 100
"""Checks of each client between two changes of the gate that is open half of the time."""


class Share(NamedTuple):
    """Admitted checks of so many, and how many were to be expected."""

    admitted: int
    draws: int
    expected: float

    @property
    def deviations(self) -> float:
        sd = math.sqrt(self.expected * (1 - self.expected) / self.draws)
        return (self.admitted / self.draws - self.expected) / sd

    def cells(self) -> tuple[str, ...]:
        per_100 = 100 * self.admitted / self.draws
        return f"{per_100:.2f}", f"{100 * self.expected:.2f}", f"{self.deviations:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=20_000, help="checks of each client")
    parser.add_argument("--seconds", type=float, default=25, help="of each closed-loop run")
    parser.add_argument("--no-live", action="store_true", help="without servers")
    given = parser.parse_args()
    print(f"R72: admitted of 100 checks, {given.draws:,} checks each\n")
    print(table(SHARE_HEAD, list(share_rows(given.draws, live=not given.no_live))))
    print("\nR73: closed loop, simulated: favored jobs done for each of the reduced client\n")
    print(table(LOOP_HEAD, list(loop_rows())))
    if not given.no_live:
        print(f"\nR73: on a real Postgres, {given.seconds:g} s each\n")
        print(rules_live.loop_table(given.seconds, closed_loop))
    print("\nDeciding with 10 and with 10,000 rules, medians of interleaved batches\n")
    print(table(("case", "10 rules, ns", "10,000 rules, ns", "×"), list(cost_rows())))


# --- R72 -------------------------------------------------------------------------------------

SHARE_HEAD = ("where", "gate open", "ratio", "admitted", "expected", "standard deviations")


def share_rows(draws: int, *, live: bool) -> Iterator[tuple[str, ...]]:
    runs = [("decide", decided_shares)]
    runs += [("HTTP", rules_live.http_shares)] if live else []
    for where, run in runs:
        for halved in (False, True):
            found = run(draws, halved=halved)
            # Of those who have no rule: how often the gate let anybody through.
            control = found.pop(0.0)
            opened = control / draws
            for ratio, admitted in found.items():
                share = Share(admitted, draws, opened * (1 - ratio))
                yield where, f"{opened:.0%}", f"{ratio:g}", *share.cells()


def decided_shares(draws: int, *, halved: bool) -> dict[float, int]:
    """By ratio: admitted. The dice are seeded, so the table can be had again."""
    dice, book = Random(72).random, favoring_book()
    healthy, lagged = board(0.5).healths["main"], board(1.5).healths["main"]
    checks = {ratio: Check(parse_identity(name), "main") for ratio, name in NAMES.items()}
    admitted = dict.fromkeys(NAMES, 0)
    for number in range(draws):
        closed = halved and number // DRAWS_A_GATE % 2 == 1
        for ratio, check in checks.items():
            health: Health = lagged if closed else healthy
            admitted[ratio] += decide(check, health, book, now=NOW, roll=dice()).admitted
    return admitted


NAMES = {0.0: "control", REDUCED: "u1:reduced", FAVORED: "u1:favored"}


def favoring_book() -> RuleBook:
    return book_of(
        [Rule("r", "reduced", REDUCED, math.inf), Rule("f", "favored", FAVORED, math.inf)]
    )


# --- R73 -------------------------------------------------------------------------------------

LOOP_HEAD = ("s / w", "gate open: simulated", "formula", "gate open half: simulated", "formula")
JOBS = 20_000
WORK_S = 1.0


def closed_loop(work_s: float, sleep_s: float, opened: float = 1.0) -> float:
    """How much more the favored client gets done: each admission costs the work, and the
    sleeps before it."""

    def seconds_a_job(ratio: float) -> float:
        admits = (1 - ratio) * opened
        return work_s + sleep_s * (1 - admits) / admits

    return seconds_a_job(REDUCED) / seconds_a_job(FAVORED)


def loop_rows() -> Iterator[tuple[str, ...]]:
    for sleep in SLEEPS:
        cells = []
        for opened in (1.0, 0.5):
            reduced, favored = (simulated_s(r, sleep, opened) for r in (REDUCED, FAVORED))
            cells += [f"{reduced / favored:.2f}", f"{closed_loop(WORK_S, sleep, opened):.2f}"]
        yield f"{sleep:g}", *cells


def simulated_s(ratio: float, sleep_s: float, opened: float) -> float:
    """Seconds for so many jobs of a client that asks `decide`, works, or sleeps."""
    dice, book = Random(73), favoring_book()
    check = Check(parse_identity(NAMES[ratio]), "main")
    healths = [board(share).healths["main"] for share in (0.5, 1.5)]
    elapsed_s, jobs = 0.0, 0
    while jobs < JOBS:
        health = healths[dice.random() >= opened]
        if decide(check, health, book, now=NOW, roll=dice.random()).admitted:
            elapsed_s, jobs = elapsed_s + WORK_S, jobs + 1
        else:
            elapsed_s += sleep_s
    return elapsed_s


# --- cost ------------------------------------------------------------------------------------


def books(count: int) -> dict[str, RuleBook]:
    """So many active rules, and a client that they meet in different ways."""
    others = [Rule(f"r{n}", f"token{n}", 0.5, 1e12) for n in range(count - 1)]
    jobs = [Rule(f"r{n}", f"online-ddl:job{n}", 0.5, 1e12) for n in range(count - 1)]
    same = [Rule(f"r{n}", "online-ddl", 0.01 * n / count, 1e12) for n in range(count - 1)]
    lifted = [Rule(f"r{n}", "online-ddl", 0.5, 1e12, windows=()) for n in range(count - 1)]
    return {
        "no rule matches it": book_of([*others, Rule("r", "another", 0.5, 1e12)]),
        "a ratio on its category": book_of([*others, Rule("r", "online-ddl", 0.01, 1e12)]),
        "all rules are on its category": book_of([*jobs, Rule("r", "online-ddl", 0.01, 1e12)]),
        "all rules are on one target, its own": book_of(
            [*same, Rule("r", "online-ddl", 0.01, 1e12)]
        ),
        "all rules but one were lifted": book_of([*lifted, Rule("r", "online-ddl", 0.01, 1e12)]),
    }


def cost_rows() -> Iterator[tuple[str, ...]]:
    health, few, many = board(0.5).healths["main"], books(10), books(10_000)
    gc.collect()
    gc.freeze()  # As the agent does when it has started.
    for case in few:
        yield cost_row(f"{case}", health, few[case], many[case], lambda _: IDENTITY.text)
        yield cost_row(
            f"{case}, a new name each time", health, few[case], many[case],
            lambda n: f"u{n}:vcopier:online-ddl",
        )  # fmt: skip


def cost_row(
    case: str, health: Health, few: RuleBook, many: RuleBook, name: Callable[[int], str]
) -> tuple[str, ...]:
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS):
        checks = [Check(parse_identity(name(turn * CALLS + n)), "main") for n in range(CALLS)]
        # Who goes first takes turns: what disturbs the machine disturbs both.
        for index in (0, 1) if turn % 2 else (1, 0):
            times[index].append(batch_ns(checks, health, (few, many)[index]))
    medians = [statistics.median(of) for of in times]
    return case, f"{medians[0]:,.0f}", f"{medians[1]:,.0f}", f"{medians[1] / medians[0]:.2f}"


def batch_ns(checks: list[Check], health: Health, book: RuleBook) -> float:
    start_ns = time.perf_counter_ns()
    for check in checks:
        decide(check, health, book, now=NOW, roll=0.5)
    return (time.perf_counter_ns() - start_ns) / len(checks)


if __name__ == "__main__":
    main()
