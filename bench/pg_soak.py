"""A server under load whose policy changes every second and whose backends are killed.

.venv/bin/python -m bench.pg_soak [--seconds 300] [--seed N] [--quick] [--json PATH] [--major 18]

The first half without crashes: policies, terminations and cancels, and sessions that live through
it all, whose memory must not grow. In the second half a backend is killed (SIGKILL) every few
seconds, so that the server starts over. At the end nothing may be held, nobody missing, nothing
killed that we did not kill.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psycopg
from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_policies
from bench.pg_kit import Memory, Workbench
from bench.pg_load import Counts, Load
from bench.pg_policies import Document
from bench.report import Chosen, Goal, Report, chosen_of, options, say
from headgate.budgets.readings import BudgetReadings

STATEMENTS = (
    "SELECT abalance FROM pgbench_accounts WHERE aid = $1 /*controller='orders',tenant='acme'*/",
    "SELECT sum(abalance) FROM pgbench_accounts WHERE aid <= $1 /*controller='report'*/",
    "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = $1 /*tenant='umbrella'*/",
    "BEGIN; UPDATE pgbench_accounts SET abalance = 0 WHERE aid = $1; SELECT count(*) FROM"
    " generate_series(1, 20000); COMMIT",
    "DO $x$ BEGIN PERFORM sum(abalance) FROM pgbench_accounts WHERE aid <= 2000; END $x$",
    "SELECT 1 / (abalance * 0) FROM pgbench_accounts WHERE aid = $1",
)
PREPARED = STATEMENTS[:3]
CLIENTS, PREPARING, VETERANS = 8, 4, 2
EVERY_S = 1.0
KILL_EVERY = 4
"""Seconds of the second half."""
BACK_S = 60.0
SETTLED_S = 60.0
MAX_GROWTH_KIB = 512
"""Of a session that works from the first moment to the last. Its caches fill in the warm-up."""
KILLED = re.compile(r"\(PID (\d+)\) was terminated by signal")
BAD = re.compile(r"PANIC|TRAP:|stack smashing|double free|corrupted", re.IGNORECASE)


def policies() -> list[Document]:
    """One after the other: narrow, wide, by tag, for each tenant, with delays, many, none."""
    load, prepared = {"username": "load"}, {"username": "prepared"}
    everyone = {"database": "postgres"}
    narrow = pg_policies.budget("narrow", load, mode="enforce", rate=2, capacity=2)
    tenants = {
        "name": "tenants", "mode": "enforce", "rate": 5, "capacity": 5, "max_workers": 1,
        "rules": [{"match": {}, "each": ["tag.tenant"]}],
    }  # fmt: skip
    return [
        {"budgets": [narrow]},
        {"budgets": [pg_policies.budget("wide", everyone, **pg_policies.ROOMY)]},
        {"budgets": [tenants, narrow]},
        {"budgets": [pg_policies.budget(
            "slow", prepared, mode="enforce", max_workers=1, max_delay_s=0.05, penalty_s=0.01)]},
        {"budgets": [pg_policies.budget(
            "inside", everyone, mode="enforce", rate=10, capacity=10, in_transaction="block")]},
        {"budgets": [pg_policies.budget("told", everyone, mode="warn", rate=0)]},
        pg_policies.matching(5_000, pg_policies.Matching("load", "x", ("controller", "report"))),
        {"budgets": []},
    ]  # fmt: skip


@dataclass(slots=True)
class Deeds:
    """What was done to the server."""

    published: int = 0
    terminated: int = 0
    cancelled: int = 0
    killed: list[int] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scene:
    server: ExtendedServer
    dice: random.Random
    deeds: Deeds
    documents: Iterator[Document]

    def publish(self) -> None:
        pg_kit.publish(self.server, next(self.documents))
        self.deeds.published += 1

    def disturb(self) -> None:
        """One of the load's sessions is ended, and two statements are cancelled."""
        with pg_kit.session(self.server) as admin:
            victims = pg_kit.backends(admin, "load") + pg_kit.backends(admin, "prepared")
            self.dice.shuffle(victims)
            for pid in victims[:1]:
                admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
                self.deeds.terminated += 1
            for pid in victims[1:3]:
                admin.execute("SELECT pg_cancel_backend(%s)", (pid,))
                self.deeds.cancelled += 1

    def kill(self) -> None:
        with pg_kit.session(self.server) as admin:
            victims = pg_kit.backends(admin, "load")
        if victims:
            pid = self.dice.choice(victims)
            os.kill(pid, signal.SIGKILL)
            self.deeds.killed.append(pid)
            took_s = pg_kit.wait_until(self.answers, "the server is back", BACK_S)
            self.deeds.back_s.append(took_s)

    def answers(self) -> bool:
        with suppress(psycopg.OperationalError), pg_kit.session(self.server) as admin:
            return bool(pg_kit.backends(admin, "postgres"))
        return False


def cycle(documents: list[Document]) -> Iterator[Document]:
    while True:
        yield from documents


def every_second(seconds: float, do: Callable[[int], None]) -> None:
    began, number = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        do(number)
        number += 1
        time.sleep(max(0.0, began + number * EVERY_S - time.monotonic()))


class Left(NamedTuple):
    """What the server still held when the load was over."""

    held: int
    sleeping: int
    strangers: int
    """Seats of processes that are gone."""
    rejected_policies: int


@dataclass(frozen=True, slots=True)
class Half:
    counts: tuple[Counts, ...]
    growth: Memory | None
    """Of the sessions that were there all the time, the most of any; None where none was."""
    left: Left


@dataclass(frozen=True, slots=True)
class Soaked:
    deeds: Deeds
    halves: tuple[Half, Half]
    postmaster: Memory
    postmaster_files: int
    foreign_deaths: int
    bad_lines: int


def soak(bench: Workbench, server: ExtendedServer, seconds: float, dice: random.Random) -> Soaked:
    scene = Scene(server, dice, Deeds(), cycle(policies()))

    def calm(_: int) -> None:
        scene.publish()
        scene.disturb()

    def rough(number: int) -> None:
        scene.publish()
        # A session may be opened just when the server goes down.
        with suppress(psycopg.OperationalError):
            scene.disturb()
            if number % KILL_EVERY == 0:
                scene.kill()

    first = half(bench, scene, seconds / 2, calm, crashes=False)
    before, files = pg_kit.memory_of(server.pid), open_files(server.pid)
    second = half(bench, scene, seconds / 2, rough, crashes=True)
    log = server.log()
    return Soaked(
        scene.deeds,
        (first, second),
        pg_kit.memory_of(server.pid).since(before),
        open_files(server.pid) - files,
        sum(int(pid) not in scene.deeds.killed for pid in KILLED.findall(log)),
        len(BAD.findall(log)),
    )


def half(
    bench: Workbench, scene: Scene, seconds: float, do: Callable[[int], None], *, crashes: bool
) -> Half:
    server, run = scene.server, bench.program.running
    socket = pg_kit.socket_of(server)
    with ExitStack() as loads:
        running = [loads.enter_context(run(load, socket)) for load in loads_of(seconds, crashes)]
        for _ in policies():
            scene.publish()  # Everybody has met every policy, and filled its caches.
            time.sleep(0.2)
        before = memory(server)
        every_second(seconds, do)
        growth = None if crashes else grown(before, memory(server))
        counts = tuple(load.end() for load in running)
    pg_kit.wait_until(lambda: nobody_left(server), "the load's sessions ended")
    found = Half(counts, growth, settled(server))
    say(f"{'with' if crashes else 'without'} crashes: {found.left}")
    return found


def loads_of(seconds: float, crashes: bool) -> list[Load]:
    longest_s = 2 * seconds + 120
    return [
        Load(STATEMENTS, longest_s, CLIENTS, "load", comes_back=True),
        Load(PREPARED, longest_s, PREPARING, "prepared", prepared=True, comes_back=True),
        Load(STATEMENTS[:3], longest_s, VETERANS, "veteran", comes_back=crashes),
    ]


def settled(server: ExtendedServer) -> Left:
    """The last sessions are given a moment to leave their seats."""
    until = time.monotonic() + SETTLED_S
    while any((last := left(pg_kit.readings(server)))[:3]) and time.monotonic() < until:
        time.sleep(0.1)
    return last


def left(readings: BudgetReadings) -> Left:
    return Left(
        sum(bucket.running for bucket in readings.buckets),
        sum(count.sleeping for count in readings.budgets.values()),
        sum(not Path(f"/proc/{seat.pid}").exists() for seat in readings.seats),
        readings.rejected,
    )


def memory(server: ExtendedServer) -> dict[int, Memory]:
    with pg_kit.session(server) as admin:
        return {pid: pg_kit.memory_of(pid) for pid in pg_kit.backends(admin, "veteran")}


def grown(before: dict[int, Memory], after: dict[int, Memory]) -> Memory:
    assert before.keys() == after.keys() and len(before) == VETERANS, "a veteran was lost"
    each = [after[pid].since(before[pid]) for pid in before]
    return Memory(max(one.own_kib for one in each), max(one.mappings for one in each))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def nobody_left(server: ExtendedServer) -> bool:
    with pg_kit.session(server) as admin:
        return not any(pg_kit.backends(admin, user) for user in ("load", "prepared", "veteran"))


def rows(found: Soaked) -> list[tuple[str, str]]:
    deeds = found.deeds
    counts = [one for part in found.halves for one in part.counts]

    def total(what: str) -> str:
        return f"{sum(getattr(one, what) for one in counts):,}"

    back = f"{max(deeds.back_s):.2f} s at the longest" if deeds.back_s else "–"
    return [
        ("statements done, blocked", f"{total('ok')}, {total('blocked')}"),
        ("cancelled, connections lost", f"{total('cancelled')}, {total('lost')}"),
        ("policies published", str(deeds.published)),
        ("sessions terminated, statements cancelled", f"{deeds.terminated}, {deeds.cancelled}"),
        ("backends killed", str(len(deeds.killed))),
        ("until the server was back", back),
    ]


def goals(found: Soaked) -> list[Goal]:
    """All but the memory must be nought."""
    first, second = found.halves
    assert first.growth is not None
    nought = {
        "held by statements at the end of a half": first.left.held + second.left.held,
        "held back at the end of a half": first.left.sleeping + second.left.sleeping,
        "seats of processes that are gone": first.left.strangers + second.left.strangers,
        "policies that the server blocked": first.left.rejected_policies,
        "processes that ended by a signal that was not ours": found.foreign_deaths,
        "alarming lines in the log": found.bad_lines,
        "files that the postmaster opened and kept": found.postmaster_files,
        "mappings that a session made and kept": first.growth.mappings,
    }
    grown_kib = {"sessions'": first.growth.own_kib, "postmaster's": found.postmaster.own_kib}
    return [Goal(what, value, 0) for what, value in nought.items()] + [
        Goal(f"growth of the {whose} memory, KiB", kib, MAX_GROWTH_KIB)
        for whose, kib in grown_kib.items()
    ]


def soaked(chosen: Chosen, seconds: float, dice: random.Random) -> Soaked:
    with pg_kit.workbench(chosen) as bench:
        # A killed backend takes its neighbours along; the server must come back by itself.
        server = bench.server(settings={"restart_after_crash": "on"})
        with pg_kit.session(server) as opened:
            pg_kit.make_roles(opened, "load", "prepared", "veteran")
        return soak(bench, server, seconds, dice)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=6)
    given = parser.parse_args()
    chosen = chosen_of(given)
    found = soaked(chosen, 16 if chosen.quick else given.seconds, random.Random(given.seed))
    report = Report("pg_soak", chosen)
    report.show("Soak", ("what", "how much"), rows(found))
    report.goals = goals(found)
    report.end()
    if not all(goal.held for goal in report.goals):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
