"""Looking back over a fortnight: how long it takes, and how long a check waits meanwhile.

.venv/bin/python -m bench.history [--clients 50] [--days 14]
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually

from bench.report import median, table
from headgate.demo import servers
from headgate.history.records import MetricMinute, Tally
from headgate.store.statements import AddMetricMinutes, AddTallies

HISTORY_DAYS = 15
SETTINGS = """
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
[databases.main.metrics.{metric}]
command = ["cat", "{folder}/value"]
threshold = 5
"""
METRICS = ("queue", "depth")
KINDS = (("OK", ""), ("THRESHOLD_EXCEEDED", "queue"), ("REJECTED_BY_RATIO", "rule:r1"))
ROUNDS = 5


class Look(NamedTuple):
    name: str
    method: str
    target: str
    body: object = None


LOOKS = (
    Look("`history etl --since 14d`", "GET", "/v1/history/timeline?app=etl&since=14d&step=12h"),
    Look("`history etl --since 14d --step 15m`", "GET",
         "/v1/history/timeline?app=etl&since=14d&step=15m"),
    Look("`history --since 14d`, of all clients", "GET", "/v1/history/timeline?since=14d&step=12h"),
    Look("`history etl --since 1d`", "GET", "/v1/history/timeline?app=etl&since=1d&step=1h"),
    Look("`replay`, a ratio on etl, 14 days", "POST", "/v1/replay",
         {"rule": {"target": "etl", "ratio": 0.5}, "since": "14d"}),
    Look("`replay`, thresholds for all, 1 day", "POST", "/v1/replay",
         {"rule": {"target": "all", "kind": "thresholds", "thresholds": {"queue": 4}},
          "since": "1d"}),
    Look("`explain --at`, a day ago", "GET", "/v1/explain?app=etl&database=main&at=1d"),
    Look("/v1/history/metrics, 14 days of one metric", "GET",
         "/v1/history/metrics?since=14d&metric=queue"),
    Look("/v1/history, 14 days", "GET", "/v1/history?since=14d"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--days", type=int, default=14)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=servers.scratch_parent()) as place:
        folder = Path(place)
        agent = agent_in(folder)
        agent.start()
        agent.stop()
        took_s = fill(folder / "state.db", given.clients, given.days * 1440)
        size_mb = (folder / "state.db").stat().st_size / 1e6
        count = given.clients * len(KINDS) * given.days * 1440
        print(f"{count:,} rows of history, {size_mb:.0f} MB, made in {took_s:.0f} s\n")
        agent.start()
        try:
            print(
                table(
                    ("looking back", "s", "longest check meanwhile, ms, median of rounds"),
                    list(measured(agent)),
                )
            )
        finally:
            agent.stop()


def agent_in(folder: Path) -> AgentProcess:
    (folder / "value").write_text("1")
    agent = AgentProcess(folder, next(servers.free_ports()))
    metrics = SETTINGS.format(metric=METRICS[0], folder=folder)
    metrics += metrics[metrics.index("[databases.main.metrics") :].replace(*METRICS)
    agent.write_settings(metrics, agent=f"history_days = {HISTORY_DAYS}")
    return agent


def fill(path: Path, clients: int, minutes: int) -> float:
    """Every client asks in every minute, and is admitted, rejected by a metric and by dice."""
    began, now, dice = time.monotonic(), int(time.time() // 60), random.Random(7)
    names = [f"u{n}:{'etl' if n % 2 else 'web'}:nightly" for n in range(clients)]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for begin in range(now - minutes, now, 1440):
            span = range(begin, min(begin + 1440, now))
            connection.execute("BEGIN")
            AddTallies(
                [
                    Tally(minute, "main", name, *kind, dice.randint(1, 200))
                    for minute in span
                    for name in names
                    for kind in KINDS
                ]
            ).do(connection)
            AddMetricMinutes(
                [
                    MetricMinute(minute, "main", metric, 60, 0, 20, 180.0, 0.5, 6.0, 5.0)
                    for minute in span
                    for metric in METRICS
                ]
            ).do(connection)
            connection.execute("COMMIT")
    return time.monotonic() - began


def measured(agent: AgentProcess) -> Iterator[tuple[str, str, str]]:
    eventually(lambda: agent.check()["verdict"] == "OK", within_s=20)
    with checking(agent) as waits:
        idle = [longest_ms(waits, partial(time.sleep, 1)) for _ in range(ROUNDS)]
        yield "nothing, for a second", "", f"{median(idle):.0f}"
        for look in LOOKS:
            times, worst = [], []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                worst.append(longest_ms(waits, partial(ask, agent, look)))
                times.append(time.perf_counter() - began)
            yield look.name, f"{median(times):.2f}", f"{median(worst):.0f}"


def longest_ms(waits: list[float], look: Callable[[], None]) -> float:
    waits.clear()
    look()
    return max(waits, default=0.0) * 1000


@contextmanager
def checking(agent: AgentProcess) -> Iterator[list[float]]:
    """One that asks without end; how long each check took."""
    waits: list[float] = []
    ended = threading.Event()

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=20)
        while not ended.wait(0.002):
            began = time.perf_counter()
            connection.request("GET", "/v1/check?app=probe&database=main")
            connection.getresponse().read()
            waits.append(time.perf_counter() - began)
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield waits
    finally:
        ended.set()
        thread.join()


class OverSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(agent: AgentProcess, look: Look) -> None:
    connection = OverSocket(agent.socket)
    body = None if look.body is None else json.dumps(look.body)
    connection.request(look.method, look.target, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{look.name}: {answer.status} {told[:300]!r}")


if __name__ == "__main__":
    main()
