"""The herd against a real replica that is too small for its primary.

One primary, one streaming replica whose replaying process is held to a share of a core
(bench/cpu_share.py), one agent that probes the replica's lag, and workers that ask it over
HTTP before each small write. What is measured is not what the agent saw: a session
of its own reads the replica's lag.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psycopg

from bench.cpu_share import cpu_times
from bench.herd_model import BIN_S, POLL_S, Outcome, Variant
from headgate.demo import servers
from headgate.demo.brake import REPLAYER, TRANSACTIONS
from headgate.demo.postgres import PostgresServer, start_primary, start_replica

SETTINGS = """
[agent]
listen = "127.0.0.1:{port}"
[databases.main]
engine = "postgres"
dsn = "{dsn}"
[databases.main.metrics.lag]
threshold = "{threshold_s}s"
interval_s = {probe_s}
options = {{ method = "native" }}
pace = {pace}
"""
ASK = b"GET /v1/check?app=herd:w%d&database=main&metrics=lag HTTP/1.1\r\nHost: localhost\r\n\r\n"
WORK = "INSERT INTO work (n) SELECT generate_series(1, 200)"
LAG = """
SELECT CASE WHEN pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn() THEN 0.0
       ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8
"""
SAMPLE_S = 0.02
READY_S = 90
SESSIONS = 24
SERVER_SETTINGS = {
    "max_connections": "60",
    "wal_keep_size": "1GB",
    "checkpoint_timeout": "1h",
    # What is not flushed at once comes to the replica in lumps of 0.2 s.
    "synchronous_commit": "on",
    # Comes once in a minute, writes a log of its own and asks nobody: it would fall on one
    # variant or another.
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Scene:
    workers: int
    share: float
    """Of a core, for the replica's replay."""
    seconds: float
    threshold_s: float = 1.0
    probe_s: float = 0.25


def play(variant: Variant, scene: Scene, folder: Path) -> Outcome:
    with ExitStack() as cleanup:
        primary = cleanup.enter_context(
            start_primary(folder, durable=False, settings=SERVER_SETTINGS)
        )
        with psycopg.connect(primary.dsn(), autocommit=True) as session:
            session.execute("CREATE TABLE work (id bigserial PRIMARY KEY, n int)")
        replica = cleanup.enter_context(start_replica(primary, folder))
        with psycopg.connect(primary.dsn(), autocommit=True) as session:
            session.execute(WORK.encode())
        port = next(servers.free_ports())
        cleanup.enter_context(_agent(variant, scene, replica, port, folder))
        replayer = _replayer(replica)
        cleanup.enter_context(_held(replayer, scene.share))
        watch = Watch(replica, replayer, scene)
        cleanup.callback(watch.end)
        return watch.outcome(*asyncio.run(_work(variant, scene, primary, port)))


@contextmanager
def _agent(
    variant: Variant, scene: Scene, replica: PostgresServer, port: int, folder: Path
) -> Iterator[None]:
    settings = folder / "headgate.toml"
    pace = str(variant is Variant.PACED).lower()
    text = SETTINGS.format(
        port=port, dsn=replica.dsn(), threshold_s=scene.threshold_s, probe_s=scene.probe_s,
        pace=pace,
    )  # fmt: skip
    settings.write_text(text)
    program = [sys.executable, "-m", "headgate", "agent", "--config", str(settings)]
    log = folder / "agent.log"
    with log.open("wb") as out:
        process = subprocess.Popen(program, stderr=out)
    try:
        yield
    finally:
        if process.poll() is not None:
            sys.exit(f"the agent has ended: {log.read_text().strip()}")
        process.terminate()
        process.wait(timeout=15)


def _replayer(replica: PostgresServer) -> int:
    with psycopg.connect(replica.dsn(), autocommit=True) as session:
        row = session.execute(REPLAYER.encode()).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def _held(pid: int, share: float) -> Iterator[None]:
    brake = subprocess.Popen([sys.executable, "-m", "bench.cpu_share", str(pid), str(share)])
    try:
        yield
    finally:
        brake.terminate()
        brake.wait(timeout=10)


class Seen(NamedTuple):
    at: float
    lag_s: float
    replayed: float
    """Transactions."""
    cpu_s: float
    """That the replay has had."""


class Watch:
    """Reads the replica's lag and what it has replayed, from the first moment to the last."""

    def __init__(self, replica: PostgresServer, replayer: int, scene: Scene) -> None:
        self._replica, self._scene = replica, scene
        self._schedstat = Path(f"/proc/{replayer}/schedstat")
        self._ended = threading.Event()
        self.samples: list[Seen] = []
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with psycopg.connect(self._replica.dsn(), autocommit=True) as session:
            while not self._ended.wait(SAMPLE_S):
                row = session.execute(LAG.encode()).fetchone()
                count = session.execute(TRANSACTIONS.encode()).fetchone()
                assert row is not None and count is not None
                cpu_s, _ = cpu_times(self._schedstat)
                lag_s = float(row[0] or 0)
                self.samples.append(Seen(time.monotonic(), lag_s, float(count[0]), cpu_s))

    def end(self) -> None:
        self._ended.set()
        self._thread.join(timeout=10)

    def outcome(self, times: list[float], began: float) -> Outcome:
        self.end()
        last = began + self._scene.seconds
        within = [seen for seen in self.samples if began <= seen.at <= last]
        first, final = within[0], within[-1]
        bins = [0.0] * int(self._scene.seconds / BIN_S)
        for at in times:
            bins[min(int((at - began) / BIN_S), len(bins) - 1)] += 1
        return Outcome(
            lags=self._evenly(within, began),
            admitted=bins,
            replayed=final.replayed - first.replayed,
            busy_s=final.cpu_s - first.cpu_s,
            could_s=self._scene.share * (final.at - first.at),
            threshold_s=self._scene.threshold_s,
            checks=len(times),
            step_s=SAMPLE_S,
        )

    def _evenly(self, within: list[Seen], began: float) -> list[float]:
        """Time without a sample (the replica did not answer) counts as the sample before it."""
        lags, index = [], 0
        for step in range(int(self._scene.seconds / SAMPLE_S)):
            while index + 1 < len(within) and within[index + 1].at <= began + step * SAMPLE_S:
                index += 1
            lags.append(within[index].lag_s)
        return lags


async def _work(
    variant: Variant, scene: Scene, primary: PostgresServer, port: int
) -> tuple[list[float], float]:
    """When each piece of work was admitted, and when all began."""
    pool: asyncio.Queue[psycopg.AsyncConnection[tuple[object, ...]]] = asyncio.Queue()
    for _ in range(SESSIONS):
        pool.put_nowait(await psycopg.AsyncConnection.connect(primary.dsn(), autocommit=True))
    await _ready(port)
    times: list[float] = []
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(scene.workers):
            group.create_task(_worker(variant, number, port, pool, times, began + scene.seconds))
    while not pool.empty():
        await pool.get_nowait().close()
    return times, began


async def _ready(port: int) -> None:
    deadline, said = time.monotonic() + READY_S, ""
    while time.monotonic() < deadline:
        try:
            line = await Line.open(port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        wait_s = await line.ask(0)
        line.close()
        if wait_s is None:
            return
        said = line.said
        await asyncio.sleep(0.05)
    sys.exit(f"the agent has admitted nothing within {READY_S} s: {said}")


class Line:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.said = ""
        """The last rejection."""

    @staticmethod
    async def open(port: int) -> Line:
        return Line(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, number: int) -> float | None:
        """None where it may go; else the seconds it is told to wait."""
        self._writer.write(ASK % number)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        if head.startswith(b"HTTP/1.1 200"):
            return None
        self.said = body.decode()
        # Without advice: the agent has only just started.
        return float(json.loads(body).get("retry_after_ms") or POLL_S * 1000) / 1000

    def close(self) -> None:
        self._writer.close()


async def _worker(
    variant: Variant,
    number: int,
    port: int,
    pool: asyncio.Queue[psycopg.AsyncConnection[tuple[object, ...]]],
    times: list[float],
    until: float,
) -> None:
    line = await Line.open(port)
    while time.monotonic() < until:
        try:
            wait_s = await line.ask(number)
        except (asyncio.IncompleteReadError, ConnectionError):
            # Idle for too long: the agent hangs up on who has not asked for a while.
            line.close()
            line = await Line.open(port)
            continue
        if wait_s is not None:
            await asyncio.sleep(POLL_S if variant is Variant.BARE else wait_s)
            continue
        times.append(time.monotonic())
        session = await pool.get()
        try:
            await session.execute(WORK.encode())
        finally:
            pool.put_nowait(session)
    line.close()
