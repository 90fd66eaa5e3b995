"""Whether traffic control holds what it promises over time, on a real server.

.venv/bin/python -m bench.pg_long_run [--seconds 20] [--rounds 3] [--only share,…] [--quick]
                                   [--json PATH] [--plot docs/images/tiers.svg] [--major 18]

  share       a flood gets no more CPU than share × time + size (R110)      bench/pg_share.py
  prediction  a statement's CPU, foreseen and charged                       bench/pg_prediction.py
  overlap     three long queries at once, held to one (R128)                bench/pg_tiers.py
  tiers       the critical tier's p99 while best-effort floods (R127)       bench/pg_tiers.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_prediction, pg_share, pg_tiers
from bench.pg_kit import Workbench
from bench.pg_tiers_plot import draw
from bench.report import Goal, Report, chosen_of, options, say

ROLES = ("flood", "skewed", "mixed", "long", "critical", "important", "best_effort")
WITHIN = 1.05
MAX_ERROR = 0.25
MAX_SLOWER = 1.3


@dataclass(frozen=True, slots=True)
class Stage:
    bench: Workbench
    server: ExtendedServer
    report: Report
    seconds: float
    rounds: int
    plot: Path | None


def share(stage: Stage) -> None:
    found = pg_share.flooded(stage.bench, stage.server, stage.seconds)
    title = "A flood against its share (R110)"
    stage.report.show(title, pg_share.HEAD, [one.row() for one in found])
    stage.report.goals += [
        Goal(f"{one.limit.name}, share {one.limit.rate:g} %: admitted ÷ bound", one.ratio, WITHIN)
        for one in found
    ]


def prediction(stage: Stage) -> None:
    told = pg_prediction.skewed(stage.server, 40 if stage.report.chosen.quick else 300)
    title = "Foreseen: parameters whose cost differs by orders of magnitude (R162)"
    stage.report.show(title, pg_prediction.SKEWED_HEAD, [one.row() for one in told])
    stage.report.goals += pg_prediction.skewed_goals(told[-1], pg_prediction.estimate_ns())
    found = pg_prediction.foreseen(stage.bench, stage.server, stage.seconds)
    title = "Foreseen and charged, a mixed workload of two clients"
    stage.report.show(title, pg_prediction.HEAD, [one.row() for one in found])
    error = pg_prediction.median_error(found)
    stage.report.goals.append(Goal("prediction: median error of the patterns", error, MAX_ERROR))


def overlap(stage: Stage) -> None:
    found = pg_tiers.overlaps(stage.bench, stage.server, stage.seconds)
    title = "One place at a time (R128)"
    stage.report.show(title, pg_tiers.LONG_HEAD, [one.row() for one in found])
    stage.report.goals.append(Goal("overlap: long queries at once", float(found[-1].most), 1))


def tiers(stage: Stage) -> None:
    runs = []
    for number in range(stage.rounds):
        runs.append(pg_tiers.timeline(stage.bench, stage.server, stage.seconds / 4))
        say(f"tiers: run {number + 1} of {stage.rounds}")
    title = "Tiers under a flood (R127), medians of runs"
    stage.report.show(title, pg_tiers.HEAD, pg_tiers.rows(runs))
    stage.report.goals += [
        Goal(f"tiers: critical p99, × calm{when}", pg_tiers.slower(runs, "critical", span), most)
        for when, span, most in (
            (" (A/A: calm again)", 1, None),
            (", flood limited", 3, MAX_SLOWER),
        )
    ]
    if stage.plot is not None:
        draw(runs[-1], stage.plot)


PARTS: Mapping[str, Callable[[Stage], None]] = {
    "share": share,
    "prediction": prediction,
    "overlap": overlap,
    "tiers": tiers,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="of the tiers")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, joined by commas")
    parser.add_argument("--plot", type=Path, help="draw the tiers")
    given = parser.parse_args()
    chosen = chosen_of(given)
    report = Report("pg_long_run", chosen)
    seconds, rounds = (3.0, 1) if chosen.quick else (given.seconds, given.rounds)
    with pg_kit.workbench(chosen) as bench:
        server = bench.server(settings=pg_prediction.SETTINGS)
        with pg_kit.session(server) as opened:
            opened.execute(pg_prediction.HISTORY)
            pg_kit.make_roles(opened, *ROLES)
            opened.execute(pg_prediction.ALONE)
        for name in given.only.split(","):
            say(name)
            PARTS[name](Stage(bench, server, report, seconds, rounds, given.plot))
    report.end()


if __name__ == "__main__":
    main()
