"""Point selects of sysbench on MariaDB through the proxy, beside HAProxy, as ratios.

.venv/bin/python -m bench.proxy_mysql [--rounds 12] [--seconds 2] [--clients 1,8,32] [--threads 1]
                                      [--quick]

In each round every path gets one short run, in random order; a ratio is to HAProxy's run in the
same round. "HAProxy again" is a second HAProxy: what its ratio differs from 1 by is noise.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
from collections import defaultdict
from typing import NamedTuple

from tests.fixtures.mariadb import USER, MariaDBServer

from bench.proxy_peers import (
    AGAIN,
    HAPROXY,
    HEADGATE,
    HOST,
    Way,
    cpu_of,
    environment,
    mariadb_behind,
    program,
    proxy_options,
)
from bench.report import Chosen, Goal, Report, quartiles, say

ROWS = 10_000
HEAD = (
    "path",
    "queries/s / HAProxy's",
    "quartiles",
    "CPU / HAProxy's",
    "quartiles of it",
    "queries/s",
    "CPU µs",
)
_DONE = re.compile(r"queries:\s+(\d+)\s+\(([\d.]+) per sec")


class Run(NamedTuple):
    queries_a_second: float
    cpu_us: float
    """Of the proxy, a query."""


def main() -> None:
    parser = proxy_options(__doc__, "haproxy", "sysbench")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--clients", default="1,8,32")
    given = parser.parse_args()
    rounds, seconds = (2, 1) if given.quick else (given.rounds, given.seconds)
    report = Report("Point selects on MariaDB", Chosen(given.quick, given.json, given.major))
    with mariadb_behind() as (place, server):
        _fill(server)
        place.add_haproxy()
        place.add_haproxy(HAPROXY + AGAIN)
        place.add_headgates(given.threads)
        for clients in map(int, given.clients.split(",")):
            say(f"{clients} clients: {rounds} rounds of {seconds} s each")
            found: dict[str, list[Run]] = defaultdict(list)
            for _ in range(rounds):
                for path in random.sample(place.paths, len(place.paths)):
                    found[path.name].append(_run(path, clients, seconds))
            _tell(report, clients, found)
    report.end()


def _fill(server: MariaDBServer) -> None:
    with server.connect() as session, session.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS sbtest")
    _sysbench(server.port, 1, "prepare")


def _sysbench(port: int, clients: int, *what: str) -> str:
    command = [
        program("sysbench"),
        "oltp_point_select",
        f"--mysql-host={HOST}",
        f"--mysql-port={port}",
        f"--mysql-user={USER}",
        "--mysql-db=sbtest",
        "--mysql-ssl=off",
        f"--threads={clients}",
        f"--table-size={ROWS}",
        *what,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if ran.returncode:
        raise SystemExit(f"sysbench failed: {ran.stdout[-800:]}{ran.stderr[-800:]}")
    return ran.stdout


def _run(path: Way, clients: int, seconds: int) -> Run:
    before = cpu_of(path)
    found = _DONE.search(_sysbench(path.port, clients, f"--time={seconds}", "run"))
    assert found is not None
    return Run(float(found[2]), (cpu_of(path) - before) / int(found[1]) / 1000)


def _tell(report: Report, clients: int, found: dict[str, list[Run]]) -> None:
    rows = []
    for name, runs in found.items():
        pairs = list(zip(runs, found[HAPROXY], strict=True))
        rates = quartiles([a.queries_a_second / b.queries_a_second for a, b in pairs])
        costs = quartiles([a.cpu_us / b.cpu_us for a, b in pairs])
        rate = statistics.median(run.queries_a_second for run in runs)
        cpu = statistics.median(run.cpu_us for run in runs)
        rows.append((name, *_shown(rates), *_shown(costs), f"{rate:,.0f}", f"{cpu:.1f}"))
        if name.startswith(HEADGATE):
            what = f"{name}, {clients} clients"
            report.goals += [
                Goal(f"{what}: queries/s / HAProxy's", rates[1], 1.0, at_least=True),
                Goal(f"{what}: CPU / HAProxy's", costs[1], 1.0),
            ]
    report.show(f"{clients} clients", HEAD, rows)


def _shown(found: tuple[float, float, float]) -> tuple[str, str]:
    low, middle, high = found
    return f"{middle:.3f}", f"{low:.3f} – {high:.3f}"


if __name__ == "__main__":
    main()
