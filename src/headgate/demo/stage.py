"""What runs during the demo: a shard of real servers, their agents, jobs and a crowd.

    Stage ──look──► Frame ──► show.py (a line a moment) or live.py (a whole terminal)

Everything lives in one temporary folder and on free loopback ports, and is gone afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from headgate.demo import postgres, servers, traffic
from headgate.demo.agents import SHARD, Crew, DemoAgent, DemoPlan, Tokens, run_agents
from headgate.demo.brake import TRANSACTIONS, number
from headgate.demo.jobs import (
    DASHBOARD,
    SCHEMA,
    Dashboard,
    DemoJob,
    JobAnswer,
    Rogue,
    backfill,
    etl,
    migrate,
    primary_dsn,
)
from headgate.demo.postgres import PostgresServer
from headgate.demo.traffic import (
    CRITICAL_ROLE,
    JOBS_ROLE,
    POLICY,
    ROGUE_BUDGET,
    ROGUE_ROLE,
    DemoProxy,
    Traffic,
)

# --- a replica that is too small -----------------------------------------------------------
# A replica that is too small for its primary, on any machine.
#
# Its replaying process is stopped and continued so that it follows at a set number of
# transactions a second: what too little CPU does to a replica, made repeatable. Transactions,
# not bytes: after each checkpoint the same work makes several times as much log. And not
# pg_wal_replay_pause(): that is an operator's doing, and agents rightly report it as such.

RELEASE_S = 20.0


def transactions(primary: PostgresServer) -> float:
    with psycopg.connect(primary.dsn(), autocommit=True, connect_timeout=60) as connection:
        return number(connection, TRANSACTIONS)


class Brake:
    """Holds one replica back from the moment it is made until `release`."""

    def __init__(self, replica: PostgresServer, per_s: float) -> None:
        self.replica = replica
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headgate.demo.brake", replica.dsn(), f"{per_s:.3f}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us; we let go in order
        )

    def release(self) -> None:
        """Returns when it replays as fast as it can."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(RELEASE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Whatever became of the brake, nothing of the server stays stopped.
        self.replica.resume()


# --- the stage -----------------------------------------------------------------------------


NAMES = ("db-a", "db-b", "db-c")
ETL, BACKFILL, MIGRATION, SYNC = (
    "etl:nightly",
    "backfill:orders",
    "migration:customers",
    "sync:invoices",
)
ALWAYS = frozenset({ETL, BACKFILL})
SHARD_DOC = "/v1/databases/main/shard"
FAVOR_RATIO = 0.6
MEASURE_S = 1.5
MOST_ROGUES = 8
RECENT_S = 2.0
SERVER_SETTINGS = {"max_wal_size": "192MB", "checkpoint_timeout": "30s", "shared_buffers": "48MB"}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StageMember:
    """One member of the shard, as its own agent sees it and what that agent may say."""

    name: str
    role: str | None = None
    lag_s: float | None = None
    why: str = ""
    """Why it has no role or lag, or what causes the lag."""
    standing: str = ""
    """`leading`, `following` or `unled`; empty where its agent does not answer."""
    warming_up: bool = False
    term: int | None = None

    @property
    def leads(self) -> bool:
        return self.standing == "leading" and not self.warming_up


@dataclass(frozen=True, slots=True)
class Desk:
    """One job: what it did, its last answer, and which agent gave it."""

    name: str
    home: str
    asks: bool
    chunks: int
    """Since the frame before."""
    rejected_for_s: float | None
    heard: JobAnswer | None
    told_by: str
    """The agent that answered it last."""

    @property
    def unthrottled(self) -> bool:
        return self.heard is not None and self.heard.unthrottled


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who else is in the database."""

    p95_s: float | None
    """Of the dashboard's reads in the last seconds; None where there were none."""
    critical_blocked: int
    rogues: int
    """Sessions of the rogue client; 0 while it is not there."""
    rogue_done: int
    rogue_blocked: int


@dataclass(frozen=True, slots=True)
class Frame:
    at: float
    seats: tuple[StageMember, ...]
    desks: tuple[Desk, ...]
    crowd: Crowd | None = None

    @property
    def lag_s(self) -> float | None:
        """Of the replica that is furthest behind; None where that is not known of all."""
        lags = [seat.lag_s for seat in self.seats if seat.role == "replica"]
        known = [lag_s for lag_s in lags if lag_s is not None]
        return max(known) if known and len(known) == len(lags) else None

    @property
    def leader(self) -> str | None:
        return next((seat.name for seat in self.seats if seat.leads), None)


@dataclass(frozen=True, slots=True)
class Scenery:
    """How the stage is to stand for a scene; what is not said is as on a quiet day."""

    asking: bool = True
    slow_share: float | None = None
    """Of what the jobs write, how much the last replica can replay; None: all."""
    working: frozenset[str] = ALWAYS
    favored: bool = False
    rogue: bool = False
    enforced: bool = False


@dataclass(slots=True)
class SceneFacts:
    """What scenes found out, for links to the page."""

    rejected_at: str = ""
    """When the agent rejected ETL in the flood, as the agent writes it; empty until it did."""
    export_query_id: str = ""
    """By which the server knows the rogue's statement; empty until that is known."""


@dataclass(slots=True)
class Stage:
    shard: Sequence[PostgresServer]
    crew: Crew
    jobs: list[DemoJob]
    dashboard: Dashboard
    rogue: Rogue
    traffic: Traffic
    tokens: Tokens
    primary: PostgresServer
    """Changed by handover.py alone."""
    full_rate: float = 0.0
    """Transactions a second of the jobs when nobody holds them."""
    brake: Brake | None = None
    rules: list[str] = field(default_factory=list)
    """That favor the migration, while they are set."""
    enforced: bool = False
    found: SceneFacts = field(default_factory=SceneFacts)
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set when a thread that is busy with the stage should hurry."""
    hands: threading.Lock = field(default_factory=threading.Lock)
    """Held by the scene that plays, or by a change that a key began: never both."""

    @property
    def agents(self) -> Mapping[str, DemoAgent]:
        return self.crew.agents

    @property
    def replicas(self) -> list[PostgresServer]:
        return [server for server in self.shard if server is not self.primary]

    @property
    def speaker(self) -> DemoAgent:
        """The primary's agent."""
        return self.agents[self.primary.name]

    @property
    def speaker_is_up(self) -> bool:
        return self.crew.is_up(self.primary.name)

    def sign_in_url(self, token: str) -> str:
        """Of the page of the agent that speaks for the shard now."""
        return f"{self.speaker.url}/sign-in#{token}"

    def job(self, name: str) -> DemoJob:
        return next(job for job in self.jobs if job.name == name)

    def hire(self, job: DemoJob) -> None:
        """For a scene: in the place of one that has the same name."""
        for gone in [known for known in self.jobs if known.name == job.name]:
            self.jobs.remove(gone)
            gone.stop()
        self.jobs.append(job)
        job.start()

    def stop_jobs(self) -> None:
        for job in self.jobs:
            job.stop()

    def arrange(self, wanted: Scenery) -> None:
        """Make the stage so, whatever it was before."""
        self.crew.revive()
        if not wanted.rogue:
            self.rogue.leave()
        if wanted.slow_share is not None and not self.full_rate:
            self._set_jobs(Scenery())
            self.measure_full_rate()
        if wanted.slow_share is None:
            self.release()
        elif self.brake is None:
            self.slow_down(self.replicas[-1], wanted.slow_share)
        self._favor(wanted.favored)
        self._enforce(wanted.enforced)
        self._set_jobs(wanted)
        if wanted.rogue:
            self.rogue.appear()

    def _set_jobs(self, wanted: Scenery) -> None:
        for job in self.jobs:
            job.works = job.name in wanted.working
            job.asks = wanted.asking
            job.start()

    def _favor(self, wanted: bool) -> None:
        """For the whole shard: whichever agent speaks for it keeps to it."""
        if wanted and not self.rules:
            body = {"target": "migration", "over": "all", "ratio": FAVOR_RATIO, "for": "30m"}
            body |= {"reason": "demo: it has to be through by nine", "reach": f"shard:{SHARD}"}
            made = self.speaker.change("POST", "/v1/rules/favor", body)
            self.rules = [str(rule["id"]) for rule in made["rules"]]
        elif not wanted and self.rules:
            self.speaker.change("DELETE", f"/v1/rules/{self.rules[0]}", {})
            self.rules = []

    def _enforce(self, wanted: bool) -> None:
        if wanted == self.enforced:
            return
        mode = {"mode": "enforce" if wanted else "warn"}
        for agent in self.agents.values():
            agent.change("PATCH", f"/v1/budgets/main/{ROGUE_BUDGET}", mode)
        self.enforced = wanted

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
        desks = (self._desk(job, tellers, now) for job in self.jobs if job.works)
        return Frame(now, seats, tuple(desks), self._crowd(now))

    def _crowd(self, now: float) -> Crowd:
        rogue = self.rogue
        return Crowd(
            p95_s=self.dashboard.took_s(now - RECENT_S),
            critical_blocked=self.dashboard.blocked,
            rogues=rogue.sessions if rogue.is_here else 0,
            rogue_done=rogue.done,
            rogue_blocked=rogue.blocked,
        )

    def _desk(self, job: DemoJob, tellers: Mapping[str, str], now: float) -> Desk:
        done, since = job.chunks, job.rejected_since
        before, job.chunks_shown = job.chunks_shown, done
        return Desk(
            name=job.name,
            home=job.home.name,
            asks=job.asks,
            chunks=0 if before is None else done - before,
            rejected_for_s=now - since if since is not None and job.asks else None,
            heard=job.heard[-1] if job.heard and job.asks else None,
            told_by=tellers.get(job.name, ""),
        )


@contextmanager
def set_up(say: Say, tour: str) -> Iterator[Stage]:
    """`tour`: where the page finds its guide."""
    with ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="headgate-demo-", dir=servers.scratch_parent()))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        servers.open_base(folder)
        say(f"starting Postgres below {folder}: a primary and two streaming replicas …")
        chosen = traffic.choose(folder)
        shard = _start_shard(folder, chosen, cleanup)
        where = ", ".join(f"{server.name} on 127.0.0.1:{server.port}" for server in shard)
        say(f"… {where}: all real, all temporary")
        say(f"… {chosen.words()}")
        say("starting an agent beside each …")
        policy = folder / "policy.toml"
        policy.write_text(POLICY, encoding="utf-8")
        plan = DemoPlan(Tokens.new(), tour, policy, chosen.directories(shard))
        crew = cleanup.enter_context(run_agents(shard, folder, plan))
        agents = crew.agents
        say("… " + ", ".join(f"{agent.name}'s agent on {agent.url}" for agent in agents.values()))
        servers.wait_until(lambda: _speaks(agents[NAMES[0]]), what="the shard's first OK")
        yield _stage(folder, shard, crew, chosen, plan, cleanup)


def _start_shard(folder: Path, chosen: Traffic, cleanup: ExitStack) -> list[PostgresServer]:
    settings = SERVER_SETTINGS | chosen.server_settings
    shard = postgres.start_shard(folder, NAMES, settings=settings, durable=False)
    for server in shard:
        cleanup.callback(server.close)
    if chosen.proxy_dir is not None:
        cleanup.callback(shutil.rmtree, chosen.proxy_dir, ignore_errors=True)
    with psycopg.connect(shard[0].dsn(), autocommit=True) as connection:
        connection.execute(SCHEMA)
    return shard


def _stage(
    folder: Path,
    shard: Sequence[PostgresServer],
    crew: Crew,
    chosen: Traffic,
    plan: DemoPlan,
    cleanup: ExitStack,
) -> Stage:
    cpus = os.cpu_count() or 1
    critical, by_hand = (primary_dsn(shard, role) for role in (CRITICAL_ROLE, ROGUE_ROLE))
    if chosen.proxy_dir is not None:
        proxy = DemoProxy(folder, chosen.proxy_dir, shard, crew.agents, cpus)
        cleanup.callback(proxy.stop)
        proxy.await_ready()
        by_hand = f"{proxy.dsn} user={ROGUE_ROLE}"
    home = crew.agents[NAMES[1]]
    stage = Stage(
        shard,
        crew,
        _jobs(shard, crew.agents),
        Dashboard(f"{critical} application_name={DASHBOARD}", home),
        Rogue(by_hand, min(cpus, MOST_ROGUES) + 1),
        chosen,
        plan.tokens,
        shard[0],
    )
    for stop in (stage.stop_jobs, stage.dashboard.stop, stage.rogue.leave):
        cleanup.callback(stop)
    cleanup.callback(stage.release)
    stage.dashboard.start()
    return stage


def _jobs(shard: Sequence[PostgresServer], agents: Mapping[str, DemoAgent]) -> list[DemoJob]:
    """They know different agents, so that at least one of them has to be sent on."""
    dsn = primary_dsn(shard, JOBS_ROLE)
    first, _, last = (agents[name] for name in NAMES)
    return [
        DemoJob(ETL, dsn, first, etl),
        DemoJob(BACKFILL, dsn, last, backfill),
        DemoJob(MIGRATION, dsn, first, migrate),
    ]


def _speaks(agent: DemoAgent) -> bool:
    try:
        path = "/v1/explain?app=demo&database=main&metrics=shard/lag"
        return bool(agent.get(path)["admitted"])
    except OSError:
        return False


def _seat(agent: DemoAgent) -> StageMember:
    try:
        doc = agent.get(SHARD_DOC)
    except OSError:
        return StageMember(agent.name, why="its agent does not answer")
    member = next(m for m in doc["members"] if m["member"] == agent.name)
    lag = next((r for r in member["readings"] if r["metric"] == "lag"), None)
    return StageMember(
        agent.name,
        member["role"],
        lag["value"] if lag and member["role"] == "replica" else None,
        _why(member, lag),
        doc["state"],
        doc["warming_up"] is not None,
        member["term"],
    )


def _why(member: Mapping[str, Any], lag: Mapping[str, Any] | None) -> str:
    if member["role"] is None:
        return "its server does not answer"
    if lag is None or member["role"] == "primary" or lag["cause"] is None:
        return ""
    return str(lag["cause"]).replace("_", " ")


def _tellers(agents: Mapping[str, DemoAgent]) -> dict[str, str]:
    """client → the agent that answered it last, other than by sending it on."""
    newest: dict[str, tuple[float, str]] = {}
    for agent in agents.values():
        for client in _clients(agent):
            seen = (client["last_seen_s_ago"], agent.name)
            if client["last_verdict"] != "WRONG_AGENT":
                newest[client["client"]] = min(seen, newest.get(client["client"], seen))
    return {client: name for client, (_, name) in newest.items()}


def _clients(agent: DemoAgent) -> list[dict[str, Any]]:
    try:
        return list(agent.get("/v1/clients")["clients"])
    except OSError:
        return []
