"""How soon what happened is noticed, on real servers with real agents; each has a bound.

.venv/bin/python -m bench.notice [--rounds 5]

The worst of all rounds counts, so the machine has to be idle. It exits with 1 where a bound is
broken. What is noticed at all, and what is said of it, is in tests/live.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.fixtures.agents import AgentProcess, postgres_database, reserve_port
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.shard_agents import ShardAgents, agents_for, execute, frozen
from tests.fixtures.shards import Shard, start_mariadb_shard, start_postgres_shard

from bench.report import table
from headgate.demo import servers
from headgate.demo.postgres import PostgresServer
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes

LAG = "lag: threshold='0.5s'"
BEATS = 'lag: threshold="1s", interval_s=0.1, options={method="auto"}; commit_delay: threshold="1s"'
ASLEEP = "idle_after_s = 0.5\nhibernate_after_s = 1\nheartbeat_interval_s = 0.2"
LEASED = "heartbeat_interval_s = 0.1\nheartbeat_lease_s = 1"
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headgate'"
TAKEOVER_S = 0.8
POLL_S = 0.002


class Notice(NamedTuple):
    what: str
    most_s: float
    measured_s: Callable[[], float]
    """Once: from when it happened until it was noticed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    rows = []
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        folder.chmod(0o755)
        for part in (postgres_notices, pair_notices, mariadb_notices):
            with part(folder) as notices:
                rows += [measure(notice, rounds) for notice in notices]
    print(table(("what", "median s", "worst s", "at most", "kept"), rows))
    return 0 if all(row[-1] == "yes" for row in rows) else 1


def measure(notice: Notice, rounds: int) -> tuple[str, ...]:
    taken = sorted(notice.measured_s() for _ in range(rounds))
    kept = "yes" if taken[-1] < notice.most_s else "NO"
    shown = (f"{taken[len(taken) // 2]:.3f}", f"{taken[-1]:.3f}", f"{notice.most_s:g}")
    return (notice.what, *shown, kept)


def seconds_until(is_noticed: Callable[[], Any], since: float | None = None) -> float:
    began = time.monotonic() if since is None else since
    while not is_noticed():
        if time.monotonic() - began > 60:
            sys.exit("not noticed within a minute")
        time.sleep(POLL_S)
    return time.monotonic() - began


# --- a shard of Postgres ---------------------------------------------------------------------


@contextmanager
def postgres_notices(folder: Path) -> Iterator[list[Notice]]:
    with ExitStack() as cleanup:
        shard = cleanup.enter_context(start_postgres_shard(folder))
        home = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        agents = cleanup.enter_context(agents_for(shard, home, metrics=LAG, database=ASLEEP))
        yield [
            Notice("a replica's agent freezes → its shard is rejected", 2.0, lambda: ice(agents)),
            Notice("connections to the primary are cut → OK again", 2.0,
                   lambda: cut(shard, agents)),
            Notice("a shard that hibernates is asked → OK", 2.0, lambda: wake(agents)),
            Notice("a server freezes → a probe is given up, beyond its timeout", 0.2,
                   lambda: asyncio.run(frozen_server(shard.primary))),
            Notice("a server is killed → its connection is known as lost", 0.1,
                   lambda: asyncio.run(lost(shard))),
        ]  # fmt: skip


def ice(agents: ShardAgents) -> float:
    agents.await_lead("db-a")
    with frozen(agents["db-b"]):
        return seconds_until(lambda: not agents.leads("db-a"))


def cut(shard: Shard[PostgresServer], agents: ShardAgents) -> float:
    agents.await_lead("db-a")
    for server in shard.servers:
        execute(server, CUT)
    return seconds_until(lambda: agents.leads("db-a"))


def wake(agents: ShardAgents) -> float:
    eventually(lambda: {activity(agent) for agent in agents.agents.values()} == {"hibernating"})
    return seconds_until(lambda: agents.leads("db-a"))


def activity(agent: AgentProcess) -> str:
    return str(agent.get("/v1/status").json["databases"][0]["activity"])


async def frozen_server(server: PostgresServer) -> float:
    probes = DatabaseProbes("main", Engine.POSTGRES, server.dsn())
    probe = probes.role_probe(timeout_s=60.0)
    try:
        await probe.read()
        server.pause()
        began = time.monotonic()
        try:
            async with asyncio.timeout(0.5):
                await probe.read()
        except TimeoutError:
            return time.monotonic() - began - 0.5
        sys.exit("a frozen server answered")
    finally:
        server.resume()
        await probe.close()
        await probes.close()


async def lost(shard: Shard[PostgresServer]) -> float:
    """The last replica's: the others go on."""
    server = shard.servers[-1]
    probes = DatabaseProbes("main", Engine.POSTGRES, server.dsn())
    probe = probes.role_probe(timeout_s=60.0)
    try:
        await probe.read()
        watching = asyncio.create_task(probe.lost())
        await asyncio.sleep(0.1)
        began = time.monotonic()
        os.kill(server.pid, signal.SIGKILL)
        await watching
        return time.monotonic() - began
    finally:
        await probe.close()
        await probes.close()
        server.restart()


# --- two agents for one host -----------------------------------------------------------------


@contextmanager
def pair_notices(folder: Path) -> Iterator[list[Notice]]:
    with ExitStack() as cleanup:
        shard = cleanup.enter_context(start_postgres_shard(folder, ["db-a"]))
        home = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        active, standby = (make_agent(home / name) for name in ("active", "standby"))
        cleanup.callback(active.end)
        cleanup.callback(standby.end)
        database = postgres_database(shard.primary.dsn(), "threads_running: interval_s=0.1")
        active.write_settings(database)
        stands_by = f'standby_for = "{active.url}"\ntakeover_after_s = {TAKEOVER_S}'
        standby.write_settings(database, stands_by)
        active.start()
        standby.start()
        yield [
            Notice(
                f"the active agent is killed → its standby answers (after {TAKEOVER_S} s)",
                TAKEOVER_S + 1.0,
                lambda: take_over(active, standby),
            )
        ]


def make_agent(folder: Path) -> AgentProcess:
    folder.mkdir()
    return AgentProcess(folder, reserve_port())


def take_over(active: AgentProcess, standby: AgentProcess) -> float:
    eventually(lambda: standby.check()["verdict"] == "WRONG_AGENT" and active.admitted())
    active.kill()
    try:
        return seconds_until(standby.admitted)
    finally:
        active.start()


# --- a shard of MariaDB ----------------------------------------------------------------------


@contextmanager
def mariadb_notices(folder: Path) -> Iterator[list[Notice]]:
    with ExitStack() as cleanup:
        shard = cleanup.enter_context(start_mariadb_shard(folder))
        home = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        agents = cleanup.enter_context(agents_for(shard, home, metrics=BEATS, database=LEASED))
        yield [
            Notice("a replica is asked while the heartbeat rests → lag by heartbeat", 3.0,
                   lambda: beats_again(shard, agents)),
            Notice("commits stall → read_only beside them takes", 3.0,
                   lambda: demoted(shard.primary, agents)),
        ]  # fmt: skip


def beats_again(shard: Shard[MariaDBServer], agents: ShardAgents) -> float:
    agents.await_lead("db-a")
    eventually(lambda: shard.primary.query("SELECT idle FROM headgate.heartbeat WHERE idle"))

    def is_honest() -> bool:
        [lag] = agents["db-b"].check(metrics="host/lag")["metrics"]
        return lag["state"] == "healthy" and lag["cause"] is None

    return seconds_until(is_honest)


def demoted(primary: MariaDBServer, agents: ShardAgents) -> float:
    """Semi-sync without a replica: a commit would wait for ten minutes, and read_only with it."""
    agents.await_lead("db-a")
    primary.query("SET GLOBAL rpl_semi_sync_master_timeout = 600000")
    primary.query("SET GLOBAL rpl_semi_sync_master_enabled = ON")
    try:
        eventually(lambda: agents["db-a"].metric("commit_delay")["state"] != "healthy")
        began = time.monotonic()
        primary.query("SET GLOBAL read_only = ON")
        return time.monotonic() - began
    finally:
        primary.query("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
        primary.query("SET GLOBAL read_only = OFF")


if __name__ == "__main__":
    sys.exit(main())
