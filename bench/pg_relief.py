"""Whether a block brings relief: what a victim gets done while others hammer at a blocked query.

.venv/bin/python -m bench.pg_relief [--rounds 5] [--seconds 3] [--quick] [--json PATH]

One client looks up rows; eight others send a query without a pause, and again at once when it is
blocked. The victim's throughput is a ratio to its throughput without them, in the same round; that
is measured twice a round, and the mean is the measure (A/A: the second to the first). Everything
runs on two CPUs.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_policies
from bench.pg_kit import Workbench
from bench.pg_load import Counts, Load
from bench.pg_policies import Document
from bench.report import Chosen, Goal, Report, chosen_of, options, say

HAMMERS = 8
LOOK_UP = "SELECT abalance FROM pgbench_accounts WHERE aid = $1"
DEAR = "SELECT sum(abalance), count(*) FROM pgbench_accounts WHERE aid <= 30000"
ALONE, ALONE_AGAIN, FREE = "alone", "alone again (A/A)", "not throttled"
BLOCKED, HELD = "blocked, no penalty", "blocked, penalty (default)"
PHASES = (ALONE, ALONE_AGAIN, FREE, BLOCKED, HELD)
ENOUGH = 0.97


def blocking(**limits: object) -> Document:
    user = {"username": "noise"}
    return {"budgets": [pg_policies.budget("noise", user, mode="enforce", rate=0, **limits)]}


POLICIES: Mapping[str, Document] = {BLOCKED: blocking(penalty_s=0), HELD: blocking()}
NO_BUDGETS: Document = {"budgets": []}


class Noise(NamedTuple):
    name: str
    statement: str
    prepared: bool

    def load(self, seconds: float) -> Load:
        return Load(
            (self.statement,), seconds, HAMMERS, "noise", application="noise",
            prepared=self.prepared,
        )  # fmt: skip


NOISES = (
    Noise("look-up, simple", LOOK_UP, prepared=False),
    Noise("look-up, prepared", LOOK_UP, prepared=True),
    Noise("aggregate, simple", DEAR, prepared=False),
    Noise("aggregate, prepared", DEAR, prepared=True),
)


@dataclass(slots=True)
class Outcome:
    """Of one phase under one noise, round by round."""

    ratios: list[float] = field(default_factory=list)
    hammered_per_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scene:
    bench: Workbench
    server: ExtendedServer
    seconds: float

    def phase(self, name: str, noise: Noise) -> tuple[Counts, Counts | None]:
        """The victim's counts, and the others'."""
        socket = pg_kit.socket_of(self.server)
        victim = Load((LOOK_UP,), self.seconds, user="victim")
        pg_kit.publish(self.server, NO_BUDGETS)
        hammer = noise.load(self.seconds + 30)
        program = self.bench.program
        quiet = name in (ALONE, ALONE_AGAIN)
        with nullcontext() if quiet else program.running(hammer, socket) as hammering:
            if name in POLICIES:
                # Once they are connected: what is blocked cannot even be prepared.
                pg_kit.publish(self.server, POLICIES[name])
                program.run(victim.lasting(0.3), socket)
            seen = program.run(victim, socket)
            return seen, hammering.end() if hammering else None


def rounds(scene: Scene, noise: Noise, count: int) -> dict[str, Outcome]:
    outcomes = {name: Outcome() for name in PHASES}
    for number in range(count):
        order = random.sample(PHASES, len(PHASES))
        done = {name: scene.phase(name, noise) for name in order}
        first, again = (done[name][0].ok_per_s for name in (ALONE, ALONE_AGAIN))
        alone = (first + again) / 2
        for name, (victim, hammers) in done.items():
            measure = first if name == ALONE_AGAIN else alone
            outcomes[name].ratios.append(victim.ok_per_s / measure)
            if hammers is not None:
                total = (hammers.ok + hammers.blocked) / hammers.seconds
                outcomes[name].hammered_per_s.append(total)
        say(f"{noise.name}: round {number + 1} of {count}, alone {alone:,.0f}/s")
    return outcomes


def row(noise: Noise, outcomes: Mapping[str, Outcome]) -> list[str]:
    cells = [noise.name]
    for name in PHASES[1:]:
        outcome = outcomes[name]
        low, high = min(outcome.ratios), max(outcome.ratios)
        rate = ""
        if outcome.hammered_per_s:
            rate = f"; {statistics.median(outcome.hammered_per_s):,.0f}/s"
        cells.append(f"{statistics.median(outcome.ratios):.2f} ({low:.2f}–{high:.2f}{rate})")
    return cells


def measured(
    chosen: Chosen, noises: Iterable[Noise], count: int, seconds: float
) -> dict[Noise, dict[str, Outcome]]:
    with pg_kit.workbench(chosen) as bench:
        server = bench.server()
        with pg_kit.session(server) as opened:
            pg_kit.make_roles(opened, "victim", "noise")
        scene = Scene(bench, server, seconds)
        return {noise: rounds(scene, noise, count) for noise in noises}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    given = parser.parse_args()
    chosen = chosen_of(given)
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))
    noises = NOISES[::3] if chosen.quick else NOISES
    count, seconds = (1, 0.5) if chosen.quick else (given.rounds, given.seconds)
    found = measured(chosen, noises, count, seconds)
    report = Report("pg_relief", chosen)
    head = ("what eight clients hammer", *(f"{name}" for name in PHASES[1:]))
    title = "The victim's throughput, × alone (range; statements of the others per second)"
    report.show(title, head, [row(noise, outcomes) for noise, outcomes in found.items()])
    report.goals = [
        Goal(f"{noise.name}: {name}", statistics.median(outcomes[name].ratios), enough, True)
        for noise, outcomes in found.items()
        for name, enough in ((ALONE_AGAIN, None), (HELD, ENOUGH))
    ]
    report.end()


if __name__ == "__main__":
    main()
