"""A shard: from a bad value on a replica to the rejection for all of it, and what that costs.

.venv/bin/python -m bench.shard [--trials 100] [--members 20] [--seconds 20]

The reaction is measured with real servers and real agents; the cost with one real primary
and agents that stand for its replicas, pulled by the real one over real sockets.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from tests.fixtures.agents import release_port
from tests.fixtures.shard_agents import ShardAgents, agents_for, shard_agents
from tests.fixtures.shards import start_postgres_shard

from bench.load import cpu_s
from bench.report import Goal, Report, chosen_of, options
from headgate.demo import servers
from headgate.demo.postgres import PostgresServer

QUEUE = 'queue: sql="select n from queue", threshold=5, interval_s=0.25, rollup_of="replicas"'
FIVE = 'lag: empty="admit"; threads_running; loadavg; pool_usage; lock_waits'
ASK = "/v1/check?app=bench:shard&database=main&metrics=shard/{metric}"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    chosen = parser.parse_args()
    report = Report("shard", chosen_of(chosen))
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        folder.chmod(0o755)
        if chosen.trials:
            reaction(folder, chosen.trials, report)
        if chosen.members:
            counts = sorted({0, chosen.members // 4, chosen.members})
            found = {members: cost(folder, members, chosen.seconds) for members in counts}
            rows = [(f"{n}", f"{of[0]:.2%}", f"{of[1]:.1f}") for n, of in found.items()]
            report.show("Its cost", ("members", "share of a core", "messages a second"), rows)
            work = f"primary's agent with {chosen.members} members: share of a core"
            report.goals.append(Goal(work, found[chosen.members][0] * 100, 5, unit="%"))
    report.end()


# --- reaction --------------------------------------------------------------------------------


def reaction(folder: Path, trials: int, report: Report) -> None:
    with ExitStack() as cleanup:
        shard = cleanup.enter_context(start_postgres_shard(folder))
        _prepare(shard.primary)
        home = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        agents = cleanup.enter_context(agents_for(shard, home, metrics=QUEUE))
        primary, replica = agents[shard.primary.name], shard.replicas[0]
        asking = Asking(primary.port, "queue")
        asking.until(admitted=True, within_s=15)
        delays = sorted(
            trial for _ in range(trials) if (trial := _one_trial(shard.primary, replica, asking))
        )
    at = {q: delays[int(q * (len(delays) - 1))] * 1000 for q in (0.5, 0.99, 1.0)}
    shown = [f"{ms:.0f}" for ms in at.values()]
    head = ("bad value on a replica → rejection at shard scope", "median ms", "p99 ms", "worst ms")
    report.show("A breach on a replica", head, [(f"{len(delays)} trials, 250 ms", *shown)])
    work = "from a breach on a replica to the first rejection for the shard, p99"
    report.goals.append(Goal(work, at[0.99], 550, unit="ms"))


def _prepare(primary: PostgresServer) -> None:
    with psycopg.connect(primary.dsn(), autocommit=True) as session:
        session.execute("CREATE TABLE queue (n int)")
        session.execute("INSERT INTO queue VALUES (0)")


def _one_trial(primary: PostgresServer, replica: PostgresServer, asking: Asking) -> float:
    """The value is changed on the primary, and counts from its arrival on the replica."""
    with (
        psycopg.connect(primary.dsn(), autocommit=True) as writer,
        psycopg.connect(replica.dsn(), autocommit=True) as reader,
    ):
        time.sleep(random.uniform(0, 0.25))
        writer.execute("UPDATE queue SET n = 9")
        _await_value(reader, 9)
        arrived = time.monotonic()
        rejected = asking.until(admitted=False, within_s=5)
        writer.execute("UPDATE queue SET n = 0")
    asking.until(admitted=True, within_s=5)
    return max(0.0, rejected - arrived)


def _await_value(session: psycopg.Connection[tuple[int]], value: int) -> None:
    while True:
        row = session.execute("SELECT n FROM queue").fetchone()
        if row is not None and row[0] == value:
            return


class Asking:
    def __init__(self, port: int, metric: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        self._ask = ASK.format(metric=metric)
        self.said: Any = None

    def once(self) -> bool:
        self._connection.request("GET", self._ask)
        self.said = json.loads(self._connection.getresponse().read())
        return bool(self.said["admitted"])

    def until(self, *, admitted: bool, within_s: float) -> float:
        """When the answer was first that."""
        deadline = time.monotonic() + within_s
        while self.once() is not admitted:
            if time.monotonic() > deadline:
                sys.exit(f"not admitted={admitted} within {within_s:g} s: {self.said}")
            time.sleep(0.001)
        return time.monotonic()


# --- cost ------------------------------------------------------------------------------------


def cost(folder: Path, members: int, seconds: float) -> tuple[float, float]:
    """The primary's agent while it is asked once a second, with that many members to pull: its
    share of a core, and messages a second."""
    with ExitStack() as cleanup:
        shard = cleanup.enter_context(start_postgres_shard(folder, ["db-0"]))
        home = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        names = ["db-0", *(f"db-{n + 1}" for n in range(members))]
        agents = shard_agents(names, home, metrics=FIVE)
        dsn = ("postgres", shard.primary.dsn())
        agents.write_settings(dict.fromkeys(names, dsn))
        cleanup.enter_context(standing_in(agents, names[1:]))
        cleanup.callback(agents.stop)
        agents["db-0"].start()
        asking = Asking(agents["db-0"].port, "lag")
        asking.until(admitted=True, within_s=20)
        return _watched(agents["db-0"].process.pid, agents, asking, seconds)


def _watched(pid: int, agents: ShardAgents, asking: Asking, seconds: float) -> tuple[float, float]:
    before, began = cpu_s(pid), time.monotonic()
    told = _messages(agents)
    while time.monotonic() - began < seconds:
        asking.once()
        time.sleep(1)
    lasted = time.monotonic() - began
    return (cpu_s(pid) - before) / lasted, (_messages(agents) - told) / lasted


def _messages(agents: ShardAgents) -> int:
    return int(agents.shard_of("db-0")["messages_total"])


@contextmanager
def standing_in(agents: ShardAgents, names: list[str]) -> Iterator[None]:
    """Members' agents in one process: what they cost is not what is measured."""
    if not names:
        yield
        return
    for name in names:
        release_port(agents[name].port)
    ports = ",".join(f"{name}:{agents[name].port}" for name in names)
    argv = [sys.executable, "-m", "bench.members", ports]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.wait(timeout=10)


if __name__ == "__main__":
    main()
