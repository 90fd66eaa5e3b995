"""From a bad value in the database to the first rejection, against the probe interval.

.venv/bin/python -m bench.reaction [--trials 40]
"""

from __future__ import annotations

import http.client
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from bench.load import serving
from bench.report import Goal, Report, chosen_of, options
from headgate.demo import servers
from headgate.demo.postgres import start_primary

SETTINGS = """
[agent]
listen = "127.0.0.1:{port}"
[databases.main]
engine = "postgres"
dsn = "{dsn}"
[databases.main.metrics.queue]
sql = "select n from queue"
threshold = 5
interval_s = {interval_s}
"""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, default=40)
    given = parser.parse_args()
    report, rows = Report("reaction", chosen_of(given)), []
    for interval_s in (0.05, 0.25):
        delays = sorted(measure(interval_s, given.trials))
        over = [delay - interval_s for delay in delays]
        rows.append(
            (
                f"{interval_s * 1000:.0f}",
                *(f"{delays[int(q * (len(delays) - 1))] * 1000:.0f}" for q in (0.5, 0.99, 1.0)),
                f"{max(over) * 1000:+.1f}",
            )
        )
        work = f"from a breach to the first rejection, worst, interval {interval_s * 1000:.0f} ms"
        report.goals.append(Goal(work, delays[-1] * 1000, interval_s * 1000 + 25, unit="ms"))
    head = ("interval ms", "median ms", "p99 ms", "worst ms", "worst − interval ms")
    report.show("From a breach to the first rejection", head, rows)
    report.end()


def measure(interval_s: float, trials: int) -> list[float]:
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        primary = cleanup.enter_context(start_primary(folder, durable=False))
        database = cleanup.enter_context(psycopg.connect(primary.dsn(), autocommit=True))
        database.execute("create table queue (n int); insert into queue values (0)")
        port = next(servers.free_ports())
        settings = folder / "headgate.toml"
        settings.write_text(SETTINGS.format(port=port, dsn=primary.dsn(), interval_s=interval_s))
        argv = [sys.executable, "-m", "bench.agent_with_rules", str(settings), "0"]
        cleanup.enter_context(serving(argv, f"http://127.0.0.1:{port}/healthz"))
        asker = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        cleanup.callback(asker.close)
        return [trial(database, asker, interval_s) for _ in range(trials)]


def trial(
    database: psycopg.Connection[object], asker: http.client.HTTPConnection, interval_s: float
) -> float:
    database.execute("update queue set n = 0")
    wait_for(asker, 200)
    time.sleep(random.uniform(0, interval_s))
    database.execute("update queue set n = 9")
    committed = time.monotonic()
    wait_for(asker, 429)
    return time.monotonic() - committed


def wait_for(asker: http.client.HTTPConnection, status: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        asker.request("GET", "/check/bench/postgres/main")
        answer = asker.getresponse()
        answer.read()
        if answer.status == status:
            return
        time.sleep(0.001)
    sys.exit(f"no {status} within 10 s")


if __name__ == "__main__":
    main()
