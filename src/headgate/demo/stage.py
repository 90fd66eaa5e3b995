"""What stands while the demo runs: a shard of real servers, their agents, and two jobs.

    Stage ──look──► Frame ──► show.py (a line a moment) or screen.py (a whole terminal)

Everything lives in one temporary folder and on free loopback ports, and is gone afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from headgate.demo import postgres, servers
from headgate.demo.agents import Agent, run_agents
from headgate.demo.jobs import SCHEMA, Heard, Job, backfill, etl, primary_dsn
from headgate.demo.postgres import PostgresServer
from headgate.demo.replica import Brake, transactions

NAMES = ("db-a", "db-b", "db-c")
SHARD_DOC = "/v1/databases/main/shard"
MEASURE_S = 1.5
READY_S = 20.0
SERVER_SETTINGS = {"max_wal_size": "192MB", "checkpoint_timeout": "30s", "shared_buffers": "48MB"}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Seat:
    """One member of the shard, as its own agent sees it and what that agent may say."""

    name: str
    role: str | None = None
    lag_s: float | None = None
    why: str = ""
    """Why it has no role or lag, or what stands behind the lag."""
    standing: str = ""
    """`leading`, `following` or `unled`; empty where its agent does not answer."""
    warming_up: bool = False
    term: int | None = None

    @property
    def leads(self) -> bool:
        return self.standing == "leading" and not self.warming_up


@dataclass(frozen=True, slots=True)
class Desk:
    """One job: what it did, and what it was last told, by whom."""

    name: str
    home: str
    asks: bool
    chunks: int
    """Since the frame before."""
    refused_for_s: float | None
    heard: Heard | None
    told_by: str
    """The agent that answered it last."""


@dataclass(frozen=True, slots=True)
class Frame:
    at: float
    seats: tuple[Seat, ...]
    desks: tuple[Desk, ...]

    @property
    def lag_s(self) -> float | None:
        """Of the replica that is furthest behind; None where that is not known of all."""
        lags = [seat.lag_s for seat in self.seats if seat.role == "replica"]
        known = [lag_s for lag_s in lags if lag_s is not None]
        return max(known) if known and len(known) == len(lags) else None

    @property
    def leader(self) -> str | None:
        return next((seat.name for seat in self.seats if seat.leads), None)


@dataclass(slots=True)
class Stage:
    folder: Path
    shard: Sequence[PostgresServer]
    agents: Mapping[str, Agent]
    jobs: Sequence[Job]
    primary: PostgresServer
    """Changed by handover.py alone."""
    full_rate: float = 0.0
    """Transactions a second of the jobs when nobody holds them."""
    brake: Brake | None = None
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set when whoever is busy with the stage should hurry."""
    _chunks: dict[str, int] = field(default_factory=dict)

    @property
    def replicas(self) -> list[PostgresServer]:
        return [server for server in self.shard if server is not self.primary]

    def measure_full_rate(self) -> None:
        before, began_at = transactions(self.primary), time.monotonic()
        time.sleep(MEASURE_S)
        after = transactions(self.primary)
        self.full_rate = (after - before) / (time.monotonic() - began_at)

    def slow_down(self, replica: PostgresServer, share: float) -> None:
        """Let it replay a share of what the jobs write on this machine."""
        self.release()
        self.brake = Brake(replica, max(1.0, self.full_rate * share))

    def release(self) -> None:
        brake, self.brake = self.brake, None
        if brake is not None:
            brake.release()

    def look(self) -> Frame:
        now = time.monotonic()
        seats = tuple(_seat(agent) for agent in self.agents.values())
        tellers = _tellers(self.agents)
        return Frame(now, seats, tuple(self._desk(job, tellers, now) for job in self.jobs))

    def _desk(self, job: Job, tellers: Mapping[str, str], now: float) -> Desk:
        done = job.chunks
        before = self._chunks.get(job.name, done)
        self._chunks[job.name] = done
        since = job.refused_since
        return Desk(
            name=job.name,
            home=job.home.name,
            asks=job.asks,
            chunks=done - before,
            refused_for_s=now - since if since is not None and job.asks else None,
            heard=job.heard[-1] if job.heard and job.asks else None,
            told_by=tellers.get(job.name, ""),
        )


@contextmanager
def set_up(say: Say) -> Iterator[Stage]:
    with ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="headgate-demo-", dir=servers.scratch_parent()))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        say(f"starting Postgres below {folder}: a primary and two streaming replicas …")
        shard = postgres.start_shard(folder, NAMES, settings=SERVER_SETTINGS, durable=False)
        for server in shard:
            cleanup.callback(server.close)
        where = ", ".join(f"{server.name} on 127.0.0.1:{server.port}" for server in shard)
        say(f"… {where}: all real, all temporary")
        with psycopg.connect(shard[0].dsn(), autocommit=True) as connection:
            connection.execute(SCHEMA)
        say("starting an agent beside each …")
        agents = cleanup.enter_context(run_agents(shard, folder))
        say("… " + ", ".join(f"{agent.name}'s agent on {agent.url}" for agent in agents.values()))
        stage = Stage(folder, shard, agents, _jobs(shard, agents), shard[0])
        for job in stage.jobs:
            cleanup.callback(job.stop)
        cleanup.callback(stage.release)
        servers.wait_until(
            lambda: _speaks(agents[NAMES[0]]), what="the shard's first OK", within_s=READY_S
        )
        yield stage


def _jobs(shard: Sequence[PostgresServer], agents: Mapping[str, Agent]) -> list[Job]:
    """Each knows another agent, so that at least one of them has to be sent on."""
    dsn = primary_dsn(shard)
    return [
        Job("etl:nightly", dsn, agents["db-a"], etl),
        Job("backfill:orders", dsn, agents["db-c"], backfill),
    ]


def _speaks(agent: Agent) -> bool:
    try:
        path = "/v1/explain?app=demo&database=main&metrics=shard/lag"
        return bool(agent.get(path)["admitted"])
    except OSError:
        return False


def _seat(agent: Agent) -> Seat:
    try:
        doc = agent.get(SHARD_DOC)
    except OSError as error:
        return Seat(agent.name, why=f"its agent does not answer: {error}")
    member = next(m for m in doc["members"] if m["member"] == agent.name)
    lag = next((r for r in member["readings"] if r["metric"] == "lag"), None)
    return Seat(
        agent.name,
        member["role"],
        lag["value"] if lag and member["role"] == "replica" else None,
        _why(member, lag),
        doc["standing"],
        doc["warming_up"] is not None,
        member["term"],
    )


def _why(member: Mapping[str, Any], lag: Mapping[str, Any] | None) -> str:
    if member["role"] is None:
        return "its server does not answer"
    if lag is None or member["role"] == "primary" or lag["cause"] is None:
        return ""
    return str(lag["cause"]).replace("_", " ")


def _tellers(agents: Mapping[str, Agent]) -> dict[str, str]:
    """client → the agent that answered it last, other than by sending it on."""
    newest: dict[str, tuple[float, str]] = {}
    for agent in agents.values():
        for client in _clients(agent):
            seen = (client["last_seen_s_ago"], agent.name)
            if client["last_verdict"] != "MISDIRECTED":
                newest[client["client"]] = min(seen, newest.get(client["client"], seen))
    return {client: name for client, (_, name) in newest.items()}


def _clients(agent: Agent) -> list[dict[str, Any]]:
    try:
        return list(agent.get("/v1/clients")["clients"])
    except OSError:
        return []
