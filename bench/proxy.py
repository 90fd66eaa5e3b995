"""The proxy beside PgBouncer (session pooling) and HAProxy (TCP): tps, latency, CPU, as ratios.

.venv/bin/python -m bench.proxy [--rounds 30] [--slice-ms 250] [--clients 1,8,32] [--modes …]
                                [--variants auto,epoll,…] [--quick] [--json PATH]

One load generator keeps warm connections to all and gives each a slice of time in each round, in
random order; a ratio is to PgBouncer in the same round. The proxy has a policy of 1,000 rules in
force, two of which match, and decides every statement. Beside the median stand its quartiles.
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

from bench.pg_kit import ROWS, Chosen, Goal, Report, options, quartiles, say
from bench.proxy_peers import (
    DATABASE,
    DIRECT,
    HAPROXY,
    PGBOUNCER,
    USER,
    Place,
    postgres_behind,
)

SOURCE = Path(__file__).parent / "proxy_load.c"
MODES = ("simple", "extended", "prepared")
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "auto": {},
    "epoll": {"loop": "epoll", "threads": 1},
    "epoll-2": {"loop": "epoll", "threads": 2},
    "io_uring": {"loop": "io_uring", "threads": 1},
    "io_uring-2": {"loop": "io_uring", "threads": 2},
}


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
        _add_all(place, given.variants.split(","))
        for mode in given.modes.split(","):
            for clients in map(int, given.clients.split(",")):
                say(f"{mode}, {clients} clients: {rounds} rounds of {given.slice_ms} ms each")
                found = _measured(program, place, mode, clients, rounds, given.slice_ms)
                _tell(report, mode, clients, found)
    report.end()


def _options() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--slice-ms", type=int, default=250)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--variants", default="auto")
    return parser


def _add_all(place: Place, variants: Sequence[str]) -> None:
    place.add_pgbouncer()
    place.add_haproxy()
    for name in variants:
        place.add_headgate(_shown(name), VARIANTS[name])


def _shown(variant: str) -> str:
    return "headgate" if variant == "auto" else f"headgate-{variant}"


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
    head = ("target", "tps / PgBouncer's", "quartiles", "tps", "p50 µs", "p99 µs", "CPU µs")
    report.show(f"{mode}, {clients} clients", head, rows)
    for name in found:
        if name not in (DIRECT, PGBOUNCER, HAPROXY):
            report.goals += _goals(f"{name}, {mode}, {clients}", name, clients, found)


def _ratios(found: Slices, name: str, to: str) -> list[float]:
    return [a.tps / b.tps for a, b in zip(found[name], found[to], strict=True)]


def _row(name: str, found: Slices) -> tuple[str, ...]:
    ratios = _ratios(found, name, PGBOUNCER)
    low, _, high = quartiles(ratios)
    mine = _medians(found[name])
    cpu = f"{mine.cpu_us:.1f}" if mine.cpu_us else "–"
    return (
        name,
        f"{statistics.median(ratios):.3f}",
        f"{low:.3f} – {high:.3f}",
        f"{mine.tps:,.0f}",
        f"{mine.p50_us:.0f}",
        f"{mine.p99_us:.0f}",
        cpu,
    )


def _medians(slices: Sequence[Slice]) -> Slice:
    return Slice(*map(statistics.median, zip(*slices, strict=True)))


def _goals(what: str, name: str, clients: int, found: Slices) -> list[Goal]:
    mine, theirs, bare = (_medians(found[one]) for one in (name, PGBOUNCER, DIRECT))
    to_pgbouncer = statistics.median(_ratios(found, name, PGBOUNCER))
    to_haproxy = statistics.median(_ratios(found, name, HAPROXY))
    bound = 1.0 if clients == 1 else 1.05
    return [
        Goal(f"{what}: tps / PgBouncer's", to_pgbouncer, bound, at_least=True),
        Goal(f"{what}: tps / HAProxy's", to_haproxy, 1.0, at_least=True),
        Goal(f"{what}: CPU / PgBouncer's", mine.cpu_us / theirs.cpu_us, 1.0),
        Goal(f"{what}: added p50 / PgBouncer's", _added(mine, theirs, bare, "p50_us"), 1.0),
        Goal(f"{what}: p99 / PgBouncer's", mine.p99_us / theirs.p99_us, 1.2),
    ]


def _added(mine: Slice, theirs: Slice, bare: Slice, what: str) -> float:
    base: float = getattr(bare, what)
    return float((getattr(mine, what) - base) / max(getattr(theirs, what) - base, 1e-9))


if __name__ == "__main__":
    main()
