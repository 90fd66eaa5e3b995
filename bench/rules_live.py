"""The live half of bench/rules.py: a real agent, a real Postgres, clients over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench.load import serving
from bench.report import table
from headgate.demo import servers
from headgate.demo.postgres import start_primary

SETTINGS = """
[agent]
listen = "127.0.0.1:{port}"
socket = "{folder}/agent.sock"
[databases.main]
engine = "postgres"
dsn = "{dsn}"
[databases.main.metrics.queue]
sql = "select n from queue"
threshold = 5
interval_s = 0.05
"""
REDUCED, FAVORED = 0.9, 0.1
NAMES = {0.0: "control", REDUCED: "u1:reduced", FAVORED: "u1:favored"}
PIPELINED = 20
SENDS_A_GATE = 25
"""Between two changes of the gate that is open half of the time."""
CLIENTS = 8
"""Closed-loop clients of each kind."""
WORK_S = 0.02
SLEEPS_S = (0.0, 0.002, 0.02, 0.2)


@dataclass(frozen=True, slots=True)
class Live:
    port: int
    database: psycopg.Connection[object]
    dsn: str


@contextmanager
def live() -> Iterator[Live]:
    """An agent beside a Postgres, with the two rules of R72 set as an operator would."""
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        primary = cleanup.enter_context(start_primary(folder, durable=False))
        database = cleanup.enter_context(psycopg.connect(primary.dsn(), autocommit=True))
        database.execute("create table queue (n int); insert into queue values (0)")
        port = next(servers.free_ports())
        settings = folder / "headgate.toml"
        settings.write_text(SETTINGS.format(port=port, folder=folder, dsn=primary.dsn()))
        argv = [sys.executable, "-m", "headgate", "agent", "--config", str(settings)]
        cleanup.enter_context(serving(argv, f"http://127.0.0.1:{port}/healthz"))
        for ratio in (REDUCED, FAVORED):
            set_rule(folder / "agent.sock", NAMES[ratio].split(":")[1], ratio)
        asker = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        cleanup.callback(asker.close)
        deadline = time.monotonic() + 10
        while not admitted(asker, "control"):
            if time.monotonic() > deadline:
                sys.exit("the agent admitted nobody within 10 s")
            time.sleep(0.05)
        yield Live(port, database, primary.dsn())


def set_rule(path: Path, target: str, ratio: float) -> None:
    body = json.dumps({"target": target, "ratio": ratio, "for": "1h"}).encode()
    head = f"POST /v1/rules HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(5)
        line.connect(str(path))
        line.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        answer = line.recv(65536)
    if b" 201 " not in answer.split(b"\r\n", 1)[0]:
        sys.exit(f"the rule was not taken: {answer!r}")


def admitted(asker: http.client.HTTPConnection, app: str) -> bool:
    asker.request("GET", f"/v1/check?app={app}&database=main")
    answer = asker.getresponse()
    answer.read()
    return answer.status == 200


# --- R72 -------------------------------------------------------------------------------------


def http_shares(draws: int, *, halved: bool) -> dict[float, int]:
    """By ratio: admitted. Clients ask in turn on one connection, some checks at a time."""
    asked = b"".join(
        f"HEAD /v1/check?app={name}&database=main HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        for name in NAMES.values()
    )
    counts = dict.fromkeys(NAMES, 0)
    with live() as made, socket.create_connection(("127.0.0.1", made.port), 5) as line:
        for number in range(draws // PIPELINED):
            if halved and number % SENDS_A_GATE == 0:
                switch_gate(made, closed=number // SENDS_A_GATE % 2 == 1)
            line.sendall(asked * PIPELINED)
            for index, ok in enumerate(statuses(line, PIPELINED * len(NAMES))):
                counts[list(NAMES)[index % len(NAMES)]] += ok
    return counts


def switch_gate(made: Live, *, closed: bool) -> None:
    """Returns once a client without a rule sees it."""
    made.database.execute("update queue set n = %s", (9 if closed else 0,))
    asker = http.client.HTTPConnection("127.0.0.1", made.port, timeout=5)
    deadline = time.monotonic() + 10
    while admitted(asker, NAMES[0.0]) is closed:
        if time.monotonic() > deadline:
            sys.exit("the gate did not follow its metric within 10 s")
        time.sleep(0.005)
    asker.close()


def statuses(line: socket.socket, count: int) -> list[bool]:
    received = b""
    while received.count(b"\r\n\r\n") < count:
        received += line.recv(65536)
    lines = [part.split(b"\r\n", 1)[0] for part in received.split(b"\r\n\r\n")[:count]]
    return [b" 200 " in line for line in lines]


# --- R73 -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What clients of one kind did; each adds its own at its end."""

    jobs: int = 0
    work_s: list[float] = field(default_factory=list)
    rejected_s: list[float] = field(default_factory=list)


def loop_table(seconds: float, formula: Callable[[float, float], float]) -> str:
    head = ("w, ms", "s, ms", "reduced, jobs/s", "favored, jobs/s", "×", "formula",
            "formula with measured w and s")  # fmt: skip
    rows = []
    with live() as made:
        for sleep_s in SLEEPS_S:
            reduced, favored = closed_loop_run(made, sleep_s, seconds)
            both = Tally(
                0, reduced.work_s + favored.work_s, reduced.rejected_s + favored.rejected_s
            )
            real = [statistics.fmean(of) for of in (both.work_s, both.rejected_s)]
            rows.append(
                (
                    f"{WORK_S * 1000:g}",
                    f"{sleep_s * 1000:g}",
                    f"{reduced.jobs / seconds:.1f}",
                    f"{favored.jobs / seconds:.1f}",
                    f"{favored.jobs / max(1, reduced.jobs):.2f}",
                    f"{formula(WORK_S, sleep_s):.2f}",
                    f"{formula(*real):.2f} ({real[0] * 1000:.1f} ms, {real[1] * 1000:.1f} ms)",
                )
            )
    return table(head, rows)


def closed_loop_run(made: Live, sleep_s: float, seconds: float) -> tuple[Tally, Tally]:
    """Clients that ask, and then work in the database or sleep: both kinds at once."""
    tallies = Tally(), Tally()
    until_s = time.monotonic() + seconds
    threads = [
        threading.Thread(target=loop, args=(made, name, sleep_s, until_s, tally), daemon=True)
        for name, tally in zip((NAMES[REDUCED], NAMES[FAVORED]), tallies, strict=True)
        for _ in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=seconds + 30)
    return tallies


def loop(made: Live, app: str, sleep_s: float, until_s: float, tally: Tally) -> None:
    asker = http.client.HTTPConnection("127.0.0.1", made.port, timeout=5)
    mine = Tally()
    with psycopg.connect(made.dsn, autocommit=True) as database:
        while (began_s := time.monotonic()) < until_s:
            if admitted(asker, app):
                database.execute("select pg_sleep(%s)", (WORK_S,))
                mine.jobs += 1
                mine.work_s.append(time.monotonic() - began_s)
            else:
                time.sleep(sleep_s)
                mine.rejected_s.append(time.monotonic() - began_s)
    asker.close()
    tally.jobs += mine.jobs
    tally.work_s += mine.work_s
    tally.rejected_s += mine.rejected_s
