"""200 workers at one gate: bare, with jitter, and paced; in a model and with a real replica.

.venv/bin/python -m bench.herd [--seconds 60] [--workers 200] [--share 0.06] [--rounds 2]
                            [--no-live] [--grid]

The model takes seconds and is the same at each run; the real thing is one primary and one
replica whose replay has too small a share of a core. The plot shows both.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from bench.herd_live import Scene, play
from bench.herd_model import Outcome, Variant, World, run
from bench.herd_plot import draw
from bench.report import Goal, Report, chosen_of, options, table
from headgate.demo import servers

HEAD = (
    "",
    "over the threshold",
    "p99 lag",
    "burstiness",
    "capacity used",
    "of the best other",
    "replayed",
)
MAX_OVER, MAX_P99, MIN_USED = 0.05, 1.5, 0.95
Outcomes = Mapping[Variant, Outcome]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.06, help="of a core, for the replay")
    parser.add_argument("--rounds", type=int, default=2, help="variants take turns")
    parser.add_argument("--no-live", action="store_true")
    parser.add_argument("--grid", action="store_true", help="the model over many worlds")
    parser.add_argument("--plot", type=Path, help="draw the lag of both there")
    chosen = parser.parse_args()
    if chosen.grid:
        grid()
        return
    world = World(workers=chosen.workers, seconds=chosen.seconds)
    pictures = {"in the model": {variant: run(variant, world) for variant in Variant}}
    report = Report("herd", chosen_of(chosen))
    show(f"model, {world.workers} workers, 400 units/s", pictures["in the model"], report)
    if not chosen.no_live:
        scene = Scene(chosen.workers, chosen.share, chosen.seconds)
        pictures["with a real replica"] = live(scene, chosen.rounds)
        show(f"real replica, {scene.workers} workers", pictures["with a real replica"], report)
        report.goals = goals(pictures["with a real replica"], scene)
        if chosen.plot is not None:
            draw(pictures, chosen.plot)
    report.end()


def live(scene: Scene, rounds: int) -> dict[Variant, Outcome]:
    """In turns: what else the machine does falls on all of them."""
    outcomes: dict[Variant, Outcome] = {}
    for variant in [*Variant] * rounds:
        with tempfile.TemporaryDirectory(dir=servers.scratch_parent()) as folder:
            Path(folder).chmod(0o755)
            outcome = play(variant, scene, Path(folder))
        outcomes[variant] = outcomes[variant].joined(outcome) if variant in outcomes else outcome
    return outcomes


def show(title: str, outcomes: Outcomes, report: Report) -> None:
    rows = [
        (
            variant.value,
            f"{outcome.over:.1%} of the time",
            f"{outcome.p99_s:.2f} s",
            f"{outcome.burstiness:.2f}",
            f"{outcome.used:.1%}",
            f"{relative(variant, outcomes):.1%}",
            f"{outcome.replayed:.0f}",
        )
        for variant, outcome in outcomes.items()
    ]
    report.show(title, HEAD, rows)


def goals(outcomes: Outcomes, scene: Scene) -> list[Goal]:
    mine = outcomes[Variant.PACED]
    best = max(of.replayed for variant, of in outcomes.items() if variant is not Variant.PACED)
    work = f"herd of {scene.workers}, paced"
    return [
        Goal(f"{work}: over the threshold", mine.over * 100, 1, unit="%"),
        Goal(f"{work}: p99 of the lag", mine.p99_s, 1.0, unit="s"),
        Goal(
            f"{work}: transactions, of the best other", mine.replayed / best * 100, 97,
            at_least=True, unit="%",
        ),
    ]  # fmt: skip


def relative(variant: Variant, outcomes: Outcomes) -> float:
    """What was used of the replica's capacity, as a share of the best of the others."""
    best = max(other.used for name, other in outcomes.items() if name is not variant)
    return outcomes[variant].used / best


# --- the grid --------------------------------------------------------------------------------


def steady(per_s: float) -> Callable[[float], float]:
    return lambda _: per_s


def steps(high: float, low: float, every_s: float) -> Callable[[float], float]:
    return lambda at: low if int(at / every_s) % 2 else high


def pieces_of(cost: float) -> Callable[[random.Random], float]:
    return lambda _: cost


def worlds() -> Iterator[tuple[str, World]]:
    """From a tenth of the initial rate to a thousand times; pieces of at most 50 ms of replay."""
    for per_s, workers, probe_s in itertools.product(
        (0.2, 2, 20, 200, 2000), (1, 10, 200, 500), (0.1, 0.25, 0.5, 1.0)
    ):
        world = World(
            workers=workers,
            capacity=steady(per_s),
            probe_s=probe_s,
            cost=pieces_of(min(1.0, per_s / 20)),
            seconds=120,
        )
        yield f"{per_s:g} units/s, {workers} workers, probed every {probe_s:g} s", world


def harder() -> Iterator[tuple[str, World]]:
    usual = World(seconds=120)
    quarter = replace(usual, capacity=steps(400, 100, 40), seconds=160)
    for probe_s in (0.1, 0.25, 0.5):
        name = f"capacity ÷ 4 and × 4 every 40 s, probed every {probe_s:g} s"
        yield name, replace(quarter, probe_s=probe_s)
    for noise_s in (0.1, 0.2, 0.3):
        yield f"lag read up to {noise_s:g} s off", replace(usual, noise_s=noise_s)
    yield "costs of 1, 10 and 100", replace(usual, cost=lambda dice: dice.choice((1, 1, 10, 100)))
    yield "threshold 5 s", replace(usual, threshold_s=5.0)
    for work_s in (0.1, 0.2, 0.5):
        yield f"work takes {work_s:g} s", replace(usual, work_s=work_s, workers=500)


def lied_to() -> Iterator[tuple[str, World]]:
    """One worker declares a billion for each of its pieces."""
    for workers, lies_from in itertools.product((10, 200), (0.0, 20.0)):
        world = World(workers=workers, capacity=steady(100), lies_from=lies_from, seconds=120)
        yield f"{workers} workers, one lies after {lies_from:g} s", world


GRIDS = {"grid": worlds, "harder": harder, "one liar": lied_to}


def grid() -> None:
    for title, make in GRIDS.items():
        these = list(make())
        rows, met = [], 0
        for name, world in these:
            outcomes = {variant: run(variant, world) for variant in Variant}
            paced, used = outcomes[Variant.PACED], relative(Variant.PACED, outcomes)
            good = meets(paced, used)
            met += good
            if not good or title != "grid":
                p99 = paced.p99_s / world.threshold_s
                rows.append((name, f"{paced.over:.1%}", f"{p99:.2f} ×", f"{used:.1%}"))
        print(f"{title}: {met} of {len(these)} worlds meet all three")
        print(table(("", "over", "p99 lag / threshold", "of the best other"), rows), flush=True)


def meets(paced: Outcome, used: float) -> bool:
    return (
        paced.over <= MAX_OVER and paced.p99_s <= MAX_P99 * paced.threshold_s and used >= MIN_USED
    )


if __name__ == "__main__":
    main()
