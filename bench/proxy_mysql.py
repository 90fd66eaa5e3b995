"""Point selects of sysbench on MariaDB through the proxy, beside HAProxy, as ratios.

.venv/bin/python -m bench.proxy_mysql [--rounds 12] [--seconds 2] [--clients 1,8,32] [--quick]

In each round every path gets one short run, in random order; a ratio is to HAProxy's run in the
same round.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
from collections import defaultdict

from tests.fixtures.mariadb import USER, MariaDBServer

from bench.pg_kit import Chosen, Goal, Report, options, quartiles, say
from bench.proxy import VARIANTS
from bench.proxy_peers import HAPROXY, HOST, environment, mariadb_behind, program

ROWS = 10_000
_DONE = re.compile(r"queries:\s+\d+\s+\(([\d.]+) per sec")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--variants", default="auto")
    given = parser.parse_args()
    rounds, seconds = (2, 1) if given.quick else (given.rounds, given.seconds)
    report = Report("Point selects on MariaDB", Chosen(given.quick, given.json, given.major))
    with mariadb_behind() as (place, server):
        _fill(server)
        place.add_haproxy()
        for name in given.variants.split(","):
            place.add_headgate(f"headgate {name}", VARIANTS[name])
        for clients in map(int, given.clients.split(",")):
            say(f"{clients} clients: {rounds} rounds of {seconds} s each")
            found: dict[str, list[float]] = defaultdict(list)
            for _ in range(rounds):
                for path in random.sample(place.paths, len(place.paths)):
                    found[path.name].append(_queries_a_second(path.port, clients, seconds))
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


def _queries_a_second(port: int, clients: int, seconds: int) -> float:
    found = _DONE.search(_sysbench(port, clients, f"--time={seconds}", "run"))
    assert found is not None
    return float(found[1])


def _tell(report: Report, clients: int, found: dict[str, list[float]]) -> None:
    rows = []
    for name, rates in found.items():
        ratios = [a / b for a, b in zip(rates, found[HAPROXY], strict=True)]
        low, middle, high = quartiles(ratios)
        spread = f"{low:.3f} – {high:.3f}"
        rows.append((name, f"{middle:.3f}", spread, f"{statistics.median(rates):,.0f}"))
        if name.startswith("headgate"):
            what = f"{name}, {clients} clients: queries/s / HAProxy's"
            report.goals.append(Goal(what, middle, 0.95, at_least=True))
    report.show(
        f"{clients} clients", ("path", "queries/s / HAProxy's", "quartiles", "queries/s"), rows
    )


if __name__ == "__main__":
    main()
