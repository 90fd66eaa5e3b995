"""What one probe of commit_delay, and one heartbeat, costs the agent and the server.

.venv/bin/python -m bench.commit_probe
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import psycopg

from bench.report import table
from headgate.demo import postgres
from headgate.demo.postgres import PostgresServer
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.settings import parse_metric_settings

ROUNDS = 5
TIMES = 200


def server_cpu_s(pid: int) -> float:
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in processes)


async def cost(server: PostgresServer, act: Callable[[], Awaitable[object]]) -> tuple[float, ...]:
    """Agent's CPU, server's CPU (both in µs) and bytes of write-ahead log, of one."""
    with psycopg.connect(server.dsn(), autocommit=True) as session:

        def position() -> int:
            row = session.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
            assert row is not None
            return int(row[0])

        log, ours, theirs = position(), time.process_time(), server_cpu_s(server.pid)
        for _ in range(TIMES):
            await act()
        ours, theirs = time.process_time() - ours, server_cpu_s(server.pid) - theirs
        return 1e6 * ours / TIMES, 1e6 * theirs / TIMES, (position() - log) / TIMES


async def measure(server: PostgresServer) -> dict[str, list[tuple[float, ...]]]:
    probes = DatabaseProbes("main", Engine.POSTGRES, server.dsn())
    commit = probes.probe_for(parse_metric_settings("commit_delay", {}, Engine.POSTGRES))
    writer = probes.heartbeat_writer("headgate.heartbeat", timeout_s=60)
    found: dict[str, list[tuple[float, ...]]] = {"commit_delay": [], "heartbeat": []}
    await commit.read()
    await writer.beat()
    for _ in range(ROUNDS):
        found["commit_delay"].append(await cost(server, commit.read))
        found["heartbeat"].append(await cost(server, writer.beat))
    await writer.close()
    await probes.close()
    return found


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres.start_primary(Path(folder), durable=True) as server,
    ):
        found = asyncio.run(measure(server))
    rows = []
    a_second = {"commit_delay": 1 / BUILTINS["commit_delay"].interval_s, "heartbeat": 1.0}
    for name, costs in found.items():
        ours, theirs, log = (min(column) for column in zip(*costs, strict=True))
        often = a_second[name]
        share = f"{often * ours / 1e4:.2f} %, {often * theirs / 1e4:.2f} %"
        per_hour = f"{often * log * 3600 / 1e6:.1f} MB"
        rows.append((name, f"{ours:.0f} µs", f"{theirs:.0f} µs", f"{log:.0f} B", share, per_hour))
    heads = ["what", "agent", "server", "log", "of a core, by default", "log in an hour"]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
