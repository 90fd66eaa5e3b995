"""One agent of a shard, whole but for its servers and the other agents, which are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.changes.reach import HERE, Reach
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demand, Demands
from headgate.check.model import Activity, Decision, Idleness
from headgate.check.sampler import Sampler
from headgate.errors import ProbeFailed
from headgate.history.recorder import Recorder
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Cause
from headgate.shard.keeper import MemberLog
from headgate.shard.members import PeerPlan, ShardPlan
from headgate.shard.model import MemberView, Pull, ShardView
from headgate.shard.rollup import AGGREGATES, Aggregate
from headgate.shard.service import Shards
from headgate.shard.topology import Leading, MemberReport, RoleSeen, Unled
from tests.builders import check, metric
from tests.changes.own_world import OwnLog
from tests.fixtures.fakes import (
    FakeAgent,
    FakeLink,
    FakeProbe,
    FakeRole,
    HandClock,
    primary,
    settle,
)
from tests.fixtures.memory_store import MemoryStore

SHARD = "commerce/-80"
OURS = "https://db-a:8087"


def url(member: str) -> str:
    return f"https://{member}:8087"


@dataclass
class Server:
    """A database of this agent."""

    role: FakeRole
    values: dict[str, float | ProbeFailed] = field(default_factory=dict)
    clock_corrections: list[tuple[float, float]] = field(default_factory=list)


class ShardWorld:
    """This agent is db-a's (or of all of `databases`); the members in `agents` are others'."""

    def __init__(
        self,
        *peers: str,
        role: RoleSeen | None = None,
        metrics: tuple[MetricSpec, ...] = (),
        databases: Mapping[str, RoleSeen] | None = None,
        idleness: Idleness | None = None,
        collect_interval_s: float = 0.25,
        discover: str | None = None,
        store: MemoryStore | None = None,
        aggregates: Mapping[str, Aggregate] = AGGREGATES,
        clock: HandClock | None = None,
        reach: Reach = HERE,
    ) -> None:
        """`reach`: what operators set at this agent without a word of its reach."""
        self.clock = clock or HandClock()
        self.reach = reach
        self.board = Board()
        self.demands = Demands(self.clock)
        self.sampler = Sampler(self.board, self.clock, self.demands)
        self.store = store or MemoryStore()
        self.metrics = metrics or (metric("lag"),)
        self.idleness = idleness or Idleness()
        self.peers = peers
        self.discover = discover
        self.collect_interval_s = collect_interval_s
        self.agents = {name: FakeAgent(self.clock, name) for name in peers}
        self.links: list[FakeLink] = []
        roles = databases or {"main": role or primary()}
        self.servers = {name: Server(FakeRole(self.clock, said)) for name, said in roles.items()}
        self.members = {name: name if databases else "db-a" for name in roles}
        self.role_probes_opened = 0
        self.log = OwnLog(self.store, self.clock)
        self.shards = Shards(
            self.board,
            self.demands,
            self.clock,
            MemberLog(self.log.make, self.log.time, self._reach_of),
            url=OURS,
            open_link=self._open_link,
            aggregates=aggregates,
        )
        self.log.attach(self.shards.keeper)
        self.sampler.watch(self.shards.note_reading)
        self.checker = Checker(
            self.board,
            Recorder(max_clients=10),
            self.demands,
            self.clock,
            lambda: 0.5,
            anonymous_may_pass=True,
        )
        self._tick: asyncio.Task[None] | None = None

    async def _reach_of(self, given: Reach | None, databases: Sequence[str]) -> Reach:
        return given or self.reach

    def _open_link(self, at: str) -> FakeLink:
        name = at.removeprefix("https://").partition(":")[0]
        agent = self.agents.setdefault(name, FakeAgent(self.clock, name))
        self.links.append(FakeLink(at, agent))
        return self.links[-1]

    # --- life ------------------------------------------------------------------------------

    async def start(self) -> ShardWorld:
        await self.store.open()
        for database, server in self.servers.items():
            self.demands.open(database, self.idleness)
            self.board.open(database, None)
            for spec in self.metrics:
                server.values[spec.name] = 0.1
                self.board.place(database, spec, at=self.clock.now().mono_s)
                self.sampler.start(database, spec, _probe(server, spec.name))
        await self.log.load()
        await self.shards.adopt(self.plans())
        self._tick = asyncio.create_task(self._ticks())
        await settle()
        return self

    def plans(self, **changed: Any) -> list[ShardPlan]:
        return [self.plan(database, **changed) for database in self.servers]

    def plan(self, database: str, **changed: Any) -> ShardPlan:
        server = self.servers[database]

        def open_role_probe() -> FakeRole:
            self.role_probes_opened += 1
            return server.role

        given: dict[str, Any] = {
            "database": database,
            "shard": SHARD,
            "member": self.members[database],
            "labels": {},
            "peers": tuple(PeerPlan(name, url(name), "main") for name in self.peers),
            "discover": self.discover,
            "collect_interval_s": self.collect_interval_s,
            "open_role_probe": open_role_probe,
            "correct_clock": lambda ahead_s, error_s: server.clock_corrections.append(
                (ahead_s, error_s)
            ),
        }
        return ShardPlan(**{**given, **changed})

    async def _ticks(self) -> None:
        while True:
            self.demands.tick(self.clock.now().mono_s)
            await self.clock.sleep(1)

    async def close(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        await self.shards.close()
        await self.sampler.close()

    async def pass_s(self, seconds: float, *asked: str, every_s: float = 0.25) -> list[Decision]:
        """Let time pass; with `asked`, a client asks for that all the while."""
        answers: list[Decision] = []
        for _ in range(round(seconds / every_s)):
            if asked:
                answers.append(self.ask(*asked))
            await self.clock.advance(every_s)
        await settle()
        return answers

    # --- asking ----------------------------------------------------------------------------

    def ask(self, *metrics: str, database: str = "main", **more: Any) -> Decision:
        return self.checker.check(
            check("etl", *(metrics or ("shard/lag",)), database=database, **more)
        )

    def look(self, *metrics: str, database: str = "main") -> Decision:
        """The same answer, and nobody is woken by it."""
        return self.checker.explain(check("etl", *(metrics or ("shard/lag",)), database=database))

    def cause(self, *metrics: str) -> Cause | None:
        failing = self.look(*metrics).failing
        return failing[0].cause if failing else None

    async def answer(self, sender: str, role: RoleSeen | None, **more: Any) -> MemberReport:
        """Another member pulls from us."""
        return await self.shards.answer(self.pull(sender, role, **more))

    def pull(self, sender: str, role: RoleSeen | None, **more: Any) -> Pull:
        given: dict[str, Any] = {
            "shard": SHARD,
            "database": "main",
            "sender": sender,
            "url": url(sender),
            "role": role and dated(role, self.clock.now().mono_s),
            "activity": Activity.AWAKE,
            "wait_s": 0.0,
        }
        return Pull(**{**given, **more})

    # --- looking ---------------------------------------------------------------------------

    @property
    def role(self) -> FakeRole:
        return self.servers["main"].role

    @property
    def demand(self) -> Demand:
        return self.demands.by_database["main"]

    def state(self) -> Activity:
        return self.demand.state

    def view(self, database: str = "main") -> ShardView:
        view = self.shards.view(database)
        assert view is not None
        return view

    def member(self, name: str) -> MemberView:
        return next(view for view in self.view().members if view.member.name == name)

    def leads(self) -> bool:
        return isinstance(self.view().standpoint, Leading)

    def unled(self) -> Cause:
        point = self.view().standpoint
        assert isinstance(point, Unled), point
        return point.absent.cause

    def pulls(self) -> int:
        return sum(len(agent.pulls) for agent in self.agents.values())


def dated(role: RoleSeen, at: float) -> RoleSeen:
    return replace(role, taken_at=at)


def _probe(server: Server, name: str) -> FakeProbe:
    def answer() -> float:
        value = server.values[name]
        if isinstance(value, ProbeFailed):
            raise value
        return value

    return FakeProbe(answer)
