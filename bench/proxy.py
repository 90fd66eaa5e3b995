"""The proxy beside PgBouncer (session pooling) and HAProxy (TCP): tps, latency, CPU, as ratios.

.venv/bin/python -m bench.proxy [--rounds 30] [--slice-ms 250] [--clients 1,8,32] [--modes …]
                                [--threads 1,2] [--pgbouncer PATH] [--quick] [--json PATH]

One load generator keeps warm connections to all and gives each a slice of time in each round, in
random order; a ratio is to PgBouncer in the same round. The proxy has a policy of 1,000 rules in
force, two of which match, and decides every statement. Beside the median are its quartiles.
"PgBouncer again" is a second PgBouncer: what its ratio differs from 1 by is noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.pg_kit import ROWS
from bench.proxy_peers import (
    AGAIN,
    DATABASE,
    HAPROXY,
    HEADGATE,
    PGBOUNCER,
    USER,
    Place,
    postgres_behind,
    proxy_options,
)
from bench.report import Chosen, Goal, Report, quartiles, say

SOURCE = Path(__file__).parent / "proxy_load.c"
MODES = ("simple", "extended", "prepared")
HEAD = (
    "target",
    "tps / PgBouncer's",
    "quartiles",
    "CPU / PgBouncer's",
    "quartiles of it",
    "tps",
    "p50 µs",
    "p99 µs",
    "CPU µs",
)
TPS_GOALS = {1: 1.0, 8: 1.05, 32: 1.15}
"""By clients: tps / PgBouncer's."""


class Slice(NamedTuple):
    tps: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """Of the proxy, a statement."""


Slices = Mapping[str, Sequence[Slice]]
"""By target, in the order of the rounds."""


def main() -> None:
    given = _options().parse_args()
    chosen = Chosen(given.quick, given.json, given.major)
    report = Report("The proxy beside PgBouncer and HAProxy", chosen)
    rounds = 3 if given.quick else given.rounds
    with tempfile.TemporaryDirectory() as scratch, postgres_behind() as place:
        program = _built(Path(scratch))
        place.add_pgbouncer()
        place.add_pgbouncer(PGBOUNCER + AGAIN)
        place.add_haproxy()
        place.add_headgates(given.threads)
        for mode in given.modes.split(","):
            for clients in map(int, given.clients.split(",")):
                say(f"{mode}, {clients} clients: {rounds} rounds of {given.slice_ms} ms each")
                found = _measured(program, place, mode, clients, rounds, given.slice_ms)
                _tell(report, mode, clients, found)
    report.end()


def _options() -> argparse.ArgumentParser:
    parser = proxy_options(__doc__, "pgbouncer", "haproxy")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--slice-ms", type=int, default=250)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--modes", default=",".join(MODES))
    return parser


def _built(folder: Path) -> Path:
    program = folder / "proxy_load"
    flags = ("-O2", "-std=c11", "-D_GNU_SOURCE")
    subprocess.run(["cc", *flags, "-o", str(program), str(SOURCE)], check=True)
    return program


def _measured(
    program: Path, place: Place, mode: str, clients: int, rounds: int, slice_ms: int
) -> Slices:
    what = (mode, str(clients), str(rounds), str(slice_ms), str(ROWS), USER, DATABASE)
    paths = [path.argument for path in place.paths]
    run = subprocess.run([str(program), *what, *paths], capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"the load failed: {run.stderr}")
    found: dict[str, list[Slice]] = defaultdict(list)
    for one in _lines(run.stdout):
        if one["round"] >= 0:
            found[one["target"]].append(_slice(one))
    return found


def _lines(text: str) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, text.splitlines())


def _slice(one: Mapping[str, float]) -> Slice:
    done = one["statements"]
    return Slice(
        done / one["ns"] * 1e9, one["p50_ns"] / 1e3, one["p99_ns"] / 1e3, one["cpu_ns"] / done / 1e3
    )


def _tell(report: Report, mode: str, clients: int, found: Slices) -> None:
    rows = [_row(name, found) for name in found]
    report.show(f"{mode}, {clients} clients", HEAD, rows)
    for name in found:
        if name.startswith(HEADGATE):
            report.goals += _goals(f"{name}, {mode}, {clients}", name, clients, found)


def _ratios(found: Slices, name: str, to: str) -> list[float]:
    return [a.tps / b.tps for a, b in zip(found[name], found[to], strict=True)]


def _cpu_ratios(found: Slices, name: str) -> list[float]:
    return [a.cpu_us / b.cpu_us for a, b in zip(found[name], found[PGBOUNCER], strict=True)]


def _row(name: str, found: Slices) -> tuple[str, ...]:
    low, middle, high = quartiles(_ratios(found, name, PGBOUNCER))
    mine = _medians(found[name])
    cpu, cpu_ratio, cpu_spread = "–", "–", "–"
    if mine.cpu_us:
        least, median, most = quartiles(_cpu_ratios(found, name))
        cpu, cpu_ratio = f"{mine.cpu_us:.1f}", f"{median:.3f}"
        cpu_spread = f"{least:.3f} – {most:.3f}"
    return (
        name,
        f"{middle:.3f}",
        f"{low:.3f} – {high:.3f}",
        cpu_ratio,
        cpu_spread,
        f"{mine.tps:,.0f}",
        f"{mine.p50_us:.0f}",
        f"{mine.p99_us:.0f}",
        cpu,
    )


def _medians(slices: Sequence[Slice]) -> Slice:
    return Slice(*map(statistics.median, zip(*slices, strict=True)))


def _goals(what: str, name: str, clients: int, found: Slices) -> list[Goal]:
    mine, theirs = _medians(found[name]), _medians(found[PGBOUNCER])
    to_pgbouncer = statistics.median(_ratios(found, name, PGBOUNCER))
    to_haproxy = statistics.median(_ratios(found, name, HAPROXY))
    bound = TPS_GOALS.get(clients, 1.0)
    return [
        Goal(f"{what}: tps / PgBouncer's", to_pgbouncer, bound, at_least=True),
        Goal(f"{what}: tps / HAProxy's", to_haproxy, 1.0, at_least=True),
        Goal(f"{what}: CPU / PgBouncer's", statistics.median(_cpu_ratios(found, name)), 1.0),
        Goal(f"{what}: p50 / PgBouncer's", mine.p50_us / theirs.p50_us, 1.0),
        Goal(f"{what}: p99 / PgBouncer's", mine.p99_us / theirs.p99_us, 1.2),
    ]


if __name__ == "__main__":
    main()
