"""The playground: a real primary with a small replica, an agent, and two greedy jobs.

`headgate demo` runs it until Ctrl-C; `--headless --seconds 40` runs the scenes once, and
fails if what they promise did not happen. Everything lives in one temporary folder and on
free loopback ports, and is gone afterwards.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from headgate.demo import servers
from headgate.demo.jobs import SCHEMA, Job, backfill, etl
from headgate.demo.postgres import PostgresServer, start_primary, start_replica
from headgate.demo.replica import SmallReplica
from headgate.demo.show import Frame, header, line, show

LAG_THRESHOLD_S = 2.0
FRAME_S = 0.5
SETTLE_S = 4.0
REPLAY_SHARE = 0.75
# While the jobs are held, the replica still works off what they wrote: what it shows then is
# as old as it was at the threshold, divided by its share (2.7 s). Probes and frames come on top.
NEAR_S = 2 * LAG_THRESHOLD_S
SERVER_SETTINGS = {"max_wal_size": "256MB", "checkpoint_timeout": "30s", "shared_buffers": "64MB"}


def main(*, seconds: float | None = None, headless: bool = False) -> int:
    """Returns 0 if the scenes did what they promise."""
    total_s = seconds if seconds is not None else (40.0 if headless else 3600.0)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _stage() as stage:
            return _play(stage, total_s)
    except KeyboardInterrupt:
        _say("stopped; nothing is left behind")
        return 0
    except servers.ServerFailed as error:
        _say(f"the embedded Postgres could not be started: {error}")
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@dataclass(slots=True)
class Stage:
    """What stands while the scenes run."""

    primary: PostgresServer
    replica: SmallReplica
    jobs: list[Job]
    url: str
    frames: list[Frame] = field(default_factory=list)


@contextmanager
def _stage() -> Iterator[Stage]:
    with ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="headgate-demo-", dir=servers.scratch_parent()))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        _say("starting Postgres: a primary …")
        primary = cleanup.enter_context(start_primary(folder, settings=SERVER_SETTINGS))
        _say(f"… on 127.0.0.1:{primary.port}, and a streaming replica …")
        replica = cleanup.enter_context(start_replica(primary, folder))
        _say(f"… on 127.0.0.1:{replica.port}. Both real, both temporary, below {folder}")
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute(SCHEMA)
        url = cleanup.enter_context(_agent(folder, primary))
        small = SmallReplica(replica.dsn())
        cleanup.callback(small.stop)
        jobs = [
            Job("etl:nightly", primary.dsn(), url, etl),
            Job("backfill:orders", primary.dsn(), url, backfill),
        ]
        for job in jobs:
            cleanup.callback(job.stop)
        yield Stage(primary, small, jobs, url)


@contextmanager
def _agent(folder: Path, primary: PostgresServer) -> Iterator[str]:
    port = next(servers.free_ports())
    settings = folder / "headgate.toml"
    settings.write_text(_SETTINGS.format(port=port, folder=folder, dsn=primary.dsn()))
    _say(f"starting the agent on 127.0.0.1:{port} with {settings}")
    command = [sys.executable, "-m", "headgate", "agent", "--config", str(settings)]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        servers.wait_until(lambda: _ready(url, process, folder), what="the agent")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_SETTINGS = """\
[agent]
name = "demo"
listen = "127.0.0.1:{port}"
socket = "{folder}/agent.sock"
state = "{folder}/agent.db"

[databases.main]
engine = "postgres"
dsn = "{dsn}"

[databases.main.metrics.lag]
threshold = 2.0
interval_s = 0.25
timeout_s = 0.25

[databases.main.metrics.threads_running]
[databases.main.metrics.pool_usage]
[databases.main.metrics.commit_delay]
threshold = 2.0
"""


def _ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> bool:
    if process.poll() is not None:
        raise servers.ServerFailed(f"the agent ended: {(folder / 'agent.log').read_text()[-2000:]}")
    try:
        return bool(_get(url, "/readyz")["ready"])
    except OSError:
        return False


def _get(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + path, timeout=2) as response:
        return dict(json.load(response))


# --- scenes --------------------------------------------------------------------------------


def _play(stage: Stage, total_s: float) -> int:
    greedy_s = min(14.0, total_s * 0.4)
    _say("")
    _say("scene 1: two jobs write 40 chunks a second each. They ask nobody.")
    for job in stage.jobs:
        job.start()
    _make_replica_small(stage)
    _say(f"the replica can replay {REPLAY_SHARE:.0%} of what they write: watch its lag.")
    show(header(LAG_THRESHOLD_S))
    _watch(stage, "greedy", greedy_s)
    _say("")
    _say("scene 2: the same jobs ask before each chunk; the agent holds them by the replica's lag.")
    _say("held, they wait while it works off what they wrote: its age grows until that is done.")
    if total_s > 600:
        _hint(stage)
    show(header(LAG_THRESHOLD_S))
    for job in stage.jobs:
        job.asks = True
    _watch(stage, "asking", total_s - greedy_s)
    return _summary(stage)


def _make_replica_small(stage: Stage) -> None:
    """Let it replay a share of what the jobs write on this machine."""
    with psycopg.connect(stage.primary.dsn(), autocommit=True) as connection:
        before = _written(connection)
        time.sleep(1.5)
        rate = (_written(connection) - before) / 1.5
    stage.replica.slow_to(rate * REPLAY_SHARE)


def _written(connection: psycopg.Connection[Any]) -> float:
    row = connection.execute("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
    assert row is not None
    return float(row[0])


def _watch(stage: Stage, scene: str, seconds: float) -> None:
    chunks = {job.name: job.chunks for job in stage.jobs}
    ends = time.monotonic() + seconds
    due = time.monotonic()
    while time.monotonic() < ends:
        due += FRAME_S
        time.sleep(max(0.0, due - time.monotonic()))
        done = {job.name: job.chunks - chunks[job.name] for job in stage.jobs}
        chunks = {job.name: job.chunks for job in stage.jobs}
        frame = _frame(stage, scene, done)
        stage.frames.append(frame)
        show(line(frame, LAG_THRESHOLD_S))


def _frame(stage: Stage, scene: str, done: dict[str, int]) -> Frame:
    status = _get(stage.url, "/v1/status")
    metrics = {m["metric"]: m for m in status["databases"][0]["metrics"]}
    held = {
        client["client"]: (client["refused_for_s"], client["refused_by"])
        for client in status["clients"]
        if client["refused_for_s"] is not None
    }
    return Frame(scene, time.monotonic(), metrics["lag"]["value"], held, done)


def _hint(stage: Stage) -> None:
    _say("meanwhile, in another terminal:")
    for words in ("top", "status", "explain --app etl:nightly --database main"):
        _say(f"    .venv/bin/headgate {words} --url {stage.url}")
    _say("Ctrl-C ends it and leaves nothing behind.")


def _summary(stage: Stage) -> int:
    greedy = [f for f in stage.frames if f.scene == "greedy" and f.lag_s is not None]
    asking = [f for f in stage.frames if f.scene == "asking" and f.lag_s is not None]
    peak = max((f.lag_s or 0.0 for f in greedy), default=0.0)
    calm = _first_calm(asking)
    after = [f.lag_s or 0.0 for f in asking if calm is not None and f.at >= calm + SETTLE_S]
    worst = max(after, default=0.0)
    held = {name for frame in asking for name in frame.held}
    progress = {job.name: sum(f.done[job.name] for f in asking) for job in stage.jobs}
    _say("")
    _say(f"unasked, lag rose to {peak:.1f} s against a threshold of {LAG_THRESHOLD_S:g} s.")
    _say(f"asking, it was at most {worst:.1f} s once it had come down, and the work went on:")
    for name, chunks in progress.items():
        _say(f"  {name}: {chunks} chunks while asking, held {'yes' if name in held else 'never'}")
    promises: list[tuple[str, Callable[[], bool]]] = [
        ("lag passed its threshold while nobody asked", lambda: peak > LAG_THRESHOLD_S),
        ("lag came back once the jobs asked", lambda: calm is not None),
        (f"lag stayed below {NEAR_S:.1f} s from then on", lambda: bool(after) and worst < NEAR_S),
        ("both jobs were held", lambda: held == set(progress)),
        ("both jobs went on", lambda: all(progress.values())),
    ]
    broken = [told for told, kept in promises if not kept()]
    for told in broken:
        _say(f"PROMISE BROKEN: {told}")
    return 1 if broken else 0


def _first_calm(frames: list[Frame]) -> float | None:
    return next((f.at for f in frames if (f.lag_s or 0.0) <= LAG_THRESHOLD_S), None)


def _say(text: str) -> None:
    print(text, flush=True)
